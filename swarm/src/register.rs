//! Checks that clients' observations of one key are linearizable.
//!
//! Each operation takes effect at one point in time between its request and its response (Herlihy and Wing,
//! TOPLAS 1990). One without a response takes effect at any time after its request, or never. The search is that
//! of Wing and Gong with Lowe's memoization ("Testing for linearizability", 2017).

use std::collections::HashSet;
use std::fmt;

/// The most operations on one key, which is the number of bits in a mask.
pub(crate) const MAX_OPERATIONS: usize = 128;

/// Stands for all values that were never read. Values are numbered from 1.
const UNSEEN: u64 = 0;

/// The content of a key: the number of a value, or nothing.
pub(crate) type Held = Option<u64>;

/// An operation on a key with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// It read this value.
    Get(Held),
    /// It put this value; the result is whether the key had one before.
    Put(u64, Option<bool>),
    /// It deleted the key; the result is whether the key had a value.
    Del(Option<bool>),
}

impl Operation {
    /// The content of the key afterwards, or `None` if the result contradicts `held`.
    fn apply(self, held: Held) -> Option<Held> {
        let fits = |answer: Option<bool>| answer.is_none_or(|had| had == held.is_some());
        match self {
            Operation::Get(seen) => (seen == held).then_some(held),
            Operation::Put(value, answer) => fits(answer).then_some(Some(value)),
            Operation::Del(answer) => fits(answer).then_some(None),
        }
    }
}

/// One operation and its interval, in logical time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The number of the call, as in the trace.
    pub(crate) call: usize,
    /// When it was started.
    pub(crate) started: u64,
    /// When its result arrived, if it did.
    pub(crate) ended: Option<u64>,
    /// The operation.
    pub(crate) operation: Operation,
}

/// A history that is not linearizable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotLinearizable {
    /// The events, ordered by their start.
    pub(crate) events: Vec<Event>,
    /// The most of them that could be ordered.
    pub(crate) explained: usize,
}

impl fmt::Display for NotLinearizable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "at most {} of {} operations can be ordered:",
            self.explained,
            self.events.len()
        )?;
        for Event { call, started, ended, operation } in &self.events {
            write!(f, "  call {call:<4} {started:>6} to ")?;
            match ended {
                Some(ended) => writeln!(f, "{ended:<6} {operation:?}")?,
                None => writeln!(f, "?      {operation:?}")?,
            }
        }
        Ok(())
    }
}

/// Checks the events of one key, which was empty initially.
///
/// # Errors
/// If the events are not linearizable.
///
/// # Panics
/// If there are more than [`MAX_OPERATIONS`].
pub(crate) fn check(mut events: Vec<Event>) -> Result<(), NotLinearizable> {
    assert!(events.len() <= MAX_OPERATIONS, "{} operations on one key", events.len());
    events.sort_by_key(|event| event.started);
    let mut search = Search::new(&events);
    if search.from(0, None) {
        return Ok(());
    }
    let explained = search.explained;
    Err(NotLinearizable { events, explained })
}

struct Search<'e> {
    events: &'e [Event],
    /// The indices of the events as they are tried: by the end, and those without a result last.
    order: Vec<usize>,
    /// Values that were read.
    seen: HashSet<u64>,
    /// Ordered events and the resulting content of the key that have no continuation.
    tried: HashSet<(u128, Held)>,
    explained: usize,
}

