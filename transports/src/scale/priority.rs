//! How urgent a client is, and how groups and their slices follow from it: measurements in, groups and slices out.
//!
//! The priority of a client is the rate of its requests over their size (ScaleRPC, section 3.3). The rate is measured while its group
//! is served, and so does not depend on how long that is: a group that gets more time does not look more urgent for it.

use std::cmp::Ordering;

/// What a client sent while it was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Work {
    pub(super) requests: u32,
    /// Of these requests. One that is larger than a slot counts as its announcement.
    pub(super) bytes: u64,
    /// The slices of its group.
    pub(super) nanos: u64,
}

/// Largest priority: sums of them, times shares and groups, fit 64 bits.
const MOST_PRIORITY: u64 = u32::MAX as u64;

impl Work {
    /// Counts a request.
    #[inline]
    pub(super) fn count(&mut self, bytes: u32) {
        self.requests = self.requests.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(bytes.into());
    }

    pub(super) fn add(&mut self, more: Work) {
        self.requests = self.requests.saturating_add(more.requests);
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.nanos = self.nanos.saturating_add(more.nanos);
    }

    /// Rate over size: requests per second and KiB.
    pub(super) fn priority(&self) -> u64 {
        let requests = u64::from(self.requests);
        if requests == 0 {
            return 0;
        }
        let rate = requests.saturating_mul(1_000_000_000) / self.nanos.max(1);
        let size = (self.bytes / requests).max(1);
        (rate.saturating_mul(1024) / size).clamp(1, MOST_PRIORITY)
    }
}

/// Clients of like priority have the same level: it grows by one when the priority doubles.
pub(super) fn level(priority: u64) -> u32 {
    priority.checked_ilog2().map_or(0, |doublings| doublings + 1)
}

/// How many clients a group may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) least: usize,
    pub(super) wanted: usize,
    pub(super) most: usize,
}

impl Sizes {
    /// Half to three halves of the wanted size, which is at least 1 (ScaleRPC, section 3.3).
    pub(super) fn new(wanted: u32) -> Sizes {
        let wanted = wanted as usize;
        Sizes { least: (wanted / 2).max(1), wanted, most: wanted + wanted / 2 }
    }

    /// How many of the first clients make a group, of so many that are in falling order of their levels: it ends where the level falls
    /// most, and of several such ends at that by which groups are of equal size.
    ///
    /// What it leaves is enough for another group, or nothing. Only if there are too few clients for one group is it too small.
    pub(super) fn cut(&self, clients: usize, level: impl Fn(usize) -> u32) -> usize {
        if clients < 2 * self.least {
            return clients;
        }
        let groups = ((clients + self.wanted / 2) / self.wanted).max(1);
        let even = clients.div_ceil(groups);
        let fall = |end: usize| match end.cmp(&clients) {
            Ordering::Less => level(end - 1) - level(end),
            _ => 0,
        };
        let ends = (self.least..=self.most.min(clients - self.least)).chain(
            // All of them.
            (clients <= self.most).then_some(clients),
        );
        ends.max_by_key(|&end| (fall(end), std::cmp::Reverse(end.abs_diff(even))))
            .unwrap_or(clients)
    }
}

/// Shares are in so many parts of a slice.
pub(super) const WHOLE: u64 = 64;

/// A group's shortest slice: the switch must cost less than it gains.
pub(super) const LEAST_SHARE: u64 = WHOLE / 4;

/// A group's longest slice.
pub(super) const MOST_SHARE: u64 = 2 * WHOLE;

/// A share that differs by less is a whole slice: rates vary, and usual slices end at times of their own.
const LEAST_DIFFERENCE: u64 = WHOLE / 8;

/// How long the slice of a group is, for one of so many groups with these priorities in sum: as its part of them.
pub(super) fn share(priority: u64, all: u64, groups: usize) -> u64 {
    let shares = priority.saturating_mul(WHOLE).saturating_mul(groups as u64);
    match shares.checked_div(all) {
        Some(share) if share.abs_diff(WHOLE) >= LEAST_DIFFERENCE => {
            share.clamp(LEAST_SHARE, MOST_SHARE)
        }
        _ => WHOLE,
    }
}

/// How well groups use the time: the mean over time of the priority of the group that is served.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Worth {
    served: u128,
    time: u128,
}

impl Worth {
    /// That of groups with these priorities, so many and so much in sum.
    pub(super) fn of(priorities: impl Iterator<Item = u64>, all: u64, groups: usize) -> Worth {
        priorities.fold(Worth::default(), |worth, priority| {
            let share = share(priority, all, groups);
            Worth {
                served: worth.served + u128::from(share) * u128::from(priority),
                time: worth.time + u128::from(share),
            }
        })
    }

