//! Shared memory. Peers may access it at any time, so this module never gives out a reference into it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::RemoteRegion;
use crate::memory::bytes::copy_forward;
use crate::memory::region::Region;

bitflags::bitflags! {
    /// The operations that peers may use on a shared region, and the ordering of their WRITEs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// Peers may READ.
        const REMOTE_READ = 1;
        /// Peers may WRITE.
        const REMOTE_WRITE = 2;
        /// Peers may use atomics.
        const REMOTE_ATOMIC = 4;
        /// The bytes of a peer's WRITE may land in any order, whatever the device's
        /// [`write_order`](crate::Capabilities::write_order): only a completion says that all have landed. Large
        /// WRITEs may be faster with it.
        const RELAXED_ORDERING = 8;
    }
}

/// Memory that peers may access as its [`Access`] flags allow. Clones refer to the same region, which is
/// deregistered when the last one is dropped. Offsets are chosen by the owner, so an offset out of range
/// panics.
#[derive(Clone, Debug)]
pub struct SharedRegion {
    memory: Arc<Region>,
}

impl SharedRegion {
    pub(crate) fn new(memory: Region) -> SharedRegion {
        SharedRegion { memory: Arc::new(memory) }
    }

    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether it has no bytes. Always false.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The operations that peers may use.
    pub fn access(&self) -> Access {
        self.memory.access()
    }

    /// The address and key under which peers access it.
    #[inline]
    pub fn remote(&self) -> RemoteRegion {
        let addr = self.memory.address_of(self.memory.start());
        RemoteRegion::new(addr, self.memory.rkey(), self.len() as u64)
    }

    /// The address of `len` bytes at `offset`.
    ///
    /// # Panics
    /// If they do not lie in the region.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len()),
            "{len} bytes at offset {offset} do not lie in a region of {} bytes",
            self.len()
        );
        // SAFETY: just checked to lie in the mapping.
        unsafe { self.memory.start().add(offset) }
    }

    #[inline]
    fn word_u32(&self, offset: usize) -> &AtomicU32 {
        let word = self.at(offset, 4);
        assert!(offset.is_multiple_of(4), "offset {offset} of a 32-bit word is not aligned");
        // SAFETY: in range and aligned (mappings start at a page). Peers and other threads access this word too,
        // so it is an atomic.
        unsafe { &*word.cast::<AtomicU32>() }
    }

    #[inline]
    fn word_u64(&self, offset: usize) -> &AtomicU64 {
        let word = self.at(offset, 8);
        assert!(offset.is_multiple_of(8), "offset {offset} of a 64-bit word is not aligned");
        // SAFETY: as for `word_u32`.
        unsafe { &*word.cast::<AtomicU64>() }
    }

    /// Loads the aligned word at `offset`, with acquire ordering.
    ///
    /// # Panics
    /// If the word does not lie in the region or is not aligned.
    #[inline]
    pub fn load_u32(&self, offset: usize) -> u32 {
        self.word_u32(offset).load(Ordering::Acquire)
    }

    /// Loads the aligned word at `offset`, with acquire ordering.
    ///
    /// # Panics
    /// If the word does not lie in the region or is not aligned.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.word_u64(offset).load(Ordering::Acquire)
    }

    /// Stores the aligned word at `offset`, with release ordering.
    ///
    /// # Panics
    /// If the word does not lie in the region or is not aligned.
    #[inline]
    pub fn store_release_u32(&self, offset: usize, value: u32) {
        self.word_u32(offset).store(value, Ordering::Release);
    }

    /// Stores the aligned word at `offset`, with release ordering.
    ///
    /// # Panics
    /// If the word does not lie in the region or is not aligned.
    #[inline]
    pub fn store_release_u64(&self, offset: usize, value: u64) {
        self.word_u64(offset).store(value, Ordering::Release);
    }

    /// Copies into the region, low addresses first.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    #[inline]
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let target = self.at(offset, bytes.len());
        // SAFETY: in range. A concurrent reader may see a mixture of old and new bytes, which the copy tolerates.
        // `bytes` is private, so the two do not overlap.
        unsafe { copy_forward(target, bytes.as_ptr(), bytes.len()) };
    }

    /// Copies out of the region. A concurrent WRITE of a peer may leave a mixture of old and new bytes.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    #[inline]
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let source = self.at(offset, bytes.len());
        // SAFETY: as for `copy_in`; `bytes` is exclusively ours.
        unsafe { copy_forward(bytes.as_mut_ptr(), source, bytes.len()) };
    }

    /// A part of the region, for a work request.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> SharedSlice {
        self.at(offset, len);
        SharedSlice { memory: Arc::clone(&self.memory), offset, len }
    }
}

/// A part of a shared region, as local memory of a work request.
#[derive(Clone, Debug)]
pub struct SharedSlice {
    memory: Arc<Region>,
    offset: usize,
    len: usize,
}

impl SharedSlice {
    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its start, valid for its length while this value lives.
    #[inline]
    pub(crate) fn start(&self) -> *mut u8 {
        // SAFETY: `SharedRegion::slice` checked the range.
        unsafe { self.memory.start().add(self.offset) }
    }

    /// Its region's key, its address and its length.
    #[cfg(feature = "sim")]
    pub(crate) fn range(&self) -> (u32, u64, u64) {
        (self.memory.rkey(), self.offset as u64, self.len as u64)
    }

    /// The local key of its memory, for our own work requests.
    #[cfg(feature = "ibverbs")]
    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        self.memory.lkey()
    }

    /// The protection domain it belongs to.
    #[inline]
    pub(crate) fn pd(&self) -> u32 {
        self.memory.pd()
    }
}
