//! How long to wait before sending again: the retransmission timeout of RFC 6298 (Jacobson; Karn).

use farcall_core::time::Instant;

/// Before the first measurement (eRPC's fixed timeout is as long).
const FIRST_NANOS: u64 = 5_000_000;

/// About ten round trips of a rack. An unneeded copy costs a message; a late one costs a call.
const FLOOR_NANOS: u64 = 20_000;

/// The longest timeout, whatever was measured and however often something was repeated.
pub(crate) const CAP_NANOS: u64 = 64_000_000;

/// Smoothed round trips of one session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundTrip {
    smoothed: u64,
    /// Mean deviation.
    deviation: u64,
    timeout: u64,
}

impl Default for RoundTrip {
    fn default() -> RoundTrip {
        RoundTrip { smoothed: 0, deviation: 0, timeout: FIRST_NANOS }
    }
}

impl RoundTrip {
    /// Records one round trip, whose answer says which copy it answers.
    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        let sample = nanos.min(CAP_NANOS);
        if self.smoothed == 0 {
            self.smoothed = sample;
            self.deviation = sample / 2;
        } else {
            let off = self.smoothed.abs_diff(sample);
            self.deviation = self.deviation - self.deviation / 4 + off / 4;
            self.smoothed = self.smoothed - self.smoothed / 8 + sample / 8;
        }
        self.timeout = (self.smoothed + 4 * self.deviation).clamp(FLOOR_NANOS, CAP_NANOS);
    }

    /// The answer to what was sent before this moment should have come by now: a round trip and a quarter ago, as the
    /// reordering window of RACK (RFC 8985, section 6.2).
    pub(crate) fn answered_if_sent_before(&self, now: Instant) -> Instant {
        let nanos = match self.smoothed {
            0 => FIRST_NANOS,
            smoothed => smoothed + smoothed / 4,
        };
        Instant::from_nanos(now.as_nanos().saturating_sub(nanos))
    }

    /// Nanoseconds to wait for the answer to a message that was repeated this often.
    #[inline]
    pub(crate) fn timeout(&self, repeats: u32) -> u64 {
        (self.timeout << repeats.min(12)).min(CAP_NANOS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(at_nanos: u64) -> RoundTrip {
        let mut round_trip = RoundTrip::default();
        for _ in 0..200 {
            round_trip.record(at_nanos);
        }
        round_trip
    }

    #[test]
    fn the_first_timeout_is_long() {
        assert_eq!(RoundTrip::default().timeout(0), FIRST_NANOS);
    }

    #[test]
    fn the_timeout_of_a_steady_round_trip_is_little_more_than_it() {
        let timeout = settled(8_000_000).timeout(0);
        assert!((8_000_000..9_000_000).contains(&timeout), "{timeout}");
    }

    #[test]
    fn the_timeout_of_a_varying_round_trip_is_longer() {
        let mut round_trip = settled(4_000_000);
        let steady = round_trip.timeout(0);
        for turn in 0..100 {
            round_trip.record(if turn % 2 == 0 { 2_000_000 } else { 6_000_000 });
        }
        assert!(round_trip.timeout(0) > steady + 4_000_000);
    }

    #[test]
    fn the_timeout_stays_between_floor_and_cap() {
        assert_eq!(settled(3_000).timeout(0), FLOOR_NANOS);
        assert_eq!(settled(0).timeout(0), FLOOR_NANOS);
        let mut slow = RoundTrip::default();
        slow.record(u64::MAX);
        assert_eq!((slow.timeout(0), slow.timeout(9)), (CAP_NANOS, CAP_NANOS));
    }

    #[test]
    fn the_timeout_doubles_with_each_repeat() {
        let round_trip = settled(3_000);
        assert_eq!(round_trip.timeout(1), 2 * FLOOR_NANOS);
        assert_eq!(round_trip.timeout(3), 8 * FLOOR_NANOS);
        assert_eq!(round_trip.timeout(12), CAP_NANOS);
        assert_eq!(round_trip.timeout(u32::MAX), CAP_NANOS);
    }
}
