//! The model: the possible answers about each record, given everything that this client already knows.
//!
//! Every value names its write (writer and version), so an answer is checked against what this client
//! knew when it *sent* the request:
//!
//! - the bytes are those that the named writer wrote for this record, and not of a future write;
//! - no writer's versions go back;
//! - an overwritten value never comes back: if an answer shows another value than before the request,
//!   the earlier one is gone;
//! - a client's own acknowledged write is there until another client's write replaces it;
//! - records with a single writer (every odd one, and every one inserted during the run) only show that
//!   writer's writes, and the writer knows exactly which.
//!
//! A writer has at most one write to a record in flight, so its versions are applied in order.
//!
//! A failed write may have been applied, or may be applied late. Its writer does not write that record
//! again, and both outcomes are accepted.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use thiserror::Error;

use super::records::{LOADER, Records, Unrecognized};

/// A wrong answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Wrong {
    /// A record that exists was not found.
    #[error("not found, though it was written")]
    Missing,
    /// The value was never written to this record.
    #[error("not a value of this record: {0}")]
    Unrecognized(#[from] Unrecognized),
    /// The value names a writer that does not write this record.
    #[error("writer {writer} never writes this record")]
    OtherWriter {
        /// The writer it names.
        writer: u32,
    },
    /// The value is older than one that was there before the request was sent.
    #[error("stale: version {version} of writer {writer}, where it had to be {least} or later")]
    Stale {
        /// The writer it names.
        writer: u32,
        /// The version it names.
        version: u32,
        /// The oldest version that could be there.
        least: u32,
    },
    /// The value names a write that this client has not made yet.
    #[error("version {version}, though only {issued} were written")]
    FromTheFuture {
        /// The version it names.
        version: u32,
        /// How many this client wrote.
        issued: u32,
    },
    /// A write got a wrong answer about whether it replaced a value.
    #[error("the answer to a write said that the record {}", if *.replaced { "existed" } else { "was new" })]
    Replaced {
        /// What the answer said.
        replaced: bool,
    },
}

/// What a client knows about one writer's writes to one record.
#[derive(Clone, Copy, Debug)]
struct View {
    writer: u32,
    /// The latest version known to have been in the record.
    seen: u32,
    /// Versions below this are known to have been overwritten.
    floor: u32,
}

#[derive(Debug, Default)]
struct History {
    views: Vec<View>,
    /// The number of this client's writes to the record.
    issued: u32,
    writing: bool,
    /// The last write failed: it may be in the record, or be applied late.
    uncertain: bool,
}

/// What was known about a record when a request was sent.
#[derive(Debug, Default)]
pub struct Snapshot {
    record: u64,
    views: Vec<View>,
}

/// One client's model of the records.
#[derive(Debug)]
pub struct Checker {
    records: Records,
    me: u32,
    clients: u32,
    histories: HashMap<u64, History, FixedState>,
}

impl Checker {
    /// The model of client `me` (from 1) of `clients`, after all records have been loaded.
    #[must_use]
    pub fn new(records: Records, me: u32, clients: u32) -> Self {
        assert!((1..=clients).contains(&me), "clients are counted from 1");
        Self { records, me, clients, histories: HashMap::default() }
    }

    /// The only client that writes `record`, or `None` if all may.
    #[must_use]
    pub fn owner(&self, record: u64) -> Option<u32> {
        let clients = u64::from(self.clients);
        let turn = match record.checked_sub(self.records.loaded()) {
            Some(inserted) => inserted % clients,
            None if record % 2 == 1 => record / 2 % clients,
            None => return None,
        };
        Some(turn as u32 + 1)
    }

    /// `record` if this client may write it, or else a neighbouring record that every client may write.
    #[must_use]
    pub fn writable(&self, record: u64) -> u64 {
        match self.owner(record) {
            Some(owner) if owner != self.me => record & !1,
            _ => record,
        }
    }

    /// The record that this client inserts with its insert number `index`, from 0.
    #[must_use]
    pub fn insertable(&self, index: u64) -> u64 {
        self.records.loaded() + index * u64::from(self.clients) + u64::from(self.me - 1)
    }

    /// Whether a write of this client to `record` is in flight.
    #[must_use]
    pub fn is_writing(&self, record: u64) -> bool {
        self.histories.get(&record).is_some_and(|history| history.writing)
    }

    /// Whether a write of this client to `record` has failed. It may still be applied, so the client must
    /// not write again.
    #[must_use]
    pub fn is_uncertain(&self, record: u64) -> bool {
        self.histories.get(&record).is_some_and(|history| history.uncertain)
    }

