//! Riding out an outage of the server: dialling until it is back, and finding out whether it still has what it had.
//!
//! The store is in memory: a server that was started again has nothing, and nothing of what it had acknowledged can be
//! asked for. A mark that the run leaves in the store tells the two apart. Where it is still there, everything that was
//! acknowledged has to be there too, and the model goes on; where it is not, all begins again, with a new model.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use farcall::{CallError, RpcError};
use farcall_kv::limits::KvError;
use farcall_kv::link::{LinkError, PollLink};
use farcall_kv::ycsb::client::RunError;

use super::args::ServerArgs;
use super::{connect, connect_poll};

/// The key of the mark; none of the records'.
const MARK: &[u8] = b"farcall-kv ycsb run";

/// Between two attempts to dial.
const PAUSE: Duration = Duration::from_millis(100);

/// What the store is after an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// The same as before.
    Same,
    /// Another: this run has left nothing there.
    New,
}

/// Leaves the run's mark in the store.
pub(crate) fn mark(server: &ServerArgs, run: u64) -> Result<()> {
    connect(&server.address, server.timeout)?.put(MARK, &run.to_le_bytes()).wait()?;
    Ok(())
}

/// Whether the server's absence explains this, so that another attempt can help.
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

/// A server that is back: connections, and what its store is.
pub(crate) struct Back {
    pub(crate) links: Vec<PollLink>,
    pub(crate) store: Store,
    pub(crate) after: Duration,
}

/// Dials until the server answers, at most for `patience`; makes so many connections.
pub(crate) fn ride_out(
    server: &ServerArgs,
    run: u64,
    links: usize,
    patience: Duration,
) -> Result<Back> {
    let begun = Instant::now();
    eprintln!(
        "{:>12}  the server is gone; dialling it for up to {} s",
        "outage",
        patience.as_secs_f32()
    );
    loop {
        let left = patience.saturating_sub(begun.elapsed());
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
            Err(why) if begun.elapsed() >= patience => {
                bail!("the server was not back within {} s: {why:#}", patience.as_secs_f32())
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
    // Calls over these have as much time as ever.
    let connect = |_| connect_poll(&server.address, server.timeout);
    Ok(((0..links).map(connect).collect::<Result<_>>()?, store))
}
