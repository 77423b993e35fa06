//! The shared time of a server thread: what its server has learned of another one comes in, and the time goes on evenly.
//!
//! A small correction makes the shared time a little faster or slower for a while, so no slice comes twice, none is left out, and each has almost its
//! length. A large one is made at once, and any one after a pause in which the thread slept.

use farcall_core::time::Instant;

use crate::contract::{SharedClock, TimeFit};

const BILLION: i128 = 1_000_000_000;

/// A larger correction is made at once: clocks that have just been compared for the first time, or again after a restart.
const STEP_NANOS: i128 = 10_000_000;

/// After a pause of this length a correction is made at once: there was no slice that it could cut.
const PAUSE_NANOS: u64 = 10_000_000;

/// A correction takes so long, if it may be so fast.
const SLEW_NANOS: i128 = 100_000_000;

/// Fastest correction: slices are shorter or longer by so much, in billionths.
const MOST_SLEW_PPB: i128 = 50_000_000;

/// By so much a time of the shared clock may be rounded down.
const ROUNDING_NANOS: i128 = 4;

/// The shared time, as one thread sees it.
#[derive(Debug)]
pub(crate) struct SharedTime {
    /// `None`: the own time is the shared one.
    clock: Option<SharedClock>,
    seen: u64,
    /// When the thread looked last.
    looked: Instant,
    line: TimeFit,
    /// From the begin of the line on, the time is faster by so much,
    slew_ppb: i64,
    /// for so long.
    slew_nanos: u64,
}

impl SharedTime {
    /// That of this clock; the own time as long as nothing was learned.
    pub(crate) fn new(clock: Option<SharedClock>) -> SharedTime {
        let (seen, looked, line) = (0, Instant::ZERO, TimeFit::OWN);
        SharedTime { clock, seen, looked, line, slew_ppb: 0, slew_nanos: 0 }
    }

    /// Takes what was learned. Whether there was anything: what was computed before is to be computed again.
    #[inline]
    pub(crate) fn update(&mut self, now: Instant) -> bool {
        let Some(clock) = &self.clock else { return false };
        let pause = now - std::mem::replace(&mut self.looked, now);
        let Some(fit) = clock.newer_than(&mut self.seen) else { return false };
        self.follow(now, &fit, pause.as_nanos() >= PAUSE_NANOS.into());
        true
    }

    #[cold]
    fn follow(&mut self, now: Instant, fit: &TimeFit, has_paused: bool) {
        let (ours, wanted) = (self.at(now), fit.shared_at(now));
        let missing = i128::from(wanted) - i128::from(ours);
        let is_step = has_paused || missing.abs() > STEP_NANOS;
        let shared_nanos = if is_step { wanted } else { ours };
        self.line = TimeFit { at: now, shared_nanos, rate_ppb: fit.rate_ppb };
        let slew = (missing * BILLION / SLEW_NANOS).clamp(-MOST_SLEW_PPB, MOST_SLEW_PPB);
        (self.slew_ppb, self.slew_nanos) = match slew {
            _ if is_step => (0, 0),
            0 => (0, 0),
            slew => (slew as i64, (missing * BILLION / slew) as u64),
        };
    }

    /// The shared time, in nanoseconds.
    pub(crate) fn at(&self, now: Instant) -> u64 {
        let since = now.as_nanos().saturating_sub(self.line.at.as_nanos()).min(self.slew_nanos);
        let slewed = (i128::from(since) * i128::from(self.slew_ppb)).div_euclid(BILLION);
        let shared = i128::from(self.line.shared_at(now)) + slewed;
        u64::try_from(shared).unwrap_or(u64::MAX)
    }

