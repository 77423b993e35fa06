//! The sockets of handshakes: Unix sockets of `shm://` addresses, TCP sockets of `rdma://` and `tcp://` addresses. They know nothing of
//! handshakes.

pub(crate) mod resolve;
pub(crate) mod tcp;
pub(crate) mod unix;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::contract::Source;

/// A connected socket.
pub(crate) trait Socket: Read + Write + AsFd + Send {
    /// Bounds the next reads.
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()>;

    /// Bounds the next writes.
    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()>;

    /// Refuses a peer that must not take part, saying why.
    fn check_peer(&self) -> Result<(), String>;

    /// Where the peer is.
    fn source(&self) -> Source;

    /// Prepares it to be the liveness socket: from now on the system notices that the peer's process has died, or that
    /// its machine has been silent for that long.
    fn watch_liveness(&self, silence: Duration) -> io::Result<Liveness>;

    /// Its descriptor.
    fn into_fd(self: Box<Self>) -> OwnedFd;
}

/// Whether a connection needs its liveness socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// Nothing else tells of a machine that dies.
    Needed,
    /// Both ends are on one machine: only a backend whose death notices come by the liveness socket needs it.
    IfDeviceIsSilent,
}

/// A listening socket that never blocks.
pub(crate) trait Listener: AsFd + Send {
    /// The next client.
    fn accept(&self) -> io::Result<Box<dyn Socket>>;
}
