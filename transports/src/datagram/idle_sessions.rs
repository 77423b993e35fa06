//! Frees the responses that are kept for clients that have been silent for long.
//!
//! A client that misses a response asks for it, as long as it is polled. There is no timer for each session: the server
//! walks over all of them, some at a time, while any of them keeps a response.

use std::time::Duration;

use farcall_core::time::{Instant, PollAt};

use super::session::Session;
use crate::kit::roster::Roster;

/// How often the walk moves on.
const STEP_EVERY_NANOS: u64 = 100_000_000;

/// Sessions of one step: some 20 us where none of them is in a cache, and 10,000 sessions in four seconds.
const STEP_SESSIONS: usize = 256;

/// The walk over all sessions.
#[derive(Debug)]
pub(crate) struct IdleSessions {
    /// How long a client is silent until its responses are freed.
    after: Duration,
    /// The first session of the next step.
    next_session: usize,
    /// When the next step is due; the far future while no session keeps anything.
    next_at: Instant,
    /// A session kept something in this round, or may have begun to.
    found_any: bool,
}

impl IdleSessions {
    /// Frees the responses of clients that have been silent for twice as long as they may be.
    pub(crate) fn new(silence: Duration) -> IdleSessions {
        let next_at = Instant::FAR_FUTURE;
        IdleSessions { after: 2 * silence, next_session: 0, next_at, found_any: false }
    }

    /// A client has sent something.
    #[inline]
    pub(crate) fn note_datagram(&mut self, now: Instant) {
        self.found_any = true;
        if self.next_at == Instant::FAR_FUTURE {
            self.next_at = now.saturating_add_nanos(STEP_EVERY_NANOS);
        }
    }

    /// A step is due.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next_at <= now
    }

    /// When the next step is due.
    #[inline]
    pub(crate) fn poll_at(&self) -> PollAt {
        match self.next_at {
            Instant::FAR_FUTURE => PollAt::OnEvent,
            at => PollAt::At(at),
        }
    }

    /// Looks at some sessions.
    #[cold]
    pub(crate) fn step(&mut self, roster: &mut Roster<Session>, now: Instant) {
        self.next_at = now.saturating_add_nanos(STEP_EVERY_NANOS);
        let step = self.next_session..self.next_session + STEP_SESSIONS;
        self.next_session = step.end;
        for session in roster.range_mut(step) {
            if session.keeps_replies() && session.heard_at + self.after <= now {
                session.forget_replies();
            }
            self.found_any |= session.keeps_replies();
        }
        if self.next_session >= roster.end() as usize {
            self.next_session = 0;
            if !std::mem::take(&mut self.found_any) {
                self.next_at = Instant::FAR_FUTURE;
            }
        }
    }
}
