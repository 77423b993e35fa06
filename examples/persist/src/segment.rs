//! The header of a segment, and the names of files.
//!
//! ```text
//!  0  8 bytes  magic
//!  8  u32      version of the format
//! 12  u32      CRC-32 of all that follows
//! 16  u64      the log's id
//! 24  u64      the segment's number
//! 32  u64      length of the segment's file
//! 40  u64      0
//! 48  u64      lsn of a checkpoint that was persistent when the segment was made, or 0
//! 56  u32      epoch in which the segment was made
//! 60  u32      0
//! ```

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Error;
use crate::lsn::Lsn;

#[cfg(test)]
mod fuzz;

/// The header has a page for itself, so that no write of records touches it.
pub(crate) const HEADER_BLOCK_BYTES: u64 = 4096;

/// The version of the format that this code writes and reads.
pub const FORMAT_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"FARCLOG\n";

/// What a segment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) log_id: u64,
    pub(crate) number: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) checkpoint: Lsn,
    pub(crate) epoch: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    checksum: U32,
    log_id: U64,
    number: U64,
    segment_bytes: U64,
    zero_too: U64,
    checkpoint: U64,
    epoch: U32,
    zero: U32,
}

/// Where the bytes begin that the checksum covers.
const COVERED_FROM: usize = 16;

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER_BLOCK_BYTES as usize] {
        let mut raw = Raw {
            magic: MAGIC,
            version: FORMAT_VERSION.into(),
            checksum: 0.into(),
            log_id: self.log_id.into(),
            number: self.number.into(),
            segment_bytes: self.segment_bytes.into(),
            zero_too: 0.into(),
            checkpoint: self.checkpoint.0.into(),
            epoch: self.epoch.into(),
            zero: 0.into(),
        };
        raw.checksum = crc32fast::hash(&raw.as_bytes()[COVERED_FROM..]).into();
        let mut block = [0; HEADER_BLOCK_BYTES as usize];
        block[..size_of::<Raw>()].copy_from_slice(raw.as_bytes());
        block
    }

    /// Reads a header from the front of a file called `name`.
    ///
    /// # Errors
    ///
    /// [`Error::Version`] and [`Error::NotASegment`].
    pub(crate) fn parse(name: &str, block: &[u8]) -> Result<Self, Error> {
        let no_segment = |why| Error::NotASegment { file: name.to_owned(), why };
        let Ok((raw, _)) = Raw::ref_from_prefix(block) else {
            return Err(no_segment("the file is shorter than a header"));
        };
        if raw.magic != MAGIC {
            return Err(no_segment("the file does not begin like a segment"));
        }
        let found = raw.version.get();
        if found != FORMAT_VERSION {
            return Err(Error::Version { file: name.to_owned(), found, known: FORMAT_VERSION });
        }
        if crc32fast::hash(&raw.as_bytes()[COVERED_FROM..]) != raw.checksum.get() {
            return Err(no_segment("the checksum of its header is wrong"));
        }
        let header = Self {
            log_id: raw.log_id.get(),
            number: raw.number.get(),
            segment_bytes: raw.segment_bytes.get(),
            checkpoint: Lsn(raw.checkpoint.get()),
            epoch: raw.epoch.get(),
        };
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&header.segment_bytes)
            || header.number == 0
            || header.number > MAX_NUMBER
        {
            return Err(no_segment("its header names an impossible length or number"));
        }
        Ok(header)
    }
}

/// Positions in segments up to this one, and of the one after it, fit into 64 bits.
const MAX_NUMBER: u64 = u64::MAX / MAX_SEGMENT_BYTES / 2;

/// Shorter segments would hold hardly more than their header.
pub const MIN_SEGMENT_BYTES: u64 = 8 << 10;

/// A record's length has 32 bits; this leaves room.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// The name of a segment's file.
pub(crate) fn name(number: u64) -> String {
    format!("segment-{number:016x}.log")
}

/// The number in the name of a segment's file.
pub(crate) fn number_in(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("segment-")?.strip_suffix(".log")?;
    let is_number = digits.len() == 16 && digits.bytes().all(|b| b"0123456789abcdef".contains(&b));
    is_number.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// The name of a file that is to become segment `number`, or was segment `number` and may become another.
pub(crate) fn spare_name(number: u64) -> String {
    format!("spare-{number:016x}.log")
}

/// Whether a file is a spare one: of no value for its contents.
pub(crate) fn is_spare(name: &str) -> bool {
    name.starts_with("spare-") && name.ends_with(".log")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: SegmentHeader = SegmentHeader {
        log_id: 0x1122_3344_5566_7788,
        number: 3,
        segment_bytes: 1 << 20,
        checkpoint: Lsn(2_100_000),
        epoch: 5,
    };

    #[test]
    fn a_header_is_read_as_it_was_written() {
        assert_eq!(SegmentHeader::parse("file", &HEADER.encode()).unwrap(), HEADER);
    }

    #[test]
    fn another_version_is_told_as_such() {
        let mut block = HEADER.encode();
        block[8] = 9;
        let error = SegmentHeader::parse("file", &block).unwrap_err();
        assert!(matches!(error, Error::Version { found: 9, known: FORMAT_VERSION, .. }));
    }

    #[test]
    fn every_changed_bit_of_a_header_is_noticed() {
        for bit in 0..size_of::<Raw>() * 8 {
            let mut block = HEADER.encode();
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::parse("file", &block).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn names_have_one_spelling() {
        assert_eq!(number_in(&name(0xabc)), Some(0xabc));
        for other in
            ["segment-abc.log", "segment-+00000000000abc.log", "segment-000000000000ABC0.log", "x"]
        {
            assert_eq!(number_in(other), None, "{other}");
        }
    }
}
