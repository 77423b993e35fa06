//! What clients did and saw, and whether that is what one store would have shown.

use std::collections::HashMap;

use super::linearizable::{Kind, Operation, is_linearizable};

/// An append.
#[derive(Clone, Copy, Debug)]
pub(super) struct Append {
    pub(super) begin: u64,
    pub(super) end: Option<u64>,
    pub(super) entry: u64,
    /// Where it is, if it was acknowledged.
    pub(super) index: Option<u64>,
    /// Its client knows that it was not done.
    pub(super) did_not_run: bool,
}

#[derive(Debug, Default)]
pub(super) struct History {
    /// By key.
    pub(super) operations: HashMap<u64, Vec<Operation>>,
    pub(super) appends: Vec<Append>,
}

impl History {
    pub(super) fn add(&mut self, key: u64, begin: u64, end: Option<u64>, kind: Kind) {
        self.operations.entry(key).or_default().push(Operation { begin, end, kind });
    }

    /// Compares with the entries that were read in the end, from this moment on. Gives what is wrong.
    pub(super) fn problem(&self, read_at: u64, entries: &[u64]) -> Option<String> {
        let mut keys: Vec<_> = self.operations.iter().collect();
        keys.sort_by_key(|(key, _)| **key);
        for (key, operations) in keys {
            if !is_linearizable(operations) {
                return Some(format!("key {key} is not linearizable: {operations:?}"));
            }
        }
        self.problem_of_log(read_at, entries)
    }

    /// Acknowledged entries are there, once, where the acknowledgement said, and in the order of their calls.
    fn problem_of_log(&self, read_at: u64, entries: &[u64]) -> Option<String> {
        let known: HashMap<u64, &Append> = self.appends.iter().map(|it| (it.entry, it)).collect();
        let mut places: HashMap<u64, u64> = HashMap::new();
        for (index, entry) in (0..).zip(entries) {
            let Some(append) = known.get(entry) else {
                return Some(format!("entry {entry} was appended by nobody"));
            };
            if append.did_not_run {
                return Some(format!("entry {entry} is there, and its client was told that not"));
            }
            if places.insert(*entry, index).is_some() {
                return Some(format!("entry {entry} is there twice"));
            }
        }
        for append in &self.appends {
            let found = places.get(&append.entry).copied();
            // One that ended while the entries were read may be missing.
            let may_be_missing = append.end.is_none_or(|end| end >= read_at);
            if append.index.is_some()
                && found != append.index
                && !(may_be_missing && found.is_none())
            {
                return Some(format!("{append:?} is acknowledged, and is at {found:?}"));
            }
        }
        // The earliest begin of all that come later in the log.
        let mut earliest_later = u64::MAX;
        for entry in entries.iter().rev() {
            let append = known.get(entry)?;
            if append.begin > earliest_later {
                // It began after one had ended that comes later.
                return Some(format!("entry {entry} is before one that had ended earlier"));
            }
            earliest_later = earliest_later.min(append.end.unwrap_or(u64::MAX));
        }
        None
    }
}
