//! What a client does with lent memory, as plain data.

use bytes::Bytes;
use farcall_core::shape::{Node, Shape};
use serde::{Deserialize, Serialize};

use super::{Counted, MemoryError, Remote, Rights};

/// Most bytes of one operation.
pub const MAX_OPERATION_BYTES: u64 = 16 << 20;

/// Most operations of one batch: as many results wait at the server until the last is done.
pub const MAX_BATCH_OPERATIONS: usize = 256;

/// Most bytes that all operations of one batch read and write together. It bounds the memory that one message can ask a server for.
pub const MAX_BATCH_BYTES: u64 = MAX_OPERATION_BYTES;

/// One operation on lent memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// On which memory.
    pub at: Remote,
    /// What to do there.
    pub action: Action,
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Action {
    /// Read all of it.
    Read,
    /// Write these bytes, which are as many.
    Write(Bytes),
    /// Replace the word by `new` if it equals `expected`.
    CompareAndSwap {
        /// What it must be.
        expected: u64,
        /// What it becomes.
        new: u64,
    },
    /// Add to the word; the sum wraps.
    FetchAdd {
        /// What is added.
        add: u64,
    },
    /// Make its bytes durable, of persistent memory.
    Flush,
}

/// What an operation has come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Outcome {
    /// The bytes that were read.
    Read(Bytes),
    /// The bytes were written.
    Written,
    /// The word as it was before the atomic operation.
    Word(u64),
    /// The bytes are durable.
    Flushed,
}

impl Outcome {
    /// The bytes that were read; none of another operation.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Outcome::Read(bytes) => bytes,
            Outcome::Written | Outcome::Word(_) | Outcome::Flushed => &[],
        }
    }

    /// The word before an atomic operation.
    pub fn word(&self) -> Option<u64> {
        match self {
            Outcome::Word(word) => Some(*word),
            Outcome::Read(_) | Outcome::Written | Outcome::Flushed => None,
        }
    }
}

impl Operation {
    /// The right that it needs.
    pub fn needs(&self) -> Rights {
        match self.action {
            Action::Read => Rights::READ,
            Action::Write(_) | Action::Flush => Rights::WRITE,
            Action::CompareAndSwap { .. } | Action::FetchAdd { .. } => Rights::ATOMIC,
        }
    }

    /// Whether it can be done at all, wherever the memory is. Both ends check this.
    ///
    /// # Errors
    /// - [`TooLong`](MemoryError::TooLong): more bytes than an operation may have.
    /// - [`OutOfRange`](MemoryError::OutOfRange): a write of more or fewer bytes than the memory has.
    /// - [`Unaligned`](MemoryError::Unaligned): an atomic operation on anything but an aligned word.
    pub fn check(&self) -> Result<(), MemoryError> {
        match &self.action {
            Action::Write(bytes) => self.check_with(bytes.len() as u64),
            _ => self.check_with(self.at.len),
        }
    }

    /// Whether it can be done at all, with so many bytes that are written, if it is a write.
    ///
    /// # Errors
    /// [`MemoryError`], for the reasons that [`check`](Self::check) has.
    pub fn check_with(&self, bytes: u64) -> Result<(), MemoryError> {
        let Remote { offset, len, .. } = self.at;
        if len > MAX_OPERATION_BYTES {
            return Err(too_many(Counted::Bytes, len, MAX_OPERATION_BYTES));
        }
        match &self.action {
            Action::Write(_) if bytes != len => {
                Err(MemoryError::OutOfRange { offset: 0, len: bytes, of: len })
            }
            Action::CompareAndSwap { .. } | Action::FetchAdd { .. }
                if len != 8 || !offset.is_multiple_of(8) =>
            {
                Err(MemoryError::Unaligned { offset, len })
            }
            _ => Ok(()),
        }
    }

    /// Whether these can be one batch: so many, with so many bytes. Both ends check this.
    ///
    /// # Errors
    /// [`TooLong`](MemoryError::TooLong).
    pub fn check_together(operations: &[Operation]) -> Result<(), MemoryError> {
        let count = operations.len();
        if count > MAX_BATCH_OPERATIONS {
            return Err(too_many(Counted::Operations, count as u64, MAX_BATCH_OPERATIONS as u64));
        }
        let bytes = operations.iter().fold(0u64, |sum, it| sum.saturating_add(it.at.len()));
        if bytes > MAX_BATCH_BYTES {
            return Err(too_many(Counted::Bytes, bytes, MAX_BATCH_BYTES));
        }
        Ok(())
    }
}

fn too_many(what: Counted, len: u64, max: u64) -> MemoryError {
    MemoryError::TooLong { what, len, max }
}

impl Shape for Operation {
    const SHAPE: &'static Node = &Node::opaque("farcall::memory::Operation 2");
}

impl Shape for Outcome {
    const SHAPE: &'static Node = &Node::opaque("farcall::memory::Outcome 2");
}
