//! A unit of a NIC: it does one thing at a time.

/// Until when it is busy, in picoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unit {
    free_ps: u64,
}

impl Unit {
    /// Occupies it for `for_ps` as soon as it is free. Returns when that is done.
    #[inline]
    pub(super) fn take(&mut self, now_ps: u64, for_ps: u64) -> u64 {
        self.free_ps = self.free_ps.max(now_ps).saturating_add(for_ps);
        self.free_ps
    }

    /// As [`take`](Unit::take), for data that has been arriving since `for_ps` before now: it is done now if the
    /// unit was free.
    #[inline]
    pub(super) fn take_arriving(&mut self, now_ps: u64, for_ps: u64) -> u64 {
        self.free_ps = self.free_ps.saturating_add(for_ps).max(now_ps);
        self.free_ps
    }

    /// How long new work would wait now.
    #[inline]
    pub(super) fn backlog(&self, now_ps: u64) -> u64 {
        self.free_ps.saturating_sub(now_ps)
    }
}

/// Converts nanoseconds of virtual time to picoseconds.
#[inline]
pub(super) fn ps(ns: u64) -> u64 {
    ns.saturating_mul(1000)
}

/// Converts picoseconds to nanoseconds of virtual time, rounded up.
#[inline]
pub(super) fn ns(ps: u64) -> u64 {
    ps.div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_does_one_thing_at_a_time() {
        let mut unit = Unit::default();
        assert_eq!(unit.take(1000, 300), 1300);
        assert_eq!((unit.take(1000, 300), unit.backlog(1000)), (1600, 600));
        assert_eq!(unit.take(5000, 300), 5300, "free again");
    }

    #[test]
    fn data_that_has_been_arriving_is_not_waited_for_twice() {
        let mut unit = Unit::default();
        assert_eq!(unit.take_arriving(1000, 300), 1000);
        assert_eq!(unit.take_arriving(1000, 300), 1300, "two at a time");
    }
}
