//! The index: where recovery may begin to look. It is derived from the log and no evidence of anything: if it is missing, torn, old or
//! wrong, recovery finds the same, only later.
//!
//! ```text
//!  0  u32  CRC-32 of all that follows
//!  4  u32  0
//!  8  u64  the log's id
//! 16  u64  a record: everything before it was persistent when the index was written
//! 24  u64  where that record ended
//! 32  u64  the last checkpoint, or 0
//! ```

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::lsn::Lsn;
use crate::storage::{Access, Storage};

const NAME: &str = "index";
const NEW_NAME: &str = "index.new";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint {
    pub(crate) log_id: u64,
    pub(crate) last: Lsn,
    pub(crate) end: Lsn,
    pub(crate) checkpoint: Lsn,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    checksum: U32,
    zero: U32,
    log_id: U64,
    last: U64,
    end: U64,
    checkpoint: U64,
}

impl Hint {
    /// Writes the index. Nothing depends on it, so nothing is synced and errors do not matter.
    pub(crate) fn write(&self, storage: &dyn Storage) {
        let mut raw = Raw {
            checksum: 0.into(),
            zero: 0.into(),
            log_id: self.log_id.into(),
            last: self.last.0.into(),
            end: self.end.0.into(),
            checkpoint: self.checkpoint.0.into(),
        };
        raw.checksum = crc32fast::hash(&raw.as_bytes()[size_of::<U32>()..]).into();
        let written = storage
            .open(NEW_NAME, Access::Create)
            .and_then(|file| file.write_at(raw.as_bytes(), 0))
            .and_then(|()| storage.rename(NEW_NAME, NAME));
        // Recovery looks from the last checkpoint or segment on, then.
        let _ = written;
    }

    /// The index, if there is a whole one.
    pub(crate) fn read(storage: &dyn Storage) -> Option<Self> {
        let mut bytes = [0; size_of::<Raw>()];
        let count = storage.open(NAME, Access::Read).ok()?.read_at(&mut bytes, 0).ok()?;
        Self::parse(&bytes[..count])
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let raw = Raw::ref_from_bytes(bytes).ok()?;
        let is_whole = crc32fast::hash(&bytes[size_of::<U32>()..]) == raw.checksum.get();
        is_whole.then(|| Self {
            log_id: raw.log_id.get(),
            last: Lsn(raw.last.get()),
            end: Lsn(raw.end.get()),
            checkpoint: Lsn(raw.checkpoint.get()),
        })
    }
}
