//! Clients that write, read and check, and what they were told.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use farcall::CallError;
use farcall_replication::client::{Client, ClientError};
use farcall_replication::level::Level;
use farcall_replication::membership::{Configuration, Membership};
use farcall_replication::node::{Ack, GroupError};
use farcall_replication::replica::GroupClient;
use farcall_replication::store::{Command, Outcome, Query, Request, View};

/// Each client has so many keys of its own.
const KEYS: u64 = 8;

/// What a client does not know the end of is given up after so long.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was acknowledged.
    Ran,
    /// It was not done.
    DidNotRun,
    /// It was done or not.
    Unknown,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) at: Instant,
    pub(crate) took: Duration,
    pub(crate) end: End,
}

/// What all clients were told.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) ended: Vec<Ended>,
    /// Entries that were appended, and where.
    appended: HashMap<Bytes, u64>,
    /// Entries whose append ended otherwise, and how.
    others: HashMap<Bytes, End>,
    pub(crate) problems: Vec<String>,
}

pub(crate) type SharedTold = Arc<Mutex<Told>>;

/// Writes, reads and checks, until it is to stop. Each of its keys has one writer.
pub(crate) fn run(
    number: u64,
    membership: Arc<dyn Membership>,
    told: &SharedTold,
    stop: &AtomicBool,
) {
    let mut client = Client::new(membership).timeout(TIMEOUT);
    let level =
        if number.is_multiple_of(3) { Level::ReplicatedPersistent(2) } else { Level::Visible };
    // By key: the last that was acknowledged, and what may have been done after it.
    let mut keys: HashMap<u64, Vec<Option<Bytes>>> = HashMap::new();
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let value = Bytes::from(format!("{number}-{round}"));
        let key = round % KEYS;
        match round % 3 {
            0 => append(&mut client, value, level, told),
            1 => put(&mut client, number, key, value, level, told, keys.entry(key).or_default()),
            _ => get(&mut client, number, round / 3 % KEYS, told, &keys),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn key_name(number: u64, key: u64) -> Bytes {
    format!("client-{number}-key-{key}").into()
}

/// Notes how an operation ended. A write that is less safe than was asked for was done.
fn note<T>(told: &SharedTold, begun: Instant, result: &Result<T, ClientError>) -> End {
    let end = match result {
        Ok(_) | Err(ClientError::Weaker(_)) => End::Ran,
        Err(ClientError::DidNotRun(_)) => End::DidNotRun,
        Err(ClientError::Unknown(_)) => End::Unknown,
    };
    let ended = Ended { at: Instant::now(), took: begun.elapsed(), end };
    lock(told).ended.push(ended);
    end
}

fn lock(told: &SharedTold) -> std::sync::MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The level, or what is possible while too few replicas sync.
fn submit(
    client: &mut Client,
    command: &Command,
    level: Level,
) -> Result<Option<Outcome>, ClientError> {
    match client.submit(command.clone(), level) {
        Err(ClientError::DidNotRun(_)) if level != Level::Visible => {
            client.submit(command.clone(), Level::Visible).map(|ack| ack.outcome)
        }
        result => result.map(|ack| ack.outcome),
    }
}

fn append(client: &mut Client, entry: Bytes, level: Level, told: &SharedTold) {
    let begun = Instant::now();
    let result = submit(client, &Command::Append { entry: entry.clone() }, level);
    let end = note(told, begun, &result);
    let mut told = lock(told);
    match result {
        Ok(Some(Outcome::Appended(index))) => {
            told.appended.insert(entry, index);
        }
        Ok(other) => told.problems.push(format!("an append ended as {other:?}")),
        Err(_) => {
            told.others.insert(entry, end);
        }
    }
}

fn put(
    client: &mut Client,
    number: u64,
    key: u64,
    value: Bytes,
    level: Level,
    told: &SharedTold,
    possible: &mut Vec<Option<Bytes>>,
) {
    let begun = Instant::now();
    let command = Command::Put { key: key_name(number, key), value: value.clone() };
    let result = submit(client, &command, level);
    match note(told, begun, &result) {
        End::Ran => *possible = vec![Some(value)],
        End::DidNotRun => {}
        End::Unknown => {
            if possible.is_empty() {
                possible.push(None);
            }
            possible.push(Some(value));
        }
    }
}

fn get(
    client: &mut Client,
    number: u64,
    key: u64,
    told: &SharedTold,
    keys: &HashMap<u64, Vec<Option<Bytes>>>,
) {
    let begun = Instant::now();
    let result = client.read(Query::Get(key_name(number, key)));
    note(told, begun, &result);
    let Ok(View::Value(value)) = result else { return };
    let none = vec![None];
    let possible = keys.get(&key).filter(|possible| !possible.is_empty()).unwrap_or(&none);
    if !possible.contains(&value) {
        let problem =
            format!("client {number} read {value:?} of key {key}, and expected {possible:?}");
        lock(told).problems.push(problem);
    }
}

/// How a write ended that was sent to a primary that was stopped.
pub(crate) struct LateEnd {
    pub(crate) is_acknowledged: bool,
    what: String,
}

impl std::fmt::Display for LateEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

/// Writes to the primary of an old configuration, once, with a call that waits long enough for it to go on.
pub(crate) fn write_late(old: &Configuration) -> LateEnd {
    let sent = || -> anyhow::Result<Result<Ack, CallError<GroupError>>> {
        let primary = old.member(old.primary).context("the configuration has no primary")?;
        let connecting = GroupClient::connect(primary.address.as_str());
        let group = connecting.timeout(TIMEOUT).dial_timeout(TIMEOUT).wait()?;
        let command = Command::Put { key: "late".into(), value: "late".into() };
        let request = Request { client: rand::random(), sequence: 1, command };
        Ok(group.submit(request, Level::Visible).wait())
    };
    match sent() {
        Ok(Ok(ack)) => LateEnd { is_acknowledged: true, what: format!("ACKNOWLEDGED: {ack:?}") },
        Ok(Err(error)) => LateEnd { is_acknowledged: false, what: error.to_string() },
        Err(error) => LateEnd { is_acknowledged: false, what: format!("not sent: {error}") },
    }
}

/// Compares what was told with the entries that are there. Gives how many there are, and how many nobody had acknowledged.
pub(crate) fn check(client: &mut Client, told: &SharedTold) -> Result<(usize, usize), ClientError> {
    let mut entries = Vec::new();
    loop {
        let View::Entries(_, more) = client.read(Query::Entries(entries.len() as u64, 10_000))?
        else {
            break;
        };
        if more.is_empty() {
            break;
        }
        entries.extend(more);
    }
    let mut told = lock(told);
    let mut problems = Vec::new();
    let mut places: HashMap<&Bytes, u64> = HashMap::new();
    for (index, entry) in (0..).zip(&entries) {
        if places.insert(entry, index).is_some() {
            problems.push(format!("{entry:?} was applied twice"));
        }
        if told.others.get(entry) == Some(&End::DidNotRun) {
            problems.push(format!("{entry:?} is there, and its client was told that not"));
        }
        if !told.appended.contains_key(entry) && !told.others.contains_key(entry) {
            problems.push(format!("{entry:?} was appended by nobody"));
        }
    }
    for (entry, index) in &told.appended {
        if places.get(entry) != Some(index) {
            problems.push(format!(
                "{entry:?} was acknowledged at {index}, and is at {:?}",
                places.get(entry)
            ));
        }
    }
    let extra = entries.len().saturating_sub(told.appended.len());
    told.problems.extend(problems);
    Ok((entries.len(), extra))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_replication::membership::InProcess;
    use farcall_replication::replica::Replica;

    #[test]
    fn what_is_lost_moved_twice_there_or_a_strangers_is_a_problem() {
        let membership = Arc::new(InProcess::default());
        let address = format!("shm://replication-workload-{}", std::process::id());
        let replica = Replica::builder(membership.clone()).listen(&address).unwrap();
        let mut client = Client::new(membership.clone());
        client.wait_for_members(1).unwrap();
        let told = SharedTold::default();
        for entry in ["a", "b"] {
            append(&mut client, entry.into(), Level::Visible, &told);
        }
        assert_eq!(check(&mut client, &told).unwrap(), (2, 0));
        assert_eq!(lock(&told).problems, Vec::<String>::new());

        let mut problem = |alter: &dyn Fn(&mut Told), expected: &str| {
            alter(&mut lock(&told));
            check(&mut client, &told).unwrap();
            let problems = std::mem::take(&mut lock(&told).problems);
            assert!(problems.iter().any(|it| it.contains(expected)), "{expected}: {problems:?}");
        };
        problem(
            &|told| {
                let _ = told.appended.insert("lost".into(), 7);
            },
            "was acknowledged at 7",
        );
        problem(
            &|told| {
                let _ = told.appended.insert("a".into(), 1);
            },
            "acknowledged at 1, and is at",
        );
        problem(
            &|told| {
                let _ = told.appended.remove("b".as_bytes());
            },
            "appended by nobody",
        );
        problem(
            &|told| {
                let _ = told.others.insert("b".into(), End::DidNotRun);
            },
            "was told that not",
        );
        // Another client, so that the store does not know it.
        let mut other = Client::new(membership);
        other.submit(Command::Append { entry: "a".into() }, Level::Visible).unwrap();
        problem(&|_| (), "applied twice");
        drop(replica);
    }
}
