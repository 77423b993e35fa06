//! Opening a log: recovery.
//!
//! 1. Find where the log ends ([`crate::recovery`]). Nothing is written if that fails.
//! 2. Write again what is not known to be persistent, and sync it: it may be in the system's cache only, after a process was killed or a sync
//!    failed. Only then may readers believe it.
//! 3. Append a record that says that the log was opened, of a new epoch, and sync it. What is left of a torn tail is of an older epoch than
//!    this record, so it never counts.
//! 4. Take away segments that are not needed.
//!
//! Each step leaves a log on which all of this gives the same, so a crash during recovery does no harm.

use std::io;
use std::sync::{Arc, Condvar, Mutex};

use super::state::{Known, State};
use super::{Log, Options, Shared};
use crate::error::Error;
use crate::level::Level;
use crate::lsn::{Geometry, Lsn};
use crate::planted::{Bug, is_planted};
use crate::record::{Draft, Kind, Seed};
use crate::recovery::{FIRST_SEGMENT, Found, Run, find_end};
use crate::segment::{self, SegmentHeader};
use crate::segments;
use crate::storage::{Access, Lock, Storage};

impl Log {
    /// Opens the log on a storage, or makes one there if it has no segments.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] if another has it open; [`Error::Corrupt`], [`Error::MissingSegments`], [`Error::NotASegment`] if it is damaged, and
    /// [`Error::Version`] if it is another program's: nothing is changed then. [`Error::Option`] if an option is out of range;
    /// [`Error::Io`].
    pub fn open_on(storage: Arc<dyn Storage>, options: Options) -> Result<Self, Error> {
        Self::open_with(storage, options, rand::random())
    }

    /// Opens the log; one that is made has this id.
    pub(crate) fn open_with(
        storage: Arc<dyn Storage>,
        options: Options,
        new_id: u64,
    ) -> Result<Self, Error> {
        options.check()?;
        let lock = storage.lock().map_err(|why| match why.kind() {
            io::ErrorKind::WouldBlock => Error::Locked(why.to_string()),
            _ => Error::io("lock", &storage.describe(), why),
        })?;
        Self::open_locked(storage, Arc::new(lock), options, new_id)
    }

    /// Opens the log again after a failure, without letting others have it in between. What was acknowledged is there; of what was not, any
    /// part may be. This log takes no records any more, and can still be read.
    ///
    /// # Errors
    ///
    /// As for [`open_on`](Self::open_on); [`Error::Option`] if this log has not failed.
    pub fn open_again(&self) -> Result<Self, Error> {
        let shared = &self.shared;
        let mut state = shared.lock();
        if state.failure.is_none() {
            return Err(Error::Option("a log that has not failed is open already".to_owned()));
        }
        while state.leading {
            state = shared.wait(&shared.room, state);
        }
        drop(state);
        let (storage, options) = (shared.storage.clone(), shared.options.clone());
        Self::open_locked(storage, self.lock.clone(), options, shared.log_id)
    }

    fn open_locked(
        storage: Arc<dyn Storage>,
        lock: Arc<Lock>,
        options: Options,
        new_id: u64,
    ) -> Result<Self, Error> {
        let (numbers, spares) = segments::list(&*storage)?;
        match Run::of(&numbers) {
            None => Self::make(storage, lock, options, spares, new_id),
            Some(run) => Self::recover(storage, lock, options, spares, &run),
        }
    }

    fn make(
        storage: Arc<dyn Storage>,
        lock: Arc<Lock>,
        options: Options,
        mut spares: Vec<String>,
        log_id: u64,
    ) -> Result<Self, Error> {
        let geometry = Geometry { segment_bytes: options.segment_bytes };
        let (number, segment_bytes) = (FIRST_SEGMENT, options.segment_bytes);
        let header = SegmentHeader { log_id, number, segment_bytes, checkpoint: Lsn(0), epoch: 1 };
        let file = segments::create(&*storage, header, &mut spares)?;
        let mut state = State::new(file, geometry.start(number), options.queue_bytes);
        state.first_segment = number;
        state.spares = spares;
        Self::begin(storage, lock, options, (geometry, log_id, 1), state)
    }

