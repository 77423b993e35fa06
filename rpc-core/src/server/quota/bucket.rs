//! A token bucket: when something was used and how much of it in, whether more may be used out.
//!
//! It is one word: the moment at which the bucket is full again (as in the Generic Cell Rate Algorithm, ITU-T I.371). Using something
//! moves that moment on by the time in which it flows back. So nothing has to be filled as time passes, and several threads
//! can share a bucket without a lock.

use crate::time::{Instant, saturating_nanos};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;

const SECOND_NS: u64 = 1_000_000_000;

/// A bucket holds what flows into it in this time: a client may be silent and then use as much at once.
const DEPTH_NS: u64 = SECOND_NS;

/// How fast buckets fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    /// The time in which a unit flows in, in nanoseconds: `per_unit.0 / per_unit.1`.
    per_unit: (u64, u64),
}

impl Rate {
    /// So many calls per second.
    pub(super) fn of_calls(calls: u32) -> Rate {
        Rate { per_unit: (SECOND_NS, u64::from(calls).max(1)) }
    }

    /// So much time per second. Its units are nanoseconds.
    pub(super) fn of_time(time: Duration) -> Rate {
        Rate { per_unit: (SECOND_NS, saturating_nanos(time).max(1)) }
    }

    /// The time in which so many units flow in.
    #[inline]
    pub(super) fn nanos(self, units: u64) -> u64 {
        let (nanos, of) = self.per_unit;
        match units.checked_mul(nanos) {
            Some(product) => product / of,
            None => u64::try_from(u128::from(units) * u128::from(nanos) / u128::from(of))
                .unwrap_or(u64::MAX),
        }
    }
}

/// What one client has left. It is full at first.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// When it is full again, in nanoseconds of the server's clock.
    full_at: AtomicU64,
}

impl Bucket {
    /// It is not empty.
    #[inline]
    pub(super) fn has_some(&self, now: Instant) -> bool {
        self.full_at.load(Relaxed) < now.as_nanos().saturating_add(DEPTH_NS)
    }

    /// Nothing is missing.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.full_at.load(Relaxed) <= now.as_nanos()
    }

    /// Takes out what flows in in this time, if it is there.
    #[inline]
    pub(super) fn take(&self, nanos: u64, now: Instant) -> bool {
        let now = now.as_nanos();
        let most = now.saturating_add(DEPTH_NS);
        // A plain counter: it orders nothing but itself.
        let taken = self.full_at.fetch_update(Relaxed, Relaxed, |full_at| {
            Some(full_at.max(now).saturating_add(nanos)).filter(|after| *after <= most)
        });
        taken.is_ok()
    }

    /// Takes out what flows in in this time, also if it is not there: then the bucket stays empty until it has flowed in.
    #[inline]
    pub(super) fn owe(&self, nanos: u64, now: Instant) {
        let now = now.as_nanos();
        let add = |full_at: u64| Some(full_at.max(now).saturating_add(nanos));
        let _ = self.full_at.fetch_update(Relaxed, Relaxed, add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn a_bucket_gives_a_second_s_worth_at_once_and_then_its_rate() {
        let (bucket, rate) = (Bucket::default(), Rate::of_calls(10));
        let start = 77 * SECOND_NS;
        let take = |now| bucket.take(rate.nanos(1), at(start + now));
        assert_eq!((0..50).filter(|_| take(0)).count(), 10);
        assert!(!bucket.has_some(at(start)));
        assert!(!take(SECOND_NS / 10 - 1) && take(SECOND_NS / 10) && !take(SECOND_NS / 10));
        assert_eq!((0..50).filter(|_| take(3 * SECOND_NS)).count(), 10, "it holds no more");
    }

    #[test]
    fn what_is_owed_is_paid_off_first() {
        let (bucket, rate) = (Bucket::default(), Rate::of_time(Duration::from_millis(100)));
        // A handler ran for a second: ten seconds' worth.
        bucket.owe(rate.nanos(SECOND_NS), at(0));
        assert!(!bucket.has_some(at(9 * SECOND_NS)));
        assert!(bucket.has_some(at(9 * SECOND_NS + 1)));
    }

    #[test]
    fn nothing_overflows() {
        let bucket = Bucket::default();
        bucket.owe(Rate::of_time(Duration::from_nanos(1)).nanos(u64::MAX), at(u64::MAX));
        assert!(!bucket.take(1, at(0)) && !bucket.has_some(at(0)));
        assert_eq!(Rate::of_time(Duration::MAX).nanos(1), 0);
    }

    proptest! {
        #[test]
        fn in_any_time_a_bucket_gives_that_times_worth_and_a_second_s_at_most(
            calls in 1_u32..2_000_000,
            pauses in proptest::collection::vec(0_u64..SECOND_NS / 4, 1..400),
        ) {
            let (bucket, rate) = (Bucket::default(), Rate::of_calls(calls));
            let mut now = 5 * SECOND_NS;
            let mut taken = Vec::new();
            for pause in pauses {
                now += pause;
                if bucket.take(rate.nanos(1), at(now)) {
                    taken.push(now);
                }
            }
            for (first, from) in taken.iter().enumerate() {
                for (last, until) in taken.iter().enumerate().skip(first) {
                    let worth = u128::from(until - from + DEPTH_NS) * u128::from(calls);
                    let units = (last - first + 1) as u128;
                    // The time per call is rounded down to nanoseconds: by less than a part in 500 at this rate.
                    prop_assert!(units <= worth / u128::from(SECOND_NS) * 501 / 500 + 1);
                }
            }
        }

        #[test]
        fn a_client_within_its_rate_is_never_refused(
            calls in 1_u32..1_000_000,
            jitter in proptest::collection::vec(0_u64..1_000, 1..300),
        ) {
            let (bucket, rate) = (Bucket::default(), Rate::of_calls(calls));
            let mut now = 0;
            for extra in jitter {
                now += SECOND_NS.div_ceil(u64::from(calls)) + extra;
                prop_assert!(bucket.take(rate.nanos(1), at(now)));
            }
        }

        #[test]
        fn what_is_refused_costs_nothing(
            refused in 0_usize..50,
        ) {
            let (bucket, rate) = (Bucket::default(), Rate::of_calls(1));
            prop_assert!(bucket.take(rate.nanos(1), at(0)));
            for _ in 0..refused {
                prop_assert!(!bucket.take(rate.nanos(1), at(1)));
            }
            prop_assert!(bucket.take(rate.nanos(1), at(SECOND_NS)));
        }
    }
}
