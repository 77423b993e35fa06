//! Slices that several servers share: each has a number by the time that they share, and the number says whose turn it is. Times
//! and who waits in, groups out.
//!
//! A group is due in each slice whose number has the group's as the remainder. If nobody of it waits, its slice goes to the
//! group that waits longest. The group that is due gets the rest of it as soon as one of its clients has requests, once in each slice.

use farcall_core::time::Instant;

use crate::contract::{SlicePlan, ThreadOf};
use crate::kit::shared_time::SharedTime;

/// The threads of a server switch at different times within this part of a slice. It is no larger because a client may be served by another
/// thread at each server, and is to be served by all of them at the same time.
const PHASES_OF_SLICE: u64 = 4;

/// The numbered slices of a server thread.
#[derive(Debug)]
pub(super) struct NumberedSlices {
    plan: SlicePlan,
    phase_nanos: u64,
    time: SharedTime,
    number: u64,
    /// By the own clock.
    end: Instant,
    /// The group that gets this slice is not chosen yet.
    is_new: bool,
    /// The group that is due has been served in this slice.
    was_served: bool,
}

/// Who is served, and who waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    /// The group that is served.
    pub(super) served: usize,
    /// None of its clients is served any more.
    pub(super) is_idle: bool,
    /// Of the groups that are not served, the one that has waited longest.
    pub(super) longest: Option<usize>,
}

impl NumberedSlices {
    pub(super) fn new(plan: SlicePlan, thread: ThreadOf, time: SharedTime) -> NumberedSlices {
        let phases = PHASES_OF_SLICE * u64::from(thread.threads);
        let phase_nanos = plan.slice_nanos * u64::from(thread.number) / phases;
        let (end, is_new, was_served) = (Instant::ZERO, true, false);
        NumberedSlices { plan, phase_nanos, time, number: 0, end, is_new, was_served }
    }

    /// How many groups there are.
    pub(super) fn groups(&self) -> usize {
        self.plan.groups.max(1) as usize
    }

    /// When this slice ends.
    pub(super) fn end(&self) -> Instant {
        self.end
    }

    /// Finds out which slice it is.
    #[inline]
    pub(super) fn update(&mut self, now: Instant) {
        if self.time.update(now) || now >= self.end {
            self.renumber(now);
        }
    }

    fn renumber(&mut self, now: Instant) {
        let SlicePlan { slice_nanos, .. } = self.plan;
        let number = self.time.at(now).saturating_sub(self.phase_nanos) / slice_nanos;
        if number != self.number {
            (self.number, self.is_new, self.was_served) = (number, true, false);
        }
        let end =
            number.saturating_add(1).saturating_mul(slice_nanos).saturating_add(self.phase_nanos);
        self.end = self.time.local_when(end);
    }

    /// The group whose turn slices of this number are.
    fn due_in(&self, number: u64) -> usize {
        (number % self.groups() as u64) as usize
    }

    /// The group that is to be served instead of the one that is served now.
    pub(super) fn choose(
        &mut self,
        demand: Demand,
        waits: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let Demand { served, is_idle, longest } = demand;
        let due = self.due_in(self.number);
        let is_new = std::mem::take(&mut self.is_new);
        self.was_served |= due == served;
        if !self.was_served && waits(due) {
            self.was_served = true;
            return Some(due);
        }
        let goes_on = due == served || !is_new;
        longest.filter(|_| is_idle || !goes_on)
    }

