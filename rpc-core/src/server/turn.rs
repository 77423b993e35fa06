//! What lives for one turn of a server thread, or waits from one turn to the next.

use crate::metrics::ThreadCounters;
use crate::time::Instant;
use crate::transport::{CallToken, Replies};
use crate::wire::Status;
use std::sync::Arc;

/// A hot thread measures one turn in this many; reading the clock when a request is noticed would delay its answer.
const MEASURED_TURNS: u32 = 16;

/// A thread is hot if a request comes after fewer empty turns than this (some 3 us).
const HOT_EMPTY_TURNS: u32 = 256;

/// Turns that take longer are all measured: there the clock's age (some 300 ns) does not matter.
const SLOW_TURN_NS: u64 = 20_000;

/// Rows remembered per turn; what goes beyond is not measured.
const MEASURED_CALLS: usize = 4096;

/// A client's wish to give up one call, as the transport named it.
pub(super) struct Cancel {
    pub(super) client: u32,
    pub(super) client_generation: u32,
    /// Slot and generation; `None` gives up all calls of a client that is gone.
    pub(super) slot: Option<(u32, u32)>,
}

/// An answer that found no memory; it is complete, and leaves in a later turn.
struct Deferred {
    call: CallToken,
    bytes: Vec<u8>,
    row: u32,
    status: Status,
}

/// The state of a thread's turn.
pub(super) struct Turn {
    /// The clock, as last read.
    pub(super) now: Instant,
    pub(super) counters: Arc<ThreadCounters>,
    pub(super) cancels: Vec<Cancel>,
    deferred: Vec<Deferred>,
    /// Rows of the calls answered in place.
    in_place: Vec<u32>,
    requests: u32,
    empty_turns: u32,
    hot_turns: u32,
    /// When the turn's first request was noticed (the far future before), and how many calls each of its calls stands for (0: not measured).
    noticed: Instant,
    weight: u64,
    /// Handlers were slow in the last turn: look at the clock before each of this one's.
    slow: bool,
}

impl Turn {
    pub(super) fn new(counters: Arc<ThreadCounters>) -> Self {
        Turn {
            now: Instant::ZERO,
            counters,
            cancels: Vec::with_capacity(64),
            deferred: Vec::new(),
            in_place: Vec::with_capacity(MEASURED_CALLS),
            requests: 0,
            empty_turns: 0,
            hot_turns: 0,
            noticed: Instant::FAR_FUTURE,
            weight: 0,
            slow: false,
        }
    }

    /// A request is about to be handled.
    #[inline]
    pub(super) fn request(&mut self, replies: &dyn Replies) {
        self.requests += 1;
        if self.requests == 1 {
            self.first_request(replies);
        } else if self.slow || self.requests.is_multiple_of(64) {
            self.now = replies.now();
        }
    }

    #[inline]
    fn first_request(&mut self, replies: &dyn Replies) {
        self.noticed = self.now;
        self.weight = 0;
        if self.empty_turns < HOT_EMPTY_TURNS {
            self.hot_turns = self.hot_turns.wrapping_add(1);
            if !self.hot_turns.is_multiple_of(MEASURED_TURNS) {
                return;
            }
            self.weight = u64::from(MEASURED_TURNS);
        } else {
            self.weight = 1;
        }
        self.now = replies.now();
        self.noticed = self.now;
    }

    /// When the requests of this turn arrived, as far as the thread knows.
    #[inline]
    pub(super) fn arrival(&self) -> Instant {
        self.noticed
    }

    /// A call was answered in place.
    #[inline]
    pub(super) fn answered_in_place(&mut self, row: u32) {
        if self.in_place.len() < MEASURED_CALLS {
            self.in_place.push(row);
        }
    }

    /// Nothing happened.
    #[inline]
    pub(super) fn ended_empty(&mut self) {
        self.empty_turns = self.empty_turns.saturating_add(1);
    }

    /// Something happened, and the turn's replies have left.
    #[inline]
    pub(super) fn ended(&mut self, now: Instant) {
        self.now = now;
        self.empty_turns = 0;
        if self.requests == 0 {
            return;
        }
        let nanos = now.as_nanos().saturating_sub(self.noticed.as_nanos());
        let weight = if nanos >= SLOW_TURN_NS { 1 } else { self.weight };
        if weight > 0 {
            for row in &self.in_place {
                self.counters.latency(*row, nanos, weight);
            }
        }
        self.slow = nanos / u64::from(self.requests) >= SLOW_TURN_NS;
        self.in_place.clear();
        self.requests = 0;
        self.noticed = Instant::FAR_FUTURE;
    }

    /// Keeps an answer that found no memory.
    #[cold]
    pub(super) fn defer(&mut self, call: CallToken, bytes: Vec<u8>, row: u32, status: Status) {
        self.deferred.push(Deferred { call, bytes, row, status });
    }

    #[inline]
    pub(super) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Tries again to send what found no memory. Answers how many left.
    #[cold]
    pub(super) fn send_deferred(&mut self, replies: &mut dyn Replies) -> u32 {
        use crate::error::ReserveError;
        let mut sent = 0;
        let mut waiting = Vec::new();
        for answer in self.deferred.drain(..) {
            match replies.reserve(&answer.call, answer.bytes.len()) {
                Ok(bytes) => bytes.copy_from_slice(&answer.bytes),
                Err(ReserveError::Backpressure(_)) => {
                    waiting.push(answer);
                    continue;
                }
                Err(ReserveError::TooLarge { .. } | ReserveError::Closed) => {
                    self.counters.ended(answer.row, Status::Cancelled);
                    continue;
                }
            }
            replies.post(answer.call, answer.bytes.len());
            self.counters.ended(answer.row, answer.status);
            sent += 1;
        }
        self.deferred = waiting;
        sent
    }
}
