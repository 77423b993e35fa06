//! Round trips of two threads that sleep until the other one wakes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use anyhow::Result;
use crossbeam_utils::CachePadded;

use super::UNCOUNTED;
use super::partner::{Orders, Partner};
use crate::clock::Clock;
use crate::latency::Latency;

/// Two pinned threads that wake each other alternately with `unpark`, which is a futex on Linux, and sleep meanwhile.
///
/// It is a lower bound of every round trip in which both ends sleep while they wait.
pub struct Futex {
    /// Counts the wake-ups: the partner answers odd numbers.
    turn: Arc<CachePadded<AtomicU64>>,
    partner: Partner,
    latency: Latency,
}

impl Futex {
    /// Starts the partner on `core`. The calling thread is the other end, and the only one that may call `slice`.
    pub fn start(core: usize) -> Result<Self> {
        let turn = Arc::new(CachePadded::new(AtomicU64::new(0)));
        let (theirs, caller) = (Arc::clone(&turn), thread::current());
        let partner = Partner::start(core, move |orders| answer(&theirs, &caller, orders))?;
        Ok(Self { turn, partner, latency: Latency::new() })
    }

    /// Wakes and is woken for about `time`.
    pub fn slice(&mut self, clock: &Clock, time: Duration) {
        let Self { turn, partner, latency } = self;
        partner.work_during(|| {
            let begin = clock.after(UNCOUNTED);
            let end = clock.after(UNCOUNTED + time);
            let mut is_counted = false;
            // On a busy machine one round trip may take longer than a slice.
            loop {
                let before = clock.stamp();
                round_trip(turn, partner);
                let after = clock.stamp();
                if before >= begin {
                    latency.record(clock.nanos_between(before, after));
                    is_counted = true;
                }
                if after >= end && is_counted {
                    break;
                }
            }
        });
    }

    /// A round trip, silence in which both threads sleep, and the nanoseconds of the next round trip.
    pub fn after(&self, clock: &Clock, silence: Duration) -> u64 {
        let Self { turn, partner, .. } = self;
        partner.work_during(|| {
            round_trip(turn, partner);
            thread::sleep(silence);
            let before = clock.stamp();
            round_trip(turn, partner);
            clock.nanos_between(before, clock.stamp())
        })
    }

    /// The round trips so far.
    pub fn latency(&self) -> &Latency {
        &self.latency
    }
}

/// Wakes the partner, and sleeps until it has woken this thread.
fn round_trip(turn: &AtomicU64, partner: &Partner) {
    let next = turn.load(Ordering::Relaxed) + 1;
    turn.store(next, Ordering::Release);
    partner.wake();
    while turn.load(Ordering::Acquire) == next {
        thread::park();
    }
}

fn answer(turn: &AtomicU64, caller: &Thread, orders: &Orders) {
    loop {
        let now = turn.load(Ordering::Acquire);
        if now & 1 == 1 {
            turn.store(now + 1, Ordering::Release);
            caller.unpark();
        } else if orders.are_to_stop() {
            return;
        } else {
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wake_up_is_answered_over_slices() {
        let (clock, mut futex) = (Clock::new(), Futex::start(0).unwrap());
        futex.slice(&clock, Duration::from_millis(2));
        let first = futex.latency().samples();
        futex.slice(&clock, Duration::from_millis(2));
        assert!(first > 0 && futex.latency().samples() > first);
        assert!(futex.after(&clock, Duration::from_millis(1)) > 0);
        assert_eq!(futex.turn.load(Ordering::Relaxed) & 1, 0, "no wake-up is unanswered");
        assert!(futex.latency().quantile(0.5) > 0);
    }
}
