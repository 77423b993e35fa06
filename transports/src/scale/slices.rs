//! When a group's time slice is over: times in, decision out.

use farcall_core::time::{Instant, PollAt};

/// The clock of slices.
#[derive(Debug)]
pub(super) struct Slices {
    usual_nanos: u64,
    length_nanos: u64,
    began: Instant,
}

impl Slices {
    pub(super) fn new(usual_nanos: u64) -> Slices {
        Slices { usual_nanos, length_nanos: usual_nanos, began: Instant::ZERO }
    }

    /// What an address says of their length.
    pub(super) fn usual_nanos(&self) -> u64 {
        self.usual_nanos
    }

    /// A slice of this length begins.
    pub(super) fn begin(&mut self, now: Instant, length_nanos: u64) {
        (self.began, self.length_nanos) = (now, length_nanos);
    }

    /// The slice begins only now: before, nobody was served.
    pub(super) fn restart(&mut self, now: Instant) {
        self.began = now;
    }

    /// How long the slice has lasted.
    pub(super) fn nanos_until(&self, now: Instant) -> u64 {
        now.as_nanos().saturating_sub(self.began.as_nanos())
    }

    fn end(&self) -> Instant {
        self.began.saturating_add_nanos(self.length_nanos)
    }

    /// How much of the slice is left.
    pub(super) fn nanos_left(&self, now: Instant) -> u64 {
        self.end().as_nanos().saturating_sub(now.as_nanos())
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
        let mut slices = Slices::new(70);
        slices.begin(Instant::from_nanos(900), 100);
        slices.restart(Instant::from_nanos(1000));
        let at = Instant::from_nanos;
        assert!(!slices.is_over(at(1099), false));
        assert!(slices.is_over(at(1100), false));
        assert!(slices.is_over(at(1001), true));
        assert_eq!(slices.poll_at(true), PollAt::At(at(1100)));
        assert_eq!(slices.poll_at(false), PollAt::OnEvent);
        assert_eq!((slices.nanos_until(at(1030)), slices.usual_nanos()), (30, 70));
        assert_eq!((slices.nanos_left(at(1030)), slices.nanos_left(at(1101))), (70, 0));
    }
}
