//! Bytes in memory that transactions write, durable by a log: what a log is for, on one page.
//!
//! A write goes to the log with the bytes before and after it, and to memory; the commit is acknowledged when its record is durable. A
//! checkpoint copies the memory into a file while writers go on; recovery loads the file that the last checkpoint in the log names, redoes
//! what the log has from there on, and undoes what did not commit ([`Replay`]).
//!
//! ```
//! use std::sync::Arc;
//! use farcall_persist::{Level, Options, ranges::Ranges, storage::Directory};
//! # let directory = tempfile::tempdir()?;
//!
//! let storage = Arc::new(Directory::create(directory.path().join("accounts"))?);
//! let accounts = Ranges::open(storage.clone(), 1 << 16, Options::default())?;
//! let mut transfer = accounts.begin();
//! transfer.write(0, &90_u64.to_le_bytes())?;
//! transfer.write(8, &10_u64.to_le_bytes())?;
//! transfer.commit(Level::Persistent)?;
//!
//! let mut never_committed = accounts.begin();
//! never_committed.write(0, &[0; 16])?;
//! std::mem::forget(never_committed); // like a killed process
//! drop(accounts);
//! let accounts = Ranges::open(storage, 1 << 16, Options::default())?;
//! assert_eq!(accounts.read(0, 8)?, 90_u64.to_le_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod service;
mod snapshot;
mod transaction;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use self::transaction::Transaction;

use crate::error::Error;
use crate::level::{Ack, Level};
use crate::log::{Log, Options};
use crate::lsn::Lsn;
use crate::planted::{Bug, is_planted};
use crate::replay::{Replay, Store};
use crate::storage::Storage;

/// What can go wrong with ranges.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RangesError {
    /// The log below.
    #[error(transparent)]
    Log(#[from] Error),
    /// The range is not in the store.
    #[error("bytes {from} to {to} are not in the store, which has {length}")]
    OutOfRange {
        /// Where the range begins.
        from: u64,
        /// Where it ends.
        to: u64,
        /// The length of the store, in bytes.
        length: u64,
    },
    /// Another transaction has written there and has not ended.
    #[error(
        "transaction {0} has written there and has not ended; wait for its end and begin again"
    )]
    Conflict(u64),
    /// A record of the log is no write of this store.
    #[error(
        "an entry of the log is none of this store: it was written by another program, or the store had another length"
    )]
    Foreign,
    /// The file of the last checkpoint is missing or damaged.
    #[error(
        "{file} is missing or damaged, which the last checkpoint names; restore it from a copy"
    )]
    Snapshot {
        /// The file.
        file: String,
    },
}

/// Bytes that transactions write.
pub struct Ranges {
    log: Log,
    storage: Arc<dyn Storage>,
    memory: Mutex<Memory>,
    /// One checkpoint at a time.
    checkpoints: Mutex<()>,
    next_transaction: AtomicU64,
}

/// The bytes, and what transactions have done to them that have not ended.
struct Memory {
    bytes: Vec<u8>,
    active: BTreeMap<u64, Active>,
}

#[derive(Default)]
struct Active {
    first: Lsn,
    /// What was there before each write.
    before: Vec<(usize, Vec<u8>)>,
}

impl Ranges {
    /// Opens the store of `length` bytes in a directory, or makes one of zeros there.
    ///
    /// # Errors
    ///
    /// Those of [`Log::open_on`]; [`RangesError::Snapshot`], [`RangesError::Foreign`].
    pub fn open(
        storage: Arc<dyn Storage>,
        length: usize,
        options: Options,
    ) -> Result<Self, RangesError> {
        let log = Log::open_on(storage.clone(), options)?;
        let mut memory = Memory { bytes: vec![0; length], active: BTreeMap::new() };
        let (restart, redo_from) = snapshot::load(&log, &*storage, &mut memory.bytes)?;
        let mut replay = Replay::new(redo_from);
        for record in log.records(Some(restart)) {
            replay.apply(&record?, &mut memory)?;
        }
        if !is_planted(Bug::UndoForgotten) {
            for loser in replay.finish(&mut memory)? {
                log.abort(loser, Level::Visible)?.wait()?;
            }
        }
        log.flush(Level::Persistent)?.wait()?;
        // Numbers of former lives are smaller, as their epochs are.
        let next_transaction = AtomicU64::new(u64::from(log.epoch()) << 32 | 1);
        let (memory, checkpoints) = (Mutex::new(memory), Mutex::new(()));
        Ok(Self { log, storage, memory, checkpoints, next_transaction })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a transaction. Dropping it aborts it.
    #[must_use]
    pub fn begin(&self) -> Transaction<'_> {
        Transaction::new(self, self.next_transaction.fetch_add(1, Ordering::Relaxed))
    }

