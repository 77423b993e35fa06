//! The socket at which peers reach the control thread.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

/// How long peers wait before they are accepted again when the system lacks something for that: usually descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener that the control thread's epoll watches, except in a pause: a peer that cannot be accepted would wake the thread
/// again at once.
#[derive(Debug)]
pub(super) struct Listening<'a> {
    socket: &'a OwnedFd,
    token: u64,
    paused_until: Option<Instant>,
}

impl<'a> Listening<'a> {
    /// Of a socket that epoll watches under this token.
    pub(super) fn new(socket: &'a OwnedFd, token: u64) -> Listening<'a> {
        Listening { socket, token, paused_until: None }
    }

    /// The connection of the next peer. Begins a pause if there is one that cannot be accepted.
    pub(super) fn accept(&mut self, epoll: &OwnedFd) -> Option<OwnedFd> {
        match accept_with(self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(connection) => Some(connection),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => None,
            Err(error) => {
                tracing::warn!(%error, "shm control thread cannot accept a peer; it will try again in {PAUSE:?}");
                if self.watch(epoll, epoll::EventFlags::empty()) {
                    self.paused_until = Some(Instant::now() + PAUSE);
                }
                None
            }
        }
    }

    /// How long the pause lasts, if there is one.
    pub(super) fn resume_in(&self) -> Option<Duration> {
        self.paused_until.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// Ends a pause that has lasted long enough.
    pub(super) fn resume_if_due(&mut self, epoll: &OwnedFd) {
        if self.resume_in() == Some(Duration::ZERO) && self.watch(epoll, epoll::EventFlags::IN) {
            self.paused_until = None;
        }
    }

    fn watch(&self, epoll: &OwnedFd, events: epoll::EventFlags) -> bool {
        let data = epoll::EventData::new_u64(self.token);
        epoll::modify(epoll, self.socket, data, events)
            .inspect_err(
                |error| tracing::error!(%error, "shm control thread cannot watch its socket"),
            )
            .is_ok()
    }
}
