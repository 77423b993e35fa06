//! How much one poll does, and how long a thread sleeps.

use std::time::Duration;

use farcall_core::time::Instant;
use farcall_core::transport::Unpark;
use farcall_verbs::CompletionChannel;

/// Completions that one poll takes.
pub(crate) const POLL_BATCH: usize = 16;

/// Chunks of large messages that one poll moves: some 20 us of copying, which is what a small call
/// may have to wait for.
pub(crate) const STEPS_PER_POLL: usize = 2;

/// When to look again for memory that comes back without an event.
pub(crate) const MEMORY_RETRY_NANOS: u64 = 200_000;

/// A parked thread looks around at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// How long to sleep at `now`, at most until `until`.
pub(crate) fn sleep_time(until: Option<Instant>, now: Instant) -> Duration {
    until.map_or(LONGEST_SLEEP, |until| LONGEST_SLEEP.min(until - now))
}

/// Wakes the thread that sleeps on the channel.
#[derive(Debug)]
pub(crate) struct Waker(pub(crate) CompletionChannel);

impl Unpark for Waker {
    fn unpark(&self) {
        self.0.wake();
    }
}
