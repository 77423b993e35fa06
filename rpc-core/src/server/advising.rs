//! A thread's part in what its server advises.

use std::ops::Range;
use std::sync::Arc;

use crate::time::Instant;
use crate::transport::{Adviser, ThreadLoad};

/// How often the thread tells its load.
const EVERY_NS: u64 = 500_000;

/// Tells the load of one thread, and takes the advice for its clients.
pub(super) struct Advising {
    adviser: Arc<dyn Adviser>,
    thread: usize,
    /// The transports that are ways of the adviser's address.
    ways: Range<usize>,
    next: Instant,
}

impl Advising {
    pub(super) fn new(adviser: Arc<dyn Adviser>, thread: usize, ways: Range<usize>) -> Advising {
        Advising { adviser, thread, ways, next: Instant::ZERO }
    }

    /// Whether the thread is to tell its load.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Tells the load: connections over all transports, and calls over each since the thread began. Returns the advice.
    pub(super) fn tell(&mut self, connections: usize, calls: &[u64], now: Instant) -> u8 {
        self.next = now.saturating_add_nanos(EVERY_NS);
        let calls = calls.get(self.ways.clone()).unwrap_or_default();
        self.adviser.advise(self.thread, &ThreadLoad { connections, calls }, now)
    }
}
