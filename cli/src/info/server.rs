//! `farcall info ADDRESS`: what a running server has refused, which connections it has, and what memory it lends.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use farcall::info::{Connections, InfoPollClient, ListedConnection, ListedLane, MOST_LISTED};
use farcall::memory::{MemoryUsage, RemoteMemory};
use farcall::{RpcError, ServiceClient};
use serde::Serialize;

use crate::credentials::Credentials;

/// Longer than a server that is there takes.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Longest text of a server that is shown, in characters.
const MOST_SHOWN: usize = 40;

/// Most services that are shown.
const MOST_SERVICES: usize = 64;

/// The name of the service by which a server lends memory.
const MEMORY_SERVICE: &str = <RemoteMemory as ServiceClient>::DESCRIPTION.name;

/// What the server says. Scripts read the names of the fields: only add fields.
#[derive(Debug, Serialize)]
struct Report<'a> {
    address: &'a str,
    /// How often it has refused a peer or a message, by reason; none if it does not say.
    refusals: Option<BTreeMap<String, u64>>,
    /// The connections that it has; none if it does not say, as servers of earlier versions.
    connections: Option<Connections>,
    /// The names of its services; none if it does not say.
    services: Option<Vec<String>>,
    /// What it has and lends; none if it lends no memory, or not to this client.
    memory: Option<MemoryUsage>,
}

