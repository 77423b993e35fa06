//! What was lent when, and what each byte of lent memory may be.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall::memory::{MemoryError, Rights};

use crate::records::Counts;
use crate::value;

/// Bytes of each part of the region. Parts lie next to each other.
pub(super) const PART_BYTES: usize = 400;

/// One lend of a part.
#[derive(Clone, Debug)]
pub(super) struct Tenancy {
    /// The life of the owner that lent it.
    pub(super) life: u64,
    pub(super) rights: Rights,
    /// When its lease ends, by the owner's clock.
    pub(super) lease_ends_ns: Option<u64>,
    /// When the owner had taken it back, by the rack's clock.
    pub(super) over_ns: Option<u64>,
    /// Numbers of the values that its bytes may have: what the owner has stored, and what holders may have written.
    values: Vec<u64>,
}

/// What both sides of a run record.
#[derive(Debug, Default)]
pub(super) struct State {
    tenancies: Vec<Tenancy>,
    /// Of the owner that runs, or ran last.
    pub(super) life: u64,
    values: u64,
    /// Additions of this life that have succeeded, and those that may have run.
    pub(super) added: (u64, u64),
    /// What the counter was before each addition of this life.
    before: BTreeSet<u64>,
    pub(super) counts: Counts,
    pub(super) failure: Option<String>,
}

/// The records of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Records(Arc<Mutex<State>>);

impl Records {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation on a lend, when it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) tenancy: u64,
    pub(super) at_ns: u64,
    /// By the owner's clock.
    pub(super) owner_clock_ns: u64,
    /// The owner's life.
    pub(super) life: u64,
    /// How much later than by its clock the owner may end a lease: it takes the window of a lane away when its thread has a turn.
    pub(super) late_ns: u64,
}

impl State {
    pub(super) fn fail(&mut self, what: impl FnOnce() -> String) {
        self.failure.get_or_insert_with(what);
    }

    /// An owner begins.
    pub(super) fn begin_life(&mut self) -> u64 {
        self.life += 1;
        (self.added, self.before) = ((0, 0), BTreeSet::new());
        self.life
    }

    /// The number of a value that nobody has used.
    pub(super) fn new_value(&mut self) -> u64 {
        self.values += 1;
        self.values
    }

    /// Records a lend of memory that has this value. Returns its number.
    pub(super) fn lend(&mut self, rights: Rights, lease_ends_ns: Option<u64>, value: u64) -> u64 {
        let (life, values) = (self.life, vec![value]);
        self.tenancies.push(Tenancy { life, rights, lease_ends_ns, over_ns: None, values });
        self.tenancies.len() as u64 - 1
    }

    pub(super) fn tenancy(&self, number: u64) -> Option<&Tenancy> {
        self.tenancies.get(number as usize)
    }

    /// The owner has taken a lend back.
    pub(super) fn end(&mut self, number: u64, now_ns: u64) {
        if let Some(tenancy) = self.tenancies.get_mut(number as usize) {
            tenancy.over_ns.get_or_insert(now_ns);
        }
    }

    /// A holder begins to write this value.
    pub(super) fn may_write(&mut self, number: u64, value: u64) {
        if let Some(tenancy) = self.tenancies.get_mut(number as usize) {
            tenancy.values.push(value);
        }
    }

    /// That write is known not to have landed.
    pub(super) fn has_not_written(&mut self, number: u64, value: u64) {
        if let Some(tenancy) = self.tenancies.get_mut(number as usize) {
            tenancy.values.retain(|other| *other != value);
        }
    }

    /// Checks bytes of a lend, from an offset in it.
    pub(super) fn check_bytes(&mut self, number: u64, begin: usize, bytes: &[u8], who: &str) {
        let Some(tenancy) = self.tenancy(number) else { return };
        let values: Vec<_> =
            tenancy.values.iter().map(|value| value::bytes(*value, PART_BYTES)).collect();
        let foreign = bytes
            .iter()
            .zip(begin..)
            .position(|(byte, at)| !values.iter().any(|value| value.get(at) == Some(byte)));
        if let Some(place) = foreign {
            self.fail(|| {
                format!("{who}: byte {} of lend {number} is none that it ever had", begin + place)
            });
        }
    }

