//! A copy of the memory in a file, which a checkpoint names.
//!
//! ```text
//!  0  u32  CRC-32 of all that follows
//!  4  u32  version
//!  8  u64  redo from here
//! 16  u64  length of the memory
//! 24       the memory
//! ```
//!
//! The file is written whole, synced, and named before the checkpoint is appended to the log. The copy may have the effects of any record up
//! to that time. All of them are before the checkpoint in the log; so if the checkpoint is there, they are. A file that no checkpoint names
//! counts for nothing.

use std::sync::Arc;

use super::{Ranges, RangesError};
use crate::error::Error;
use crate::log::Log;
use crate::lsn::Lsn;
use crate::planted::{Bug, is_planted};
use crate::segments::sync_names;
use crate::storage::{Access, File, Storage};

const HEADER_BYTES: usize = 24;
const VERSION: u32 = 1;

/// Writers wait while so many bytes are copied, and not longer.
const COPY_BYTES: usize = 64 << 10;

fn name(redo_from: Lsn) -> String {
    format!("snapshot-{:016x}.img", redo_from.0)
}

/// Where recovery reads the log from, and from where on it redoes; and the memory as of then.
pub(super) fn load(
    log: &Log,
    storage: &dyn Storage,
    memory: &mut [u8],
) -> Result<(Lsn, Lsn), RangesError> {
    let Some(checkpoint) = log.last_checkpoint()? else {
        return Ok((log.first(), log.first()));
    };
    let redo_from = checkpoint.payload.first_chunk().map(|bytes| Lsn(u64::from_le_bytes(*bytes)));
    let redo_from = redo_from.ok_or(RangesError::Foreign)?;
    let (redo_from, file) = match newest_if_planted(storage) {
        Some(newest) => (newest, name(newest)),
        None => (redo_from, name(redo_from)),
    };
    match read(storage, &file, redo_from, memory) {
        Some(()) => Ok((checkpoint.restart, redo_from)),
        None => Err(RangesError::Snapshot { file }),
    }
}

/// The planted bug: the newest file counts, though the log may not have what is in it.
fn newest_if_planted(storage: &dyn Storage) -> Option<Lsn> {
    if !is_planted(Bug::CheckpointBeforeItsLog) {
        return None;
    }
    let names = storage.list().ok()?;
    names.iter().filter_map(|name| number_in(name)).max().map(Lsn)
}

fn number_in(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("snapshot-")?.strip_suffix(".img")?, 16).ok()
}

fn read(storage: &dyn Storage, file: &str, redo_from: Lsn, memory: &mut [u8]) -> Option<()> {
    let file = storage.open(file, Access::Read).ok()?;
    let mut header = [0; HEADER_BYTES];
    file.read_at(&mut header, 0).ok()?;
    let count = file.read_at(memory, HEADER_BYTES as u64).ok()?;
    let expected = encode_header(redo_from, memory);
    (count == memory.len() && header == expected).then_some(())
}

fn encode_header(redo_from: Lsn, memory: &[u8]) -> [u8; HEADER_BYTES] {
    let mut checksum = crc32fast::Hasher::new();
    let fields = fields(redo_from, memory.len());
    checksum.update(&fields);
    checksum.update(memory);
    with_checksum(&fields, &checksum)
}

fn fields(redo_from: Lsn, length: usize) -> [u8; HEADER_BYTES - 4] {
    let mut fields = [0; HEADER_BYTES - 4];
    fields[..4].copy_from_slice(&VERSION.to_le_bytes());
    fields[4..12].copy_from_slice(&redo_from.0.to_le_bytes());
    fields[12..].copy_from_slice(&(length as u64).to_le_bytes());
    fields
}

fn with_checksum(fields: &[u8; HEADER_BYTES - 4], sum: &crc32fast::Hasher) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&sum.clone().finalize().to_le_bytes());
    header[4..].copy_from_slice(fields);
    header
}

/// Makes a checkpoint.
pub(super) fn take(ranges: &Ranges) -> Result<(), RangesError> {
    let memory = ranges.memory();
    // Writers append and write under the lock: memory has all records before this, and no others yet.
    let redo_from = ranges.log.end();
    let oldest = memory.active.values().map(|active| active.first).min();
    let length = memory.bytes.len();
    drop(memory);
    let restart = oldest.unwrap_or(redo_from).min(redo_from);
    let file = name(redo_from);
    write(ranges, &file, redo_from, length)?;
    ranges.log.checkpoint(restart, &redo_from.0.to_le_bytes())?;
    // Files of former checkpoints, and of checkpoints that a crash has ended.
    let storage = &*ranges.storage;
    let names = storage.list().map_err(|why| Error::io("list", &storage.describe(), why))?;
    for old in names.iter().filter(|name| number_in(name).is_some_and(|n| n != redo_from.0)) {
        storage.remove(old).map_err(|why| Error::io("remove", old, why))?;
    }
    ranges.log.truncate(restart)?;
    Ok(())
}

const NEW_NAME: &str = "snapshot.new";

fn write(ranges: &Ranges, name: &str, redo_from: Lsn, length: usize) -> Result<(), Error> {
    let storage = &*ranges.storage;
    let failed = |doing| move |why| Error::io(doing, NEW_NAME, why);
    let file = storage.open(NEW_NAME, Access::Create).map_err(failed("create"))?;
    file.preallocate((HEADER_BYTES + length) as u64).map_err(failed("make room for"))?;
    copy(ranges, &file, redo_from, length).map_err(failed("write"))?;
    file.sync().map_err(failed("sync"))?;
    storage.rename(NEW_NAME, name).map_err(failed("rename"))?;
    sync_names(storage)
}

fn copy(
    ranges: &Ranges,
    file: &Arc<dyn File>,
    redo_from: Lsn,
    length: usize,
) -> std::io::Result<()> {
    let fields = fields(redo_from, length);
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&fields);
    let mut piece = Vec::with_capacity(COPY_BYTES);
    for at in (0..length).step_by(COPY_BYTES) {
        piece.clear();
        piece.extend_from_slice(&ranges.memory().bytes[at..(at + COPY_BYTES).min(length)]);
        checksum.update(&piece);
        file.write_at(&piece, (HEADER_BYTES + at) as u64)?;
    }
    file.write_at(&with_checksum(&fields, &checksum), 0)
}
