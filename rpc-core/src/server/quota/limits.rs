//! What a server's user asks for.

use super::bucket::Rate;
use core::time::Duration;

/// How much one client may use of a server. Everything is unlimited unless it is set.
///
/// A client is an identity, if the server [authenticates](crate::ServerBuilder::authenticate) its clients: all connections of an
/// identity share one quota, over all threads and addresses of the server. Otherwise a client is a connection. One that connects again
/// then begins with a full quota; `max_clients_per_source` in the server's address bounds how many connections it has at a time.
///
/// A client may use as much at once as its quota gives it in a second, and then as fast as the quota says. A call beyond that ends in
/// [`Overloaded(Backpressure::Quota)`](crate::Backpressure::Quota). It has not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a quota has no effect until a server builder has it"]
pub struct ClientQuota {
    calls_per_second: Option<u32>,
    cpu_per_second: Option<Duration>,
    connections: Option<usize>,
}

impl ClientQuota {
    /// Limits nothing so far.
    pub fn new() -> ClientQuota {
        ClientQuota::default()
    }

    /// Most calls per second, at least 1. Those that are refused for another reason count, and those of built-in services too.
    pub fn calls_per_second(mut self, calls: u32) -> Self {
        self.calls_per_second = Some(calls);
        self
    }

    /// Most CPU time per second, more than zero: 100 ms are a tenth of one core.
    ///
    /// It is the time for which a server thread is busy with the client's calls: decoding arguments, running a handler, polling the
    /// future of an `async` handler, encoding the result. A handler that blocks uses the time for which it blocks. What a call uses is known
    /// when it has ended, so a client can come to owe some: its calls are refused until that is paid off. Each call costs two
    /// readings of the clock more.
    ///
    /// With [work stealing](crate::ServerBuilder::work_stealing), only calls of clients with an identity are given to other threads.
    pub fn cpu_per_second(mut self, time: Duration) -> Self {
        self.cpu_per_second = Some(time);
        self
    }

    /// Most connections of one identity at each address, over all threads, at least 1. Further ones are refused. It has no effect on
    /// clients without an identity.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = Some(connections);
        self
    }

    /// What is wrong with it, if something is.
    pub(in crate::server) fn problem(&self) -> Option<&'static str> {
        if self.calls_per_second == Some(0) {
            Some("calls_per_second is 0, so that no call could run")
        } else if self.cpu_per_second == Some(Duration::ZERO) {
            Some("cpu_per_second is zero, so that no call could run")
        } else if self.connections == Some(0) {
            Some("connections is 0, so that no client could connect")
        } else {
            None
        }
    }

    pub(in crate::server) fn max_connections(&self) -> Option<usize> {
        self.connections
    }

    /// The rates of calls and of CPU time; `None` if it limits neither.
    pub(super) fn rates(&self) -> Option<Rates> {
        let calls = self.calls_per_second.map(Rate::of_calls);
        let cpu = self.cpu_per_second.map(Rate::of_time);
        (calls.is_some() || cpu.is_some()).then_some(Rates { calls, cpu })
    }
}

/// How fast an account fills.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    pub(super) calls: Option<Rate>,
    pub(super) cpu: Option<Rate>,
}
