//! The disk of a replica: its records in a log of `farcall-persist`, synced by a thread of its own.
//!
//! Each replica has a directory of its own below the one that the user names. It begins with a snapshot, unless the replica founded the
//! group. A record replaces those that were written before and have its lsn or a later one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use farcall_persist::{Kind, Level, Log, Options};
use serde::{Deserialize, Serialize};

use super::driver::{Input, Mailbox};
use crate::log::Tail;
use crate::membership::ReplicaId;
use crate::node::SyncWork;
use crate::record::{Epoch, Lsn, Record};
use crate::store::{Request, Store};

const PREFIX: &str = "replica-";

/// A part of a snapshot: well below what a record of the log may have.
const PART_BYTES: usize = 256 << 10;

fn options() -> Options {
    Options::default().segment_bytes(4 << 20)
}

/// What a record of the log is.
#[derive(Serialize, Deserialize)]
enum Entry {
    /// A part of a snapshot, and whether it is the last one.
    Snapshot {
        part: Bytes,
        is_last: bool,
    },
    Record(Record),
    /// The replica is a member of this epoch. What is here up to `end` has all that was committed before; what is after it is cut.
    Epoch {
        epoch: Epoch,
        end: Lsn,
    },
}

/// The disk of one replica. Its thread ends when this is dropped.
pub(super) struct Disk {
    work: Sender<SyncWork>,
}

impl Disk {
    /// Makes the directory of a replica below this one, with the state that it begins with, and removes those of former replicas.
    pub(super) fn create(
        base: &Path,
        id: ReplicaId,
        store: &Store,
        mailbox: Mailbox,
    ) -> Result<Disk> {
        let path = base.join(format!("{PREFIX}{id}"));
        let log = Log::open(&path, options())?;
        let snapshot = store.snapshot();
        let mut parts = snapshot.chunks(PART_BYTES).peekable();
        while let Some(part) = parts.next() {
            let part = Bytes::copy_from_slice(part);
            append(&log, &Entry::Snapshot { part, is_last: parts.peek().is_none() })?;
        }
        log.flush(Level::Persistent)?.wait()?;
        for former in replicas(base)? {
            if former != path {
                fs::remove_dir_all(&former)
                    .with_context(|| format!("cannot remove {}", former.display()))?;
            }
        }
        let (work, todo) = mpsc::channel();
        let log = Arc::new(log);
        std::thread::Builder::new().name("replica-disk".into()).spawn(move || {
            if let Err(why) = run(&log, &todo, &mailbox) {
                mailbox.deliver(Input::DiskFailed(format!("{why:#}")));
            }
        })?;
        Ok(Disk { work })
    }

    /// Syncs records, and tells the replica's thread when that is done. What waits is bounded by what the primary admits.
    pub(super) fn sync(&self, sync: SyncWork) {
        // Its thread has told why it ended.
        let _ = self.work.send(sync);
    }
}

fn run(log: &Log, todo: &Receiver<SyncWork>, mailbox: &Mailbox) -> Result<()> {
    while let Ok(mut work) = todo.recv() {
        // All that waits shares one sync.
        loop {
            if let Some(epoch) = work.enters {
                append(log, &Entry::Epoch { epoch, end: work.last })?;
            }
            for record in work.records.drain(..) {
                append(log, &Entry::Record(record))?;
            }
            match todo.try_recv() {
                Ok(more) => work = more,
                Err(_) => break,
            }
        }
        log.flush(Level::Persistent)?.wait()?;
        mailbox.deliver(Input::Synced { generation: work.generation, last: work.last });
    }
    Ok(())
}

fn append(log: &Log, entry: &Entry) -> Result<()> {
    // It is waited for with the flush.
    drop(log.append(&postcard::to_allocvec(entry)?, Level::Received)?);
    Ok(())
}

/// The directories of replicas below this one.
fn replicas(base: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(base).with_context(|| format!("cannot read {}", base.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// What a disk has.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The last epoch that the replica had entered as a member. 0: it was none.
    pub epoch: Epoch,
    /// The state after all records that are there. Some of them may never have been acknowledged.
    pub store: Store,
}

impl Recovered {
    /// Of the disks of a group, the one with the largest has everything that was acknowledged as persistent and is on one of them: a member that
    /// notes an epoch has synced all that was committed before it.
    #[must_use]
    pub fn rank(&self) -> (Epoch, Lsn) {
        (self.epoch, self.store.applied())
    }
}

/// Reads the state of the replica whose directory is below this one. `None`: there is none.
///
/// # Errors
/// The log is damaged, or a replica has it open.
pub fn recover(base: &Path) -> Result<Option<Recovered>> {
    if !base.is_dir() {
        return Ok(None);
    }
    let mut best: Option<Recovered> = None;
    for path in replicas(base)? {
        if let Some(recovered) = recover_one(&path)?
            && best.as_ref().is_none_or(|best| best.rank() < recovered.rank())
        {
            best = Some(recovered);
        }
    }
    Ok(best)
}

fn recover_one(path: &Path) -> Result<Option<Recovered>> {
    let log = Log::open(path, options())?;
    let (mut snapshot, mut state, mut last_epoch) = (Vec::new(), None, Epoch(0));
    for record in log.records(None) {
        let record = record?;
        if record.kind() != Kind::Entry {
            continue;
        }
        match postcard::from_bytes(&record.payload)? {
            Entry::Snapshot { part, is_last } => {
                snapshot.extend_from_slice(&part);
                if is_last {
                    let Some(store) = Store::from_snapshot(&snapshot) else {
                        bail!("the snapshot in {} cannot be read", path.display());
                    };
                    let tail = Tail::after(store.applied());
                    state = Some((store, tail));
                }
            }
            Entry::Epoch { epoch, end } => {
                last_epoch = epoch;
                if let Some((_, tail)) = &mut state {
                    Tail::truncate(tail, end);
                }
            }
            Entry::Record(record) => {
                // Without the whole snapshot there is nothing: it was synced before the first record.
                let Some((_, tail)) = &mut state else { continue };
                tail.truncate(Lsn(record.lsn.0 - 1));
                if tail.end().next() != record.lsn {
                    bail!("records before {} are missing in {}", record.lsn.0, path.display());
                }
                tail.push(record);
            }
        }
    }
    let Some((mut store, tail)) = state else { return Ok(None) };
    while let Some(record) = tail.get(store.applied().next()) {
        match Request::decode(&record.payload) {
            Some(request) => drop(store.apply(record.lsn, &request)),
            None => store.skip(record.lsn),
        }
    }
    Ok(Some(Recovered { epoch: last_epoch, store }))
}