    /// Writes bytes, as a transaction of its own.
    ///
    /// # Errors
    ///
    /// [`RangesError::OutOfRange`], [`RangesError::Conflict`], [`RangesError::Log`].
    pub fn write(&self, at: u64, bytes: &[u8], level: Level) -> Result<Ack, RangesError> {
        let mut transaction = self.begin();
        transaction.write(at, bytes)?;
        transaction.commit(level)
    }

    /// What was committed last.
    ///
    /// # Errors
    ///
    /// [`RangesError::OutOfRange`].
    pub fn read(&self, at: u64, length: usize) -> Result<Vec<u8>, RangesError> {
        let memory = self.memory();
        let range = memory.range(at, length)?;
        let mut bytes = memory.bytes[range.clone()].to_vec();
        for active in memory.active.values() {
            for (from, before) in active.before.iter().rev() {
                overlay(&mut bytes, range.start, before, *from);
            }
        }
        Ok(bytes)
    }

    /// Makes a checkpoint: recovery will begin there, and the log before it is freed. Writers go on.
    ///
    /// # Errors
    ///
    /// [`RangesError::Log`].
    pub fn checkpoint(&self) -> Result<(), RangesError> {
        let _one = self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot::take(self)
    }

    /// The log below.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Closes the store. Transactions that have not ended are undone when it is opened again.
    ///
    /// # Errors
    ///
    /// As for [`Log::close`].
    pub fn close(self) -> Result<(), RangesError> {
        Ok(self.log.close()?)
    }
}

/// Puts the part of `from` that lies in `into` there. Both have a position.
fn overlay(into: &mut [u8], into_at: usize, from: &[u8], from_at: usize) {
    let begin = into_at.max(from_at);
    let end = (into_at + into.len()).min(from_at + from.len());
    if begin < end {
        into[begin - into_at..end - into_at].copy_from_slice(&from[begin - from_at..end - from_at]);
    }
}

impl Memory {
    fn range(&self, at: u64, length: usize) -> Result<Range<usize>, RangesError> {
        let to = at.saturating_add(length as u64);
        if to > self.bytes.len() as u64 {
            let length = self.bytes.len() as u64;
            return Err(RangesError::OutOfRange { from: at, to, length });
        }
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        Ok(from..from + length)
    }

    /// Another transaction that has written in a range and has not ended.
    fn conflict(&self, transaction: u64, range: &Range<usize>) -> Option<u64> {
        let overlaps = |active: &Active| {
            active.before.iter().any(|(at, b)| *at < range.end && range.start < at + b.len())
        };
        let mut others = self.active.iter().filter(|(number, _)| **number != transaction);
        others.find(|(_, active)| overlaps(active)).map(|(number, _)| *number)
    }
}

/// What an entry of the log says: where, and the bytes before and after, which have the same length.
struct Write<'a> {
    range: Range<usize>,
    before: &'a [u8],
    after: &'a [u8],
}

/// An entry of the log.
fn entry(at: usize, before: &[u8], after: &[u8]) -> Vec<u8> {
    [&(at as u64).to_le_bytes()[..], before, after].concat()
}

impl Memory {
    fn parse<'a>(&self, entry: &'a [u8]) -> Result<Write<'a>, RangesError> {
        let (at, images) = entry.split_first_chunk::<8>().ok_or(RangesError::Foreign)?;
        if !images.len().is_multiple_of(2) {
            return Err(RangesError::Foreign);
        }
        let (before, after) = images.split_at(images.len() / 2);
        let range = self.range(u64::from_le_bytes(*at), before.len());
        Ok(Write { range: range.map_err(|_| RangesError::Foreign)?, before, after })
    }
}

impl Store for Memory {
    type Error = RangesError;

    fn redo(&mut self, entry: &[u8]) -> Result<(), RangesError> {
        let Write { range, after, .. } = self.parse(entry)?;
        self.bytes[range].copy_from_slice(after);
        Ok(())
    }

    fn undo(&mut self, entry: &[u8]) -> Result<(), RangesError> {
        let Write { range, before, .. } = self.parse(entry)?;
        self.bytes[range].copy_from_slice(before);
        Ok(())
    }
}
