//! Streams for handshakes by hand, to a server and from a client.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::{fd::AsFd, unix::net::UnixStream},
    time::{Duration, Instant},
};

use farcall_verbs::Device;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The stream of a handshake. Reads are bounded in time.
pub trait Stream: Read + Write + Send {
    /// Whether the other end has closed it or written something.
    fn is_readable(&self) -> bool;

    /// Writes no more, if the stream can do that alone.
    fn close_half(&self);
}

/// Whether there is something to read, or an end.
pub(crate) fn poll_in(socket: &impl AsFd) -> bool {
    let mut events = [PollFd::new(socket, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut events, Some(&at_once)).is_ok_and(|found| found > 0)
}

impl Stream for UnixStream {
    fn is_readable(&self) -> bool {
        poll_in(self)
    }

    fn close_half(&self) {
        // Fails only if the other end has closed all of it.
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Stream for TcpStream {
    fn is_readable(&self) -> bool {
        poll_in(self)
    }

    fn close_half(&self) {
        // Fails only if the other end has closed all of it.
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// How a hostile peer waits.
pub trait Clock: Send {
    /// Lets everything else proceed.
    fn turn(&self);

    /// Time that has passed.
    fn now(&self) -> Duration;
}

/// The system's clock, since a moment.
pub struct RealClock(pub Instant);

impl Clock for RealClock {
    fn turn(&self) {
        std::thread::yield_now();
    }

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A connection to a server, before the handshake.
pub struct RawConnection {
    /// The device that both ends use; one that neither uses, if the backend needs none.
    pub device: Device,
    /// Connected to the server.
    pub stream: Box<dyn Stream>,
    /// Whether the server keeps the stream open as long as the connection.
    pub is_liveness_socket: bool,
    /// How to wait.
    pub clock: Box<dyn Clock>,
}

/// What clients of an address connect to, instead of a server.
pub struct RawListener {
    /// The device that both ends use; one that neither uses, if the backend needs none.
    pub device: Device,
    /// Gives the next client's stream; bounded in time.
    pub accept: Box<dyn FnMut() -> io::Result<Box<dyn Stream>> + Send>,
}
