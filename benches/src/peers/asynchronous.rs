//! Async clients on a tokio runtime of the calling thread.

use std::io;
use std::time::Duration;

use anyhow::Result;
use tokio::runtime::{self, Runtime};

use super::Peer;
use super::calling::Caller;
use super::child::Process;
use crate::echo::load::Totals;

/// Makes one call.
pub(super) trait Echo {
    /// What comes back.
    type Output: AsRef<[u8]>;

    /// Sends the caller's data.
    async fn echo(&self) -> Result<Self::Output>;
}

/// A client, and the process of its server.
pub(super) struct AsyncPeer<E> {
    // Dropped in this order: connections end before what drives them.
    pub(super) client: E,
    pub(super) runtime: Runtime,
    pub(super) caller: Caller,
    pub(super) server: Process,
}

impl<E: Echo> Peer for AsyncPeer<E> {
    fn turn(&mut self, time: Duration, totals: &mut Totals) -> Result<()> {
        let Self { client, runtime, caller, .. } = self;
        runtime.block_on(caller.turn(time, totals, async || client.echo().await))
    }

    fn call_after(&mut self, silence: Duration) -> Result<u64> {
        let Self { client, runtime, caller, .. } = self;
        caller.call_after(silence, || runtime.block_on(client.echo()))
    }

    fn stop(self: Box<Self>) -> Result<()> {
        let Self { client, runtime, server, .. } = *self;
        drop((client, runtime));
        server.stop()
    }
}

/// A runtime of one thread, as at both ends of each async peer.
pub(super) fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

/// A runtime that tasks can move in, from one thread to the other.
pub(super) fn runtime_of_threads() -> io::Result<Runtime> {
    runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}
