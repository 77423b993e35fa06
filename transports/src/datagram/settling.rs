//! What a server gives back of sessions that have been silent for long: the answers that it keeps.
//!
//! A client that misses an answer asks for it, as long as somebody polls it. The server has no timer for each session: a
//! hand goes round over all of them, some at a time, as long as any of them keeps something.

use std::time::Duration;

use farcall_core::time::{Instant, PollAt};

use super::session::Session;

/// How often the hand moves.
const STEP_EVERY_NANOS: u64 = 100_000_000;

/// Sessions that it passes in one step: some 20 us where none of them is in a cache, and 10,000 sessions in four seconds.
const STEP_SESSIONS: usize = 256;

/// The hand that goes round.
#[derive(Debug)]
pub(crate) struct Settling {
    /// How long a client is silent until it has what it wants.
    after: Duration,
    hand: usize,
    /// When the hand moves next; the far future while no session keeps anything.
    next: Instant,
    /// A session kept something in this round, or may have begun to.
    kept: bool,
}

impl Settling {
    /// Of clients that may be silent for that long before they count as gone, some are looked after for twice as long.
    pub(crate) fn new(silence: Duration) -> Settling {
        Settling { after: 2 * silence, hand: 0, next: Instant::FAR_FUTURE, kept: false }
    }

    /// Some client has said something.
    #[inline]
    pub(crate) fn heard(&mut self, now: Instant) {
        self.kept = true;
        if self.next == Instant::FAR_FUTURE {
            self.next = now.saturating_add_nanos(STEP_EVERY_NANOS);
        }
    }

    /// The hand moves now.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// When it moves.
    #[inline]
    pub(crate) fn poll_at(&self) -> PollAt {
        match self.next {
            Instant::FAR_FUTURE => PollAt::OnEvent,
            at => PollAt::At(at),
        }
    }

    /// Passes some sessions.
    #[cold]
    pub(crate) fn step(&mut self, sessions: &mut [Option<Box<Session>>], now: Instant) {
        self.next = now.saturating_add_nanos(STEP_EVERY_NANOS);
        let end = (self.hand + STEP_SESSIONS).min(sessions.len());
        for session in sessions[self.hand.min(end)..end].iter_mut().flatten() {
            if session.keeps() && session.heard + self.after <= now {
                session.settle();
            }
            self.kept |= session.keeps();
        }
        self.hand = end;
        if end == sessions.len() {
            self.hand = 0;
            if !std::mem::take(&mut self.kept) {
                self.next = Instant::FAR_FUTURE;
            }
        }
    }
}