    /// The version that this client's next write to `record` has.
    #[must_use]
    pub fn next_version(&self, record: u64) -> u32 {
        self.histories.get(&record).map_or(0, |history| history.issued) + 1
    }

    /// Every record that this client has read or written, in order.
    #[must_use]
    pub fn known_records(&self) -> Vec<u64> {
        let mut known: Vec<u64> = self.histories.keys().copied().collect();
        known.sort_unstable();
        known
    }

    /// Records that a request about `record` is sent.
    pub fn ask(&mut self, record: u64, snapshot: &mut Snapshot) {
        let history = self.histories.get(&record);
        snapshot.record = record;
        snapshot.views.clear();
        match history {
            Some(history) => snapshot.views.extend_from_slice(&history.views),
            None if record < self.records.loaded() => {
                snapshot.views.push(View { writer: LOADER, seen: 1, floor: 1 });
            }
            None => {}
        }
    }

    /// Records that this client's next write to `record` is sent.
    pub fn write(&mut self, record: u64, snapshot: &mut Snapshot) {
        self.ask(record, snapshot);
        let history = self
            .histories
            .entry(record)
            .or_insert_with(|| History { views: snapshot.views.clone(), ..History::default() });
        assert!(!history.writing, "one write to a record at a time");
        history.writing = true;
        history.issued += 1;
    }

    /// Checks the answer to a read.
    ///
    /// # Errors
    /// If the answer is wrong.
    pub fn read(&mut self, asked: &Snapshot, answer: Option<&[u8]>) -> Result<(), Wrong> {
        let record = asked.record;
        if answer.is_none() && asked.views.is_empty() && self.is_uncertain(record) {
            return Ok(()); // An insert that failed.
        }
        let (writer, version) = self.records.recognize(record, answer.ok_or(Wrong::Missing)?)?;
        let by_loader = writer == LOADER && version == 1 && record < self.records.loaded();
        let by_client = (1..=self.clients).contains(&writer)
            && version > 0
            && self.owner(record).is_none_or(|owner| owner == writer);
        if !by_loader && !by_client {
            return Err(Wrong::OtherWriter { writer });
        }
        let least = asked.views.iter().find(|view| view.writer == writer).map_or(1, |v| v.floor);
        if version < least {
            return Err(Wrong::Stale { writer, version, least });
        }
        let issued = self.next_version(record) - 1;
        if writer == self.me && version > issued {
            return Err(Wrong::FromTheFuture { version, issued });
        }
        self.observe(asked, writer, version);
        Ok(())
    }

    /// Checks the acknowledgement of this client's latest write to a record, which says whether it replaced
    /// a value. `expected` is what it should say, if known.
    ///
    /// # Errors
    /// If the answer is wrong.
    pub fn written(
        &mut self,
        asked: &Snapshot,
        replaced: bool,
        expected: Option<bool>,
    ) -> Result<(), Wrong> {
        let record = asked.record;
        if let Some(history) = self.histories.get_mut(&record) {
            history.writing = false;
            let version = history.issued;
            self.observe(asked, self.me, version);
        }
        match expected {
            Some(expected) if expected != replaced => Err(Wrong::Replaced { replaced }),
            _ => Ok(()),
        }
    }

    /// Records that this client's latest write to a record failed, so it may or may not have run.
    pub fn lost(&mut self, asked: &Snapshot) {
        if let Some(history) = self.histories.get_mut(&asked.record) {
            history.writing = false;
            history.uncertain = true;
        }
    }

