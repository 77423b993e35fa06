//! How long to wait before sending again: the retransmission timeout of RFC 6298 (Jacobson; Karn).

use farcall_core::time::Instant;

/// Before the first measurement (eRPC's fixed timeout is as long).
const FIRST_NANOS: u64 = 5_000_000;

/// Some ten round trips of a rack. A copy that was not needed costs a message; one that comes late costs a call.
const FLOOR_NANOS: u64 = 20_000;

/// A server that is there is never asked less often than this.
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
    /// Takes in one measured round trip, of which the answer says which copy it answers.
    #[inline]
    pub(crate) fn measured(&mut self, nanos: u64) {
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

    /// The answer to what was sent before this should have come by now: a round trip and a quarter ago, as the window for
    /// reordering of RACK (RFC 8985, section 6.2).
    pub(crate) fn not_late(&self, now: Instant) -> Instant {
        let nanos = match self.smoothed {
            0 => FIRST_NANOS,
            smoothed => smoothed + smoothed / 4,
        };
        Instant::from_nanos(now.as_nanos().saturating_sub(nanos))
    }

    /// Nanoseconds to wait for a message that was sent again so often already.
    #[inline]
    pub(crate) fn timeout(&self, tries: u32) -> u64 {
        (self.timeout << tries.min(12)).min(CAP_NANOS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(at_nanos: u64) -> RoundTrip {
        let mut round_trip = RoundTrip::default();
        for _ in 0..200 {
            round_trip.measured(at_nanos);
        }
        round_trip
    }

    #[test]
    fn it_waits_long_before_it_knows() {
        assert_eq!(RoundTrip::default().timeout(0), FIRST_NANOS);
    }

    #[test]
    fn a_steady_round_trip_is_waited_for_and_little_more() {
        let timeout = settled(8_000_000).timeout(0);
        assert!((8_000_000..9_000_000).contains(&timeout), "{timeout}");
    }

    #[test]
    fn a_round_trip_that_varies_is_waited_for_longer() {
        let mut round_trip = settled(4_000_000);
        let steady = round_trip.timeout(0);
        for turn in 0..100 {
            round_trip.measured(if turn % 2 == 0 { 2_000_000 } else { 6_000_000 });
        }
        assert!(round_trip.timeout(0) > steady + 4_000_000);
    }

    #[test]
    fn it_stays_between_floor_and_cap() {
        assert_eq!(settled(3_000).timeout(0), FLOOR_NANOS);
        assert_eq!(settled(0).timeout(0), FLOOR_NANOS);
        let mut slow = RoundTrip::default();
        slow.measured(u64::MAX);
        assert_eq!((slow.timeout(0), slow.timeout(9)), (CAP_NANOS, CAP_NANOS));
    }

    #[test]
    fn it_doubles_with_each_try() {
        let round_trip = settled(3_000);
        assert_eq!(round_trip.timeout(1), 2 * FLOOR_NANOS);
        assert_eq!(round_trip.timeout(3), 8 * FLOOR_NANOS);
        assert_eq!(round_trip.timeout(12), CAP_NANOS);
        assert_eq!(round_trip.timeout(u32::MAX), CAP_NANOS);
    }
}
