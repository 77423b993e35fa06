//! Riding out an outage of the server: redialling until it is back, and finding out whether it kept its
//! data.
//!
//! The store is in memory, so a restarted server has lost everything, including acknowledged writes. A
//! mark that the run leaves in the store distinguishes the cases. If it is still there, everything
//! acknowledged has to be there too, and the model continues. If not, the run starts over with a new
//! model.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use farcall::{CallError, RpcError};
use farcall_kv::limits::KvError;
use farcall_kv::link::{LinkError, PollLink};
use farcall_kv::ycsb::client::RunError;

use super::args::ServerArgs;
use super::{connect, connect_poll};

/// The key of the mark, which is not a key of a record.
const MARK: &[u8] = b"farcall-kv ycsb run";

/// The pause between two attempts to dial.
const PAUSE: Duration = Duration::from_millis(100);

/// The state of the store after an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// The store kept its data.
    Same,
    /// The store is new: it has no data of this run.
    New,
}

/// Puts the run's mark into the store.
pub(crate) fn mark(server: &ServerArgs, run: u64) -> Result<()> {
    connect(&server.address, server.timeout)?.put(MARK, &run.to_le_bytes()).wait()?;
    Ok(())
}

/// Whether an outage of the server explains this error, so that another attempt can help.
pub(crate) fn explains(why: &RunError) -> bool {
    match why {
        RunError::Link { source, .. } => is_absence(source),
        RunError::NoAnswer { .. } => true,
        _ => false,
    }
}

fn is_absence(why: &LinkError) -> bool {
    let rpc = match why.downcast_ref::<CallError<KvError>>() {
        Some(why) => why.rpc(),
        None => why.downcast_ref::<RpcError>(),
    };
    matches!(rpc, Some(RpcError::PeerGone { .. } | RpcError::DeadlineExceeded { .. }))
}

/// A server that is back: connections to it, and the state of its store.
pub(crate) struct Back {
    pub(crate) links: Vec<PollLink>,
    pub(crate) store: Store,
    pub(crate) after: Duration,
}

/// Dials until the server answers, for at most `limit`. Returns this many connections.
pub(crate) fn ride_out(
    server: &ServerArgs,
    run: u64,
    links: usize,
    limit: Duration,
) -> Result<Back> {
    let begun = Instant::now();
    eprintln!(
        "{:>12}  the server is gone; dialling it for up to {} s",
        "outage",
        limit.as_secs_f32()
    );
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        match attempt(server, run, links, left.min(server.timeout)) {
            Ok((links, store)) => {
                let after = begun.elapsed();
                let what = match store {
                    Store::Same => "with all that it had",
                    Store::New => "and empty: the records are loaded again",
                };
                eprintln!(
                    "{:>12}  the server is back after {:.1} s, {what}",
                    "outage",
                    after.as_secs_f32()
                );
                return Ok(Back { links, store, after });
            }
            Err(why) if begun.elapsed() >= limit => {
                bail!("the server was not back within {} s: {why:#}", limit.as_secs_f32())
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

fn attempt(
    server: &ServerArgs,
    run: u64,
    links: usize,
    timeout: Duration,
) -> Result<(Vec<PollLink>, Store)> {
    // No attempt is too short to succeed.
    let timeout = timeout.max(PAUSE);
    let found = connect(&server.address, timeout)?.get(MARK).wait()?;
    let same = found.is_some_and(|found| *found == run.to_le_bytes());
    let store = if same { Store::Same } else { Store::New };
    // Calls on these have the full timeout.
    let connect = |_| connect_poll(&server.address, server.timeout);
    Ok(((0..links).map(connect).collect::<Result<_>>()?, store))
}
