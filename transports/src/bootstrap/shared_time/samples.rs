//! Another server's time out of questions and answers, as NTP does it: times in, a line out.
//!
//! The other's times of a sample belong to the middle between question and answer. The error is at most half the round trip, whichever way
//! was the slower one. So the sample of the shortest round trip counts, among the last few, and later ones more: the clocks
//! drift.

use std::collections::VecDeque;

use farcall_core::time::Instant;

use crate::contract::TimeFit;

/// Samples that are looked at.
const KEPT: usize = 16;

/// How well the drift is known, in billionths: what a sample is worse for its age.
const DRIFT_ERROR_PPB: u64 = 20_000;

/// Clocks that differ by more were set, or are those of another start: 0.1 % is ten times as much as usual crystals have.
const MOST_DRIFT_PPB: i64 = 1_000_000;

/// The drift is measured over at least this time: by then it is more than the error of a usual sample.
const LEAST_SPAN_NANOS: u64 = 200_000_000;

/// One question for another server's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockSample {
    /// When it was sent, by the own clock.
    pub asked: Instant,
    /// When it was received, by the other's clock.
    pub received_nanos: u64,
    /// When the answer was sent, by the other's clock.
    pub answered_nanos: u64,
    /// When the answer was received, by the own clock.
    pub heard: Instant,
}

/// A time by both clocks.
#[derive(Debug, Clone, Copy)]
struct Point {
    local_nanos: u64,
    shared_nanos: u64,
    /// By how much the other's may be wrong.
    error_nanos: u64,
}

impl ClockSample {
    /// `None`: no clocks show such times.
    fn point(&self) -> Option<Point> {
        let all = self.heard.as_nanos().checked_sub(self.asked.as_nanos())?;
        let theirs = self.answered_nanos.checked_sub(self.received_nanos)?;
        // A clock that drifts may show a little more than the whole.
        let way = all.saturating_sub(theirs);
        (theirs <= all.saturating_add(all / 1000 + 1)).then_some(Point {
            local_nanos: self.asked.as_nanos() + all / 2,
            shared_nanos: self.received_nanos + theirs / 2,
            error_nanos: way / 2,
        })
    }
}

/// The last samples, and what follows from them.
#[derive(Debug)]
pub(super) struct ClockSamples {
    points: VecDeque<Point>,
    rate_ppb: i64,
}

impl ClockSamples {
    pub(super) fn new() -> ClockSamples {
        ClockSamples { points: VecDeque::with_capacity(KEPT), rate_ppb: 0 }
    }

    /// Learns from a sample. Gives what is known now; `None`: nothing, and the sample is impossible.
    pub(super) fn add(&mut self, sample: &ClockSample) -> Option<TimeFit> {
        if let Some(point) = sample.point() {
            if !self.can_be(&point) {
                self.points.clear();
                self.rate_ppb = 0;
            }
            if self.points.len() == KEPT {
                self.points.pop_front();
            }
            self.points.push_back(point);
            self.measure_drift();
        }
        let last = self.points.back()?;
        Some(self.fit(self.best(self.points.range(..), last.local_nanos)?))
    }

    fn fit(&self, point: &Point) -> TimeFit {
        let at = Instant::from_nanos(point.local_nanos);
        TimeFit { at, shared_nanos: point.shared_nanos, rate_ppb: self.rate_ppb }
    }

