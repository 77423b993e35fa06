//! The part of the log that is in memory: records that are not yet applied, or not yet sent to all.

use std::collections::VecDeque;

use farcall::Shape;
use serde::{Deserialize, Serialize};

use crate::record::{Epoch, Lsn, Record};

/// The end of the log. What is before it is in the store.
#[derive(Clone, Debug)]
pub struct Tail {
    /// The lsn of the first record that is kept, or would be.
    first: Lsn,
    records: VecDeque<Record>,
}

/// From which lsn on which origin is valid, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Origins {
    /// Where each run of records of one origin begins.
    pub runs: Vec<(Lsn, Epoch)>,
    /// The last lsn of the log.
    pub end: Lsn,
}

impl Tail {
    /// A tail without records, after this one.
    #[must_use]
    pub fn after(last: Lsn) -> Tail {
        Tail { first: last.next(), records: VecDeque::new() }
    }

    /// The lsn of the last record of the log.
    #[must_use]
    pub fn end(&self) -> Lsn {
        Lsn(self.first.0 + self.records.len() as u64 - 1)
    }

    /// The lsn of the first record that is here, or would be.
    #[must_use]
    pub fn first(&self) -> Lsn {
        self.first
    }

    /// Appends a record.
    ///
    /// # Panics
    /// If it is not the next one.
    pub fn push(&mut self, record: Record) {
        assert_eq!(record.lsn, self.end().next(), "records are appended in their order");
        self.records.push_back(record);
    }

    /// The record with this number, if it is here.
    #[must_use]
    pub fn get(&self, lsn: Lsn) -> Option<&Record> {
        let at = lsn.0.checked_sub(self.first.0)?;
        self.records.get(usize::try_from(at).ok()?)
    }

    /// Cuts all records after this one.
    pub fn truncate(&mut self, last: Lsn) {
        let keep = (last.0 + 1).saturating_sub(self.first.0);
        self.records.truncate(usize::try_from(keep).unwrap_or(usize::MAX));
    }

    /// Forgets records up to this one, which is in the store.
    pub fn forget(&mut self, last: Lsn) {
        while self.first <= last && self.records.pop_front().is_some() {
            self.first = self.first.next();
        }
    }

    /// The origins of its records.
    #[must_use]
    pub fn origins(&self) -> Origins {
        let mut runs: Vec<(Lsn, Epoch)> = Vec::new();
        for record in &self.records {
            if runs.last().is_none_or(|(_, origin)| *origin != record.origin) {
                runs.push((record.lsn, record.origin));
            }
        }
        Origins { runs, end: self.end() }
    }

    /// The last record up to which this log is the one with these origins. Records that are in the store here or are not among the
    /// runs there are committed, and so the same.
    #[must_use]
    pub fn match_with(&self, other: &Origins) -> Lsn {
        let differs = self.records.iter().find(|record| {
            record.lsn > other.end
                || other.origin_of(record.lsn).is_some_and(|origin| origin != record.origin)
        });
        differs.map_or(self.end(), |record| Lsn(record.lsn.0 - 1))
    }
}

impl Origins {
    fn origin_of(&self, lsn: Lsn) -> Option<Epoch> {
        self.runs.iter().rev().find(|(first, _)| *first <= lsn).map(|(_, origin)| *origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(after: u64, origins: &[u64]) -> Tail {
        let mut tail = Tail::after(Lsn(after));
        for origin in origins {
            let lsn = tail.end().next();
            tail.push(Record { lsn, origin: Epoch(*origin), payload: vec![1].into() });
        }
        tail
    }

    #[test]
    fn tails_match_up_to_the_first_record_of_another_origin() {
        let primary = tail(10, &[1, 1, 2, 2]).origins();
        assert_eq!(primary.runs, [(Lsn(11), Epoch(1)), (Lsn(13), Epoch(2))]);
        for (after, origins, expected) in [
            (10, vec![1, 1, 2, 2], 14),
            (10, vec![1, 1, 2], 13),
            (10, vec![1, 1, 2, 2, 2], 14),
            (10, vec![1, 1, 1, 1], 12),
            (10, vec![1, 1, 3], 12),
            (12, vec![], 12),
            (12, vec![1], 12),
            // What the primary has applied is committed.
            (8, vec![7, 7, 1, 1, 1], 12),
        ] {
            assert_eq!(tail(after, &origins).match_with(&primary), Lsn(expected), "{origins:?}");
        }
    }

    #[test]
    fn what_is_cut_or_forgotten_is_not_there() {
        let mut log = tail(10, &[1, 1, 1, 1]);
        log.truncate(Lsn(13));
        assert_eq!((log.end(), log.get(Lsn(14))), (Lsn(13), None));
        log.forget(Lsn(11));
        assert_eq!((log.first(), log.get(Lsn(11)), log.end()), (Lsn(12), None, Lsn(13)));
        log.forget(Lsn(99));
        assert_eq!((log.first(), log.end()), (Lsn(14), Lsn(13)));
        log.truncate(Lsn(2));
        assert_eq!(log.end(), Lsn(13));
    }
}
