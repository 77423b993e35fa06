//! The handshakes that run now, and who has to make room for others.

use std::cmp::Reverse;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::Shutdown;

use crate::contract::{CountsBySource, Source};

/// Handshakes at a time: each needs a thread. Clients that come later wait.
pub(super) const MAX_HANDSHAKES: usize = 128;

/// Those of one source: so no source takes all, even if each of its handshakes has the server wait for a device.
const MAX_OF_A_SOURCE: usize = MAX_HANDSHAKES / 2;

/// How long a client may say nothing while others wait for its place. A client says hello as soon as
/// it has connected, so this is time on the way.
const HELLO_WAIT: Duration = Duration::from_secs(1);

/// How much of the time of a handshake a client may take, while others wait for its place, until it is ready: it makes its
/// end of the connection meanwhile, which takes milliseconds, or longer on a machine that starts many clients.
const READY_SHARE: u32 = 2;

/// The handshakes of one server.
#[derive(Debug)]
pub(super) struct Handshakes {
    ready_wait: Duration,
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
    source: Source,
    /// Until when the server waits for the client, while others wait. `None`: the client waits for the server.
    due: Option<Instant>,
    /// To hang up. `None` if there was no descriptor left for it, or that was done.
    socket: Option<OwnedFd>,
    /// It has made room for others.
    is_evicted: bool,
}

/// One of them; dropping it ends it.
#[derive(Debug)]
pub(super) struct Running<'h> {
    handshakes: &'h Handshakes,
    number: u64,
}

/// How many handshakes each source has under way.
pub(super) struct Counts(CountsBySource);

impl Counts {
    /// Those of one source; `None`: it may have no more.
    pub(super) fn of(&self, source: Source) -> Option<usize> {
        Some(self.0.of(source)).filter(|count| *count < MAX_OF_A_SOURCE)
    }
}

impl Entries {
    fn counts(&self) -> CountsBySource {
        self.list.iter().map(|entry| entry.source).collect()
    }
}

impl Handshakes {
    /// None so far, of those that may take so long.
    pub(super) fn new(timeout: Duration) -> Handshakes {
        Handshakes { ready_wait: timeout / READY_SHARE, entries: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are of each source, if there is room for one more.
    pub(super) fn room(&self) -> Option<Counts> {
        let entries = self.lock();
        (entries.list.len() < MAX_HANDSHAKES).then(|| Counts(entries.counts()))
    }

    /// One begins now.
    pub(super) fn enter(&self, source: Source, socket: Option<OwnedFd>, now: Instant) -> u64 {
        let mut entries = self.lock();
        let number = entries.next;
        entries.next += 1;
        entries.list.push(Entry {
            number,
            source,
            due: Some(now + HELLO_WAIT),
            socket,
            is_evicted: false,
        });
        number
    }

    /// Takes the handshake that was entered under that number over.
    pub(super) fn running(&self, number: u64) -> Running<'_> {
        Running { handshakes: self, number }
    }

    /// Others wait: hangs up on a client that has let the server wait for too long, and its handshake ends. Those of the source
    /// with most handshakes are first. Tells how long to wait at most before asking again; `None` if no client is silent.
    pub(super) fn make_room(&self, now: Instant) -> Option<Duration> {
        let mut entries = self.lock();
        let counts = entries.counts();
        let mut silent: Vec<_> =
            entries.list.iter_mut().filter(|entry| entry.socket.is_some()).collect();
        let first = silent.iter().filter_map(|entry| entry.due).min()?;
        silent.retain(|entry| entry.due.is_some_and(|due| due <= now));
        if let Some(eldest) =
            silent.into_iter().min_by_key(|entry| (Reverse(counts.of(entry.source)), entry.due))
            && let Some(socket) = eldest.socket.take()
        {
            tracing::info!(source = ?eldest.source, "a client that is silent in its handshake makes room for others");
            // Fails only if it has gone by itself.
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
            eldest.is_evicted = true;
        }
        Some(first.saturating_duration_since(now).max(Duration::from_millis(1)))
    }
}

impl Running<'_> {
    fn set_due(&self, due: Option<Instant>) {
        let mut entries = self.handshakes.lock();
        let entry = entries.list.iter_mut().find(|entry| entry.number == self.number);
        if let Some(entry) = entry {
            entry.due = due;
        }
    }

