//! Clocks of nodes that are not the rack's: ahead of it, and faster or slower.

const BILLION: i128 = 1_000_000_000;

/// How a node's clock differs from the rack's. Usually it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeClock {
    /// What it shows when the rack's shows 0, in nanoseconds.
    pub ahead_ns: u64,
    /// By how much it is faster, in billionths; negative: slower. More than -10^9, with which it would stand still.
    pub drift_ppb: i32,
}

impl NodeClock {
    /// What it shows at this time of the rack.
    pub(super) fn shows_at(self, rack_ns: u64) -> u64 {
        let rack_ns = i128::from(rack_ns);
        let drifted = (rack_ns * i128::from(self.drift_ppb)).div_euclid(BILLION);
        let shown = i128::from(self.ahead_ns) + rack_ns + drifted;
        u64::try_from(shown).unwrap_or(u64::MAX)
    }

    /// The rack's time when it first shows this, or later than that.
    pub(super) fn rack_ns_when(self, shown_ns: u64) -> u64 {
        let since = i128::from(shown_ns) - i128::from(self.ahead_ns);
        let rate = BILLION + i128::from(self.drift_ppb);
        let rack_ns = (since.max(0) * BILLION + rate - 1).div_euclid(rate);
        u64::try_from(rack_ns).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_ahead_and_drifts() {
        let second = 1_000_000_000;
        let clock = NodeClock { ahead_ns: 5 * second, drift_ppb: 50_000 };
        assert_eq!(clock.shows_at(0), 5 * second);
        assert_eq!(clock.shows_at(2 * second), 7 * second + 100_000);
        let slow = NodeClock { ahead_ns: 0, drift_ppb: -50_000 };
        assert_eq!(slow.shows_at(2 * second), 2 * second - 100_000);
        assert_eq!(NodeClock::default().shows_at(17), 17);
    }

    #[test]
    fn a_timer_by_the_clock_is_never_early_and_at_most_two_nanoseconds_late() {
        for drift_ppb in [-50_000, -1, 0, 1, 50_000, 100_000_000] {
            let clock = NodeClock { ahead_ns: 12_345, drift_ppb };
            for shown in (12_345..40_000).chain(9_999_999_000..10_000_000_000) {
                let rack_ns = clock.rack_ns_when(shown);
                assert!((shown..shown + 3).contains(&clock.shows_at(rack_ns)), "{shown} {clock:?}");
            }
        }
        assert_eq!(NodeClock { ahead_ns: 9, drift_ppb: 0 }.rack_ns_when(3), 0, "it is over");
    }
}
