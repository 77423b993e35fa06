//! The queue of future events, ordered by time and, for equal times, by insertion.
//!
//! Nearly all events are due within microseconds. A timing wheel holds them in one list per nanosecond, so
//! that inserting an event and taking the next take constant time. Later events wait in a heap until the
//! wheel reaches them.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::event::Event;

/// The range of the wheel in nanoseconds: many round trips, because requests to a busy server wait for its
/// NIC.
const SPAN_NS: u64 = 1 << 17;
const WORDS: usize = SPAN_NS as usize / 64;

const NONE: u32 = u32::MAX;

const NEVER: u64 = u64::MAX;

/// Future events. Timers are counted separately: most are never needed, and a simulation with nothing but
/// timers is idle. At equal times, timers come last.
#[derive(Debug)]
pub(super) struct Agenda {
    /// No event is due before this time.
    base_ns: u64,
    /// The first and the last event of each nanosecond from `base_ns` on, indexed by its low bits.
    lists: Box<[(u32, u32)]>,
    /// Bitmaps of the lists that are not empty, and of the words of the first bitmap that are not zero.
    used: [u64; WORDS],
    used_words: [u64; WORDS / 64],
    /// When the first event in the wheel is due; [`NEVER`] if there is none.
    near_ns: u64,
    /// The entries of all lists, and free entries.
    entries: Vec<Entry>,
    free: u32,
    far: BinaryHeap<Far>,
    timers: BinaryHeap<Far>,
    made: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    event: Event,
    next: u32,
}

#[derive(Debug)]
struct Far {
    at_ns: u64,
    number: u64,
    event: Event,
}

impl Ord for Far {
    /// Reversed, because the heap returns its greatest element first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.number).cmp(&(self.at_ns, self.number))
    }
}

impl PartialOrd for Far {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Far {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Far {}

impl Default for Agenda {
    fn default() -> Self {
        Agenda {
            base_ns: 0,
            lists: vec![(NONE, NONE); SPAN_NS as usize].into(),
            used: [0; WORDS],
            used_words: [0; WORDS / 64],
            near_ns: NEVER,
            entries: Vec::new(),
            free: NONE,
            far: BinaryHeap::new(),
            timers: BinaryHeap::new(),
            made: 0,
        }
    }
}

impl Agenda {
    /// Inserts an event. `at_ns` must not be before the last event taken.
    #[inline]
    pub(super) fn push(&mut self, at_ns: u64, event: Event) {
        debug_assert!(at_ns >= self.base_ns, "an event in the past");
        let is_timer = matches!(event, Event::Timer(_) | Event::Alarm(_));
        if !is_timer && at_ns - self.base_ns < SPAN_NS {
            return self.push_near(at_ns, event);
        }
        let far = Far { at_ns, number: self.made, event };
        self.made += 1;
        match is_timer {
            true => self.timers.push(far),
            false => self.far.push(far),
        }
    }