    /// More than this by a quarter. By less, groups stay: rates vary, and each client that changes groups may wait longer once.
    pub(super) fn is_much_more_than(&self, other: &Worth) -> bool {
        let (this, that) = (self.served * other.time, other.served * self.time);
        this > that + that / 4
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn priority_is_rate_over_size() {
        let work = |requests, bytes, nanos| Work { requests, bytes, nanos }.priority();
        let usual = work(100, 100 * 64, 1_000_000);
        assert_eq!(usual, 100_000 * 1024 / 64);
        assert_eq!(work(200, 200 * 64, 1_000_000), 2 * usual);
        assert_eq!(work(100, 100 * 128, 1_000_000), usual / 2);
        assert_eq!(work(100, 100 * 64, 2_000_000), usual / 2);
        assert_eq!(work(0, 0, 1_000_000), 0);
        assert_eq!(work(u32::MAX, 0, 0), MOST_PRIORITY);
        assert_eq!(work(1, u64::MAX, u64::MAX), 1, "it has sent something");
        assert_eq!((level(0), level(1), level(2), level(1023), level(1024)), (0, 1, 2, 10, 11));
    }

    #[test]
    fn groups_end_where_the_level_falls_most() {
        let sizes = Sizes::new(40);
        let like = |_| 3;
        assert_eq!(sizes.cut(120, like), 40);
        assert_eq!(sizes.cut(61, like), 31, "halves, and not 40 and 21");
        assert_eq!(sizes.cut(59, like), 59);
        assert_eq!(sizes.cut(7, like), 7);
        assert_eq!(sizes.cut(120, |at| if at < 25 { 9 } else { 0 }), 25);
        assert_eq!(sizes.cut(59, |at| if at < 25 { 9 } else { 0 }), 25);
        assert_eq!(sizes.cut(120, |at| if at < 5 { 9 } else { 0 }), 40, "too few for a group");
        let stairs = |at| {
            if at < 30 {
                9
            } else if at < 50 {
                8
            } else {
                0
            }
        };
        assert_eq!(sizes.cut(120, stairs), 50);
        assert_eq!(Sizes::new(1).cut(3, like), 1);
    }

    #[test]
    fn a_slice_is_as_the_part_of_the_priority_within_bounds() {
        assert_eq!(share(10, 30, 3), WHOLE);
        assert_eq!(share(15, 30, 3), WHOLE * 3 / 2);
        assert_eq!(share(30, 30, 3), MOST_SHARE);
        assert_eq!(share(0, 30, 3), LEAST_SHARE);
        assert_eq!(share(0, 0, 3), WHOLE, "nobody is known to be busy");
    }

    #[test]
    fn busy_groups_among_idle_ones_are_worth_much_more_than_mixed_ones() {
        let worth = |groups: [u64; 3]| Worth::of(groups.into_iter(), groups.iter().sum(), 3);
        assert!(worth([300, 0, 0]).is_much_more_than(&worth([100, 100, 100])));
        assert!(!worth([110, 100, 90]).is_much_more_than(&worth([100, 100, 100])));
        assert!(!worth([0, 0, 0]).is_much_more_than(&worth([0, 0, 0])));
    }

    proptest! {
        #[test]
        fn all_groups_but_one_that_is_alone_have_the_size_that_they_may_have(
            wanted in 1..50u32,
            mut levels in prop::collection::vec(0..40u32, 0..300),
        ) {
            let sizes = Sizes::new(wanted);
            levels.sort_unstable_by(|one, other| other.cmp(one));
            let mut rest = &levels[..];
            let mut count = 0;
            while !rest.is_empty() {
                let group = sizes.cut(rest.len(), |at| rest[at]);
                prop_assert!((1..=sizes.most).contains(&group));
                prop_assert!(group >= sizes.least || levels.len() < sizes.least);
                rest = &rest[group..];
                count += 1;
            }
            prop_assert!(count * sizes.least <= levels.len().max(sizes.least));
        }

        #[test]
        fn slices_stay_within_their_bounds_and_sums_do_not_overflow(
            priorities in prop::collection::vec(0..=240 * MOST_PRIORITY, 1..300),
        ) {
            let all = priorities.iter().sum();
            for priority in &priorities {
                let share = share(*priority, all, priorities.len());
                prop_assert!((LEAST_SHARE..=MOST_SHARE).contains(&share));
            }
            let worth = Worth::of(priorities.iter().copied(), all, priorities.len());
            prop_assert!(!worth.is_much_more_than(&worth));
        }
    }
}
