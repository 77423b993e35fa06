//! The format of a record.
//!
//! ```text
//!  0  u32  CRC-32 of the log's id, the rest of the header, and the payload
//!  4  u32  length of the payload
//!  8  u64  lsn: where the record begins
//! 16  u64  transaction, 0 if none
//! 24  u32  epoch: how often the log had been opened when the record was appended
//! 28  u24  how far before the record the log was known to be synced when the record was written, in units of 8 bytes
//! 31  u8   kind
//! 32       payload, then zeros up to a multiple of 8
//! ```
//!
//! All integers are little-endian. Zeros are no record, because no kind is 0 and no lsn is 0. A record that was copied elsewhere has
//! another lsn than its position. A record of an older life of its segment has another lsn, too; one that recovery has cut off and that
//! is met at the same lsn again has an older epoch than the records before it. A record of another log has the checksum of another id.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::lsn::Lsn;
use crate::planted::{Bug, is_planted};

#[cfg(test)]
mod fuzz;

/// The length of a record's header.
pub const HEADER_BYTES: usize = 32;

/// Records begin at multiples of this.
pub(crate) const ALIGN_BYTES: usize = 8;

/// The largest distance that the 24 bits hold; it also stands for any larger one.
const MAX_UNSYNCED_UNITS: u64 = 0xff_ffff;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Kind {
    /// What a program appends.
    Entry = 1,
    /// The transaction is committed.
    Commit = 2,
    /// The transaction is aborted: its entries have no effect.
    Abort = 3,
    /// A checkpoint: where recovery begins, and what the program keeps with it.
    Checkpoint = 4,
    /// The log was opened for writing.
    Open = 5,
    /// The log goes on in the next segment.
    Next = 6,
    /// Records were lost here; [`repair`](crate::repair) has put this in their place.
    Lost = 7,
    /// The log was closed.
    Close = 8,
}

impl Kind {
    fn from_wire(byte: u8) -> Option<Self> {
        let kinds = [
            Self::Entry,
            Self::Commit,
            Self::Abort,
            Self::Checkpoint,
            Self::Open,
            Self::Next,
            Self::Lost,
            Self::Close,
        ];
        kinds.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Whether the bytes after the header belong to no record: their length counts, and nothing else of them.
    fn skips(self) -> bool {
        matches!(self, Self::Next | Self::Lost)
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    checksum: U32,
    length: U32,
    lsn: U64,
    transaction: U64,
    epoch: U32,
    unsynced: [u8; 3],
    kind: u8,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);

/// What a record's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where the record begins.
    pub lsn: Lsn,
    /// The transaction that the record is part of; 0 if none.
    pub transaction: u64,
    /// What it is.
    pub kind: Kind,
    /// The length of the payload, in bytes.
    pub length: u32,
    /// How often the log had been opened.
    pub epoch: u32,
    /// Everything before this was synced when the record was written.
    pub synced: Lsn,
}

impl Header {
    /// The bytes that the record takes in the log.
    #[must_use]
    pub fn size(&self) -> u64 {
        size_of_record(self.length as usize)
    }

    /// Where the record ends.
    #[must_use]
    pub fn end(&self) -> Lsn {
        Lsn(self.lsn.0 + self.size())
    }
}

/// The bytes that a record with such a payload takes in the log.
pub(crate) fn size_of_record(payload: usize) -> u64 {
    (HEADER_BYTES + payload).next_multiple_of(ALIGN_BYTES) as u64
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The bytes end before the record does. It is this long, in bytes.
    #[error("the record is longer than what is there ({0} bytes)")]
    Short(u64),
    /// The header names another position.
    #[error("the bytes are no record of this position")]
    Elsewhere,
    /// The kind is unknown.
    #[error("the record's kind is unknown")]
    UnknownKind,
    /// The record's epoch is older than that of the record before it.
    #[error("the record is one that an earlier recovery has cut off")]
    OldLife,
    /// The checksum does not match.
    #[error("the record's checksum is wrong")]
    Checksum,
}

/// The state of a checksum after the log's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(u32);

impl Seed {
    pub(crate) fn of(log_id: u64) -> Self {
        Self(crc32fast::hash(&log_id.to_le_bytes()))
    }