    fn recover(
        storage: Arc<dyn Storage>,
        lock: Arc<Lock>,
        options: Options,
        spares: Vec<String>,
        run: &Run,
    ) -> Result<Self, Error> {
        let found = find_end(&storage, run)?;
        // Names that a process which was killed has made may not be durable.
        segments::sync_names(&*storage)?;
        if !is_planted(Bug::TailNotSynced) {
            write_again(&*storage, &found)?;
        }
        let geometry = found.geometry;
        let last = geometry.segment(found.end);
        let (file, _) = segments::open(&*storage, last, Access::Write)?;
        let mut state = State::new(file, found.end, options.queue_bytes);
        state.first_segment = run.first;
        state.spares = spares;
        state.checkpoint =
            found.checkpoint.map(|known| Known { lsn: known.lsn, restart: known.restart });
        let epoch = found.epoch.checked_add(1);
        let epoch = epoch.ok_or_else(|| Error::Option("the log was opened too often".into()))?;
        let max_spares = options.spare_segments;
        let log = Self::begin(storage, lock, options, (geometry, found.log_id, epoch), state)?;
        let storage = &*log.shared.storage;
        // The record that the log is open may have needed another segment.
        let last = geometry.segment(log.end());
        let mut spares = std::mem::take(&mut log.shared.lock().spares);
        for number in run.leftovers.iter().copied().chain(last + 1..=run.last) {
            segments::retire(storage, number, &mut spares, max_spares)?;
        }
        while spares.len() > max_spares
            && let Some(spare) = spares.pop()
        {
            storage.remove(&spare).map_err(|why| Error::io("remove", &spare, why))?;
        }
        segments::sync_names(storage)?;
        log.shared.lock().spares = spares;
        Ok(log)
    }

    /// Appends that the log is open.
    fn begin(
        storage: Arc<dyn Storage>,
        lock: Arc<Lock>,
        options: Options,
        (geometry, log_id, epoch): (Geometry, u64, u32),
        state: State,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            storage,
            geometry,
            log_id,
            seed: Seed::of(log_id),
            epoch,
            options,
            state: Mutex::new(state),
            batch_done: [Condvar::new(), Condvar::new()],
            room: Condvar::new(),
            arrivals: Condvar::new(),
            futures: Condvar::new(),
            maintenance: Mutex::new(()),
        });
        let log = Self { shared, lock };
        let draft = Draft { transaction: 0, kind: Kind::Open, payload: b"" };
        let opened = log.push(draft, Level::Persistent, true)?.wait();
        match opened {
            Ok(_) => Ok(log),
            Err(Error::Poisoned(why)) => Err(Arc::unwrap_or_clone(why)),
            Err(why) => Err(why),
        }
    }
}

/// Writes what is not known to be persistent again, as it is, and syncs it.
fn write_again(storage: &dyn Storage, found: &Found) -> Result<(), Error> {
    let geometry = found.geometry;
    let mut at = found.synced;
    while at < found.end {
        let number = geometry.segment(at);
        let name = segment::name(number);
        let end = found.end.min(Lsn((number + 1) * geometry.segment_bytes));
        let failed = |doing| {
            let name = name.clone();
            move |why| Error::io(doing, &name, why)
        };
        let file = storage.open(&name, Access::Write).map_err(failed("open"))?;
        let mut bytes = vec![0; usize::try_from(end.0 - at.0).unwrap_or(0)];
        let offset = geometry.offset(at);
        let count = file.read_at(&mut bytes, offset).map_err(failed("read"))?;
        file.write_at(&bytes[..count], offset).map_err(failed("write"))?;
        file.sync().map_err(failed("sync"))?;
        at = geometry.place_after(end);
    }
    Ok(())
}