    /// When the own clock will show it, or a few nanoseconds later, if nothing else is learned until then.
    pub(crate) fn local_when(&self, shared_nanos: u64) -> Instant {
        let since = i128::from(shared_nanos) - i128::from(self.line.shared_nanos);
        let usual = BILLION + i128::from(self.line.rate_ppb);
        let slewed = usual + i128::from(self.slew_ppb);
        let slew_nanos = i128::from(self.slew_nanos);
        let in_slew = slew_nanos * slewed / BILLION;
        let nanos = match since {
            ..=0 => 0,
            since if since <= in_slew => since * BILLION / slewed + ROUNDING_NANOS,
            since => slew_nanos + (since - in_slew) * BILLION / usual + ROUNDING_NANOS,
        };
        self.line.at.saturating_add_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn fit(local: u64, shared: u64, rate_ppb: i64) -> TimeFit {
        TimeFit { at: at(local), shared_nanos: shared, rate_ppb }
    }

    fn following() -> (SharedClock, SharedTime) {
        let clock = SharedClock::default();
        (clock.clone(), SharedTime::new(Some(clock)))
    }

    #[test]
    fn without_another_clock_the_own_time_is_the_shared_one() {
        let mut time = SharedTime::new(None);
        assert!(!time.update(at(5)));
        assert_eq!(time.at(at(7)), 7);
        assert!((100..105).contains(&time.local_when(100).as_nanos()));
    }

    #[test]
    fn the_first_estimate_is_taken_at_once_and_later_ones_in_small_steps() {
        let (clock, mut time) = following();
        clock.publish(fit(SECOND, 9 * SECOND, 0));
        assert!(time.update(at(SECOND)) && !time.update(at(SECOND)));
        assert_eq!(time.at(at(SECOND)), 9 * SECOND);
        // The own time was 1 ms too late.
        assert!(!time.update(at(2 * SECOND - 1_000)));
        clock.publish(fit(2 * SECOND, 10 * SECOND + 1_000_000, 0));
        assert!(time.update(at(2 * SECOND)));
        assert_eq!(time.at(at(2 * SECOND)), 10 * SECOND, "no jump");
        assert_eq!(time.at(at(2 * SECOND + 50_000_000)), 10 * SECOND + 50_500_000);
        assert_eq!(time.at(at(2 * SECOND + 100_000_000)), 10 * SECOND + 101_000_000);
        assert_eq!(time.at(at(3 * SECOND)), 11 * SECOND + 1_000_000, "and no more than that");
    }

    #[test]
    fn after_a_pause_a_small_correction_is_made_at_once_too() {
        let (clock, mut time) = following();
        clock.publish(fit(SECOND, 9 * SECOND, 0));
        time.update(at(SECOND));
        clock.publish(fit(2 * SECOND, 10 * SECOND + 100_000, 0));
        time.update(at(2 * SECOND));
        assert_eq!(time.at(at(2 * SECOND)), 10 * SECOND + 100_000);
    }

    #[test]
    fn if_nothing_more_is_learned_the_time_goes_on_with_the_last_rate() {
        let (clock, mut time) = following();
        clock.publish(fit(SECOND, 9 * SECOND, 50_000));
        time.update(at(SECOND));
        assert_eq!(time.at(at(11 * SECOND)), 19 * SECOND + 500_000);
    }

    proptest! {
        /// Estimates come each 100 ms, and jump by up to 3 ms to and fro.
        #[test]
        fn no_slice_comes_twice_or_is_left_out_and_each_has_almost_its_length(
            errors in prop::collection::vec((-1_500_000..1_500_000i64, -100_000..100_000i64), 1..8),
        ) {
            const SLICE: u64 = 100_000;
            let (clock, mut time) = following();
            clock.publish(fit(0, 30 * SECOND, 0));
            time.update(at(0));
            let (mut now, mut number) = (at(0), 30 * SECOND / SLICE);
            for (error, rate_ppb) in errors {
                let local = now.as_nanos();
                time.update(now);
                clock.publish(fit(local, (30 * SECOND + local).saturating_add_signed(error), rate_ppb));
                time.update(now);
                prop_assert!(time.at(now) / SLICE == number);
                // Since then the slice has another length.
                let mut is_first = true;
                while now.as_nanos() < local + SECOND / 10 {
                    let end = time.local_when((number + 1) * SLICE);
                    let length = end - now;
                    let nanos = length.as_nanos() as u64;
                    prop_assert!(nanos < SLICE * 106 / 100 && (is_first || nanos > SLICE * 94 / 100), "{length:?}");
                    prop_assert!(time.at(end) / SLICE == number + 1, "{} {number}", time.at(end));
                    (now, number, is_first) = (end, number + 1, false);
                }
            }
        }
    }
}