    /// Checks that an operation that has succeeded may have: its lend was not over when it began.
    pub(super) fn check_success(&mut self, begun: Begun, needs: Rights) {
        self.counts.answered += 1;
        let Begun { tenancy: number, at_ns, owner_clock_ns, life, late_ns } = begun;
        let Some(tenancy) = self.tenancy(number) else { return };
        let why = if !tenancy.rights.contains(needs) {
            "without the right to it"
        } else if tenancy.over_ns.is_some_and(|over_ns| over_ns < at_ns) {
            "although the owner had taken it back before"
        } else if tenancy.lease_ends_ns.is_some_and(|ends_ns| ends_ns + late_ns <= owner_clock_ns) {
            "although its lease was over before"
        } else if tenancy.life != life {
            "although its owner is gone"
        } else {
            return;
        };
        self.fail(|| format!("{at_ns} ns: an operation on lend {number} succeeded {why}"));
    }

    /// Checks that an operation may have failed so. `owner_clock_ns` is of now.
    pub(super) fn check_failure(&mut self, begun: Begun, why: &MemoryError, owner_clock_ns: u64) {
        match why.may_have_landed() {
            true => self.counts.unknown += 1,
            false => self.counts.never_ran += 1,
        }
        let number = begun.tenancy;
        let Some(tenancy) = self.tenancy(number) else { return };
        let is_expired = tenancy.lease_ends_ns.is_some_and(|ends_ns| ends_ns <= owner_clock_ns);
        let is_true = match why {
            // Of a lend that ended long ago, only that is known.
            MemoryError::Revoked => tenancy.over_ns.is_some() || is_expired,
            MemoryError::Expired => is_expired,
            MemoryError::FormerLife => tenancy.life != self.life,
            // Faults, and a full window.
            MemoryError::Gone { .. } | MemoryError::Full { .. } => true,
            _ => false,
        };
        if !is_true {
            self.fail(|| format!("an operation on lend {number} failed, which is not true: {why}"));
        }
    }

    /// An addition to the counter of this life has succeeded, and found this.
    pub(super) fn record_addition(&mut self, life: u64, before: u64) {
        if life != self.life {
            return;
        }
        self.added.0 += 1;
        if !self.before.insert(before) {
            self.fail(|| format!("two additions found {before} in the counter"));
        }
    }

    /// One may have run.
    pub(super) fn record_lost_addition(&mut self, life: u64) {
        if life == self.life {
            self.added.1 += 1;
        }
    }

    /// Checks the counter of this life.
    pub(super) fn check_counter(&mut self, counter: u64) {
        let (succeeded, unknown) = self.added;
        if !(succeeded..=succeeded + unknown).contains(&counter) {
            self.fail(|| {
                format!("the counter is {counter}: {succeeded} additions succeeded, {unknown} may have run")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lent(rights: Rights, lease_ends_ns: Option<u64>) -> (State, u64) {
        let mut state = State::default();
        state.begin_life();
        let value = state.new_value();
        let number = state.lend(rights, lease_ends_ns, value);
        (state, number)
    }

    fn begun(tenancy: u64, at_ns: u64) -> Begun {
        Begun { tenancy, at_ns, owner_clock_ns: at_ns, life: 1, late_ns: 0 }
    }

    #[test]
    fn success_needs_a_lend_that_is_not_over() {
        let fails = |end: fn(&mut State, u64), at_ns| {
            let (mut state, number) = lent(Rights::READ, Some(100));
            end(&mut state, number);
            state.check_success(begun(number, at_ns), Rights::READ);
            state.failure.is_some()
        };
        assert!(!fails(|_, _| {}, 99) && fails(|_, _| {}, 100));
        assert!(
            !fails(|state, it| state.end(it, 50), 50) && fails(|state, it| state.end(it, 50), 51)
        );
        let (mut state, number) = lent(Rights::READ, None);
        state.check_success(Begun { life: 2, ..begun(number, 1) }, Rights::READ);
        assert!(state.failure.is_some());
    }

    #[test]
    fn each_byte_is_of_a_value_that_it_may_have() {
        let (mut state, number) = lent(Rights::all(), None);
        let (first, second) = (1, state.new_value());
        let mut mixed = value::bytes(first, PART_BYTES);
        mixed[100..].copy_from_slice(&value::bytes(second, PART_BYTES)[100..]);
        state.may_write(number, second);
        state.check_bytes(number, 0, &mixed, "a mixture");
        state.check_bytes(number, 90, &mixed[90..120], "a part of it");
        assert_eq!(state.failure, None);
        state.has_not_written(number, second);
        state.check_bytes(number, 0, &mixed, "a write that did not land");
        assert!(state.failure.is_some());
    }
}
