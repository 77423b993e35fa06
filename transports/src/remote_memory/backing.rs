//! The bytes of an owner's region, which may be persistent.

use std::ops::Range;
use std::sync::Arc;

use farcall_verbs::{PersistentRegion, SharedRegion};

use super::MemoryError;

/// The bytes of a region. Clones are the same bytes.
#[derive(Clone, Debug)]
pub(super) enum Backing {
    Volatile(SharedRegion),
    Persistent(Arc<PersistentRegion>),
}

impl Backing {
    /// To read them, and to give access to them.
    pub(super) fn shared(&self) -> &SharedRegion {
        match self {
            Backing::Volatile(bytes) => bytes,
            Backing::Persistent(bytes) => bytes.shared(),
        }
    }

    pub(super) fn is_persistent(&self) -> bool {
        matches!(self, Backing::Persistent(_))
    }

    pub(super) fn copy_in(&self, offset: usize, from: &[u8]) {
        match self {
            Backing::Volatile(bytes) => bytes.copy_in(offset, from),
            Backing::Persistent(bytes) => bytes.copy_in(offset, from),
        }
    }

    pub(super) fn store_release_u64(&self, offset: usize, value: u64) {
        match self {
            Backing::Volatile(bytes) => bytes.store_release_u64(offset, value),
            Backing::Persistent(bytes) => bytes.store_release_u64(offset, value),
        }
    }

    pub(super) fn compare_and_swap_u64(&self, offset: usize, expected: u64, new: u64) -> u64 {
        match self {
            Backing::Volatile(bytes) => bytes.compare_and_swap_u64(offset, expected, new),
            Backing::Persistent(bytes) => bytes.compare_and_swap_u64(offset, expected, new),
        }
    }

    pub(super) fn fetch_add_u64(&self, offset: usize, add: u64) -> u64 {
        match self {
            Backing::Volatile(bytes) => bytes.fetch_add_u64(offset, add),
            Backing::Persistent(bytes) => bytes.fetch_add_u64(offset, add),
        }
    }

    /// Makes the visible content of a range durable, by this CPU.
    pub(super) fn persist(&self, range: Range<usize>) -> Result<(), MemoryError> {
        let Backing::Persistent(bytes) = self else { return Err(MemoryError::NotPersistent) };
        bytes
            .persist(range)
            .map_err(|why| MemoryError::Gone { may_have_landed: true, why: why.to_string() })
    }
}