    /// Records that the record held `version` of `writer` after the request was sent.
    fn observe(&mut self, asked: &Snapshot, writer: u32, version: u32) {
        let history = self
            .histories
            .entry(asked.record)
            .or_insert_with(|| History { views: asked.views.clone(), ..History::default() });
        // What was there before the request and differs from the answer was overwritten in between.
        for before in asked.views.iter().filter(|before| before.writer != writer) {
            let view = history.views.iter_mut().find(|view| view.writer == before.writer);
            if let Some(view) = view {
                view.floor = view.floor.max(before.seen + 1);
            }
        }
        match history.views.iter_mut().find(|view| view.writer == writer) {
            Some(view) => {
                view.seen = view.seen.max(version);
                view.floor = view.floor.max(version);
            }
            None => history.views.push(View { writer, seen: version, floor: version }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::records::Fields;
    use proptest::prelude::*;

    const SHARED: u64 = 4;
    const MINE: u64 = 1; // Odd records are assigned in rotation: 1 to client 1, 3 to client 2.
    const THEIRS: u64 = 3;

    fn records() -> Records {
        Records::generated(77, 10, Fields { count: 1, length: 64, ..Fields::default() })
    }

    fn value(record: u64, writer: u32, version: u32) -> Vec<u8> {
        let mut value = Vec::new();
        records().value(record, writer, version, &mut value);
        value
    }

    /// Client 1 of 2.
    struct Asker(Checker);

    impl Asker {
        fn new() -> Self {
            Self(Checker::new(records(), 1, 2))
        }

        fn ask(&mut self, record: u64) -> Snapshot {
            let mut snapshot = Snapshot::default();
            self.0.ask(record, &mut snapshot);
            snapshot
        }

        fn read(&mut self, record: u64, writer: u32, version: u32) -> Result<(), Wrong> {
            let asked = self.ask(record);
            self.0.read(&asked, Some(&value(record, writer, version)))
        }

        fn write(&mut self, record: u64) {
            let mut asked = Snapshot::default();
            self.0.write(record, &mut asked);
            self.0.written(&asked, true, Some(true)).unwrap();
        }
    }

    #[test]
    fn a_failed_write_may_be_there_or_not_or_be_applied_late() {
        let mut asker = Asker::new();
        asker.write(MINE);
        let mut asked = Snapshot::default();
        asker.0.write(MINE, &mut asked);
        asker.0.lost(&asked);
        assert!(asker.0.is_uncertain(MINE) && !asker.0.is_writing(MINE));
        for version in [1, 2] {
            asker.read(MINE, 1, version).unwrap();
        }
        // Once it has been read it is there, and what was acknowledged before is not lost.
        assert!(matches!(asker.read(MINE, 1, 1), Err(Wrong::Stale { .. })));
        assert!(matches!(asker.read(MINE, 1, 3), Err(Wrong::FromTheFuture { .. })));
        let insert = asker.0.insertable(0);
        asker.0.write(insert, &mut asked);
        asker.0.lost(&asked);
        let again = asker.ask(insert);
        asker.0.read(&again, None).unwrap();
        asker.read(insert, 1, 1).unwrap();
        let there = asker.ask(insert);
        assert_eq!(asker.0.read(&there, None), Err(Wrong::Missing));
    }

    #[test]
    fn a_flipped_bit_in_an_answer_is_detected() {
        let mut asker = Asker::new();
        let mut corrupted = value(SHARED, LOADER, 1);
        corrupted[5] ^= 0x10;
        let asked = asker.ask(SHARED);
        let answer = asker.0.read(&asked, Some(&corrupted));
        assert!(matches!(answer, Err(Wrong::Unrecognized(Unrecognized::Unsealed(_)))));
    }

    #[test]
    fn a_missing_or_swapped_record_is_detected() {
        let mut asker = Asker::new();
        let asked = asker.ask(SHARED);
        assert_eq!(asker.0.read(&asked, None), Err(Wrong::Missing));
        assert_eq!(
            asker.0.read(&asked, Some(&value(MINE, LOADER, 1))),
            Err(Wrong::Unrecognized(Unrecognized::OtherRecord { record: MINE }))
        );
    }

    #[test]
    fn a_lost_acknowledged_write_is_detected() {
        let mut asker = Asker::new();
        asker.write(MINE);
        assert_eq!(
            asker.read(MINE, LOADER, 1),
            Err(Wrong::Stale { writer: LOADER, version: 1, least: 2 })
        );
        asker.write(MINE);
        assert_eq!(asker.read(MINE, 1, 1), Err(Wrong::Stale { writer: 1, version: 1, least: 2 }));
        asker.read(MINE, 1, 2).unwrap();
        assert_eq!(asker.read(MINE, 1, 3), Err(Wrong::FromTheFuture { version: 3, issued: 2 }));
    }

    #[test]
    fn versions_that_go_back_are_detected() {
        let mut asker = Asker::new();
        asker.read(SHARED, 2, 5).unwrap();
        assert_eq!(asker.read(SHARED, 2, 4), Err(Wrong::Stale { writer: 2, version: 4, least: 5 }));
        asker.read(SHARED, 2, 5).unwrap();
        asker.read(SHARED, 2, 9).unwrap();
    }

    #[test]
    fn an_overwritten_value_does_not_come_back() {
        let mut asker = Asker::new();
        asker.read(SHARED, 2, 5).unwrap();
        asker.write(SHARED);
        assert_eq!(asker.read(SHARED, 2, 5), Err(Wrong::Stale { writer: 2, version: 5, least: 6 }));
        // But a newer write of the other client may replace ours,
        asker.read(SHARED, 2, 6).unwrap();
        // and then ours is gone.
        assert_eq!(asker.read(SHARED, 1, 1), Err(Wrong::Stale { writer: 1, version: 1, least: 2 }));
    }

    #[test]
    fn answers_to_overlapping_requests_do_not_contradict_each_other() {
        let mut asker = Asker::new();
        let first = asker.ask(SHARED);
        let second = asker.ask(SHARED);
        asker.0.read(&second, Some(&value(SHARED, 2, 1))).unwrap();
        // Sent before the other was answered: the older value may have been read earlier.
        asker.0.read(&first, Some(&value(SHARED, LOADER, 1))).unwrap();
        // Sent after it: no longer.
        assert!(asker.read(SHARED, LOADER, 1).is_err());
    }

    #[test]
    fn a_writer_that_may_not_write_a_record_is_detected() {
        let mut asker = Asker::new();
        assert_eq!(asker.read(MINE, 2, 1), Err(Wrong::OtherWriter { writer: 2 }));
        assert_eq!(asker.read(THEIRS, 3, 1), Err(Wrong::OtherWriter { writer: 3 }));
        assert_eq!(asker.read(SHARED, LOADER, 2), Err(Wrong::OtherWriter { writer: LOADER }));
        asker.read(THEIRS, 2, 1).unwrap();
    }

    #[test]
    fn an_update_reported_as_an_insert_is_detected() {
        let mut asker = Asker::new();
        let mut asked = Snapshot::default();
        asker.0.write(SHARED, &mut asked);
        let answer = asker.0.written(&asked, false, Some(true));
        assert_eq!(answer, Err(Wrong::Replaced { replaced: false }));
        assert!(!asker.0.is_writing(SHARED));
    }

    #[test]
    fn every_record_has_writers_and_inserts_have_one() {
        let checkers = [1, 2, 3].map(|me| Checker::new(records(), me, 3));
        for record in 0..10 {
            for checker in &checkers {
                let writable = checker.writable(record);
                assert!(checker.owner(writable).is_none_or(|owner| owner == checker.me));
            }
        }
        for (checker, index) in checkers.iter().zip([0, 5, 9]) {
            let record = checker.insertable(index);
            assert!(record >= 10);
            assert_eq!(checker.owner(record), Some(checker.me));
        }
    }

    proptest! {
        /// A register with atomic operations and two clients with windows never causes a false alarm.
        #[test]
        fn a_correct_register_is_always_accepted(
            steps in prop::collection::vec((0usize..2, 0u8..4, any::<prop::sample::Index>()), 0..400)
        ) {
            struct Pending { asked: Snapshot, version: Option<u32>, applied: Option<Vec<u8>> }
            let mut checkers = [1, 2].map(|me| Checker::new(records(), me, 2));
            let mut windows: [Vec<Pending>; 2] = [Vec::new(), Vec::new()];
            let mut register = value(SHARED, LOADER, 1);
            for (client, what, index) in steps {
                let checker = &mut checkers[client];
                let window = &mut windows[client];
                match what {
                    0 => {
                        let mut asked = Snapshot::default();
                        checker.ask(SHARED, &mut asked);
                        window.push(Pending { asked, version: None, applied: None });
                    }
                    1 if !checker.is_writing(SHARED) => {
                        let version = checker.next_version(SHARED);
                        let mut asked = Snapshot::default();
                        checker.write(SHARED, &mut asked);
                        window.push(Pending { asked, version: Some(version), applied: None });
                    }
                    2 => { // The server executes one request of the window, in any order.
                        let mut waiting: Vec<_> =
                            window.iter_mut().filter(|p| p.applied.is_none()).collect();
                        if !waiting.is_empty() {
                            let index = index.index(waiting.len());
                            let pending = &mut waiting[index];
                            if let Some(version) = pending.version {
                                register = value(SHARED, client as u32 + 1, version);
                            }
                            pending.applied = Some(register.clone());
                        }
                    }
                    _ => { // An answer arrives, in any order.
                        let answered: Vec<usize> = (0..window.len())
                            .filter(|&i| window[i].applied.is_some()).collect();
                        if !answered.is_empty() {
                            let pending = window.remove(answered[index.index(answered.len())]);
                            let outcome = match pending.version {
                                Some(_) => checker.written(&pending.asked, true, Some(true)),
                                None => checker.read(&pending.asked, pending.applied.as_deref()),
                            };
                            prop_assert_eq!(outcome, Ok(()));
                        }
                    }
                }
            }
        }
    }
}
