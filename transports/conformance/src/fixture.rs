//! What the suite needs of a place to run: how to make addresses, servers and processes.

use std::{process::Command, time::Duration};

use farcall_core::{BindError, Site, transport::Dial};

use crate::{
    case::Case,
    hostile::{RawConnection, RawListener},
    inspect::Holdings,
    setup::Setup,
};

/// What a fixture can do. A case that needs more is ignored, with the reason.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Several threads of the test may make calls, and the clock moves by itself.
    pub threads: bool,
    /// Processes can be started and killed.
    pub processes: bool,
    /// The processes of servers run on this machine, and their numbers are those that they know.
    pub one_machine: bool,
    /// What a server holds can be counted.
    pub holdings: bool,
    /// Time is virtual: waiting costs nothing.
    pub virtual_time: bool,
    /// The fixture can make handshakes by hand, at either end.
    pub raw_handshakes: bool,
    /// A server tells its clients apart: they do not all prove the same identity.
    pub strangers: bool,
    /// Room for messages of 1 GiB, and time for them.
    pub gigabytes: bool,
}

/// One backend on one device, as the suite sees it.
pub trait Fixture: Send + Sync {
    /// A case begins, on this thread.
    fn begin(&self, case: &Case) {
        let _ = case;
    }

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// An unused address, with the options that `setup` asks for.
    fn fresh_address(&self, setup: &Setup) -> String;

    /// The endpoint at an address, or what is wrong with the address.
    fn parse(&self, address: &str) -> Result<Box<dyn Dial>, String>;

    /// A server of the suite's services at that address.
    fn serve(&self, address: &str, setup: &Setup) -> Result<Box<dyn Served>, BindError>;

    /// A server in a process of its own, where there are processes.
    fn serve_in_process(&self, address: &str, setup: &Setup) -> Result<Box<dyn Served>, BindError>;

    /// A command that runs [`process::main`](crate::process::main), where there are processes.
    fn peer(&self) -> Command;

    /// The backend's name, as the handshake says it.
    fn backend(&self) -> &str;

    /// What a case draws at random follows from this.
    fn seed(&self) -> u64 {
        1
    }

    /// Whether messages are lost or delayed at random.
    fn has_random_faults(&self) -> bool {
        false
    }

    /// A connection to the server at that address, before the handshake.
    fn raw_connection(&self, address: &str) -> Option<RawConnection> {
        let _ = address;
        None
    }

    /// A listener at that address instead of a server.
    fn raw_listener(&self, address: &str) -> Option<RawListener> {
        let _ = address;
        None
    }

    /// The site of a connection that the test's thread drives.
    fn site(&self) -> Site {
        Site::new()
    }

    /// Lets everything else proceed while the test's thread waits.
    fn turn(&self) {
        std::thread::yield_now();
    }

    /// Time that has passed, by the clock of the servers and clients.
    fn now(&self) -> Duration;
}

/// A server that runs.
pub trait Served: Send {
    /// Opens a gate from outside: no call is needed.
    fn open(&mut self, gate: u64);

    /// The server's metrics, in Prometheus text.
    fn metrics(&mut self) -> String;

    /// Begins a shutdown: accepted calls are answered, and no more are accepted.
    fn begin_shutdown(&mut self);

    /// Whether the shutdown has ended.
    fn has_ended(&mut self) -> bool;

    /// What the server holds, where that can be counted.
    fn holdings(&mut self) -> Option<Holdings>;

    /// Ends it without warning, as SIGKILL does.
    fn kill(self: Box<Self>);
}
