//! The log.
//!
//! The life of a record: [`Log::append`] copies it into the batch in memory and gives it its lsn. One caller that waits is the leader: it
//! takes the batch, completes its records (how far the log is synced, checksums), writes it with one write and syncs the segment once, if a
//! record in it asked for that. All who wait for the batch are told which level was reached. Records that come in the meantime make up the
//! next batch. A future does not write: a thread leads for it.

mod append;
mod checkpoint;
mod commit;
mod committer;
mod open;
mod options;
mod read;
mod state;
mod switch;
mod waiter;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub use self::append::Append;
pub use self::checkpoint::Checkpoint;
pub use self::options::Options;
pub use self::read::{Record, Records};
pub use self::state::Stats;
pub use self::waiter::Waiter;

use self::state::{Place, State};
use crate::error::Error;
use crate::hint::Hint;
use crate::level::Level;
use crate::lsn::{Geometry, Lsn};
use crate::record::{Draft, HEADER_BYTES, Kind, Seed, size_of_record};
use crate::storage::{Directory, Lock, Storage};

/// A log whose records are as safe as their writers ask for.
///
/// All methods may be called from any thread. Dropping it without [`close`](Self::close) is like a killed process: what was acknowledged as
/// [`Level::Visible`] or more is there when the log is opened again.
pub struct Log {
    shared: Arc<Shared>,
    /// A log that takes the place of one that failed has the same lock.
    lock: Arc<Lock>,
}

/// What the log shares with those who wait.
struct Shared {
    storage: Arc<dyn Storage>,
    geometry: Geometry,
    log_id: u64,
    seed: Seed,
    epoch: u32,
    options: Options,
    state: Mutex<State>,
    /// Batch `n` is done: those who wait for it wait at `n % 2`, as batch `n + 2` does not begin before.
    batch_done: [Condvar; 2],
    /// The leader is done; there may be room for records.
    room: Condvar,
    /// Records have come for which the leader waits.
    arrivals: Condvar,
    /// A future waits, for its level or for room, and there is no leader.
    futures: Condvar,
    /// One checkpoint or truncation at a time.
    maintenance: Mutex<()>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits at a condition.
    fn wait<'a>(&self, at: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        at.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The longest payload, in bytes.
    fn max_payload(&self) -> usize {
        let in_segment = usize::try_from(self.geometry.capacity()).unwrap_or(usize::MAX);
        (in_segment.min(self.options.queue_bytes) - HEADER_BYTES) & !7
    }
}

impl Log {
    /// Opens the log in a directory of this computer, or makes one there.
    ///
    /// # Errors
    ///
    /// As for [`open_on`](Self::open_on).
    pub fn open(path: impl Into<std::path::PathBuf>, options: Options) -> Result<Self, Error> {
        let path = path.into();
        let name = path.display().to_string();
        let directory = Directory::create(path).map_err(|why| Error::io("make", &name, why))?;
        Self::open_on(Arc::new(directory), options)
    }

    /// Appends a record that is part of no transaction. It is not written yet, unless the queue was full: [`Waiter::wait`], or awaiting the
    /// waiter, has it written to the level that `level` asks for.
    ///
    /// Waits for the storage if the queue is full.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`]; [`Error::Poisoned`] after a failure; [`Error::Io`] if there is no room for another segment: nothing was
    /// appended then, and the next append tries again.
    pub fn append(&self, payload: &[u8], level: Level) -> Result<Waiter, Error> {
        self.push(Draft { transaction: 0, kind: Kind::Entry, payload }, level, true)
    }

    /// Appends as [`append`](Self::append) does, but neither waits nor writes.
    ///
    /// # Errors
    ///
    /// Also [`Error::QueueFull`], if the queue is full or the record needs another segment: [`append_async`](Self::append_async) waits for
    /// that without blocking.
    pub fn try_append(&self, payload: &[u8], level: Level) -> Result<Waiter, Error> {
        self.push(Draft { transaction: 0, kind: Kind::Entry, payload }, level, false)
    }