    /// Whether its client was silent, and was made to leave.
    pub(super) fn was_evicted(&self) -> bool {
        let entries = self.handshakes.lock();
        entries.list.iter().any(|entry| entry.number == self.number && entry.is_evicted)
    }

    /// Its client has said hello, and waits for the server.
    pub(super) fn set_heard(&self) {
        self.set_due(None);
    }

    /// The server has answered, and waits for its client.
    pub(super) fn set_answered(&self, now: Instant) {
        self.set_due(Some(now + self.handshakes.ready_wait));
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

    const TIMEOUT: Duration = Duration::from_secs(5);
    const CROWD: Source = Source::Process(1);
    const OTHER: Source = Source::Process(2);

    /// Handshakes with clients of these sources, each 100 ms after the one before, and the clients' ends of the sockets.
    fn enter<'h>(
        handshakes: &'h Handshakes,
        begin: Instant,
        sources: &[Source],
    ) -> (Vec<Running<'h>>, Vec<UnixStream>) {
        let mut now = begin;
        let enter = |source: &Source| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            theirs.set_nonblocking(true).unwrap();
            let number = handshakes.enter(*source, Some(ours.into()), now);
            now += Duration::from_millis(100);
            (handshakes.running(number), theirs)
        };
        sources.iter().map(enter).unzip()
    }

    fn hung_up(clients: &mut [UnixStream]) -> Vec<bool> {
        clients.iter_mut().map(|client| matches!(client.read(&mut [0]), Ok(0))).collect()
    }

    #[test]
    fn the_eldest_silent_client_makes_room() {
        let (handshakes, begin) = (Handshakes::new(TIMEOUT), Instant::now());
        let (running, mut clients) = enter(&handshakes, begin, &[CROWD; 3]);
        running[0].set_heard();
        let early = handshakes.make_room(begin + HELLO_WAIT);
        assert_eq!(early, Some(Duration::from_millis(100)));
        handshakes.make_room(begin + HELLO_WAIT + Duration::from_millis(100));
        assert_eq!(hung_up(&mut clients), [false, true, false]);
        drop(running);
        assert!(handshakes.room().is_some());
        assert_eq!(handshakes.make_room(begin), None);
    }

    #[test]
    fn a_client_that_was_answered_and_is_not_ready_makes_room() {
        let (handshakes, begin) = (Handshakes::new(TIMEOUT), Instant::now());
        let (running, mut clients) = enter(&handshakes, begin, &[CROWD; 2]);
        for (running, answered) in running.iter().zip([begin + HELLO_WAIT, begin]) {
            running.set_heard();
            running.set_answered(answered);
        }
        let wait = TIMEOUT / READY_SHARE;
        assert_eq!(handshakes.make_room(begin + HELLO_WAIT), Some(wait - HELLO_WAIT));
        assert_eq!(hung_up(&mut clients), [false, false]);
        handshakes.make_room(begin + wait);
        handshakes.make_room(begin + wait);
        assert_eq!(
            hung_up(&mut clients),
            [false, true],
            "what counts is the time since the answer"
        );
    }

    #[test]
    fn the_source_with_most_handshakes_makes_room_first() {
        let (handshakes, begin) = (Handshakes::new(TIMEOUT), Instant::now());
        let (_running, mut clients) = enter(&handshakes, begin, &[OTHER, CROWD, CROWD]);
        let late = begin + 2 * HELLO_WAIT;
        for expected in
            [[false, true, false], [false, true, true], [true, true, true], [true, true, true]]
        {
            handshakes.make_room(late);
            assert_eq!(hung_up(&mut clients), expected);
        }
    }

    #[test]
    fn a_source_takes_no_more_than_half() {
        let (handshakes, begin) = (Handshakes::new(TIMEOUT), Instant::now());
        let mut running = Vec::new();
        for source in [CROWD, OTHER] {
            for taken in 0..MAX_OF_A_SOURCE {
                assert_eq!(handshakes.room().and_then(|counts| counts.of(source)), Some(taken));
                running.push(handshakes.running(handshakes.enter(source, None, begin)));
            }
            let counts = handshakes.room();
            assert_eq!(counts.and_then(|counts| counts.of(source)), None);
        }
        assert!(handshakes.room().is_none(), "all are taken");
    }
}
