//! Recovery of transactions: redo what committed, undo what did not.
//!
//! Five kinds of transactions meet a checkpoint and a crash. One that ended before the checkpoint is skipped (T1). One that was active at
//! the checkpoint (T2) or began after it (T3), and committed before the crash, is redone from the checkpoint on. One that was active at the
//! checkpoint (T4) or began after it (T5), and was active at the crash, is redone, too, and undone at the end. Redoing all, and undoing where
//! the log says so, leaves the store as it was at the crash whatever part of it the checkpoint had; so it does no harm to do it twice.

use std::collections::BTreeMap;

use crate::log::Record;
use crate::lsn::Lsn;
use crate::record::Kind;

/// What entries are applied to.
pub trait Store {
    /// Why an entry cannot be applied.
    type Error;

    /// Does what an entry says, again. It may have been done already.
    ///
    /// # Errors
    ///
    /// If the entry is none of this store's.
    fn redo(&mut self, entry: &[u8]) -> Result<(), Self::Error>;

    /// Takes back what an entry says.
    ///
    /// # Errors
    ///
    /// If the entry is none of this store's.
    fn undo(&mut self, entry: &[u8]) -> Result<(), Self::Error>;
}

/// The transactions of a log that is read from where a checkpoint says that recovery begins.
#[derive(Debug)]
pub struct Replay {
    redo_from: Lsn,
    active: BTreeMap<u64, Vec<(Lsn, Vec<u8>)>>,
}

impl Replay {
    /// The store that is restored has the effects of all entries before `redo_from`, and of any later ones.
    #[must_use]
    pub fn new(redo_from: Lsn) -> Self {
        Self { redo_from, active: BTreeMap::new() }
    }

    /// Takes the next record, in the order of the log.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn apply<S: Store>(&mut self, record: &Record, store: &mut S) -> Result<(), S::Error> {
        let transaction = record.header.transaction;
        let counts = record.lsn() >= self.redo_from;
        match record.kind() {
            Kind::Entry => {
                if counts {
                    store.redo(&record.payload)?;
                }
                if transaction != 0 {
                    let entry = (record.lsn(), record.payload.clone());
                    self.active.entry(transaction).or_default().push(entry);
                }
            }
            Kind::Commit => drop(self.active.remove(&transaction)),
            Kind::Abort => {
                let entries = self.active.remove(&transaction).unwrap_or_default();
                for (_, entry) in entries.iter().rev().filter(|_| counts) {
                    store.undo(entry)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Undoes all transactions that have not ended. Returns their numbers: the log should say that they are aborted.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn finish<S: Store>(self, store: &mut S) -> Result<Vec<u64>, S::Error> {
        let numbers = self.active.keys().copied().collect();
        let mut entries: Vec<_> = self.active.into_values().flatten().collect();
        entries.sort_unstable_by_key(|(lsn, _)| std::cmp::Reverse(*lsn));
        entries.iter().try_for_each(|(_, entry)| store.undo(entry))?;
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Header;

    /// Notes what it is asked to do.
    #[derive(Default)]
    struct Notes(Vec<String>);

    impl Store for Notes {
        type Error = std::convert::Infallible;

        fn redo(&mut self, entry: &[u8]) -> Result<(), Self::Error> {
            self.0.push(format!("redo {}", String::from_utf8_lossy(entry)));
            Ok(())
        }

        fn undo(&mut self, entry: &[u8]) -> Result<(), Self::Error> {
            self.0.push(format!("undo {}", String::from_utf8_lossy(entry)));
            Ok(())
        }
    }

    fn record(lsn: u64, transaction: u64, kind: Kind, text: &str) -> Record {
        let length = u32::try_from(text.len()).unwrap();
        let (lsn, synced) = (Lsn(lsn), Lsn(0));
        let header = Header { lsn, transaction, kind, length, epoch: 1, synced };
        Record { header, payload: text.into() }
    }

    #[test]
    fn five_transactions_meet_a_checkpoint_and_a_crash() {
        let checkpoint = 100;
        let records = [
            record(10, 1, Kind::Entry, "T1"),
            record(20, 2, Kind::Entry, "T2 before"),
            record(30, 4, Kind::Entry, "T4 before"),
            record(40, 1, Kind::Commit, ""),
            // The checkpoint.
            record(110, 2, Kind::Entry, "T2 after"),
            record(120, 3, Kind::Entry, "T3"),
            record(130, 4, Kind::Entry, "T4 after"),
            record(140, 5, Kind::Entry, "T5"),
            record(150, 2, Kind::Commit, ""),
            record(160, 3, Kind::Commit, ""),
        ];
        let mut notes = Notes::default();
        let mut replay = Replay::new(Lsn(checkpoint));
        records.iter().for_each(|record| replay.apply(record, &mut notes).unwrap());
        assert_eq!(replay.finish(&mut notes), Ok(vec![4, 5]));
        let redone = ["redo T2 after", "redo T3", "redo T4 after", "redo T5"];
        assert_eq!(notes.0[..4], redone);
        assert_eq!(notes.0[4..], ["undo T5", "undo T4 after", "undo T4 before"]);
    }

    #[test]
    fn an_aborted_transaction_is_undone_where_it_was() {
        let records = [
            record(10, 1, Kind::Entry, "a"),
            record(20, 1, Kind::Entry, "b"),
            record(30, 1, Kind::Abort, ""),
            record(40, 2, Kind::Entry, "c"),
            record(50, 2, Kind::Commit, ""),
        ];
        let mut notes = Notes::default();
        let mut replay = Replay::new(Lsn(0));
        records.iter().for_each(|record| replay.apply(record, &mut notes).unwrap());
        assert_eq!(replay.finish(&mut notes), Ok(vec![]));
        assert_eq!(notes.0, ["redo a", "redo b", "undo b", "undo a", "redo c"]);
    }
}
