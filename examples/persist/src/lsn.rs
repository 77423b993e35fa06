//! Log sequence numbers: positions in the log, as bytes.

use std::fmt;

use farcall::Shape;
use serde::{Deserialize, Serialize};

use crate::record::HEADER_BYTES;
use crate::segment::HEADER_BLOCK_BYTES;

/// A log sequence number: where a record begins, counted in bytes over all segments that the log ever had.
///
/// Segment `n` has the bytes from `n * segment_bytes` on; the first of them hold its header.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Shape,
)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How positions map to segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) segment_bytes: u64,
}

impl Geometry {
    /// The number of the segment with this position.
    pub(crate) fn segment(self, lsn: Lsn) -> u64 {
        lsn.0 / self.segment_bytes
    }

    /// Where in its segment's file a position is.
    pub(crate) fn offset(self, lsn: Lsn) -> u64 {
        lsn.0 % self.segment_bytes
    }

    /// Where the first record of a segment begins.
    pub(crate) fn start(self, segment: u64) -> Lsn {
        Lsn(segment * self.segment_bytes + HEADER_BLOCK_BYTES)
    }

    /// How many bytes there are from a position to the end of its segment.
    pub(crate) fn left(self, lsn: Lsn) -> u64 {
        self.segment_bytes - self.offset(lsn)
    }

    /// Where a record begins if the one before ends at `end`: there, or in the next segment.
    pub(crate) fn place_after(self, end: Lsn) -> Lsn {
        if self.offset(end) == 0 { self.start(self.segment(end)) } else { end }
    }

    /// Whether a record of `size` bytes may begin at a position: there must be room for the mark of the segment's end, too.
    pub(crate) fn fits(self, at: Lsn, size: u64) -> bool {
        size + HEADER_BYTES as u64 <= self.left(at)
    }

    /// How many bytes a record may take in a segment.
    pub(crate) fn capacity(self) -> u64 {
        self.segment_bytes - HEADER_BLOCK_BYTES - HEADER_BYTES as u64
    }
}
