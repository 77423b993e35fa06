//! Why an operation on lent memory failed.

use core::fmt;

use farcall_core::shape::{Node, Shape};
use serde::{Deserialize, Serialize};

/// Why an operation on lent memory failed, or why memory was not lent. Whatever carries the operations, an error means the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MemoryError {
    /// The bytes do not all lie in what was lent, or in what a slice is to be taken of.
    #[error("{len} bytes at offset {offset} do not lie in memory of {of} bytes")]
    OutOfRange {
        /// The offset of the first byte in that memory.
        offset: u64,
        /// The number of bytes.
        len: u64,
        /// The length of that memory.
        of: u64,
    },
    /// The lend does not permit it, or there is no such lend for this client.
    #[error("not permitted: {0}")]
    NotPermitted(Denied),
    /// The owner has revoked the lend, or freed its memory.
    #[error("the owner has revoked this memory; ask it for another one")]
    Revoked,
    /// The lease of the lend is over.
    #[error("the lease of this memory is over; ask its owner for another one")]
    Expired,
    /// It was lent by an owner that is gone: the server has started again, or is another one.
    #[error(
        "this memory was lent by a former life of the server, or by another server; ask this one for another"
    )]
    FormerLife,
    /// An atomic operation needs 8 bytes at a multiple of 8.
    #[error(
        "an atomic operation needs 8 bytes at an offset that is a multiple of 8, and was asked for {len} at {offset}"
    )]
    Unaligned {
        /// The offset in the owner's region.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
    /// A flush of memory that does not survive the server: a region of [`Memory::region`](super::Memory::region), and not of
    /// [`persistent_region`](super::Memory::persistent_region).
    #[error(
        "this memory is not persistent, so nothing can make its bytes durable; have the server lend persistent memory, or write by a call whose handler syncs a file"
    )]
    NotPersistent,
    /// A batch that was to travel one-sided or not at all cannot, at present, or its lane ended meanwhile.
    #[error("the batch was to be one-sided only, and {why}")]
    NotOneSided {
        /// Why not.
        why: String,
    },
    /// One operation, or all of a batch, have more bytes than is possible; or a batch has too many operations.
    #[error("{len} {what} are too many at once, at most {max} are possible; do it in parts")]
    TooLong {
        /// What there are too many of.
        what: Counted,
        /// How many.
        len: u64,
        /// How many are possible.
        max: u64,
    },
    /// There is no room at present: for another operation, or for another lend. Nothing was done; try again when others have ended.
    #[error("no room at present for another {what}; try again when others have ended")]
    Full {
        /// For what.
        what: Counted,
    },
    /// There is no connection to the owner any more, or the operation took too long.
    #[error(
        "the owner of the memory did not answer ({}): {why}",
        if *may_have_landed { "the operation may have landed; an atomic one is never to be repeated blindly" } else { "the operation has not landed" }
    )]
    Gone {
        /// The operation may have changed the memory, or may still do so.
        may_have_landed: bool,
        /// What is known of the cause.
        why: String,
    },
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Counted {
    /// Bytes of one operation or batch.
    Bytes,
    /// Operations.
    Operations,
    /// Lends.
    Lends,
    /// Regions.
    Regions,
}

/// What is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Denied {
    /// The owner has lent no such memory to this client.
    #[error("no such memory is lent to this client")]
    NoSuchLend,
    /// The lend has no right to read.
    #[error("the memory is not lent for reading")]
    Read,
    /// The lend has no right to write.
    #[error("the memory is not lent for writing")]
    Write,
    /// The lend has no right for atomic operations.
    #[error("the memory is not lent for atomic operations")]
    Atomic,
}

impl MemoryError {
    /// The operation may have changed the memory: a caller that repeats it may do it twice.
    pub fn may_have_landed(&self) -> bool {
        matches!(self, MemoryError::Gone { may_have_landed: true, .. })
    }
}

/// Why a batch failed: the first operation that failed, and why. Those before it have been done; those after it have not, unless the
/// error [may have landed](MemoryError::may_have_landed): then this is known of none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("operation {at} of the batch: {error}")]
pub struct BatchError {
    /// The index of the operation.
    pub at: u32,
    /// Why it failed.
    pub error: MemoryError,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Counted::Bytes => "bytes",
            Counted::Operations => "operations",
            Counted::Lends => "lends",
            Counted::Regions => "regions",
        })
    }
}

impl Shape for MemoryError {
    const SHAPE: &'static Node = &Node::opaque("farcall::memory::MemoryError 2");
}

impl Shape for BatchError {
    const SHAPE: &'static Node = &Node::opaque("farcall::memory::BatchError 2");
}
