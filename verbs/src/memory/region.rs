//! Registered memory of any device.

use std::ptr::NonNull;

use crate::Access;
use crate::dispatch::Registration;

/// Memory of a protection domain. Dropping it ends its registration. The hot fields are stored here rather
/// than behind the registration, so that finding a byte needs no call into the device.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    /// Its start address as peers use it.
    address: u64,
    len: usize,
    access: Access,
    #[cfg_attr(not(feature = "ibverbs"), allow(dead_code))]
    lkey: u32,
    rkey: u32,
    pd: u32,
    /// Keeps the pages mapped.
    registration: Registration,
}

// SAFETY: a region is a range of addresses, valid in every thread until it is dropped. The users of the
// pointer decide who may read or write there.
unsafe impl Send for Region {}
// SAFETY: as above; nothing of the region itself changes.
unsafe impl Sync for Region {}

/// What a device returns for a new region.
pub(crate) struct RegionParts {
    /// Where its pages start.
    pub(crate) start: NonNull<u8>,
    /// The requested length in bytes; the pages may be longer.
    pub(crate) len: usize,
    /// The operations that peers may use.
    pub(crate) access: Access,
    /// The key for our own work requests, if the device needs one.
    pub(crate) lkey: u32,
    /// The key for peers.
    pub(crate) rkey: u32,
    /// The protection domain's number.
    pub(crate) pd: u32,
    /// Keeps `len` bytes from `start` mapped for reading and writing.
    pub(crate) registration: Registration,
}

impl Region {
    /// A region whose remote address is its real address.
    pub(crate) fn new(parts: RegionParts) -> Region {
        let address = parts.start.addr().get() as u64;
        Region::named(parts, address)
    }

    /// A region whose remote address the device chose.
    pub(crate) fn named(parts: RegionParts, address: u64) -> Region {
        let RegionParts { start, len, access, lkey, rkey, pd, registration } = parts;
        Region { start, address, len, access, lkey, rkey, pd, registration }
    }

    /// The remote address of a byte.
    #[inline]
    pub(crate) fn address_of(&self, byte: *const u8) -> u64 {
        self.address + (byte.addr() - self.start.addr().get()) as u64
    }

    #[inline]
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Where in it these bytes start; `None` if they do not all lie in it.
    pub(crate) fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let offset = bytes.as_ptr().addr().checked_sub(self.start.addr().get())?;
        (offset <= self.len && bytes.len() <= self.len - offset).then_some(offset)
    }

    /// The byte at `offset`.
    ///
    /// # Panics
    /// If it has no such byte.
    #[cfg(feature = "ibverbs")]
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.len, "beyond the region");
        // SAFETY: in the region.
        unsafe { self.start.add(offset) }
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
