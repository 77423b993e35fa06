//! Registered memory, whichever device it is registered with.

use std::ptr::NonNull;

use crate::Access;
use crate::dispatch::Registration;

/// Memory of a protection domain, and its registration, which ends when this is dropped. What is hot is
/// here and not behind the registration: no device is asked where a byte is.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    /// Where it starts, as peers name it.
    address: u64,
    len: usize,
    access: Access,
    #[cfg_attr(not(feature = "ibverbs"), allow(dead_code))]
    lkey: u32,
    rkey: u32,
    pd: u32,
    /// Keeps the pages.
    registration: Registration,
}

// SAFETY: a region is a range of addresses, valid in every thread until it is dropped. Who may read or
// write there is up to whoever uses the pointer.
unsafe impl Send for Region {}
// SAFETY: as above; nothing of the region itself changes.
unsafe impl Sync for Region {}

/// What a device says of a new region.
pub(crate) struct RegionParts {
    /// Where its pages start.
    pub(crate) start: NonNull<u8>,
    /// Bytes that were asked for; the pages may be more.
    pub(crate) len: usize,
    /// What peers may do.
    pub(crate) access: Access,
    /// The key for work requests of our own, where the device wants one.
    pub(crate) lkey: u32,
    /// The key for peers.
    pub(crate) rkey: u32,
    /// The protection domain's number.
    pub(crate) pd: u32,
    /// What keeps the pages at `start`, and `len` bytes of them, mapped for reading and writing.
    pub(crate) registration: Registration,
}

impl Region {
    /// A region that peers name by its real address.
    pub(crate) fn new(parts: RegionParts) -> Region {
        let address = parts.start.addr().get() as u64;
        Region::named(parts, address)
    }

    /// A region that peers name by an address of the device's choice.
    pub(crate) fn named(parts: RegionParts, address: u64) -> Region {
        let RegionParts { start, len, access, lkey, rkey, pd, registration } = parts;
        Region { start, address, len, access, lkey, rkey, pd, registration }
    }

    /// How peers name a byte of it.
    #[inline]
    pub(crate) fn address_of(&self, byte: *const u8) -> u64 {
        self.address + (byte.addr() - self.start.addr().get()) as u64
    }

    #[inline]
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    #[cfg(feature = "ibverbs")]
    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    #[inline]
    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// What keeps it registered.
    pub(crate) fn registration(&self) -> &Registration {
        &self.registration
    }

    #[inline]
    pub(crate) fn pd(&self) -> u32 {
        self.pd
    }
}
