//! The sockets of `rdma://` and `tcp://` addresses: TCP.
//!
//! There are no credentials: whoever can reach the port can call.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::resolve::{self, ResolveError};
use super::{Listener, Liveness, Socket};
use crate::address::NetworkPlace;
use crate::contract::{Source, deadline_in};

/// Questions after which an idle machine that answers none is gone, after as long a silence. A cable may be out for a
/// moment.
const PROBES: u32 = 4;

/// How often it is asked at most: the system counts in seconds, and a few bytes a second are little.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);

/// How often an idle machine is asked whether it is still there, and after how many unanswered questions it is gone.
fn probes(silence: Duration) -> (Duration, u32) {
    let interval = Duration::from_secs((silence / (PROBES + 1)).as_secs()).max(LEAST_INTERVAL);
    let intervals = silence.as_millis().div_ceil(interval.as_millis()) as u32;
    (interval, intervals.saturating_sub(1).max(1))
}

/// Why there is no socket.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The host has no address.
    Resolve(ResolveError),
    /// The time is over.
    TimedOut,
    /// The system refused.
    Io(io::Error),
}

/// Connects to the first of the host's addresses that answers, before the deadline.
pub(crate) fn connect(place: &NetworkPlace, deadline: Instant) -> Result<TcpStream, Failed> {
    let targets = resolve::resolve(&place.host, place.port, deadline).map_err(Failed::Resolve)?;
    let mut last = Failed::TimedOut;
    for (tried, target) in (0..).zip(&targets) {
        // An address that does not answer leaves time for the others.
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / (targets.len() as u32 - tried);
        if share.is_zero() {
            return Err(Failed::TimedOut);
        }
        match TcpStream::connect_timeout(target, share) {
            Ok(stream) => return prepared(stream).map_err(Failed::Io),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => last = Failed::TimedOut,
            Err(error) => last = Failed::Io(error),
        }
    }
    Err(last)
}

/// Clients that wait to be accepted. One that finds no room tries again after a second.
const BACKLOG: i32 = 4096;

/// Listens at the first of the host's addresses that this machine has.
pub(crate) fn listen(place: &NetworkPlace, timeout: Duration) -> Result<TcpListener, Failed> {
    let deadline = deadline_in(timeout);
    let targets = resolve::resolve(&place.host, place.port, deadline).map_err(Failed::Resolve)?;
    let listener = TcpListener::bind(targets.as_slice()).map_err(Failed::Io)?;
    // Again, as the standard library has a backlog of 128.
    rustix::net::listen(&listener, BACKLOG).map_err(|error| Failed::Io(error.into()))?;
    listener.set_nonblocking(true).map_err(Failed::Io)?;
    Ok(listener)
}

fn prepared(stream: TcpStream) -> io::Result<TcpStream> {
    // A handshake is a few small frames, each waited for.
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Socket for TcpStream {
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        TcpStream::set_read_timeout(self, Some(timeout))
    }

    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        TcpStream::set_write_timeout(self, Some(timeout))
    }

    /// TCP has no credentials.
    fn check_peer(&self) -> Result<(), String> {
        Ok(())
    }

    fn source(&self) -> Source {
        self.peer_addr().map_or(Source::Unknown, |address| address.ip().into())
    }

    fn watch_liveness(&self, silence: Duration) -> io::Result<Liveness> {
        let (interval, count) = probes(silence);
        sockopt::set_socket_keepalive(self, true)?;
        sockopt::set_tcp_keepidle(self, interval)?;
        sockopt::set_tcp_keepintvl(self, interval)?;
        sockopt::set_tcp_keepcnt(self, count)?;
        // The same for bytes that are not acknowledged: while there are some, an idle machine is not asked.
        let millis = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(self, millis)?;
        Ok(Liveness::Needed)
    }

    fn into_fd(self: Box<Self>) -> OwnedFd {
        OwnedFd::from(*self)
    }
}

impl Listener for TcpListener {
    fn accept(&self) -> io::Result<Box<dyn Socket>> {
        let (stream, _) = TcpListener::accept(self)?;
        Ok(Box::new(prepared(stream)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_machine_is_given_up_after_the_silence() {
        for seconds in [2, 3, 5, 7, 30, 31, 3600] {
            let silence = Duration::from_secs(seconds);
            let (interval, count) = probes(silence);
            let given_up = interval * (count + 1);
            assert!(given_up >= silence && given_up < silence + interval, "{silence:?}");
        }
        assert_eq!(probes(Duration::from_secs(5)), (Duration::from_secs(1), 4));
        assert_eq!(probes(Duration::from_secs(1)), (Duration::from_secs(1), 1));
    }
}
