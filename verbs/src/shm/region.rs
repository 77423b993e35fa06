//! Memory regions: ours, and mappings of peers' regions.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::context::Context;
use crate::Access;
use crate::memory::mapping::Mapping;

/// Slots in one context's file of region words. The first is the count of deregistrations.
pub(crate) const REGION_SLOTS: u32 = 1 << 16;

/// The words that tell peers which regions are alive: one per slot, odd while the region lives. The first
/// word counts deregistrations, so that peers know when to check the regions they have mapped. Only the
/// owner can write the file, which is sealed.
#[derive(Debug)]
pub(crate) struct RegionWords {
    mapping: Mapping,
}

impl RegionWords {
    pub(crate) const BYTES: usize = REGION_SLOTS as usize * 4;

    /// `mapping` has [`RegionWords::BYTES`] bytes.
    pub(crate) fn new(mapping: Mapping) -> RegionWords {
        debug_assert!(mapping.len() >= Self::BYTES);
        RegionWords { mapping }
    }

    #[inline]
    pub(crate) fn word(&self, slot: u32) -> &AtomicU32 {
        let slot = slot.min(REGION_SLOTS - 1) as usize;
        // SAFETY: the mapping has REGION_SLOTS words, page-aligned, which only atomics touch.
        unsafe { &*self.mapping.start().cast::<AtomicU32>().add(slot) }
    }

    /// Deregistrations so far, wrapping.
    #[inline]
    pub(crate) fn deregistrations(&self) -> &AtomicU32 {
        self.word(0)
    }
}

/// Keeps the pages of a region of ours mapped.
#[derive(Debug)]
#[allow(dead_code)] // Only held for its drop.
pub(crate) enum Pages {
    /// No other process can map them.
    Private(Mapping),
    /// Peers may map them.
    Lent(RegionMemory),
}

/// Pages that peers may map. Dropping it deregisters them by changing their region word.
#[derive(Debug)]
pub(crate) struct RegionMemory {
    pub(super) context: Arc<Context>,
    /// Dropped, and so unmapped, after deregistration.
    pub(super) _mapping: Mapping,
    pub(super) rkey: u32,
    pub(super) slot: u32,
}

/// The control thread's record of a region of ours. It holds the file, not the region: the region is
/// deregistered when its owner drops it, even if the control thread is answering a request about it.
#[derive(Debug)]
pub(super) struct LentRegion {
    pub(super) file: OwnedFd,
    pub(super) addr: u64,
    pub(super) len: usize,
    pub(super) access: Access,
    pub(super) pd: u32,
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        self.context.deregister(self.rkey, self.slot);
    }
}

/// A mapping of a peer's region.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    pub(super) mapping: Mapping,
    /// Its address at its owner. Remote addresses are relative to it.
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) rkey: u32,
    pub(super) access: Access,
    pub(super) pd: u32,
    pub(super) words: Arc<RegionWords>,
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl MappedRegion {
    /// Whether its owner still has it registered.
    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        self.words.word(self.slot).load(Ordering::Acquire) == self.generation
    }

    /// The local address of `len` bytes at the owner's address `addr`; `None` if they do not lie in it.
    #[inline]
    pub(crate) fn at(&self, addr: u64, len: u64) -> Option<*mut u8> {
        let offset = addr.wrapping_sub(self.base);
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: `offset <= len`, and the mapping was made with at least `len` bytes.
        Some(unsafe { self.mapping.start().add(offset as usize) })
    }
}
