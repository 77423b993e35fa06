//! Shared memory. Peers may access it at any time, so this module never gives out a reference into it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::BytesMut;

use crate::memory::bytes::{copy_fetched, copy_forward};
use crate::memory::prefetch::ReadAhead;
use crate::memory::region::Region;
use crate::{CompletionChannel, RemoteRegion, VerbsError};

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
        /// [Memory windows](crate::MemoryWindow) may be bound to the region. A window needs none of the flags above of its
        /// region: peers that only use windows need no access to the region itself.
        const MW_BIND = 16;
    }
}

/// How the owner of a shared region learns that a peer has written into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// By an event on the completion channel, once the region is [armed](SharedRegion::arm).
    Event,
    /// By looking: the device tells nobody of a WRITE. Nothing was registered.
    PollOnly,
}

/// Why a region is not watched a second time.
pub(crate) const WATCHED_ELSEWHERE: &str = "the region is watched on another completion channel";

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

    /// Watches the region: from now on [`arm`](SharedRegion::arm) asks for an event on `channel` when a peer
    /// WRITEs into it or changes it by an atomic, where the device can tell
    /// ([`write_events`](crate::Capabilities::write_events)). A region is watched on one channel, as long as it
    /// exists.
    ///
    /// # Errors
    /// If it is watched on another channel, or the channel is another device's.
    pub fn watch(&self, channel: &CompletionChannel) -> Result<Wake, VerbsError> {
        self.memory.registration().watch(self.memory.rkey(), channel.inner())
    }

    /// Asks for an event when the next write of a peer lands: one event, not one per write. What has landed
    /// before makes none, so after arming look at the memory once more, then
    /// [wait](CompletionChannel::wait), with a bound: a hostile peer can write without making an event. Reads
    /// make none, nor do stores of this side. A region that is not watched stays silent.
    pub fn arm(&self) {
        self.memory.registration().arm(self.memory.rkey());
    }

    /// Takes the last [`arm`](SharedRegion::arm) back. An event that is on its way still comes.
    pub fn disarm(&self) {
        self.memory.registration().disarm(self.memory.rkey());
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

    /// Adds to the aligned word at `offset`, wrapping, by an atomic operation of this CPU. Returns what it was. Whether it is atomic
    /// with respect to peers' atomics too depends on the device: on shared memory it is, with a NIC usually not. See
    /// [`atomics_include_cpu`](crate::Capabilities::atomics_include_cpu).
    ///
    /// # Panics
    /// If the word does not lie in the region or is not aligned. In debug builds on the device `shm-plain`, if a peer in this process
    /// changes it by atomics too.
    #[inline]
    pub fn fetch_add_u64(&self, offset: usize, add: u64) -> u64 {
        self.note_atomic(offset);
        self.word_u64(offset).fetch_add(add, Ordering::AcqRel)
    }

    /// In debug builds a device that could hide it notices that peers change the word by atomics too.
    #[inline]
    fn note_atomic(&self, offset: usize) {
        if cfg!(debug_assertions) {
            self.memory.registration().note_atomic(self.at(offset, 8));
        }
    }

    /// Replaces the aligned word at `offset` by `new` if it equals `expected`. Returns what it was. Atomic as
    /// [`fetch_add_u64`](SharedRegion::fetch_add_u64) is.
    ///
    /// # Panics
    /// If the word does not lie in the region or is not aligned.
    #[inline]
    pub fn compare_and_swap_u64(&self, offset: usize, expected: u64, new: u64) -> u64 {
        self.note_atomic(offset);
        let word = self.word_u64(offset);
        match word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(old) | Err(old) => old,
        }
    }

    /// As [`store_release_u64`](SharedRegion::store_release_u64), for a word by which peers that READ see that the rest is
    /// there. On a simulated device with timed turns it takes effect when the core has come to it: after the CPU time of its
    /// turn so far, as a request that is posted leaves.
    ///
    /// # Panics
    /// If the word does not lie in the region or is not aligned.
    #[inline]
    pub fn publish_u64(&self, offset: usize, value: u64) {
        let word = self.word_u64(offset);
        #[cfg(feature = "sim")]
        if self.memory.registration().publish(offset, value) {
            return;
        }
        word.store(value, Ordering::Release);
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
        unsafe { copy_fetched(bytes.as_mut_ptr(), source, bytes.len()) };
    }

    /// Appends `len` bytes of the region to `into`. A concurrent WRITE of a peer may leave a mixture of old and new bytes.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    #[inline]
    pub fn append_to(&self, offset: usize, len: usize, into: &mut BytesMut) {
        let source = self.at(offset, len);
        into.reserve(len);
        // SAFETY: as for `copy_in`. The spare capacity is exclusively ours, and has room for `len` bytes, which the copy
        // initialises.
        unsafe {
            copy_fetched(into.spare_capacity_mut().as_mut_ptr().cast(), source, len);
            into.set_len(into.len() + len);
        }
    }

    /// For a peer that is expected to WRITE its next message here.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    #[inline]
    pub fn read_ahead(&self, offset: usize, len: usize) -> ReadAhead {
        ReadAhead::new(self.at(offset, len), len)
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

    /// Copies its first bytes out. A peer that writes meanwhile may leave a mixture.
    ///
    /// # Panics
    /// If it has fewer.
    #[cfg(feature = "faults")]
    pub(crate) fn copy_out(&self, bytes: &mut [u8]) {
        assert!(bytes.len() <= self.len, "{} bytes out of {}", bytes.len(), self.len);
        // SAFETY: in range, as `SharedRegion::slice` checked; `bytes` is exclusively ours.
        unsafe { copy_forward(bytes.as_mut_ptr(), self.start(), bytes.len()) };
    }

    /// What the region allows.
    pub(crate) fn region_access(&self) -> Access {
        self.memory.access()
    }

    /// The address under which peers know its first byte.
    pub(crate) fn remote_address(&self) -> u64 {
        self.memory.address_of(self.start())
    }

    /// The key of its region.
    pub(crate) fn region_key(&self) -> u32 {
        self.memory.rkey()
    }

    /// What keeps its region registered.
    #[cfg(feature = "ibverbs")]
    pub(crate) fn registration(&self) -> &crate::dispatch::Registration {
        self.memory.registration()
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
