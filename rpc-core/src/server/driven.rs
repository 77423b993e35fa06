//! A server without its threads: what is said to all of them together.

use super::control::Control;
use crate::metrics::Metrics;
use crate::transport::{Acceptor, Unpark};
use core::fmt;
use core::time::Duration;
use std::sync::Arc;

/// A server whose threads somebody else drives: see [`ServerBuilder::assemble`](super::ServerBuilder::assemble).
///
/// Dropping it takes no more clients; the threads go on with those they have.
#[must_use = "dropping it takes no more clients"]
pub struct DrivenServer {
    control: Arc<Control>,
    unparkers: Vec<Arc<dyn Unpark>>,
    acceptor: Box<dyn Acceptor>,
    metrics: Metrics,
    address: String,
}

impl DrivenServer {
    pub(super) fn new(
        control: Arc<Control>,
        unparkers: Vec<Arc<dyn Unpark>>,
        acceptor: Box<dyn Acceptor>,
        metrics: Metrics,
        address: String,
    ) -> Self {
        DrivenServer { control, unparkers, acceptor, metrics, address }
    }

    /// Where it listens: the address as it was given, with the port that the system chose if that was left to it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The counters of all threads.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Connections open now, as each thread last looked.
    pub fn connections(&self) -> usize {
        self.control.connections()
    }

    /// Takes no more clients, and tells the threads to answer what is in flight, at most for `bound`, to say goodbye and to
    /// end.
    pub fn shut_down(&mut self, bound: Duration) {
        self.acceptor.stop();
        self.control.drain(bound);
        self.unparkers.iter().for_each(|unparker| unparker.unpark());
    }

    /// Have all threads ended? A thread that was dropped has.
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
            .field("address", &self.address)
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}
