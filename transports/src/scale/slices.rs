//! When a group's time slice is over: times in, decision out.

use farcall_core::time::{Instant, PollAt};

/// The clock of slices.
#[derive(Debug)]
pub(super) struct Slices {
    length_nanos: u64,
    began: Instant,
}

impl Slices {
    pub(super) fn new(length_nanos: u64) -> Slices {
        Slices { length_nanos, began: Instant::ZERO }
    }

    /// A slice begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.began = now;
    }

    fn end(&self) -> Instant {
        self.began.saturating_add_nanos(self.length_nanos)
    }

    /// Another group should be served now. It waits; `is_idle`: no client of this one is served.
    pub(super) fn is_over(&self, now: Instant, is_idle: bool) -> bool {
        is_idle || now >= self.end()
    }

    /// When to look again.
    pub(super) fn poll_at(&self, others_wait: bool) -> PollAt {
        if others_wait { PollAt::At(self.end()) } else { PollAt::OnEvent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_ends_when_its_time_is_over_or_nobody_uses_it() {
        let mut slices = Slices::new(100);
        slices.begin(Instant::from_nanos(1000));
        let at = Instant::from_nanos;
        assert!(!slices.is_over(at(1099), false));
        assert!(slices.is_over(at(1100), false));
        assert!(slices.is_over(at(1001), true));
        assert_eq!(slices.poll_at(true), PollAt::At(at(1100)));
        assert_eq!(slices.poll_at(false), PollAt::OnEvent);
    }
}