    fn checksum(self, header: &[u8], payload: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(&header[size_of::<U32>()..HEADER_BYTES]);
        hasher.update(payload);
        hasher.finalize()
    }
}

/// What a record is made of, but for what is known when it is written.
#[derive(Clone, Copy)]
pub(crate) struct Draft<'a> {
    pub(crate) transaction: u64,
    pub(crate) kind: Kind,
    pub(crate) payload: &'a [u8],
}

/// Appends a record without its checksum to a buffer; [`seal`] completes it.
pub(crate) fn encode(into: &mut Vec<u8>, lsn: Lsn, epoch: u32, draft: Draft<'_>) {
    let length = u32::try_from(draft.payload.len()).expect("payloads are bounded by the segment");
    into.extend_from_slice(raw(lsn, epoch, length, draft.transaction, draft.kind).as_bytes());
    into.extend_from_slice(draft.payload);
    into.resize(into.len().next_multiple_of(ALIGN_BYTES), 0);
}

/// A whole record of a kind that skips `length` bytes.
pub(crate) fn skip(
    seed: Seed,
    lsn: Lsn,
    epoch: u32,
    synced: Lsn,
    (kind, length): (Kind, u32),
) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes.copy_from_slice(raw(lsn, epoch, length, 0, kind).as_bytes());
    seal(seed, &mut bytes, synced);
    bytes
}

fn raw(lsn: Lsn, epoch: u32, length: u32, transaction: u64, kind: Kind) -> RawHeader {
    RawHeader {
        checksum: 0.into(),
        length: length.into(),
        lsn: lsn.0.into(),
        transaction: transaction.into(),
        epoch: epoch.into(),
        unsynced: [0xff; 3],
        kind: kind as u8,
    }
}

/// Completes all records in a batch: how far the log is synced while they are written, and the checksums.
pub(crate) fn seal_batch(seed: Seed, mut batch: &mut [u8], synced: Lsn) {
    while !batch.is_empty() {
        let header = RawHeader::ref_from_prefix(batch).expect("a batch has whole records").0;
        let skips = Kind::from_wire(header.kind).is_some_and(Kind::skips);
        let size =
            if skips { HEADER_BYTES as u64 } else { size_of_record(header.length.get() as usize) };
        let (record, rest) = batch.split_at_mut(usize::try_from(size).expect("it is in memory"));
        seal(seed, record, synced);
        batch = rest;
    }
}

fn seal(seed: Seed, record: &mut [u8], synced: Lsn) {
    let (header, payload) = RawHeader::mut_from_prefix(record).expect("a record has a header");
    let units = (header.lsn.get() - synced.0).div_ceil(ALIGN_BYTES as u64).min(MAX_UNSYNCED_UNITS);
    header.unsynced.copy_from_slice(&units.to_le_bytes()[..3]);
    let skips = Kind::from_wire(header.kind).is_some_and(Kind::skips);
    let length = if skips { 0 } else { header.length.get() as usize };
    header.checksum = seed.checksum(header.as_bytes(), &payload[..length]).into();
}

