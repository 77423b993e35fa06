//! The bytes of a record, in a ring and on disk.
//!
//! ```text
//!  0  length of the payload   u32
//!  4  kind                    u8     1 record, 2 padding up to the end of the ring
//!  5  version                 u8
//!  6  zero                    u16
//!  8  epoch of the ring       u64
//! 16  lsn                     u64
//! 24  origin                  u64    the epoch in which the record was first written
//! 32  checksum                u32    CRC-32 of the position, of the 32 bytes before, and of the payload
//! 36  zero                    u32
//! 40  payload, and zeros up to a multiple of 8
//! ```
//!
//! The checksum covers the position, counted over all rounds of the ring, and the epoch: zeros, torn records and those of an earlier round or
//! epoch are not valid, so nobody needs to clear a ring.

use bytes::{BufMut, Bytes, BytesMut};
use farcall::Shape;
use serde::{Deserialize, Serialize};

use crate::planted::{Bug, is_planted};

/// The number of a record in the log. The first one is 1.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Shape,
)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The one after it.
    #[must_use]
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }
}

/// The number of a configuration. The first one is 1.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Shape,
)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The one after it.
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its number.
    pub lsn: Lsn,
    /// The epoch in which it was first written. Records with the same lsn and origin are the same.
    pub origin: Epoch,
    /// The command.
    pub payload: Bytes,
}

/// The length of a header, in bytes.
pub const HEADER_BYTES: usize = 40;

/// The longest payload, in bytes: an operation of one-sided memory has at most 64 KiB.
pub const MAX_PAYLOAD_BYTES: usize = 32 << 10;

/// The most bytes of a record.
pub const MAX_RECORD_BYTES: usize = HEADER_BYTES + MAX_PAYLOAD_BYTES;

const VERSION: u8 = 1;
const RECORD: u8 = 1;
const PADDING: u8 = 2;

/// How many bytes a record takes.
#[must_use]
pub fn size_of(payload: usize) -> usize {
    HEADER_BYTES + payload.next_multiple_of(8)
}

/// What a valid header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// A record follows.
    Record { lsn: Lsn, origin: Epoch, length: usize },
    /// The rest of the ring is not used.
    Padding,
}

impl Record {
    /// Appends its bytes, for this position of the ring of an epoch.
    pub(crate) fn encode(&self, epoch: Epoch, position: u64, into: &mut BytesMut) {
        encode(RECORD, epoch, self.lsn, self.origin, &self.payload, position, into);
    }
}

/// Appends the header of padding.
pub(crate) fn encode_padding(epoch: Epoch, position: u64, into: &mut BytesMut) {
    encode(PADDING, epoch, Lsn(0), Epoch(0), b"", position, into);
}

fn encode(
    kind: u8,
    epoch: Epoch,
    lsn: Lsn,
    origin: Epoch,
    payload: &[u8],
    position: u64,
    into: &mut BytesMut,
) {
    let begin = into.len();
    into.put_u32_le(payload.len() as u32);
    into.put_slice(&[kind, VERSION, 0, 0]);
    into.put_u64_le(epoch.0);
    into.put_u64_le(lsn.0);
    into.put_u64_le(origin.0);
    let checksum = checksum(position, &into[begin..], payload);
    into.put_u32_le(checksum);
    into.put_u32_le(0);
    into.put_slice(payload);
    into.put_bytes(0, payload.len().next_multiple_of(8) - payload.len());
}

/// Reads the header of what may be a record, without its checksum. `None`: it is none of this epoch.
pub(crate) fn header(bytes: &[u8; HEADER_BYTES], epoch: Epoch) -> Option<Header> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    let length = (word(0) & u64::from(u32::MAX)) as usize;
    if bytes[5] != VERSION || bytes[6..8] != [0, 0] || word(8) != epoch.0 {
        return None;
    }
    match bytes[4] {
        RECORD if length <= MAX_PAYLOAD_BYTES => {
            Some(Header::Record { lsn: Lsn(word(16)), origin: Epoch(word(24)), length })
        }
        PADDING if length == 0 => Some(Header::Padding),
        _ => None,
    }
}

/// Whether the bytes are those that were written at this position.
pub(crate) fn is_whole(header: &[u8; HEADER_BYTES], payload: &[u8], position: u64) -> bool {
    let stored = u32::from_le_bytes(header[32..36].try_into().unwrap_or_default());
    stored == checksum(position, &header[..32], payload) || is_planted(Bug::TornTailAccepted)
}

fn checksum(position: u64, header: &[u8], payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&position.to_le_bytes());
    crc.update(header);
    crc.update(payload);
    crc.finalize()
}
