//! What writes cost at each level, on replicas of this machine.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use farcall::Server;
use farcall_replication::client::Client;
use farcall_replication::level::Level;
use farcall_replication::membership::{
    ConfigurationService, InProcess, Membership, MembershipServer,
};
use farcall_replication::store::{Command, Query};
use tempfile::TempDir;

use super::args::BenchArgs;
use super::children::Starter;

/// Long enough that a busy machine excludes nobody.
const DETECT: Duration = Duration::from_secs(2);

/// A directory that is removed at the end, on a disk rather than in memory.
pub(crate) fn scratch(on: Option<&Path>) -> Result<TempDir> {
    let on = on.unwrap_or_else(|| Path::new("/var/tmp"));
    let made = tempfile::Builder::new().prefix("farcall-replication-").tempdir_in(on);
    made.with_context(|| format!("cannot make a directory in {}", on.display()))
}

/// What is measured.
#[derive(Clone, Copy)]
enum Operation {
    Get,
    Put(Level),
}

pub(crate) fn run(args: &BenchArgs) -> Result<bool> {
    if args.clients.is_empty() || args.clients.iter().any(|count| !(1..=1024).contains(count)) {
        bail!("--clients takes numbers from 1 to 1024");
    }
    println!(
        "{:<10} {:<32} {:>8} {:>12} {:>10} {:>10}",
        "replicas", "operation", "clients", "per second", "p50 us", "p99 us"
    );
    for replicas in [1, 3] {
        group(args, replicas)?;
    }
    Ok(true)
}

/// Measures a group of so many replicas.
fn group(args: &BenchArgs, replicas: u32) -> Result<()> {
    let scratch = scratch(args.dir.as_deref())?;
    let address = format!("shm://farcall-replication-bench-{replicas}-{}", std::process::id());
    let membership = Arc::new(InProcess::default());
    let service = ConfigurationService::in_memory(InProcess::clone(&membership));
    let server =
        Server::builder().service(MembershipServer::new(service)).listen(address.as_str())?;
    let mut starter = Starter::new(&address, DETECT, Some(scratch.path()));
    let started = (0..replicas).map(|_| starter.start()).collect::<Result<Vec<_>>>()?;
    Client::new(membership.clone()).wait_for_members(replicas as usize)?;
    let operations = [
        Operation::Get,
        Operation::Put(Level::Received),
        Operation::Put(Level::Visible),
        Operation::Put(Level::ReplicatedPersistent(replicas)),
    ];
    for operation in operations {
        for clients in &args.clients {
            let took = measure(args, &membership, operation, *clients)?;
            let name = match operation {
                Operation::Get => "get".to_owned(),
                Operation::Put(level) => format!("put, {level}"),
            };
            let rate = took.len() as f64 / args.seconds.as_secs_f64();
            let micros = |quantile| percentile(&took, quantile).as_secs_f64() * 1e6;
            println!(
                "{replicas:<10} {name:<32} {clients:>8} {rate:>12.0} {:>10.1} {:>10.1}",
                micros(0.5),
                micros(0.99)
            );
        }
    }
    drop(started);
    server.shutdown();
    Ok(())
}

/// How long each operation took, in ascending order.
fn measure(
    args: &BenchArgs,
    membership: &Arc<InProcess>,
    operation: Operation,
    clients: usize,
) -> Result<Vec<Duration>> {
    let stop = AtomicBool::new(false);
    let value = Bytes::from(vec![7; args.size]);
    let one = |number: usize| -> Result<Vec<Duration>> {
        let mut client = Client::new(membership.clone() as Arc<dyn Membership>);
        let key = Bytes::from(format!("key-{number}"));
        let mut took = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            match operation {
                Operation::Get => drop(client.read(Query::Get(key.clone()))?),
                Operation::Put(level) => {
                    let command = Command::Put { key: key.clone(), value: value.clone() };
                    client.submit(command, level)?;
                }
            }
            took.push(begun.elapsed());
        }
        Ok(took)
    };
    let mut all = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..clients).map(|number| scope.spawn(move || one(number))).collect();
        std::thread::sleep(args.seconds);
        stop.store(true, Ordering::Relaxed);
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a client panicked"))?);
        joined.collect::<Result<Vec<_>>>()
    })?
    .concat();
    all.sort_unstable();
    if all.is_empty() {
        bail!("no operation ended within {:?}", args.seconds);
    }
    Ok(all)
}

/// What so many of the values, which are in ascending order, are at most.
pub(crate) fn percentile(sorted: &[Duration], quantile: f64) -> Duration {
    let at = (sorted.len() as f64 * quantile) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}