    /// The group whose turn the next slice is.
    pub(super) fn due_next(&self) -> usize {
        self.due_in(self.number.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::contract::{SharedClock, TimeFit};

    const PLAN: SlicePlan = SlicePlan { groups: 4, slice_nanos: 1000 };

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn slices(number: u32, threads: u32) -> NumberedSlices {
        NumberedSlices::new(PLAN, ThreadOf { number, threads }, SharedTime::new(None))
    }

    /// What is chosen at this time while that group is served, and these wait.
    fn chosen(
        slices: &mut NumberedSlices,
        now: u64,
        (served, is_idle): (usize, bool),
        waiting: &[usize],
    ) -> Option<usize> {
        slices.update(at(now));
        let longest = waiting.iter().copied().find(|group| *group != served);
        slices.choose(Demand { served, is_idle, longest }, |group| waiting.contains(&group))
    }

    #[test]
    fn each_group_is_served_in_the_slices_of_its_number() {
        let mut slices = slices(0, 1);
        let mut served = 0;
        for number in 0..12 {
            for now in (10..1000).step_by(100).map(|part| 1000 * number + part) {
                let next = chosen(&mut slices, now, (served, false), &[3, 0, 1, 2]);
                served = next.unwrap_or(served);
                assert_eq!(served, number as usize % 4, "at {now}");
            }
            assert!(
                (1000 * (number + 1)..1000 * (number + 1) + 5).contains(&slices.end().as_nanos())
            );
        }
    }

    #[test]
    fn a_slice_that_nobody_needs_goes_to_the_group_that_waits_longest() {
        let mut slices = slices(0, 1);
        assert_eq!(chosen(&mut slices, 1000, (0, false), &[3, 2]), Some(3));
        assert_eq!(chosen(&mut slices, 1500, (3, false), &[2]), None, "it has all of it");
        assert_eq!(chosen(&mut slices, 1600, (3, true), &[2]), Some(2), "unless it is done");
        assert_eq!(chosen(&mut slices, 2000, (2, false), &[3]), None, "this one is its own");
        assert_eq!(chosen(&mut slices, 4000, (2, false), &[]), None, "nobody waits");
        assert_eq!(chosen(&mut slices, 4500, (2, false), &[3]), None, "it is not new any more");
    }

    #[test]
    fn the_group_that_is_due_gets_the_rest_of_its_slice_once() {
        let mut slices = slices(0, 1);
        assert_eq!(chosen(&mut slices, 1000, (0, false), &[3]), Some(3));
        assert_eq!(chosen(&mut slices, 1400, (3, false), &[0, 1]), Some(1));
        assert_eq!(chosen(&mut slices, 1500, (1, true), &[0]), Some(0));
        assert_eq!(chosen(&mut slices, 1600, (0, false), &[1]), None, "it had its turn");
        assert_eq!(chosen(&mut slices, 5100, (0, false), &[1]), Some(1));
    }

    #[test]
    fn threads_switch_at_different_times_of_a_part_of_the_slice() {
        for number in 0..4 {
            let mut slices = slices(number, 4);
            slices.update(at(5000));
            let end = slices.end().as_nanos() % 1000;
            let phase = 1000 * u64::from(number) / 16;
            assert!((phase..phase + 5).contains(&end), "{end}");
        }
    }

    #[test]
    fn servers_with_different_clocks_serve_the_same_group_at_the_same_time() {
        let clock = SharedClock::default();
        let mut leader = slices(0, 1);
        let mut other =
            NumberedSlices::new(PLAN, ThreadOf::ONE, SharedTime::new(Some(clock.clone())));
        let ahead = Duration::from_secs(5).as_nanos() as u64 + 345;
        let waiting = [0, 1, 2, 3];
        chosen(&mut other, 7_000 + ahead, (0, false), &waiting);
        // The other's clock shows more than the leader's.
        clock.publish(TimeFit { at: at(7_000 + ahead), shared_nanos: 7_000, rate_ppb: 0 });
        let (mut of_leader, mut of_other) = (0, 0);
        for now in (7_000..50_000).step_by(50) {
            of_leader = chosen(&mut leader, now, (of_leader, false), &waiting).unwrap_or(of_leader);
            let next = chosen(&mut other, now + ahead, (of_other, false), &waiting);
            of_other = next.unwrap_or(of_other);
            assert_eq!(of_leader, of_other, "at {now}");
        }
    }
}