pub(super) fn run(address: &str, credentials: &Credentials, json: bool) -> Result<ExitCode> {
    let client = credentials.of(InfoPollClient::connect(address))?;
    let mut client = client.timeout(TIMEOUT).dial_timeout(TIMEOUT).wait()?;
    let refusals = client.refusals().context("asking what the server has refused")?;
    let refusals = refusals.map(BTreeMap::from_iter);
    let connections = match client.connections(MOST_LISTED) {
        Err(RpcError::NoSuchMethod { .. }) => None,
        told => told.context("asking which connections the server has")?,
    };
    let services = match client.services() {
        Err(RpcError::NoSuchMethod { .. }) => None,
        told => told.context("asking which services the server has")?,
    };
    // It counts a client that asks for a service that it lacks.
    let lends = services.iter().flatten().any(|name| name == MEMORY_SERVICE);
    let memory = if lends { lent_memory(address, credentials)? } else { None };
    let mut out = io::stdout().lock();
    if json {
        let report = Report { address, refusals, connections, services, memory };
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{address}")?;
    match refusals {
        None => writeln!(out, "  does not say what it has refused")?,
        Some(refusals) => write_refusals(&mut out, &refusals)?,
    }
    match connections {
        None => writeln!(out, "  does not say which connections it has")?,
        Some(connections) => write_connections(&mut out, &connections)?,
    }
    if let Some(services) = &services {
        let names: Vec<_> = services.iter().take(MOST_SERVICES).map(|name| shown(name)).collect();
        writeln!(out, "  services           {}", names.join(", "))?;
    }
    if let Some(memory) = memory {
        write_memory(&mut out, &memory)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the server's memory service says, if it has one that this client may call.
fn lent_memory(address: &str, credentials: &Credentials) -> Result<Option<MemoryUsage>> {
    let client = credentials.of_channel(RemoteMemory::connect(address))?;
    let Ok(memory) = client.timeout(TIMEOUT).dial_timeout(TIMEOUT).wait() else { return Ok(None) };
    Ok(memory.usage().wait().ok())
}

fn write_memory(out: &mut impl Write, memory: &MemoryUsage) -> io::Result<()> {
    let MemoryUsage { regions, bytes, lends, lanes, oldest_for_micros, oldest_is_lent_to } = memory;
    let mib = bytes.div_ceil(1 << 20);
    writeln!(
        out,
        "  memory             {regions} regions of {mib} MiB, {lends} lends, {lanes} lanes"
    )?;
    let Some(micros) = oldest_for_micros else { return Ok(()) };
    let whom = oldest_is_lent_to.as_deref().map_or("everyone".into(), shown);
    writeln!(out, "    the oldest lend  for {}, to {whom}", duration(*micros))
}

fn write_refusals(out: &mut impl Write, refusals: &BTreeMap<String, u64>) -> io::Result<()> {
    let total = refusals.values().fold(0_u64, |sum, count| sum.saturating_add(*count));
    writeln!(out, "  refused so far     {total}")?;
    for (reason, count) in refusals.iter().filter(|(_, count)| **count > 0) {
        writeln!(out, "    {:<16} {count}", shown(reason))?;
    }
    Ok(())
}

fn write_connections(out: &mut impl Write, connections: &Connections) -> io::Result<()> {
    let Connections { open, listed, .. } = connections;
    let total = open.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
    writeln!(out, "  connections        {total}")?;
    for (backend, count) in open {
        writeln!(out, "    {:<16} {count}", shown(backend))?;
    }
    if listed.is_empty() {
        return Ok(());
    }
    let [connection, who, backend, since, lanes] =
        ["connection", "who", "backend", "open for", "lanes"];
    writeln!(out, "  {connection:<12} {who:<16} {backend:<12} {since:>10} {lanes:>6}  why")?;
    // A server answers with no more than it was asked for.
    for connection in listed.iter().take(MOST_LISTED as usize) {
        write_connection(out, connection)?;
    }
    match total.saturating_sub(listed.len() as u64) {
        0 => Ok(()),
        further => writeln!(out, "  ... and {further} more"),
    }
}

/// A line for each of its lanes, the one that was opened last first.
fn write_connection(out: &mut impl Write, connection: &ListedConnection) -> io::Result<()> {
    let ListedConnection { thread, number, identity, lanes_so_far, lanes } = connection;
    let name = format!("{thread}.{number}");
    let who = shown(identity.as_deref().unwrap_or("-"));
    for (index, lane) in lanes.iter().rev().enumerate() {
        let ListedLane { backend, open_for_micros, why } = lane;
        let (backend, why) = (shown(backend), shown(why));
        let since = duration(*open_for_micros);
        let of_connection = match index {
            0 => [&*name, &*who, &*lanes_so_far.to_string()].map(str::to_owned),
            _ => Default::default(),
        };
        let [name, who, so_far] = of_connection;
        writeln!(out, "  {name:<12} {who:<16} {backend:<12} {since:>10} {so_far:>6}  {why}")?;
    }
    Ok(())
}

/// A duration in its two largest units.
fn duration(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    match (seconds / 86_400, seconds / 3_600, seconds / 60) {
        (0, 0, 0) if seconds < 10 => format!("{:.1} s", micros as f64 / 1e6),
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} m {} s", seconds % 60),
        (0, hours, _) => format!("{hours} h {} m", seconds / 60 % 60),
        (days, _, _) => format!("{days} d {} h", seconds / 3_600 % 24),
    }
}

/// What a server says, printable and short: a terminal obeys other characters.
fn shown(text: &str) -> String {
    let mut rest = text.chars();
    let mut shown: String = rest.by_ref().take(MOST_SHOWN).flat_map(char::escape_debug).collect();
    if rest.next().is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(backend: &str, micros: u64, why: &str) -> ListedLane {
        let (backend, why) = (backend.to_owned(), why.to_owned());
        ListedLane { backend, open_for_micros: micros, why }
    }

    fn text(connections: &Connections) -> String {
        let mut out = Vec::new();
        write_connections(&mut out, connections).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_connection_is_a_line_and_each_further_lane_too() {
        let lanes = vec![lane("write_imm", 7_500_000, "first"), lane("rfp", 40_000, "trial")];
        let identity = Some("alice".to_owned());
        let of_alice = ListedConnection { thread: 1, number: 4, identity, lanes_so_far: 12, lanes };
        let lanes = vec![lane("datagram", 93_784_000_000, "moved")];
        let other =
            ListedConnection { thread: 0, number: 2, identity: None, lanes_so_far: 1, lanes };
        let open = vec![("datagram".to_owned(), 1), ("rfp".to_owned(), 3)];
        let listed = vec![other, of_alice];
        let told = text(&Connections { open, lanes_opened: Vec::new(), listed });
        let expected = "
  connections        4
    datagram         1
    rfp              3
  connection   who              backend        open for  lanes  why
  0.2          -                datagram        1 d 2 h      1  moved
  1.4          alice            rfp               0.0 s     12  trial
                                write_imm         7.5 s         first
  ... and 2 more
";
        assert_eq!(format!("\n{told}"), expected);
    }

    #[test]
    fn what_a_server_says_commands_no_terminal_and_has_a_bound() {
        let hostile = lane("\x1b[2J\n", u64::MAX, &"a".repeat(1 << 20));
        let identity = Some("\u{9b}0m\r".to_owned());
        let lanes = vec![hostile];
        let connection = ListedConnection {
            thread: u32::MAX,
            number: u64::MAX,
            identity,
            lanes_so_far: u64::MAX,
            lanes,
        };
        let open = vec![("\x07".to_owned(), u64::MAX), ("a".to_owned(), 1)];
        let listed = vec![connection; 2 * MOST_LISTED as usize];
        let told = text(&Connections { open, lanes_opened: Vec::new(), listed });
        assert!(told.chars().all(|it| it == '\n' || !it.is_control()), "{told:?}");
        assert!(told.lines().count() < MOST_LISTED as usize + 6);
        assert!(told.lines().all(|line| line.chars().count() < 250));
    }

    #[test]
    fn lent_memory_is_two_lines() {
        let usage = MemoryUsage {
            regions: 2,
            bytes: (3 << 20) + 1,
            lends: 7,
            lanes: 1,
            oldest_for_micros: Some(61_000_000),
            oldest_is_lent_to: Some("ali\nce".into()),
        };
        let mut out = Vec::new();
        write_memory(&mut out, &usage).unwrap();
        let expected = "
  memory             2 regions of 4 MiB, 7 lends, 1 lanes
    the oldest lend  for 1 m 1 s, to ali\\nce
";
        assert_eq!(format!("\n{}", String::from_utf8(out).unwrap()), expected);
    }

    #[test]
    fn durations_have_two_units() {
        let told = [0, 9_940_000, 59_000_000, 61_000_000, 3_660_000_000].map(duration);
        assert_eq!(told, ["0.0 s", "9.9 s", "59 s", "1 m 1 s", "1 h 1 m"]);
    }
}
