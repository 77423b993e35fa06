//! What trials may cost a connection: the time that its calls lose on ways that are worse.

use farcall_core::time::Instant;

/// A connection that was not looked at for longer made no calls in between.
const LONGEST_LOOK_NS: u64 = 10_000_000;

/// Time that may be lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    at_once_ns: f64,
    share: f64,
    left_ns: f64,
    since: Instant,
}

impl Budget {
    /// So much at once, and that share of the time with calls.
    pub(super) const fn new(at_once_ns: u64, share: f64) -> Budget {
        let at_once_ns = at_once_ns as f64;
        Budget { at_once_ns, share, left_ns: at_once_ns, since: Instant::ZERO }
    }

    /// There have been calls until now.
    pub(super) fn earn(&mut self, now: Instant) {
        let since_ns = (now - std::mem::replace(&mut self.since, now)).as_nanos() as u64;
        let earned_ns = self.share * since_ns.min(LONGEST_LOOK_NS) as f64;
        self.left_ns = (self.left_ns + earned_ns).min(self.at_once_ns);
    }

    /// Calls took so many times as long for a while; infinitely, if none was answered.
    pub(super) fn lose(&mut self, for_ns: u64, times: f64) {
        self.left_ns -= for_ns as f64 * (1.0 - 1.0 / times).max(0.0);
    }

    /// Something may be tried.
    pub(super) fn is_left(self) -> bool {
        self.left_ns >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_bounded_by_a_share_of_the_time() {
        let mut budget = Budget::new(10_000_000, 0.02);
        let (mut now, mut lost_ns) = (Instant::from_nanos(1), 0);
        for _ in 0..10_000 {
            now = now.saturating_add_nanos(1_000_000);
            budget.earn(now);
            if budget.is_left() {
                budget.lose(4_000_000, 2.0);
                lost_ns += 2_000_000;
            }
        }
        assert!((200_000_000..214_000_000).contains(&lost_ns), "{lost_ns} of 10 s");
    }

    #[test]
    fn a_trial_that_gains_costs_nothing_and_one_without_answers_all() {
        let mut budget = Budget::new(1000, 0.0);
        budget.lose(1_000_000, 0.5);
        assert!(budget.is_left());
        budget.lose(1001, f64::INFINITY);
        assert!(!budget.is_left());
    }

    #[test]
    fn a_connection_without_calls_earns_nothing() {
        let mut budget = Budget::new(1_000_000, 0.02);
        budget.lose(2_000_000, f64::INFINITY);
        budget.earn(Instant::from_nanos(60_000_000_000));
        assert!(!budget.is_left());
    }
}
