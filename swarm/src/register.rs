//! Whether what clients saw of one key could have come from a register: linearizability.
//!
//! Each operation takes effect at one moment between its question and its answer (Herlihy and Wing, TOPLAS 1990).
//! One without an answer takes effect at any moment after its question, or never. The search is that of Wing and
//! Gong with Lowe's memory of what was tried ("Testing for linearizability", 2017).

use std::collections::HashSet;
use std::fmt;

/// The most operations on one key: as many as a mask has bits.
pub(crate) const MAX_OPERATIONS: usize = 128;

/// Stands for all values that nobody has seen. Values are counted from 1.
const UNSEEN: u64 = 0;

/// What a key holds: the number of a value, or nothing.
pub(crate) type Held = Option<u64>;

/// What was done to a key, and what was answered to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Its value was asked for, and was this.
    Get(Held),
    /// It was given this value; the answer tells whether it had one.
    Put(u64, Option<bool>),
    /// It was forgotten; the answer tells whether it had a value.
    Del(Option<bool>),
}

impl Operation {
    /// What the key holds afterwards, if the answer is right.
    fn apply(self, held: Held) -> Option<Held> {
        let fits = |answer: Option<bool>| answer.is_none_or(|had| had == held.is_some());
        match self {
            Operation::Get(seen) => (seen == held).then_some(held),
            Operation::Put(value, answer) => fits(answer).then_some(Some(value)),
            Operation::Del(answer) => fits(answer).then_some(None),
        }
    }
}

/// One operation and its time: moments count what happened, in the order in which it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The number of the call, as the trace has it.
    pub(crate) call: usize,
    /// When it was asked for.
    pub(crate) asked: u64,
    /// When it was answered, if it was.
    pub(crate) answered: Option<u64>,
    /// What it was.
    pub(crate) operation: Operation,
}

/// A history that no register has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotARegister {
    /// The events, in the order of their questions.
    pub(crate) events: Vec<Event>,
    /// The most of them that could be put in an order.
    pub(crate) explained: usize,
}

impl fmt::Display for NotARegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no order explains more than {} of {}:", self.explained, self.events.len())?;
        for Event { call, asked, answered, operation } in &self.events {
            write!(f, "  call {call:<4} {asked:>6} to ")?;
            match answered {
                Some(answered) => writeln!(f, "{answered:<6} {operation:?}")?,
                None => writeln!(f, "?      {operation:?}")?,
            }
        }
        Ok(())
    }
}

/// Checks the events of one key, which held nothing at first.
///
/// # Panics
/// If there are more than [`MAX_OPERATIONS`].
pub(crate) fn check(mut events: Vec<Event>) -> Result<(), NotARegister> {
    assert!(events.len() <= MAX_OPERATIONS, "{} operations on one key", events.len());
    events.sort_by_key(|event| event.asked);
    let mut search = Search::new(&events);
    if search.from(0, None) {
        return Ok(());
    }
    let explained = search.explained;
    Err(NotARegister { events, explained })
}

struct Search<'e> {
    events: &'e [Event],
    /// Those in the order in which they are tried: by their answers, and those without one last.
    order: Vec<usize>,
    /// Values that somebody has seen.
    seen: HashSet<u64>,
    /// Those that were put in order, and what the key held then: there is no way on from there.
    tried: HashSet<(u128, Held)>,
    explained: usize,
}