    /// The one whose error is the least by now.
    fn best<'p>(
        &self,
        points: impl Iterator<Item = &'p Point>,
        now_nanos: u64,
    ) -> Option<&'p Point> {
        points.min_by_key(|point| {
            let age = u128::from(now_nanos.saturating_sub(point.local_nanos));
            u128::from(point.error_nanos) + age * u128::from(DRIFT_ERROR_PPB) / 1_000_000_000
        })
    }

    /// The other clock goes on as it did before.
    fn can_be(&self, point: &Point) -> bool {
        let Some(last) = self.points.back() else { return true };
        let known = self.fit(last).shared_at(Instant::from_nanos(point.local_nanos));
        let age = u128::from(point.local_nanos.saturating_sub(last.local_nanos));
        let drift = (age * MOST_DRIFT_PPB as u128 / 1_000_000_000) as u64;
        let error = last.error_nanos.saturating_add(point.error_nanos).saturating_add(drift);
        known.abs_diff(point.shared_nanos) <= error.saturating_add(1)
    }

    /// Compares the best of the earlier half with the best of the later half.
    fn measure_drift(&mut self) {
        let half = self.points.len() / 2;
        // The age does not count: the drift is what is wanted.
        let best = |points: std::collections::vec_deque::Iter<'_, Point>| {
            points.min_by_key(|point| point.error_nanos).copied()
        };
        let (earlier, later) = (best(self.points.range(..half)), best(self.points.range(half..)));
        let (Some(earlier), Some(later)) = (earlier, later) else { return };
        let span = later.local_nanos.saturating_sub(earlier.local_nanos);
        if span < LEAST_SPAN_NANOS {
            return;
        }
        let theirs = i128::from(later.shared_nanos) - i128::from(earlier.shared_nanos);
        let gained = theirs - i128::from(span);
        let rate = gained * 1_000_000_000 / i128::from(span);
        let rate = rate.clamp((-MOST_DRIFT_PPB).into(), MOST_DRIFT_PPB.into()) as i64;
        self.rate_ppb = rate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MILLISECOND: u64 = 1_000_000;
    const MICROSECOND: u64 = 1_000;

    /// A clock that is ahead by 7 s, and gains 50 us per second.
    fn theirs(local_nanos: u64) -> u64 {
        7 * SECOND + local_nanos + local_nanos / 20_000
    }

    /// A question at this time, whose ways take so long.
    fn sample(asked: u64, there: u64, back: u64) -> ClockSample {
        let (received, answered) = (asked + there, asked + there + 3 * MICROSECOND);
        ClockSample {
            asked: Instant::from_nanos(asked),
            received_nanos: theirs(received),
            answered_nanos: theirs(answered),
            heard: Instant::from_nanos(answered + back),
        }
    }

    fn error(fit: &TimeFit, local: u64) -> u64 {
        fit.shared_at(Instant::from_nanos(local)).abs_diff(theirs(local))
    }

    #[test]
    fn a_sample_with_equal_ways_is_exact() {
        let fit = ClockSamples::new().add(&sample(SECOND, 20_000, 20_000)).unwrap();
        assert!(error(&fit, SECOND + 20_000) < 10, "{fit:?}");
    }

    #[test]
    fn the_error_is_at_most_half_the_round_trip_and_the_shortest_one_counts() {
        let mut samples = ClockSamples::new();
        let first = samples.add(&sample(SECOND, 10_000, 200_000)).unwrap();
        assert!((90_000..=105_000).contains(&error(&first, SECOND)));
        let better = samples.add(&sample(SECOND + MILLISECOND, 12_000, 10_000)).unwrap();
        assert!(error(&better, SECOND + MILLISECOND) < 1_100);
        let late = samples.add(&sample(SECOND + 2 * MILLISECOND, 300_000, 10_000)).unwrap();
        assert_eq!(late, better);
    }

    #[test]
    fn the_drift_is_learned_and_an_old_estimate_stays_good() {
        let mut samples = ClockSamples::new();
        let mut fit = TimeFit::OWN;
        for at in 0..16 {
            // Their ways differ by up to 10 us.
            let ways = [(10_000, 10_000), (15_000, 9_000), (10_000, 20_000)][at as usize % 3];
            fit = samples.add(&sample(SECOND + at * SECOND / 10, ways.0, ways.1)).unwrap();
        }
        assert!((49_000..51_000).contains(&fit.rate_ppb), "{fit:?}");
        assert!(error(&fit, 13 * SECOND) < 20 * MICROSECOND, "ten seconds later");
    }

    #[test]
    fn a_clock_of_another_start_is_followed_at_once() {
        let mut samples = ClockSamples::new();
        for at in 0..16 {
            samples.add(&sample(SECOND + at * SECOND / 10, 10_000, 10_000));
        }
        let restarted = ClockSample {
            received_nanos: 5_000,
            answered_nanos: 6_000,
            ..sample(4 * SECOND, 10_000, 10_000)
        };
        let fit = samples.add(&restarted).unwrap();
        assert!((5_000..=6_000).contains(&fit.shared_nanos), "{fit:?}");
    }

    #[test]
    fn impossible_samples_teach_nothing() {
        let mut samples = ClockSamples::new();
        let good = sample(SECOND, 10_000, 10_000);
        for wrong in [
            ClockSample { heard: Instant::ZERO, ..good },
            ClockSample { received_nanos: good.answered_nanos + 1, ..good },
            ClockSample { answered_nanos: u64::MAX, ..good },
        ] {
            assert_eq!(samples.add(&wrong), None);
        }
        let fit = samples.add(&good);
        let end = ClockSample { received_nanos: u64::MAX, answered_nanos: u64::MAX, ..good };
        assert!(fit.is_some() && samples.add(&end).is_some(), "sums do not overflow");
    }
}
