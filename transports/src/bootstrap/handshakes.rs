//! The handshakes that run now, and who has to make room for others.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::Shutdown;

/// Handshakes at a time. Those that come later wait in the socket's backlog.
pub(super) const MAX_HANDSHAKES: usize = 64;

/// How long a client may say nothing while others wait for its place. A client says hello as soon as
/// it has connected, so this is time on the way.
const SILENCE: Duration = Duration::from_secs(1);

/// The handshakes of one server.
#[derive(Debug, Default)]
pub(super) struct Handshakes {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    list: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    since: Instant,
    heard: bool,
    /// To hang up. None if there was no descriptor left for it.
    socket: Option<OwnedFd>,
}

/// One of them; dropping it ends it.
#[derive(Debug)]
pub(super) struct Running<'h> {
    handshakes: &'h Handshakes,
    number: u64,
}

impl Handshakes {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self) -> usize {
        self.lock().list.len()
    }

    /// One begins now.
    pub(super) fn enter(&self, socket: Option<OwnedFd>, now: Instant) -> u64 {
        let mut entries = self.lock();
        let number = entries.next;
        entries.next += 1;
        entries.list.push(Entry { number, since: now, heard: false, socket });
        number
    }

    /// Takes the handshake that was entered under that number over.
    pub(super) fn running(&self, number: u64) -> Running<'_> {
        Running { handshakes: self, number }
    }

    /// Someone else waits: hangs up on the client that has been silent for longest, if that was long
    /// enough, and its handshake ends. Otherwise tells how long to wait at most before asking again;
    /// `None` if nobody is silent.
    pub(super) fn make_room(&self, now: Instant) -> Option<Duration> {
        let entries = self.lock();
        let silent = entries.list.iter().filter(|entry| !entry.heard && entry.socket.is_some());
        let eldest = silent.min_by_key(|entry| entry.since)?;
        let left = (eldest.since + SILENCE).saturating_duration_since(now);
        if left.is_zero()
            && let Some(socket) = &eldest.socket
        {
            tracing::debug!("a client that says nothing makes room for others");
            // Fails only if it has gone by itself.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
        Some(left.max(Duration::from_millis(1)))
    }
}

impl Running<'_> {
    /// Its client has said hello.
    pub(super) fn set_heard(&self) {
        let mut entries = self.handshakes.lock();
        let entry = entries.list.iter_mut().find(|entry| entry.number == self.number);
        if let Some(entry) = entry {
            entry.heard = true;
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.handshakes.lock().list.retain(|entry| entry.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_eldest_silent_client_makes_room() {
        let handshakes = Handshakes::default();
        let begin = Instant::now();
        let mut theirs = Vec::new();
        let mut running = Vec::new();
        for age in 0..3 {
            let (ours, client) = UnixStream::pair().unwrap();
            client.set_nonblocking(true).unwrap();
            theirs.push(client);
            let number =
                handshakes.enter(Some(ours.into()), begin + Duration::from_millis(100 * age));
            running.push(handshakes.running(number));
        }
        running[0].set_heard();
        let early = handshakes.make_room(begin + SILENCE);
        assert_eq!(early, Some(Duration::from_millis(100)));
        handshakes.make_room(begin + SILENCE + Duration::from_millis(100));
        let hung_up: Vec<bool> =
            theirs.iter_mut().map(|client| matches!(client.read(&mut [0]), Ok(0))).collect();
        assert_eq!(hung_up, [false, true, false]);
        drop(running);
        assert_eq!(handshakes.count(), 0);
        assert_eq!(handshakes.make_room(begin), None);
    }
}