/// Reads the record that begins at `lsn`, which is where `bytes` begin. Records of an epoch before `epoch` are not valid.
///
/// # Errors
///
/// [`Invalid`] says why the bytes are no record.
pub(crate) fn parse(
    seed: Seed,
    lsn: Lsn,
    epoch: u32,
    bytes: &[u8],
) -> Result<(Header, &[u8]), Invalid> {
    let Ok((raw, rest)) = RawHeader::ref_from_prefix(bytes) else {
        return Err(Invalid::Short(HEADER_BYTES as u64));
    };
    if lsn.0 == 0 || raw.lsn.get() != lsn.0 {
        return Err(Invalid::Elsewhere);
    }
    let kind = Kind::from_wire(raw.kind).ok_or(Invalid::UnknownKind)?;
    if raw.epoch.get() < epoch && !is_planted(Bug::OldLifeAccepted) {
        return Err(Invalid::OldLife);
    }
    let mut unsynced = [0; 8];
    unsynced[..3].copy_from_slice(&raw.unsynced);
    let header = Header {
        lsn,
        transaction: raw.transaction.get(),
        kind,
        length: raw.length.get(),
        epoch: raw.epoch.get(),
        synced: synced_before(lsn, u64::from_le_bytes(unsynced)),
    };
    let length = if kind.skips() { 0 } else { header.length as usize };
    let payload = rest.get(..length).ok_or(Invalid::Short(header.size()))?;
    if seed.checksum(raw.as_bytes(), payload) != raw.checksum.get()
        && !is_planted(Bug::TornTailAccepted)
    {
        return Err(Invalid::Checksum);
    }
    Ok((header, payload))
}

/// Whether bytes at a position name that position. Most bytes that are no record do not.
pub(crate) fn names(lsn: Lsn, bytes: &[u8]) -> bool {
    RawHeader::ref_from_prefix(bytes).is_ok_and(|(raw, _)| raw.lsn.get() == lsn.0)
}

fn synced_before(lsn: Lsn, units: u64) -> Lsn {
    if units == MAX_UNSYNCED_UNITS {
        return Lsn(0);
    }
    Lsn(lsn.0.saturating_sub(units * ALIGN_BYTES as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(log: u64, lsn: Lsn, epoch: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&mut bytes, lsn, epoch, Draft { transaction: 7, kind: Kind::Entry, payload });
        seal_batch(Seed::of(log), &mut bytes, Lsn(lsn.0 - 64));
        bytes
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let bytes = record(1, Lsn(4096), 3, b"payload");
        let (header, payload) = parse(Seed::of(1), Lsn(4096), 3, &bytes).unwrap();
        assert_eq!(payload, b"payload");
        assert_eq!((header.transaction, header.kind, header.epoch), (7, Kind::Entry, 3));
        assert_eq!((header.synced, header.end()), (Lsn(4032), Lsn(4136)));
    }

    #[test]
    fn zeros_are_no_record_at_any_position() {
        for lsn in [0, 8, 4096, u64::MAX] {
            assert_eq!(parse(Seed::of(0), Lsn(lsn), 0, &[0; 512]), Err(Invalid::Elsewhere));
        }
    }

    #[test]
    fn a_record_elsewhere_of_an_older_epoch_or_of_another_log_is_none() {
        let bytes = record(1, Lsn(4096), 3, b"payload");
        assert_eq!(parse(Seed::of(1), Lsn(8192), 3, &bytes), Err(Invalid::Elsewhere));
        assert_eq!(parse(Seed::of(1), Lsn(4096), 4, &bytes), Err(Invalid::OldLife));
        assert_eq!(parse(Seed::of(2), Lsn(4096), 3, &bytes), Err(Invalid::Checksum));
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let bytes = record(1, Lsn(4096), 3, b"payload!");
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(Seed::of(1), Lsn(4096), 3, &changed).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn every_cut_is_noticed() {
        let bytes = record(1, Lsn(4096), 3, b"payload!");
        for len in 0..bytes.len() {
            let cut = parse(Seed::of(1), Lsn(4096), 3, &bytes[..len]);
            assert!(matches!(cut, Err(Invalid::Short(_))), "{len} bytes");
        }
    }

    #[test]
    fn a_distance_that_does_not_fit_is_unknown() {
        let far = Lsn(1 << 40);
        let mut bytes = Vec::new();
        encode(&mut bytes, far, 1, Draft { transaction: 0, kind: Kind::Entry, payload: b"" });
        seal_batch(Seed::of(1), &mut bytes, Lsn(8));
        assert_eq!(parse(Seed::of(1), far, 1, &bytes).unwrap().0.synced, Lsn(0));
    }
}
