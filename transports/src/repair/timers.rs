//! When the client sends again, and when it gives the server up.

use std::time::Duration;

use farcall_core::time::Instant;

/// So often a server must have been asked while it was silent. A client that was not polled for long has not asked.
const SILENT_TRIES: u32 = 16;

/// The next timeout of a session, and how long the server has been silent.
#[derive(Debug)]
pub(crate) struct Timers {
    /// No timeout is before this.
    next: Instant,
    /// Since when, and how often, the server was asked again without an answer.
    silent_since: Option<Instant>,
    tries: u32,
    /// With no word for so long it is gone. Of a server's process that died the tether tells at once.
    silence: Duration,
}

impl Timers {
    pub(crate) fn new(silence: Duration) -> Timers {
        Timers { next: Instant::FAR_FUTURE, silent_since: None, tries: 0, silence }
    }

    /// Something is due at this moment.
    #[inline]
    pub(crate) fn at(&mut self, due: Instant) {
        self.next = self.next.min(due);
    }

    #[inline]
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// What is due is looked for; whatever goes on says so again.
    pub(crate) fn fire(&mut self) {
        self.next = Instant::FAR_FUTURE;
    }

    /// A word from the server.
    #[inline]
    pub(crate) fn heard(&mut self) {
        if self.tries > 0 {
            (self.silent_since, self.tries) = (None, 0);
        }
    }

    /// Something was sent again. Answers whether the server counts as gone.
    pub(crate) fn asked_again(&mut self, now: Instant) -> bool {
        let since = *self.silent_since.get_or_insert(now);
        self.tries = self.tries.saturating_add(1);
        self.tries >= SILENT_TRIES && since + self.silence <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_silent_server_is_given_up_after_many_questions_and_seconds() {
        let mut timers = Timers::new(Duration::from_secs(5));
        assert!((0..100).all(|_| !timers.asked_again(at(1))));
        assert!(!timers.asked_again(at(5)));
        assert!(timers.asked_again(at(6)));
        timers.heard();
        assert!(!timers.asked_again(at(30)));
        assert!(!timers.asked_again(at(50)), "it was not asked meanwhile");
    }

    #[test]
    fn the_earliest_timeout_counts_until_it_fires() {
        let mut timers = Timers::new(Duration::from_secs(5));
        timers.at(at(3));
        timers.at(at(2));
        timers.at(at(4));
        assert_eq!(timers.next(), at(2));
        timers.fire();
        assert_eq!(timers.next(), Instant::FAR_FUTURE);
    }
}
