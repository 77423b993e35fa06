//! How long to wait before sending again: the retransmission timeout of RFC 6298 (Jacobson; Karn).

use std::time::Duration;

/// Before the first measurement (eRPC's fixed timeout is as long).
const FIRST_NANOS: u64 = 5_000_000;

/// Below this a busy thread would be taken for loss.
const FLOOR_NANOS: u64 = 1_000_000;

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
    /// Takes in one measured round trip, of a message that was sent once only (Karn).
    #[inline]
    pub(crate) fn measured(&mut self, time: Duration) {
        let sample = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(CAP_NANOS);
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

    /// Nanoseconds to wait for a message that was sent again so often already.
    #[inline]
    pub(crate) fn timeout(&self, tries: u32) -> u64 {
        (self.timeout << tries.min(10)).min(CAP_NANOS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(at_nanos: u64) -> RoundTrip {
        let mut round_trip = RoundTrip::default();
        for _ in 0..200 {
            round_trip.measured(Duration::from_nanos(at_nanos));
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
            round_trip.measured(Duration::from_millis(if turn % 2 == 0 { 2 } else { 6 }));
        }
        assert!(round_trip.timeout(0) > steady + 4_000_000);
    }

    #[test]
    fn it_stays_between_floor_and_cap() {
        assert_eq!(settled(3_000).timeout(0), FLOOR_NANOS);
        assert_eq!(settled(0).timeout(0), FLOOR_NANOS);
        let mut slow = RoundTrip::default();
        slow.measured(Duration::MAX);
        assert_eq!((slow.timeout(0), slow.timeout(9)), (CAP_NANOS, CAP_NANOS));
    }

    #[test]
    fn it_doubles_with_each_try() {
        let round_trip = settled(3_000);
        assert_eq!(round_trip.timeout(1), 2 * FLOOR_NANOS);
        assert_eq!(round_trip.timeout(3), 8 * FLOOR_NANOS);
        assert_eq!(round_trip.timeout(u32::MAX), CAP_NANOS);
    }
}
