//! A server without its threads: what concerns all of them together.

use super::control::Control;
use crate::metrics::Metrics;
use crate::site::Site;
use crate::transport::Acceptor;
use core::fmt;
use core::time::Duration;
use std::sync::Arc;

/// A server whose threads the caller drives: see [`ServerBuilder::assemble`](super::ServerBuilder::assemble).
///
/// Dropping it stops accepting clients; the threads go on with those they have.
#[must_use = "dropping it stops accepting clients"]
pub struct DrivenServer {
    control: Arc<Control>,
    sites: Vec<Site>,
    listeners: Listeners,
    metrics: Metrics,
}

/// Where a server listens: its acceptors, and their addresses.
pub(super) struct Listeners {
    pub(super) acceptors: Vec<Box<dyn Acceptor>>,
    pub(super) addresses: Vec<String>,
}

impl DrivenServer {
    pub(super) fn new(
        control: Arc<Control>,
        sites: Vec<Site>,
        listeners: Listeners,
        metrics: Metrics,
    ) -> Self {
        DrivenServer { control, sites, listeners, metrics }
    }

    /// The first address of the server: as it was given, with the port that the system chose if that was left open.
    pub fn address(&self) -> &str {
        self.listeners.addresses.first().map_or("", String::as_str)
    }

    /// All addresses of the server, in the order in which they were given.
    pub fn addresses(&self) -> &[String] {
        &self.listeners.addresses
    }

    /// The counters of all threads.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Open connections, as each thread counted them last.
    pub fn connections(&self) -> usize {
        self.control.connections()
    }

    /// Stops accepting clients, and tells the threads to answer the calls in flight, at most for `bound`, to say goodbye
    /// and to end. Does not wait for them.
    pub fn shut_down(&mut self, bound: Duration) {
        self.listeners.acceptors.iter_mut().for_each(|acceptor| acceptor.stop());
        self.control.drain(bound);
        self.sites.iter().for_each(Site::wake);
    }

    /// This is a forked child: what listens goes on in its parent, which has the threads.
    #[cold]
    pub(super) fn leave_to_parent(&mut self) {
        core::mem::forget(core::mem::take(&mut self.listeners.acceptors));
    }

    /// All threads have ended, or were dropped.
    pub fn is_down(&self) -> bool {
        self.control.threads() == 0
    }

    /// Calls whose handlers were dropped at the bound of a shutdown.
    pub fn aborted_calls(&self) -> u64 {
        self.control.aborted()
    }
}

impl fmt::Debug for DrivenServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DrivenServer")
            .field("addresses", &self.listeners.addresses)
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}
