//! Deadlines that a program's timeouts make.

use std::time::{Duration, Instant};

/// What is awaited longer is awaited as long as this: a year. The system's clock and its calls have room for it.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// A timeout that can be added to any moment that this process sees.
pub(crate) fn bounded(timeout: Duration) -> Duration {
    timeout.min(LONGEST_WAIT)
}

/// The moment at which a wait that begins now ends. Timeouts may be of any length, [`Duration::MAX`] too.
pub(crate) fn deadline_in(timeout: Duration) -> Instant {
    Instant::now() + bounded(timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_timeout_makes_a_deadline() {
        let begun = Instant::now();
        assert!(deadline_in(Duration::ZERO) >= begun);
        for long in [LONGEST_WAIT, Duration::from_secs(u64::MAX / 4), Duration::MAX] {
            let left = deadline_in(long).saturating_duration_since(begun);
            assert!((LONGEST_WAIT..2 * LONGEST_WAIT).contains(&left), "{long:?}: {left:?}");
        }
        let short = deadline_in(Duration::from_secs(7)).saturating_duration_since(begun);
        assert!(short >= Duration::from_secs(7) && short < Duration::from_secs(60), "{short:?}");
    }
}
