//! How long the calls of one lane are under way.

use farcall_core::time::Instant;
use farcall_core::transport::SlotId;

use super::sizes::{BySize, Size};

/// A client that was last polled so long ago has done something else since, or its thread had no core: what it posted since then began no
/// earlier than the poll that follows. Unless the client has slept until there was something to do, no more than this counts: how long a
/// thread has no core says nothing of a backend.
const AWAY_NS: u64 = 20_000;

/// What an answer that was there when the client came back is taken to have lasted: less than that, as far as is known.
const FOUND_NS: u64 = AWAY_NS / 2;

/// Measures the calls that it is told of when they are posted; others may end meanwhile.
pub(super) struct Meter {
    /// By the transport's slot: the request of which it was last told.
    begun: Box<[Begun]>,
    /// Slots that were posted since the lane was last polled.
    posted: Vec<u32>,
    polled: Instant,
    /// The client sleeps until there is something to do.
    sleeps: bool,
    /// Of its time, what counts.
    counted_ns: u64,
    /// It was away before this poll.
    was_away: bool,
    measured: BySize,
    /// What the server last advised.
    pub(super) advice: u8,
}

#[derive(Clone, Copy, Default)]
struct Begun {
    generation: u32,
    /// On the clock of what counts. `None`: it has ended, or was only posted.
    at: Option<u64>,
    is_large: bool,
}

impl Meter {
    /// For a transport with so many slots.
    pub(super) fn new(slots: u32) -> Meter {
        let begun = vec![Begun::default(); slots as usize].into();
        let posted = Vec::with_capacity(slots as usize);
        Meter {
            begun,
            posted,
            polled: Instant::ZERO,
            sleeps: false,
            counted_ns: 0,
            was_away: false,
            measured: BySize::default(),
            advice: 0,
        }
    }

    /// This request, which is about to be posted, is large.
    pub(super) fn note_large(&mut self, slot: SlotId) {
        if let Some(begun) = self.begun.get_mut(slot.index as usize) {
            *begun = Begun { generation: slot.generation, at: None, is_large: true };
        }
    }

    /// This request is measured.
    pub(super) fn post(&mut self, slot: SlotId) {
        if let Some(begun) = self.begun.get_mut(slot.index as usize)
            && self.posted.len() < self.posted.capacity()
        {
            let generation = slot.generation;
            let is_large = begun.is_large && begun.generation == generation;
            *begun = Begun { generation, at: None, is_large };
            self.posted.push(slot.index);
        }
    }

    /// The client may sleep from now on, until there is something to do.
    pub(super) fn sleep(&mut self) {
        self.sleeps = true;
    }

    /// The lane is polled. What was posted since the last poll began with that one, unless the client was away since.
    pub(super) fn begin_posted(&mut self, now: Instant) {
        let since_ns = (now - std::mem::replace(&mut self.polled, now)).as_nanos() as u64;
        let has_slept = std::mem::take(&mut self.sleeps);
        self.was_away = since_ns > AWAY_NS;
        let before_ns = self.counted_ns;
        self.counted_ns += if has_slept { since_ns } else { since_ns.min(AWAY_NS) };
        let at = if self.was_away { self.counted_ns } else { before_ns };
        for slot in self.posted.drain(..) {
            self.begun[slot as usize].at = Some(at);
        }
    }

    /// This request was answered. What was answered in the poll before which it may have waited says nothing.
    pub(super) fn end(&mut self, slot: SlotId) {
        let begun = self.begun.get_mut(slot.index as usize);
        let begun = begun.filter(|begun| begun.generation == slot.generation);
        if let Some(begun) = begun
            && let Some(at) = begun.at.take()
        {
            let found_ns = if self.was_away { FOUND_NS } else { 0 };
            let took_ns = (self.counted_ns - at).max(found_ns);
            if took_ns == 0 {
                return;
            }
            let size = if begun.is_large { Size::Large } else { Size::Small };
            let measured = self.measured.of(size);
            measured.answers += 1;
            measured.under_way_ns += took_ns;
        }
    }

    /// The request that is measured in this slot of the transport.
    pub(super) fn under_way_at(&self, index: u32) -> Option<SlotId> {
        let begun = self.begun.get(index as usize).filter(|begun| begun.at.is_some())?;
        Some(SlotId { index, generation: begun.generation })
    }

    /// Answers that were measured since [`take_measured`](Self::take_measured).
    pub(super) fn answers(&self) -> u64 {
        self.measured.all().answers
    }

    /// What was measured since this was last asked.
    pub(super) fn take_measured(&mut self) -> BySize {
        std::mem::take(&mut self.measured)
    }
}

