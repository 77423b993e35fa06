//! Commands that call a group.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Result, bail};
use farcall_replication::client::status_of;
use farcall_replication::node::{Ack, Status};
use farcall_replication::replica::recover;
use farcall_replication::store::{Command, Outcome, Query, View};

use super::args::{AppendArgs, GetArgs, GroupArgs, InspectArgs, PutArgs, TailArgs};

/// How long `status` waits for one replica.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) fn put(args: &PutArgs) -> Result<bool> {
    let (key, value) = (args.key.clone().into(), args.value.clone().into());
    let ack = args.group.client().submit(Command::Put { key, value }, args.level.level())?;
    print_ack(&ack)
}

pub(crate) fn append(args: &AppendArgs) -> Result<bool> {
    let command = Command::Append { entry: args.entry.clone().into() };
    let ack = args.group.client().submit(command, args.level.level())?;
    if let Some(Outcome::Appended(index)) = &ack.outcome {
        print!("{index}\t");
    }
    print_ack(&ack)
}

fn print_ack(ack: &Ack) -> Result<bool> {
    writeln!(io::stdout(), "lsn {}, epoch {}, {}", ack.lsn.0, ack.epoch.0, ack.reached)?;
    Ok(true)
}

pub(crate) fn get(args: &GetArgs) -> Result<bool> {
    match args.group.client().read(Query::Get(args.key.clone().into()))? {
        View::Value(Some(value)) => {
            io::stdout().write_all(&value)?;
            Ok(true)
        }
        _ => bail!("the key {:?} has no value", args.key),
    }
}

pub(crate) fn tail(args: &TailArgs) -> Result<bool> {
    let mut client = args.group.client();
    let mut from = args.from;
    let mut out = io::stdout().lock();
    loop {
        let View::Entries(first, entries) = client.read(Query::Entries(from, 1000))? else {
            bail!("the group answered another query");
        };
        if entries.is_empty() {
            return Ok(true);
        }
        for (index, entry) in (first..).zip(&entries) {
            writeln!(out, "{index}\t{}", String::from_utf8_lossy(entry))?;
        }
        from = first + entries.len() as u64;
    }
}

/// Shows how far a directory is: a group begins again with the one that has the last epoch, and of those the longest log.
pub(crate) fn inspect(args: &InspectArgs) -> Result<bool> {
    let Some(recovered) = recover(&args.dir)? else {
        bail!("{} has no replica's log", args.dir.display());
    };
    let (epoch, lsn) = recovered.rank();
    writeln!(io::stdout(), "epoch {}, log to {}", epoch.0, lsn.0)?;
    Ok(true)
}

/// Shows each member, as it says itself, and what the primary knows of it.
pub(crate) fn status(args: &GroupArgs) -> Result<bool> {
    let newest = args.membership().current()?;
    if newest.members.is_empty() {
        bail!("there is no group yet at {}", args.membership);
    }
    let mut out = io::stdout().lock();
    writeln!(out, "epoch {}, membership {}", newest.epoch.0, args.membership)?;
    let statuses: Vec<_> = newest
        .members
        .iter()
        .map(|member| (member, status_of(&member.address, STATUS_TIMEOUT).ok().flatten()))
        .collect();
    let of_primary = statuses.iter().find(|(member, _)| member.id == newest.primary);
    let of_primary = of_primary.and_then(|(_, status)| status.as_ref());
    let mut all_answer = true;
    for (member, status) in &statuses {
        let Some(status) = status else {
            writeln!(out, "{}  {}  does not answer", member.id, member.address)?;
            all_answer = false;
            continue;
        };
        writeln!(out, "{}  {}  {}", member.id, member.address, describe(status, of_primary))?;
    }
    Ok(all_answer)
}

fn describe(status: &Status, primary: Option<&Status>) -> String {
    let Status { role, epoch, end, commit, synced, .. } = status;
    let lag = primary.map_or(0, |primary| primary.end.0.saturating_sub(end.0));
    let synced = synced.map_or("no disk".to_owned(), |synced| format!("synced to {}", synced.0));
    format!(
        "{role:?}, epoch {}, log to {}, committed to {}, {synced}, lag {lag}",
        epoch.0, end.0, commit.0
    )
}
