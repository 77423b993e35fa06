//! The sockets of `shm://` addresses: abstract Unix sockets.
//!
//! The socket's name holds the user's id, and both ends check the other's: only this user can take
//! part. An abstract name is in no directory: a killed server leaves nothing behind, and its name is
//! free at once.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use farcall_verbs::PeerCredentials;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{Listener, Liveness, Socket};
use crate::contract::Source;

/// Clients that wait to be accepted.
const BACKLOG: i32 = 128;

/// Why there is no socket: what was being done, and what the system said.
pub(crate) type Failed = (&'static str, Errno);

/// The socket of the service of that name.
fn socket_address(name: &str) -> rustix::io::Result<SocketAddrUnix> {
    let user = rustix::process::geteuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("farcall/{user}/{name}").as_bytes())
}

fn socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | flags;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Connects to the server of that name. A full backlog waits until the deadline at most.
pub(crate) fn connect(name: &str, deadline: Instant) -> Result<UnixStream, Failed> {
    let failed = |doing| move |error| (doing, error);
    let target = socket_address(name).map_err(failed("naming its socket"))?;
    let socket = socket(SocketFlags::empty()).map_err(failed("making a socket"))?;
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        // What the system says when the time is over. No time at all would be no bound for it.
        return Err(("connecting to its socket", Errno::AGAIN));
    }
    set_socket_timeout(&socket, Timeout::Send, Some(left))
        .map_err(failed("bounding the wait for it"))?;
    loop {
        match rustix::net::connect(&socket, &target) {
            Ok(()) => return Ok(socket.into()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(("connecting to its socket", error)),
        }
    }
}

/// Listens under that name.
pub(crate) fn listen(name: &str) -> Result<UnixListener, Failed> {
    let failed = |doing| move |error| (doing, error);
    let name = socket_address(name).map_err(failed("naming the socket"))?;
    let socket = socket(SocketFlags::NONBLOCK).map_err(failed("making the socket"))?;
    rustix::net::bind(&socket, &name).map_err(failed("binding the socket"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(failed("listening on the socket"))?;
    Ok(socket.into())
}

/// The process that listens under that name, and its user. Any process may take any name.
pub(crate) fn holder(name: &str) -> Option<PeerCredentials> {
    let socket = socket(SocketFlags::NONBLOCK).ok()?;
    rustix::net::connect(&socket, &socket_address(name).ok()?).ok()?;
    PeerCredentials::of(&socket).ok()
}

impl Socket for UnixStream {
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        UnixStream::set_read_timeout(self, Some(timeout))
    }

    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        UnixStream::set_write_timeout(self, Some(timeout))
    }

    /// Only this user may take part.
    fn check_peer(&self) -> Result<(), String> {
        let ours = rustix::process::geteuid().as_raw();
        match PeerCredentials::of(self) {
            Ok(peer) if peer.user == ours => Ok(()),
            Ok(peer) => {
                Err(format!("the other end runs as user {}, this end as user {ours}", peer.user))
            }
            Err(error) => Err(format!("the other end's user cannot be told: {error}")),
        }
    }

    fn source(&self) -> Source {
        match PeerCredentials::of(self) {
            Ok(peer) => peer.process.map_or(Source::HiddenProcess, |id| Source::Process(id.get())),
            Err(_) => Source::Unknown,
        }
    }

    fn watch_liveness(&self, _silence: Duration) -> io::Result<Liveness> {
        Ok(Liveness::IfDeviceIsSilent)
    }

    fn into_fd(self: Box<Self>) -> OwnedFd {
        OwnedFd::from(*self)
    }
}

impl Listener for UnixListener {
    fn accept(&self) -> io::Result<Box<dyn Socket>> {
        Ok(Box::new(UnixListener::accept(self)?.0))
    }
}
