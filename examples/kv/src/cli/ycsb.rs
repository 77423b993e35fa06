//! `ycsb`: a core workload against a running server.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use farcall_kv::ycsb::client::{Client, ClientConfig};
use farcall_kv::ycsb::latency::{Latencies, human_rate};
use farcall_kv::ycsb::records::{Fields, KEY_PREFIX, Records};
use farcall_kv::ycsb::workload::Operation;

use super::args::YcsbArgs;
use super::pages::Pages;
use super::phase::{self, Extent};
use super::{connect_poll, exit, idle};

/// How long a run is where neither time nor operations are given.
const SECONDS: Duration = Duration::from_secs(10);

/// How long so many operations may take where no time is given.
const A_DAY: Duration = Duration::from_secs(86_400);

/// Loads the records, runs the workload, reads everything again, prints a table.
pub(crate) fn run(args: &YcsbArgs) -> Result<ExitCode> {
    let fields = Fields {
        count: args.fields,
        length: args.field_length,
        distribution: args.field_length_distribution,
    };
    let records = Records::generated(rand::random(), args.records, fields);
    let earlier = holds_records(args)?;
    if earlier {
        eprintln!("{:>12}  the store has records of an earlier run; they are overwritten", "note");
    }
    let mut clients = Vec::new();
    let mut window = args.window;
    for me in 1..=args.clients {
        let mut link = connect_poll(&args.server.address, args.server.timeout)?;
        window = window.min(link.window());
        let config = ClientConfig {
            workload: args.workload,
            me,
            clients: args.clients,
            window: window as usize,
            spins_before_yield: idle::spins_before_yield(args.clients + 1),
            patience: args.server.timeout,
            inserts_are_new: !earlier,
            seed: args.seed,
        };
        clients.push(Client::new(link, records.clone(), config));
    }

    if window < args.window {
        eprintln!(
            "{:>12}  {window} in flight, the connection's window; ?window= in both ends' addresses widens it",
            "note"
        );
    }

    let load_time = phase::run(
        "load",
        Extent::Operations(args.records),
        &mut clients,
        |client, _, counters| client.load(counters),
    )?;
    let (extent, time) = match (args.operations, args.seconds) {
        (Some(total), time) => (Extent::Operations(total), time.unwrap_or(A_DAY)),
        (None, time) => {
            let time = time.unwrap_or(SECONDS);
            (Extent::Time(time), time)
        }
    };
    let until = Instant::now() + time;
    let work_time = phase::run("run", extent, &mut clients, |client, index, counters| {
        let share = args.operations.map_or(u64::MAX, |total| {
            // The first clients take one more where the total does not divide.
            let clients = u64::from(args.clients);
            total / clients + u64::from(index < total % clients)
        });
        client.work(until, share, counters)
    })?;
    phase::run("audit", Extent::Unknown, &mut clients, |client, _, counters| {
        client.audit(counters)
    })?;

    let mut latencies = Latencies::default();
    let (mut checked, mut wrong) = (0, 0);
    for found in clients.iter().map(Client::findings) {
        latencies.add(&found.latencies);
        checked += found.checked;
        wrong += found.wrong;
        found.told.iter().for_each(|told| eprintln!("wrong: {told}"));
    }
    let table = latencies.table(|operation| match operation {
        Operation::Load => load_time,
        _ => work_time,
    });
    println!("{table}\n");
    println!(
        "{} answers checked, {wrong} wrong. YCSB {:?}, {} records, {} clients, {} in flight each, {:.1} s.",
        human_rate(checked as f64),
        args.workload,
        args.records,
        args.clients,
        window,
        work_time.as_secs_f64(),
    );
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { exit::WRONG_ANSWER.into() })
}

/// Whether the store has records of an earlier run.
fn holds_records(args: &YcsbArgs) -> Result<bool> {
    let mut pages = Pages::connect(&args.server.address, args.server.timeout)?
        .starting(KEY_PREFIX.as_bytes().to_vec());
    let first = pages.next()?;
    Ok(first.is_some_and(|page| page[0].0.starts_with(KEY_PREFIX.as_bytes())))
}
