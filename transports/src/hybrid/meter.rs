//! How long the calls of one lane are under way.

use farcall_core::time::Instant;
use farcall_core::transport::SlotId;

use super::sizes::{BySize, Size};

/// A client that was last polled so long ago has slept since: what it posted since then began no earlier than the poll that follows.
const SLEEP_NS: u64 = 20_000;

/// Measures the calls that it is told of when they are posted; others may end meanwhile.
pub(super) struct Meter {
    /// By the transport's slot: the request of which it was last told.
    begun: Box<[Begun]>,
    /// Slots that were posted since the lane was last polled.
    posted: Vec<u32>,
    polled: Instant,
    measured: BySize,
    /// What the server last advised.
    pub(super) advice: u8,
}

#[derive(Clone, Copy, Default)]
struct Begun {
    generation: u32,
    /// `None`: it has ended, or was only posted.
    at: Option<Instant>,
    is_large: bool,
}

impl Meter {
    /// For a transport with so many slots.
    pub(super) fn new(slots: u32) -> Meter {
        let begun = vec![Begun::default(); slots as usize].into();
        let posted = Vec::with_capacity(slots as usize);
        Meter { begun, posted, polled: Instant::ZERO, measured: BySize::default(), advice: 0 }
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

    /// The lane is polled. What was posted since the last poll began with that one, unless the client has slept since.
    pub(super) fn begin_posted(&mut self, now: Instant) {
        let polled = std::mem::replace(&mut self.polled, now);
        let has_slept = now > polled.saturating_add_nanos(SLEEP_NS);
        for slot in self.posted.drain(..) {
            self.begun[slot as usize].at = Some(if has_slept { now } else { polled });
        }
    }

    /// This request was answered. What was answered in the poll before which it may have waited says nothing.
    pub(super) fn end(&mut self, slot: SlotId, now: Instant) {
        let begun = self.begun.get_mut(slot.index as usize);
        let begun = begun.filter(|begun| begun.generation == slot.generation);
        if let Some(begun) = begun
            && let Some(at) = begun.at.take().filter(|at| *at < now)
        {
            let size = if begun.is_large { Size::Large } else { Size::Small };
            let measured = self.measured.of(size);
            measured.answers += 1;
            measured.under_way_ns += (now - at).as_nanos() as u64;
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
        meter.post(slot(0, 1));
        meter.begin_posted(at(1_000_000));
        meter.post(slot(1, 1));
        meter.begin_posted(at(1_000_300));
        meter.end(slot(0, 1), at(1_000_500));
        meter.end(slot(1, 1), at(1_000_500));
        assert_eq!(meter.take_measured().all(), Measured { answers: 2, under_way_ns: 1000 });
        assert_eq!(meter.take_measured(), BySize::default());
    }

    #[test]
    fn the_time_that_a_client_has_slept_does_not_count() {
        let mut meter = Meter::new(2);
        let at = Instant::from_nanos;
        meter.begin_posted(at(1_000));
        meter.post(slot(0, 1));
        meter.post(slot(1, 1));
        meter.begin_posted(at(1_000_000));
        meter.end(slot(0, 1), at(1_000_000));
        meter.end(slot(1, 1), at(1_000_700));
        assert_eq!(meter.take_measured().all(), Measured { answers: 1, under_way_ns: 700 });
    }

    #[test]
    fn calls_that_were_not_posted_here_do_not_count() {
        let mut meter = Meter::new(2);
        let at = Instant::from_nanos;
        meter.end(slot(1, 0), at(5));
        meter.post(slot(1, 1));
        meter.begin_posted(at(10));
        meter.end(slot(1, 2), at(20));
        meter.end(slot(7, 1), at(20));
        meter.end(slot(1, 1), at(30));
        meter.end(slot(1, 1), at(40));
        assert_eq!(meter.take_measured().all(), Measured { answers: 1, under_way_ns: 30 });
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
            let began = at(1_000_000 * u64::from(generation));
            meter.begin_posted(began);
            for index in 0..2 {
                let took_ns = 100 * u64::from(index + 1);
                meter.end(slot(index, generation), began.saturating_add_nanos(took_ns));
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
