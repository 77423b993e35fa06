//! A server of a case.

use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall::RefusalReason;

use super::World;
use crate::{fixture::Served, inspect::Holdings};

/// A server of the suite's services.
pub struct Server {
    /// Where it listens, with the options that the case asked for.
    pub address: String,
    served: Mutex<Box<dyn Served>>,
}

impl Server {
    pub(super) fn new(address: &str, served: Box<dyn Served>) -> Server {
        Server { address: address.to_owned(), served: Mutex::new(served) }
    }

    fn served(&self) -> MutexGuard<'_, Box<dyn Served>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn into_served(self) -> Box<dyn Served> {
        self.served.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a gate without a call.
    pub fn open(&self, gate: u64) {
        self.served().open(gate);
    }

    /// The server's metrics, in Prometheus text.
    pub fn metrics(&self) -> String {
        self.served().metrics()
    }

    /// How often the server has refused something for that reason.
    ///
    /// # Panics
    /// The metrics do not say.
    pub fn refused(&self, reason: RefusalReason) -> u64 {
        let series = format!("farcall_server_refusals_total{{reason=\"{}\"}} ", reason.name());
        let metrics = self.metrics();
        let count = metrics.lines().find_map(|line| line.strip_prefix(&series));
        count.and_then(|count| count.parse().ok()).expect("a count of refusals")
    }

    /// What the server holds.
    ///
    /// # Panics
    /// The fixture cannot count it.
    #[track_caller]
    pub fn holdings(&self) -> Holdings {
        self.served().holdings().expect("holdings that can be counted")
    }

    /// Begins a shutdown.
    pub fn begin_shutdown(self) -> Ending {
        let mut served = self.into_served();
        served.begin_shutdown();
        Ending { served }
    }

    /// Shuts down and waits for the end. No call may be in flight.
    #[track_caller]
    pub fn shutdown(self, world: &World<'_>) {
        let mut ending = self.begin_shutdown();
        world.until("the server has ended", || ending.served.has_ended().then_some(()));
    }

    /// Ends it without warning.
    pub fn kill(self) {
        self.into_served().kill();
    }
}

/// A server that is shutting down.
pub struct Ending {
    served: Box<dyn Served>,
}

impl Ending {
    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.served.has_ended()
    }

    /// Opens a gate without a call.
    pub fn open(&mut self, gate: u64) {
        self.served.open(gate);
    }
}