    /// Appends a record of a transaction, which has any number but 0. It counts only if the transaction commits.
    ///
    /// # Errors
    ///
    /// As for [`append`](Self::append).
    pub fn append_in(
        &self,
        transaction: u64,
        payload: &[u8],
        level: Level,
    ) -> Result<Waiter, Error> {
        self.push(Draft { transaction, kind: Kind::Entry, payload }, level, true)
    }

    /// Appends that a transaction is committed. All of its records are at least at the level that this record reaches.
    ///
    /// # Errors
    ///
    /// As for [`append`](Self::append).
    pub fn commit(&self, transaction: u64, level: Level) -> Result<Waiter, Error> {
        self.push(Draft { transaction, kind: Kind::Commit, payload: b"" }, level, true)
    }

    /// Appends that a transaction is aborted.
    ///
    /// # Errors
    ///
    /// As for [`append`](Self::append).
    pub fn abort(&self, transaction: u64, level: Level) -> Result<Waiter, Error> {
        self.push(Draft { transaction, kind: Kind::Abort, payload: b"" }, level, true)
    }

    /// Brings all that was appended so far to a level.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] after a failure.
    pub fn flush(&self, level: Level) -> Result<Waiter, Error> {
        let mut state = self.shared.lock();
        state.check()?;
        let end = state.end;
        state.want(end, level);
        Ok(Waiter::new(&self.shared, end, end, state.batch, level))
    }

    fn push(&self, draft: Draft<'_>, level: Level, may_wait: bool) -> Result<Waiter, Error> {
        let limit = self.shared.max_payload();
        if draft.payload.len() > limit {
            return Err(Error::TooLarge { length: draft.payload.len(), limit });
        }
        let size = size_of_record(draft.payload.len());
        let mut state = self.shared.lock();
        loop {
            state.check()?;
            state = match state.place(self.shared.geometry, size) {
                Place::Here => break,
                Place::NoRoom if may_wait => self.shared.make_room(state),
                Place::NextSegment if may_wait => self.shared.next_segment(state)?,
                Place::NoRoom | Place::NextSegment => return Err(Error::QueueFull),
            };
        }
        Ok(self.shared.push_here(&mut state, draft, level))
    }

    /// Where the log begins: records before are truncated.
    #[must_use]
    pub fn first(&self) -> Lsn {
        self.shared.geometry.start(self.shared.lock().first_segment)
    }

    /// Where the next record will begin, unless it begins in another segment.
    #[must_use]
    pub fn end(&self) -> Lsn {
        self.shared.lock().end
    }

    /// Everything before this is at `level` at least.
    #[must_use]
    pub fn reached(&self, level: Level) -> Lsn {
        self.shared.lock().reached_by(level)
    }

    /// How often the log was opened, this time included.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.shared.epoch
    }

    /// The longest payload of a record, in bytes.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        self.shared.max_payload()
    }

    /// What the log has done since it was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats
    }

    /// Why the log takes no more records, if a write or sync has failed.
    #[must_use]
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.shared.lock().failure.clone()
    }

    /// Makes all persistent, and notes where the log ends, so that it opens at once. The log takes no more records.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] after a failure: what was not acknowledged may be lost.
    pub fn close(&self) -> Result<(), Error> {
        let draft = Draft { transaction: 0, kind: Kind::Close, payload: b"" };
        let last = self.push(draft, Level::Persistent, true)?.wait()?.lsn;
        let mut state = self.shared.lock();
        state.closed = true;
        let checkpoint = state.checkpoint.map_or(Lsn(0), |checkpoint| checkpoint.lsn);
        drop(state);
        let end = Lsn(last.0 + size_of_record(0));
        let log_id = self.shared.log_id;
        Hint { log_id, last, end, checkpoint }.write(&*self.shared.storage);
        Ok(())
    }
}

impl Drop for Log {
    /// Nothing is written from here on.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        self.shared.futures.notify_all();
        while state.leading {
            state = self.shared.wait(&self.shared.room, state);
        }
        let committer = state.committer.take();
        let wakers = state.take_all_wakers();
        drop(state);
        self.shared.batch_done.iter().for_each(Condvar::notify_all);
        self.shared.room.notify_all();
        wakers.into_iter().for_each(std::task::Waker::wake);
        if let Some(committer) = committer {
            // It has ended or panicked; either way it writes nothing.
            let _ = committer.join();
        }
    }
}