    #[inline]
    fn push_near(&mut self, at_ns: u64, event: Event) {
        let entry = Entry { event, next: NONE };
        let index = match self.entries.get_mut(self.free as usize) {
            Some(free) => {
                let index = self.free;
                self.free = free.next;
                *free = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        let slot = (at_ns % SPAN_NS) as usize;
        let (first, last) = &mut self.lists[slot];
        if *first == NONE {
            *first = index;
            self.used[slot / 64] |= 1 << (slot % 64);
            self.used_words[slot / 4096] |= 1 << (slot / 64 % 64);
        } else {
            self.entries[*last as usize].next = index;
        }
        *last = index;
        self.near_ns = self.near_ns.min(at_ns);
    }

    /// Finds the first list that is not empty.
    #[inline]
    fn find_near(&mut self) {
        let start = self.base_ns % SPAN_NS;
        let found = self.used_from(start as usize).or_else(|| self.used_from(0));
        self.near_ns =
            found.map_or(NEVER, |slot| self.base_ns + (slot as u64).wrapping_sub(start) % SPAN_NS);
    }

    /// The next event, if it is in the wheel.
    #[inline]
    pub(super) fn upcoming(&self) -> Option<Event> {
        if self.near_ns == NEVER {
            return None;
        }
        let (first, _) = self.lists[(self.near_ns % SPAN_NS) as usize];
        Some(self.entries[first as usize].event)
    }

    /// The first list at or after this one that is not empty.
    #[inline]
    fn used_from(&self, slot: usize) -> Option<usize> {
        let word = slot / 64;
        let here = self.used[word] >> (slot % 64);
        if here != 0 {
            return Some(slot + here.trailing_zeros() as usize);
        }
        let next = word + 1;
        for group in next / 64..WORDS / 64 {
            let behind = if group == next / 64 { next % 64 } else { 0 };
            let words = self.used_words[group] >> behind << behind;
            if words != 0 {
                let word = 64 * group + words.trailing_zeros() as usize;
                return Some(64 * word + self.used[word].trailing_zeros() as usize);
            }
        }
        None
    }

    /// When the next event is due, and the event itself if it is a timer.
    #[inline]
    pub(super) fn peek(&self) -> Option<(u64, Option<Event>)> {
        let event = match self.near_ns {
            NEVER => self.far.peek().map(|far| far.at_ns),
            near_ns => Some(near_ns),
        };
        match (event, self.timers.peek()) {
            (Some(at_ns), Some(timer)) if timer.at_ns < at_ns => {
                Some((timer.at_ns, Some(timer.event)))
            }
            (Some(at_ns), _) => Some((at_ns, None)),
            (None, timer) => timer.map(|timer| (timer.at_ns, Some(timer.event))),
        }
    }

    /// Whether only timers are left.
    pub(super) fn only_timers(&self) -> bool {
        self.near_ns == NEVER && self.far.is_empty()
    }

    /// Takes the next event, if it is due by `limit_ns`.
    #[inline]
    pub(super) fn pop_until(&mut self, limit_ns: u64) -> Option<(u64, Event)> {
        let (at_ns, timer) = self.peek().filter(|(at_ns, _)| *at_ns <= limit_ns)?;
        self.advance(at_ns);
        if timer.is_some() {
            return self.timers.pop().map(|timer| (at_ns, timer.event));
        }
        let slot = (at_ns % SPAN_NS) as usize;
        let (first, _) = &mut self.lists[slot];
        let index = *first;
        let Entry { event, next } = self.entries[index as usize];
        *first = next;
        if next == NONE {
            self.used[slot / 64] &= !(1 << (slot % 64));
            if self.used[slot / 64] == 0 {
                self.used_words[slot / 4096] &= !(1 << (slot / 64 % 64));
            }
            self.find_near();
        }
        self.entries[index as usize].next = self.free;
        self.free = index;
        Some((at_ns, event))
    }

    /// Removes the next timer, which is not needed, without advancing time.
    pub(super) fn drop_timer(&mut self) {
        self.timers.pop();
    }

    /// Advances time and the wheel's range. Events that waited for that come before all that are inserted later.
    #[inline]
    fn advance(&mut self, to_ns: u64) {
        self.base_ns = to_ns;
        while let Some(far) = self.far.peek()
            && far.at_ns - to_ns < SPAN_NS
        {
            let Some(Far { at_ns, event, .. }) = self.far.pop() else { return };
            self.push_near(at_ns, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::event::QpId;
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_their_making_and_timers_last() {
        let mut events = Agenda::default();
        let qp = QpId { number: 1, node: 0 };
        events.push(3, Event::Timer(qp));
        events.push(5, Event::Arrive(1));
        events.push(3, Event::Arrive(2));
        events.push(5, Event::Arrive(4));
        events.push(2, Event::Arrive(3));
        let order: Vec<_> = std::iter::from_fn(|| events.pop_until(u64::MAX)).collect();
        let wanted = [
            (2, Event::Arrive(3)),
            (3, Event::Arrive(2)),
            (3, Event::Timer(qp)),
            (5, Event::Arrive(1)),
            (5, Event::Arrive(4)),
        ];
        assert_eq!(order, wanted);
        assert!(events.only_timers());
    }

    proptest! {
        /// Compares it with a list that is sorted by time and then by insertion.
        #[test]
        fn any_mixture_of_near_and_far_comes_in_order(
            work in proptest::collection::vec((0_u64..3 * SPAN_NS, 0_usize..3), 1..300),
        ) {
            let (mut events, mut model) = (Agenda::default(), Vec::new());
            let (mut now_ns, mut number) = (0, 0);
            let take = |events: &mut Agenda, model: &mut Vec<(u64, u32)>, now_ns: &mut u64| {
                model.sort_by_key(|(at_ns, _)| *at_ns);
                let wanted = (!model.is_empty()).then(|| model.remove(0));
                let wanted = wanted.map(|(at_ns, number)| (at_ns, Event::Arrive(number)));
                assert_eq!(events.peek().map(|(at_ns, _)| at_ns), wanted.map(|(at_ns, _)| at_ns));
                assert_eq!(events.pop_until(u64::MAX), wanted);
                *now_ns = wanted.map_or(*now_ns, |(at_ns, _)| at_ns);
            };
            for (ahead_ns, taken) in work {
                // Half of them are close together, so that many have equal times.
                let ahead_ns = if number % 2 == 0 { ahead_ns } else { ahead_ns % 50 };
                events.push(now_ns + ahead_ns, Event::Arrive(number));
                model.push((now_ns + ahead_ns, number));
                number += 1;
                for _ in 0..taken {
                    take(&mut events, &mut model, &mut now_ns);
                }
            }
            while !model.is_empty() {
                take(&mut events, &mut model, &mut now_ns);
            }
            prop_assert!(events.only_timers());
        }
    }
}
