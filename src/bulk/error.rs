//! Why a bulk call failed.

use farcall_core::shape::{Node, Shape};
use farcall_transports::remote_memory::MemoryError;
use serde::{Deserialize, Serialize};

use super::owner::{MAX_PARTS, MAX_TRANSFERS};

/// Why there is no transfer, or why it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum BulkError {
    /// An operation on the memory failed. The memory is lent until its lease ends.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Two parts that are to be written have bytes in common.
    #[error("parts {first} and {second} overlap; let each byte be written once")]
    Overlap {
        /// The number of the first, from 0.
        first: u32,
        /// The number of the second.
        second: u32,
    },
    /// A transfer has some parts, of some bytes each.
    #[error(
        "a transfer of {parts} parts, or of an empty one; let it have 1 to {MAX_PARTS} parts with bytes"
    )]
    Parts {
        /// How many there are.
        parts: u64,
    },
    /// The client wants to write other parts than may be put.
    #[error(
        "part {part} has {len} bytes, and was to have {expected}; write as many as the value says"
    )]
    Length {
        /// The number of the part, from 0.
        part: u32,
        /// Its bytes; 0 if it is missing.
        len: u64,
        /// The bytes that may be put there; 0 if there is no such part.
        expected: u64,
    },
    /// There are as many transfers as an owner can have. Try again when others are over.
    #[error(
        "{MAX_TRANSFERS} transfers are under way, which is the most; try again when others are over"
    )]
    Full,
    /// The transfer is over already, or its lease was: the client took too long.
    #[error(
        "the transfer is over, or its lease was; make the call again, or let the lease be longer"
    )]
    Over,
    /// It was asked for outside of a handler: memory is lent to a caller.
    #[error("a transfer was asked for outside of a handler")]
    NoCall,
    /// The value cannot be encoded, or not be decoded.
    #[error("the value of the transfer: {0}")]
    Value(String),
    /// The client could not say that the transfer is over.
    #[error("the server was not told that the transfer is over: {0}")]
    NotTold(String),
}

impl Shape for BulkError {
    const SHAPE: &'static Node = &Node::opaque("farcall::bulk::BulkError 1");
}
