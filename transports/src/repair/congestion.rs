//! How much a session may have under way, by how long its round trips take: Swift (SIGCOMM 2020). Pure.
//!
//! A round trip that takes much longer than the shortest one waited in queues. Then the window shrinks in proportion, at
//! most once per round trip and by half; otherwise it grows by one datagram per round trip. Of the two published controls
//! from round-trip times Swift is the one with a window, which is how both directions are paced here; Timely (SIGCOMM 2015)
//! would need a rate limiter. A session whose window is at its largest, as nearly all are, pays one comparison for each
//! datagram (eRPC, NSDI 2019, section 5.2.2, whose bound of 50 us is used here).
//!
//! Loss is ignored: a full switch delays what it does not drop, and a bad cable loses at any rate (eRPC, section 5.3).
//!
//! The window is at least one datagram: with less, a session would have to pace by time.

use farcall_core::time::Instant;

/// What queues may add to the shortest round trip.
const QUEUES_NANOS: u64 = 50_000;

/// What they may add on top of that where the window is one datagram; a larger window divides it by its square root. Many
/// sessions make a longer queue, and those with small windows grow while those with large ones shrink (Swift, section 3.1,
/// flow-based scaling).
const SMALL_WINDOW_NANOS: u64 = 50_000;

/// One datagram.
const ONE: u32 = 1 << 8;

#[derive(Debug)]
pub(crate) struct Congestion {
    /// Datagrams that may be under way, in 256ths.
    window: u32,
    /// The largest window; `u32::MAX` without control.
    most: u32,
    /// The shortest round trip so far.
    shortest: u64,
    /// It does not shrink again before this.
    shrunk_until: Instant,
}

impl Congestion {
    /// Control of a session with at most `most` datagrams under way; 0 turns it off.
    pub(crate) fn new(most: u32) -> Congestion {
        let window = if most == 0 { u32::MAX } else { most * ONE };
        Congestion { window, most: window, shortest: u64::MAX, shrunk_until: Instant::ZERO }
    }

    /// Datagrams that may be under way.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.window / ONE
    }

    /// Records a round trip, which stands for `datagrams`, or for all that were under way.
    #[inline]
    pub(crate) fn record(&mut self, now: Instant, nanos: u64, datagrams: Option<u32>) {
        self.shortest = self.shortest.min(nanos);
        if nanos > self.shortest.saturating_add(QUEUES_NANOS) || self.window < self.most {
            self.adjust(now, nanos, datagrams);
        }
    }

    #[cold]
    fn adjust(&mut self, now: Instant, nanos: u64, datagrams: Option<u32>) {
        if self.most == u32::MAX {
            return;
        }
        let scaled = SMALL_WINDOW_NANOS * u64::from(ONE.isqrt()) / u64::from(self.window.isqrt());
        let target = self.shortest + QUEUES_NANOS + scaled;
        if nanos > target {
            self.shrink(now, nanos, target);
        } else {
            self.grow(datagrams);
        }
    }

    fn grow(&mut self, datagrams: Option<u32>) {
        let share = datagrams.map_or(ONE, |count| {
            (u64::from(count * ONE) * u64::from(ONE) / u64::from(self.window)) as u32
        });
        self.window = (self.window + share.max(1)).min(self.most);
    }

    fn shrink(&mut self, now: Instant, nanos: u64, target: u64) {
        if now < self.shrunk_until {
            return;
        }
        self.shrunk_until = now.saturating_add_nanos(nanos);
        // 0.8 of what is too much, but not more than half (Swift, section 3.1).
        let window = u64::from(self.window);
        let less = (window * 4 * (nanos - target) / (5 * nanos)).min(window / 2);
        self.window = ((window - less) as u32).max(ONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Instant = Instant::from_nanos(1_000_000_000);

    fn at(nanos: u64) -> Instant {
        AT.saturating_add_nanos(nanos)
    }

    #[test]
    fn short_round_trips_leave_the_window_at_its_largest() {
        let mut congestion = Congestion::new(16);
        for nanos in [2_000, 40_000, 3_000, 52_000] {
            congestion.record(AT, nanos, Some(1));
            assert_eq!(congestion.window(), 16);
        }
    }

    #[test]
    fn a_distant_server_has_a_longer_shortest_round_trip() {
        let mut far = Congestion::new(16);
        for time in 0..100 {
            far.record(at(time * 10_000_000), 400_000, Some(1));
        }
        assert_eq!(far.window(), 16);
    }

    #[test]
    fn a_long_round_trip_shrinks_the_window_once_and_at_most_by_half() {
        let mut congestion = Congestion::new(16);
        congestion.record(at(0), 2_000, Some(1));
        congestion.record(at(0), 1_000_000, Some(1));
        congestion.record(at(1_000), 1_000_000, Some(1));
        assert_eq!(congestion.window(), 8);
        congestion.record(at(1_000_000), 80_000, Some(1));
        assert_eq!(congestion.window(), 7, "a little too long, a little less");
        congestion.record(at(2_000_000), 70_000, None);
        assert_eq!(congestion.window(), 8, "not too long for so small a window");
        for round in 3..20 {
            congestion.record(at(round * 1_000_000), 1_000_000, Some(1));
        }
        assert_eq!(congestion.window(), 1);
    }

    #[test]
    fn the_window_grows_by_one_each_round_trip() {
        let mut congestion = Congestion::new(16);
        congestion.record(at(0), 2_000, Some(1));
        congestion.record(at(0), 1_000_000, Some(1));
        assert_eq!(congestion.window(), 8);
        for _ in 0..8 {
            congestion.record(at(0), 2_000, Some(1));
        }
        assert!((8..=9).contains(&congestion.window()));
        congestion.record(at(0), 2_000, None);
        assert_eq!(congestion.window(), 9);
        for _ in 0..1000 {
            congestion.record(at(0), 2_000, Some(1));
        }
        assert_eq!(congestion.window(), 16);
    }

    #[test]
    fn without_control_nothing_is_held_back() {
        let mut congestion = Congestion::new(0);
        congestion.record(at(0), 1_000, Some(1));
        congestion.record(at(0), u64::MAX, Some(1));
        assert!(congestion.window() > 1 << 20);
    }
}