impl<'e> Search<'e> {
    fn new(events: &'e [Event]) -> Search<'e> {
        let mut order: Vec<usize> = (0..events.len()).collect();
        order.sort_by_key(|at| events[*at].ended.unwrap_or(u64::MAX));
        let gets = events.iter().filter_map(|event| match event.operation {
            Operation::Get(seen) => seen,
            _ => None,
        });
        Search { events, order, seen: gets.collect(), tried: HashSet::new(), explained: 0 }
    }

    /// Whether the events that are not in `done` can follow when the key holds `held`.
    fn from(&mut self, done: u128, held: Held) -> bool {
        self.explained = self.explained.max(done.count_ones() as usize);
        let events = self.events;
        let left = |at: &usize| done >> at & 1 == 0;
        // No event that started after another's end may precede that one.
        let Some(first) = self.order.iter().copied().find(left) else { return true };
        let Some(first_answer) = events[first].ended else {
            return true; // No event that is left has a result, so none need take effect.
        };
        if !self.tried.insert((done, held)) {
            return false;
        }
        let (mut candidates, mut unseen) = (Vec::new(), [false; 2]);
        for at in self.order.iter().copied().filter(left) {
            let event = &events[at];
            if event.started >= first_answer || !self.may_matter(event, held) {
                continue;
            }
            if let Some(alike) = self.alike(event)
                && std::mem::replace(&mut unseen[alike], true)
            {
                continue;
            }
            let Some(after) = event.operation.apply(held) else { continue };
            let after = after.map(|value| if self.seen.contains(&value) { value } else { UNSEEN });
            if matches!(event.operation, Operation::Get(_)) {
                // It changes nothing, so there is no better time for it.
                return self.from(done | 1 << at, after);
            }
            candidates.push((at, after));
        }
        candidates.into_iter().any(|(at, after)| self.from(done | 1 << at, after))
    }

    /// Events without a result whose value was never read are interchangeable. The one that started first, which may
    /// happen whenever another may, represents all of them.
    fn alike(&self, event: &Event) -> Option<usize> {
        match event.operation {
            _ if event.ended.is_some() => None,
            Operation::Del(_) => Some(0),
            Operation::Put(value, _) => (!self.seen.contains(&value)).then_some(1),
            Operation::Get(_) => None,
        }
    }

    /// Whether an event without a result may need to happen now. It need not if its value was never read and it does
    /// not change whether the key has a value.
    fn may_matter(&self, event: &Event, held: Held) -> bool {
        match event.operation {
            _ if event.ended.is_some() => true,
            Operation::Put(value, _) => held.is_none() || self.seen.contains(&value),
            Operation::Del(_) => held.is_some(),
            Operation::Get(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Operation::{Del, Get, Put};
    use super::*;

    fn event(started: u64, ended: u64, operation: Operation) -> Event {
        Event { call: 0, started, ended: Some(ended), operation }
    }

    fn unanswered(started: u64, operation: Operation) -> Event {
        Event { call: 0, started, ended: None, operation }
    }

    fn is_linearizable(events: &[Event]) -> bool {
        check(events.to_vec()).is_ok()
    }

    #[test]
    fn sequential_operations_take_effect_in_order() {
        let put = event(1, 2, Put(7, Some(false)));
        assert!(is_linearizable(&[put, event(3, 4, Get(Some(7))), event(5, 6, Del(Some(true)))]));
        assert!(!is_linearizable(&[put, event(3, 4, Get(None))]), "an acknowledged write is lost");
        assert!(!is_linearizable(&[put, event(3, 4, Put(8, Some(false)))]), "it had a value");
        let deleted = [put, event(3, 4, Del(Some(true))), event(5, 6, Get(Some(7)))];
        assert!(!is_linearizable(&deleted), "what was deleted has come back");
    }

    #[test]
    fn overlapping_operations_may_take_effect_in_any_order() {
        let (one, two) = (event(1, 4, Put(1, None)), event(2, 3, Put(2, None)));
        for last in [1, 2] {
            assert!(is_linearizable(&[one, two, event(5, 6, Get(Some(last)))]));
        }
        assert!(is_linearizable(&[one, event(2, 3, Get(None))]));
        assert!(is_linearizable(&[one, event(2, 3, Get(Some(1)))]));
        let back = [one, event(2, 3, Get(Some(1))), event(5, 6, Get(None))];
        assert!(!is_linearizable(&back), "seen, and gone");
    }

    #[test]
    fn an_operation_without_a_result_may_take_effect_late_or_never_but_only_once() {
        let lost = unanswered(1, Put(1, None));
        for seen in [None, Some(1)] {
            assert!(is_linearizable(&[lost, event(2, 3, Get(seen))]));
        }
        let late = [lost, event(2, 3, Get(None)), event(4, 5, Get(Some(1)))];
        assert!(is_linearizable(&late));
        let over = event(6, 7, Put(2, Some(true)));
        let twice = [lost, event(2, 3, Get(Some(1))), over, event(8, 9, Get(Some(1)))];
        assert!(!is_linearizable(&twice), "it took effect twice");
    }

    #[test]
    fn many_operations_without_a_result_are_checked_quickly() {
        let (mut events, mut moment) = (Vec::new(), 0);
        for number in 0..20 {
            events.push(unanswered(2 * number + 1, Put(100 + number, None)));
            events.push(unanswered(2 * number + 2, Del(None)));
        }
        for _ in 0..20 {
            moment += 100;
            events.push(event(moment, moment + 2, Put(moment, Some(true))));
            events.push(event(moment + 1, moment + 4, Del(Some(true))));
        }
        assert!(is_linearizable(&events));
        events.push(event(moment + 5, moment + 6, Get(Some(100 + 20))));
        assert!(!is_linearizable(&events), "it was never put");
    }

    #[test]
    fn an_impossible_history_is_reported() {
        let failure = check(vec![event(1, 2, Put(7, Some(false))), event(3, 4, Get(Some(9)))]);
        let failure = failure.unwrap_err();
        assert_eq!(failure.explained, 1);
        assert!(failure.to_string().contains("Get(Some(9))"), "{failure}");
    }

    /// Histories of a register are always accepted, however many operations overlap.
    #[test]
    fn a_history_of_a_register_is_accepted() {
        let mut dice = crate::dice::Dice::new(1, 0);
        for _ in 0..200 {
            let (mut held, mut clock, mut open, mut events) = (None, 0, Vec::new(), Vec::new());
            while events.len() + open.len() < 60 {
                clock += 1;
                match dice.below(3) {
                    0 if open.len() < 8 => open.push((clock, dice.below(3), None)),
                    1 => {
                        // An operation takes effect.
                        let waiting = open.iter_mut().filter(|(_, _, effect)| effect.is_none());
                        if let Some((started, kind, effect)) = waiting.last() {
                            let had = Some(held.is_some());
                            *effect = Some(match kind {
                                0 => Get(held),
                                1 => Put(*started, had),
                                _ => Del(had),
                            });
                            match *kind {
                                0 => {}
                                1 => held = Some(*started),
                                _ => held = None,
                            }
                        }
                    }
                    _ if !open.is_empty() => {
                        let at = dice.below(open.len() as u64) as usize;
                        if let (started, _, Some(operation)) = open[at] {
                            open.remove(at);
                            let ended = (!dice.once_in(10)).then_some(clock);
                            let operation = match (ended, operation) {
                                (None, Put(value, _)) => Put(value, None),
                                (None, Del(_)) => Del(None),
                                (None, Get(_)) => continue,
                                (Some(_), operation) => operation,
                            };
                            events.push(Event { call: 0, started, ended, operation });
                        }
                    }
                    _ => {}
                }
            }
            for (started, _, effect) in open {
                match effect {
                    Some(Put(value, _)) => events.push(unanswered(started, Put(value, None))),
                    Some(Del(_)) => events.push(unanswered(started, Del(None))),
                    Some(Get(_)) | None => {}
                }
            }
            if let Err(failure) = check(events) {
                panic!("{failure}");
            }
        }
    }
}