#[cfg(test)]
mod tests {
    use super::super::choice::Measured;
    use super::*;

    fn slot(index: u32, generation: u32) -> SlotId {
        SlotId { index, generation }
    }

    #[test]
    fn a_call_takes_from_the_poll_before_it_was_posted_to_its_answer() {
        let mut meter = Meter::new(2);
        let at = Instant::from_nanos;
        meter.begin_posted(at(1_000_000));
        meter.post(slot(0, 1));
        meter.begin_posted(at(1_000_300));
        meter.post(slot(1, 1));
        meter.begin_posted(at(1_000_500));
        meter.end(slot(0, 1));
        meter.end(slot(1, 1));
        assert_eq!(meter.take_measured().all(), Measured { answers: 2, under_way_ns: 700 });
        assert_eq!(meter.take_measured(), BySize::default());
    }

    #[test]
    fn a_call_after_a_pause_begins_when_the_lane_is_polled_again() {
        let mut meter = Meter::new(1);
        let at = Instant::from_nanos;
        meter.begin_posted(at(1_000));
        meter.post(slot(0, 1));
        meter.begin_posted(at(1_000_000));
        meter.begin_posted(at(1_000_700));
        meter.end(slot(0, 1));
        assert_eq!(meter.take_measured().all(), Measured { answers: 1, under_way_ns: 700 });
    }

    /// Its thread had no core, or did something else.
    #[test]
    fn the_time_that_a_client_is_away_hardly_counts() {
        let mut meter = Meter::new(2);
        let at = Instant::from_nanos;
        meter.begin_posted(at(1_000));
        meter.post(slot(0, 1));
        meter.post(slot(1, 1));
        meter.begin_posted(at(1_000_000));
        meter.end(slot(0, 1));
        let found = Measured { answers: 1, under_way_ns: FOUND_NS };
        assert_eq!(meter.take_measured().all(), found, "it was there");
        meter.begin_posted(at(9_000_000));
        meter.end(slot(1, 1));
        let waited = Measured { answers: 1, under_way_ns: AWAY_NS };
        assert_eq!(meter.take_measured().all(), waited, "it was not");
    }

    #[test]
    fn the_time_that_a_client_sleeps_until_its_answer_counts() {
        let mut meter = Meter::new(1);
        let at = Instant::from_nanos;
        meter.begin_posted(at(1_000));
        meter.post(slot(0, 1));
        meter.begin_posted(at(2_000));
        meter.sleep();
        meter.begin_posted(at(9_000_000));
        meter.end(slot(0, 1));
        assert_eq!(meter.take_measured().all(), Measured { answers: 1, under_way_ns: 8_999_000 });
    }

    #[test]
    fn calls_that_were_not_posted_here_do_not_count() {
        let mut meter = Meter::new(2);
        let at = Instant::from_nanos;
        meter.end(slot(1, 0));
        meter.begin_posted(at(1_000_000));
        meter.post(slot(1, 1));
        meter.begin_posted(at(1_000_010));
        meter.end(slot(1, 2));
        meter.end(slot(7, 1));
        meter.begin_posted(at(1_000_020));
        meter.end(slot(1, 1));
        meter.end(slot(1, 1));
        assert_eq!(meter.take_measured().all(), Measured { answers: 1, under_way_ns: 20 });
    }

    #[test]
    fn large_calls_are_measured_apart() {
        let mut meter = Meter::new(2);
        let at = Instant::from_nanos;
        for (generation, is_large) in [(1, true), (2, false)] {
            for index in 0..2 {
                if is_large && index == 1 {
                    meter.note_large(slot(index, generation));
                }
                meter.post(slot(index, generation));
            }
            let began_ns = 1_000_000 * u64::from(generation);
            meter.begin_posted(at(began_ns));
            for index in 0..2 {
                meter.begin_posted(at(began_ns + 100 * u64::from(index + 1)));
                meter.end(slot(index, generation));
            }
            let BySize { small, large } = meter.take_measured();
            let answers = if is_large { [1, 1] } else { [2, 0] };
            assert_eq!([small.answers, large.answers], answers);
            assert_eq!(large.under_way_ns, if is_large { 200 } else { 0 });
        }
    }

    #[test]
    fn posting_allocates_nothing() {
        let mut meter = Meter::new(2);
        let capacity = meter.posted.capacity();
        for generation in 0..100 {
            meter.post(slot(generation % 2, generation));
        }
        assert_eq!(meter.posted.capacity(), capacity);
    }
}
