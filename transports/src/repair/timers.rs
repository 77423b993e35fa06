//! When a client sends again, and when it declares its server dead.

use std::time::Duration;

use farcall_core::time::Instant;

/// A silent server must have been asked this often. A client that was not polled for long has not asked.
const SILENT_REPEATS: u32 = 16;

/// The next timeout of a session, and how long the server has been silent.
#[derive(Debug)]
pub(crate) struct Timers {
    /// No timeout is before this.
    next: Instant,
    /// Since when, and how often, messages were repeated without an answer.
    silent_since: Option<Instant>,
    repeats: u32,
    /// How long the server may stay silent before it is declared dead. If its process has died, the liveness socket tells
    /// at once.
    silence: Duration,
}

impl Timers {
    pub(crate) fn new(silence: Duration) -> Timers {
        Timers { next: Instant::FAR_FUTURE, silent_since: None, repeats: 0, silence }
    }

    /// There is a timeout at this moment.
    #[inline]
    pub(crate) fn set(&mut self, due: Instant) {
        self.next = self.next.min(due);
    }

    /// No timeout is before this.
    #[inline]
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// The caller looks for what is due, and [sets](Timers::set) all that remains.
    pub(crate) fn clear(&mut self) {
        self.next = Instant::FAR_FUTURE;
    }

    /// The server has said something. Tells since when messages were repeated without an answer, if they were.
    #[inline]
    pub(crate) fn note_answer(&mut self) -> Option<Instant> {
        if self.repeats == 0 {
            return None;
        }
        self.repeats = 0;
        self.silent_since.take()
    }

    /// Something has left again.
    pub(crate) fn note_repeat(&mut self, now: Instant) {
        self.silent_since.get_or_insert(now);
        self.repeats = self.repeats.saturating_add(1);
    }

    /// Whether the server is to be declared dead.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        let since = self.silent_since.unwrap_or(now);
        self.repeats >= SILENT_REPEATS && since + self.silence <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_silent_server_is_declared_dead_after_many_repeats_and_seconds() {
        let mut timers = Timers::new(Duration::from_secs(5));
        let repeat = |timers: &mut Timers, seconds| {
            timers.note_repeat(at(seconds));
            timers.is_silent(at(seconds))
        };
        assert!((0..100).all(|_| !repeat(&mut timers, 1)));
        assert!(!repeat(&mut timers, 5));
        assert!(repeat(&mut timers, 6));
        assert_eq!(timers.note_answer(), Some(at(1)));
        assert_eq!(timers.note_answer(), None, "nothing was repeated since");
        assert!(!repeat(&mut timers, 30));
        assert!(!repeat(&mut timers, 50), "nothing was repeated meanwhile");
    }

    #[test]
    fn the_earliest_timeout_counts_until_it_is_cleared() {
        let mut timers = Timers::new(Duration::from_secs(5));
        timers.set(at(3));
        timers.set(at(2));
        timers.set(at(4));
        assert_eq!(timers.next(), at(2));
        timers.clear();
        assert_eq!(timers.next(), Instant::FAR_FUTURE);
    }
}