impl<'e> Search<'e> {
    fn new(events: &'e [Event]) -> Search<'e> {
        let mut order: Vec<usize> = (0..events.len()).collect();
        order.sort_by_key(|at| events[*at].answered.unwrap_or(u64::MAX));
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
        // Nothing that was asked after another's answer comes before that one.
        let Some(first) = self.order.iter().copied().find(left) else { return true };
        let Some(first_answer) = events[first].answered else {
            return true; // Whatever has no answer never took effect.
        };
        if !self.tried.insert((done, held)) {
            return false;
        }
        let (mut candidates, mut unseen) = (Vec::new(), [false; 2]);
        for at in self.order.iter().copied().filter(left) {
            let event = &events[at];
            if event.asked >= first_answer || !self.may_matter(event, held) {
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
                // It changes nothing, so now is as good as any other time.
                return self.from(done | 1 << at, after);
            }
            candidates.push((at, after));
        }
        candidates.into_iter().any(|(at, after)| self.from(done | 1 << at, after))
    }

    /// What has no answer and brought nothing that anybody has seen does the same whichever it is: the one that was asked
    /// for first, which may happen whenever another may, stands for all of its kind.
    fn alike(&self, event: &Event) -> Option<usize> {
        match event.operation {
            _ if event.answered.is_some() => None,
            Operation::Del(_) => Some(0),
            Operation::Put(value, _) => (!self.seen.contains(&value)).then_some(1),
            Operation::Get(_) => None,
        }
    }

    /// Whether something without an answer needs to be thought of as having happened now: not if nobody has seen what it
    /// did, and the key is no less empty or full after it than before.
    fn may_matter(&self, event: &Event, held: Held) -> bool {
        match event.operation {
            _ if event.answered.is_some() => true,
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

    fn event(asked: u64, answered: u64, operation: Operation) -> Event {
        Event { call: 0, asked, answered: Some(answered), operation }
    }

    fn unanswered(asked: u64, operation: Operation) -> Event {
        Event { call: 0, asked, answered: None, operation }
    }

    fn is_register(events: &[Event]) -> bool {
        check(events.to_vec()).is_ok()
    }

    #[test]
    fn what_follows_one_another_is_seen_so() {
        let put = event(1, 2, Put(7, Some(false)));
        assert!(is_register(&[put, event(3, 4, Get(Some(7))), event(5, 6, Del(Some(true)))]));
        assert!(!is_register(&[put, event(3, 4, Get(None))]), "an acknowledged write is lost");
        assert!(!is_register(&[put, event(3, 4, Put(8, Some(false)))]), "it had a value");
        let deleted = [put, event(3, 4, Del(Some(true))), event(5, 6, Get(Some(7)))];
        assert!(!is_register(&deleted), "what was deleted has come back");
    }

    #[test]
    fn what_overlaps_may_have_happened_in_any_order() {
        let (one, two) = (event(1, 4, Put(1, None)), event(2, 3, Put(2, None)));
        for last in [1, 2] {
            assert!(is_register(&[one, two, event(5, 6, Get(Some(last)))]));
        }
        assert!(is_register(&[one, event(2, 3, Get(None))]));
        assert!(is_register(&[one, event(2, 3, Get(Some(1)))]));
        let back = [one, event(2, 3, Get(Some(1))), event(5, 6, Get(None))];
        assert!(!is_register(&back), "seen, and gone");
    }

    #[test]
    fn what_was_never_answered_may_have_happened_late_or_never_but_only_once() {
        let lost = unanswered(1, Put(1, None));
        for seen in [None, Some(1)] {
            assert!(is_register(&[lost, event(2, 3, Get(seen))]));
        }
        let late = [lost, event(2, 3, Get(None)), event(4, 5, Get(Some(1)))];
        assert!(is_register(&late));
        let over = event(6, 7, Put(2, Some(true)));
        let twice = [lost, event(2, 3, Get(Some(1))), over, event(8, 9, Get(Some(1)))];
        assert!(!is_register(&twice), "it took effect twice");
    }

    #[test]
    fn many_that_nobody_has_waited_for_are_no_puzzle() {
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
        assert!(is_register(&events));
        events.push(event(moment + 5, moment + 6, Get(Some(100 + 20))));
        assert!(!is_register(&events), "nobody has put it");
    }

    #[test]
    fn an_impossible_history_is_told() {
        let wrong = check(vec![event(1, 2, Put(7, Some(false))), event(3, 4, Get(Some(9)))]);
        let wrong = wrong.unwrap_err();
        assert_eq!(wrong.explained, 1);
        assert!(wrong.to_string().contains("Get(Some(9))"), "{wrong}");
    }

    /// Sound registers are never called wrong, however many ask at once.
    #[test]
    fn a_register_is_called_one() {
        let mut dice = crate::dice::Dice::new(1, 0);
        for _ in 0..200 {
            let (mut held, mut clock, mut open, mut events) = (None, 0, Vec::new(), Vec::new());
            while events.len() + open.len() < 60 {
                clock += 1;
                match dice.below(3) {
                    0 if open.len() < 8 => open.push((clock, dice.below(3), None)),
                    1 => {
                        // Something takes effect.
                        let waiting = open.iter_mut().filter(|(_, _, effect)| effect.is_none());
                        if let Some((asked, kind, effect)) = waiting.last() {
                            let had = Some(held.is_some());
                            *effect = Some(match kind {
                                0 => Get(held),
                                1 => Put(*asked, had),
                                _ => Del(had),
                            });
                            match *kind {
                                0 => {}
                                1 => held = Some(*asked),
                                _ => held = None,
                            }
                        }
                    }
                    _ if !open.is_empty() => {
                        let at = dice.below(open.len() as u64) as usize;
                        if let (asked, _, Some(operation)) = open[at] {
                            open.remove(at);
                            let answered = (!dice.once_in(10)).then_some(clock);
                            let operation = match (answered, operation) {
                                (None, Put(value, _)) => Put(value, None),
                                (None, Del(_)) => Del(None),
                                (None, Get(_)) => continue,
                                (Some(_), operation) => operation,
                            };
                            events.push(Event { call: 0, asked, answered, operation });
                        }
                    }
                    _ => {}
                }
            }
            for (asked, _, effect) in open {
                match effect {
                    Some(Put(value, _)) => events.push(unanswered(asked, Put(value, None))),
                    Some(Del(_)) => events.push(unanswered(asked, Del(None))),
                    Some(Get(_)) | None => {}
                }
            }
            if let Err(wrong) = check(events) {
                panic!("{wrong}");
            }
        }
    }
}
