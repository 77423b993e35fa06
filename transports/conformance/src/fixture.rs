//! What the suite asks of whoever runs it: how to make addresses, servers and processes.

use std::{process::Command, time::Duration};

use farcall_core::{BindError, transport::Dial};

use crate::{
    hostile::{Ambush, BreakIn},
    inspect::Holdings,
    runner::Case,
    setup::Setup,
};

/// What the place where the suite runs can do. A case that needs more is skipped, and says so.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Threads of the test may call at the same time, and time passes by itself.
    pub threads: bool,
    /// Processes can be started and killed.
    pub processes: bool,
    /// The processes of servers run on this machine.
    pub one_machine: bool,
    /// [`break_in`](Fixture::break_in) and [`ambush`](Fixture::ambush) know a way.
    pub intruders: bool,
    /// Room for messages of 1 GiB, and time for them.
    pub gigabytes: bool,
}

/// One backend on one device, as the suite sees it.
pub trait Fixture: Send + Sync {
    /// A case begins, on this thread.
    fn begin(&self, case: &Case) {
        let _ = case;
    }

    /// What the place can do.
    fn capabilities(&self) -> Capabilities;

    /// An address that nobody else uses, with the options that `setup` asks for.
    fn fresh_address(&self, setup: &Setup) -> String;

    /// What an address means; or what is wrong with it.
    fn parse(&self, address: &str) -> Result<Box<dyn Dial>, String>;

    /// A server of the suite's services at that address.
    fn serve(&self, address: &str, setup: &Setup) -> Result<Box<dyn Served>, BindError>;

    /// A server in a process of its own, where there are processes.
    fn serve_in_process(&self, address: &str, setup: &Setup) -> Result<Box<dyn Served>, BindError>;

    /// A command that runs [`process::main`](crate::process::main), where there are processes.
    fn peer(&self) -> Command;

    /// The backend's name, as the handshake says it.
    fn backend(&self) -> &str;

    /// A way to that server past the client, where the suite knows one.
    fn break_in(&self, address: &str) -> Option<BreakIn> {
        let _ = address;
        None
    }

    /// A false server at that address, where the suite knows how to make one.
    fn ambush(&self, address: &str) -> Option<Ambush> {
        let _ = address;
        None
    }

    /// Lets everything else go on: the test's thread has nothing to do for the moment.
    fn turn(&self) {
        std::thread::yield_now();
    }

    /// Time that has passed, in the world of the servers and clients.
    fn now(&self) -> Duration;
}

/// A server that runs.
pub trait Served: Send {
    /// Opens a gate from outside: no call is needed.
    fn open(&mut self, gate: u64);

    /// The server's metrics, in Prometheus text.
    fn metrics(&mut self) -> String;

    /// Begins to end: what was taken is answered, nothing more is taken.
    fn begin_shutdown(&mut self);

    /// Has the shutdown that was begun ended?
    fn has_ended(&mut self) -> bool;

    /// What the server's process holds, if that process is the server's alone.
    fn holdings(&mut self) -> Option<Holdings>;

    /// Ends it with no warning, as SIGKILL does.
    fn kill(self: Box<Self>);
}
