//! When a group's time slice is over, and when the next group's requests are read: times in, decisions out.

use std::time::Duration;

use farcall_core::time::{Instant, PollAt};

use super::numbered::NumberedSlices;
use crate::contract::ThreadOf;

/// The requests of the next group are read this long before its slice, or half a slice before if that is less. It is about the time
/// of a READ. If they are read earlier, the queue pairs of both groups compete for the NIC's cache of contexts until the slice ends, and
/// the requests of all clients of a group are served at once when it begins, so that their next ones arrive together too.
const WARM_UP_NANOS: u64 = 2_000;

/// The clock of slices.
#[derive(Debug)]
pub(super) struct Slices {
    usual_nanos: u64,
    length_nanos: u64,
    began: Instant,
    /// Usual slices end at whole slices after this time. The threads of a server switch at different times, because the clients of
    /// groups that come and go need contexts that the NIC has not cached.
    phase_nanos: u64,
    end: Instant,
    /// If they are shared with other servers: then these say when a slice ends.
    numbered: Option<NumberedSlices>,
}

impl Slices {
    /// Slices of a thread.
    pub(super) fn new(usual: Duration, thread: ThreadOf) -> Slices {
        let usual_nanos = usual.as_nanos() as u64;
        let phase_nanos = usual_nanos * u64::from(thread.number) / u64::from(thread.threads);
        let (began, end) = (Instant::ZERO, Instant::ZERO);
        let numbered = None;
        Slices { usual_nanos, phase_nanos, length_nanos: usual_nanos, began, end, numbered }
    }

    /// Slices that are shared with other servers.
    pub(super) fn share(self, numbered: Option<NumberedSlices>) -> Slices {
        Slices { numbered, ..self }
    }

    /// How they are shared with other servers, if they are.
    pub(super) fn numbered(&self) -> Option<&NumberedSlices> {
        self.numbered.as_ref()
    }

    /// As [`numbered`](Slices::numbered), to choose a group.
    pub(super) fn numbered_mut(&mut self) -> Option<&mut NumberedSlices> {
        self.numbered.as_mut()
    }

    /// Finds out which of the shared slices it is.
    #[inline]
    pub(super) fn update(&mut self, now: Instant) {
        if let Some(numbered) = &mut self.numbered {
            numbered.update(now);
            self.end = numbered.end();
        }
    }

    /// What an address says of their length.
    pub(super) fn usual_nanos(&self) -> u64 {
        self.usual_nanos
    }

    /// A slice of this length begins. A usual one lasts half of that to one and a half, as long as it takes to the next end.
    pub(super) fn begin(&mut self, now: Instant, length_nanos: u64) {
        (self.began, self.length_nanos) = (now, length_nanos);
        self.end = match &self.numbered {
            Some(numbered) => numbered.end(),
            None if length_nanos == self.usual_nanos => self.usual_end(now),
            None => now.saturating_add_nanos(length_nanos),
        };
    }

    fn usual_end(&self, now: Instant) -> Instant {
        let middle = now.saturating_add_nanos(self.usual_nanos / 2).as_nanos();
        let whole = middle.saturating_sub(self.phase_nanos) / self.usual_nanos + 1;
        Instant::from_nanos(whole.saturating_mul(self.usual_nanos).saturating_add(self.phase_nanos))
    }

    /// The slice begins only now: before, nobody was served.
    pub(super) fn restart(&mut self, now: Instant) {
        self.begin(now, self.length_nanos);
    }

    /// How long the slice has lasted.
    pub(super) fn nanos_until(&self, now: Instant) -> u64 {
        now.as_nanos().saturating_sub(self.began.as_nanos())
    }

    /// How much of the slice is left.
    pub(super) fn nanos_left(&self, now: Instant) -> u64 {
        self.end.as_nanos().saturating_sub(now.as_nanos())
    }

    /// Another group should be served now. It waits; `is_idle`: no client of this one is served.
    pub(super) fn is_over(&self, now: Instant, is_idle: bool) -> bool {
        is_idle || now >= self.end
    }

    fn warm_up_at(&self) -> u64 {
        self.end.as_nanos().saturating_sub(WARM_UP_NANOS.min(self.length_nanos / 2))
    }

    /// The next group's requests should be read now.
    pub(super) fn may_warm_up(&self, now: Instant) -> bool {
        now.as_nanos() >= self.warm_up_at()
    }

    /// When to look again while another group waits.
    pub(super) fn poll_at(&self, now: Instant) -> PollAt {
        PollAt::At(if self.may_warm_up(now) {
            self.end
        } else {
            Instant::from_nanos(self.warm_up_at())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn slices(length_nanos: u64, number: u32, threads: u32) -> Slices {
        Slices::new(Duration::from_nanos(length_nanos), ThreadOf { number, threads })
    }

    #[test]
    fn a_slice_ends_when_its_time_is_over_or_nobody_uses_it() {
        let mut slices = slices(100, 0, 1);
        slices.begin(at(1000), 100);
        assert!(!slices.is_over(at(1099), false));
        assert!(slices.is_over(at(1100), false));
        assert!(slices.is_over(at(1001), true));
        assert_eq!((slices.nanos_until(at(1030)), slices.usual_nanos()), (30, 100));
        assert_eq!((slices.nanos_left(at(1030)), slices.nanos_left(at(1101))), (70, 0));
    }

    #[test]
    fn a_slice_of_another_length_lasts_as_long_and_begins_when_somebody_is_served() {
        let mut slices = slices(100, 1, 4);
        slices.begin(at(1000), 130);
        assert_eq!(slices.nanos_left(at(1000)), 130);
        slices.restart(at(1050));
        assert_eq!(slices.nanos_left(at(1050)), 130);
    }

    #[test]
    fn requests_of_the_next_group_are_read_shortly_before_its_slice() {
        let mut long = slices(100_000, 0, 1);
        long.begin(at(0), 100_000);
        assert!(!long.may_warm_up(at(97_999)) && long.may_warm_up(at(98_000)));
        assert_eq!(long.poll_at(at(5)), PollAt::At(at(98_000)));
        assert_eq!(long.poll_at(at(98_000)), PollAt::At(at(100_000)));
        let mut short = slices(1000, 0, 1);
        short.begin(at(0), 1000);
        assert!(!short.may_warm_up(at(499)) && short.may_warm_up(at(500)));
    }

    #[test]
    fn threads_switch_at_different_times_whenever_their_slices_begin() {
        for number in 0..4 {
            let mut slices = slices(100, number, 4);
            for begin in 0..400 {
                slices.begin(at(begin), 100);
                let PollAt::At(end) = slices.poll_at(at(u64::MAX)) else { panic!("no time") };
                assert_eq!(end.as_nanos() % 100, 25 * u64::from(number));
                let first = 100 + slices.phase_nanos;
                let length = end.as_nanos() - begin;
                assert!((51..=150).contains(&length) || end.as_nanos() == first, "{length}");
            }
        }
    }
}
