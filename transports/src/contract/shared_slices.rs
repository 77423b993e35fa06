//! Time slices that several servers share: a client that calls several of them is served by all at the same time.
//!
//! Slices are numbered by the time of one of the servers. The others ask it for its time, apart from calls, and publish what they
//! learn for their threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use farcall_core::time::Instant;
use serde::{Deserialize, Serialize};

const BILLION: i128 = 1_000_000_000;

/// What servers that share slices have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlicePlan {
    /// Groups of clients, which are served in turn.
    pub groups: u32,
    /// How long each is served.
    pub slice_nanos: u64,
}

/// What a server's configuration says of the slices that it shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedSlices {
    /// What the other servers must have, too.
    pub plan: SlicePlan,
    /// The address of the server whose time is followed. `None`: others may follow this one.
    pub of: Option<String>,
}

/// The time of another server, as a line over the own clock's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeFit {
    /// A time of the own clock.
    pub at: Instant,
    /// The other's time then, in nanoseconds.
    pub shared_nanos: u64,
    /// By how much the other's clock is faster, in billionths.
    pub rate_ppb: i64,
}

impl TimeFit {
    /// The own time.
    pub const OWN: TimeFit = TimeFit { at: Instant::ZERO, shared_nanos: 0, rate_ppb: 0 };

    /// The other's time at this time of the own clock, which may be before [`at`](TimeFit::at).
    pub fn shared_at(&self, local: Instant) -> u64 {
        let since = i128::from(local.as_nanos()) - i128::from(self.at.as_nanos());
        let drifted = (since * i128::from(self.rate_ppb)).div_euclid(BILLION);
        u64::try_from((i128::from(self.shared_nanos) + since + drifted).max(0)).unwrap_or(u64::MAX)
    }
}

/// What a server knows of another's time: written by what asks for it, read by server threads. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct SharedClock(Arc<Published>);

#[derive(Debug, Default)]
struct Published {
    /// How many there were. Server threads look at this alone until it changes.
    number: AtomicU64,
    fit: Mutex<Option<TimeFit>>,
}

impl SharedClock {
    /// From now on this is the best that is known.
    pub fn publish(&self, fit: TimeFit) {
        let mut published = self.0.fit.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *published = Some(fit);
        self.0.number.fetch_add(1, Ordering::Release);
    }

    /// What was published since `seen`, which this sets. It never waits: what is being written now is seen next time.
    #[inline]
    pub fn newer_than(&self, seen: &mut u64) -> Option<TimeFit> {
        let number = self.0.number.load(Ordering::Acquire);
        if number == *seen { None } else { self.take(number, seen) }
    }

    #[cold]
    fn take(&self, number: u64, seen: &mut u64) -> Option<TimeFit> {
        let published = match self.0.fit.try_lock() {
            Ok(published) => published,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        *seen = number;
        *published
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_is_a_line_in_both_directions() {
        let at = Instant::from_nanos(2_000_000_000);
        let fit = TimeFit { at, shared_nanos: 5_000_000_000, rate_ppb: 50_000 };
        assert_eq!(fit.shared_at(at), 5_000_000_000);
        assert_eq!(fit.shared_at(Instant::from_nanos(3_000_000_000)), 6_000_050_000);
        assert_eq!(fit.shared_at(Instant::from_nanos(1_000_000_000)), 3_999_950_000);
        assert_eq!(TimeFit::OWN.shared_at(at), 2_000_000_000);
        let early = TimeFit { shared_nanos: 5, ..fit };
        assert_eq!(early.shared_at(Instant::ZERO), 0, "there is no earlier time");
    }

    #[test]
    fn each_publication_is_seen_once() {
        let (clock, mut seen) = (SharedClock::default(), 0);
        assert_eq!(clock.newer_than(&mut seen), None);
        clock.clone().publish(TimeFit::OWN);
        assert_eq!(clock.newer_than(&mut seen), Some(TimeFit::OWN));
        assert_eq!(clock.newer_than(&mut seen), None);
    }
}
