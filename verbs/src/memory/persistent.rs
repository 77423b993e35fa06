//! Persistent memory: shared memory whose bytes can survive a power failure.

use std::ops::Range;

use crate::dispatch::Persistence;
use crate::{Access, RemoteRegion, SharedRegion, SharedSlice, VerbsError};

/// Named shared memory. Its *durable* bytes survive a power failure: a process that
/// [opens](crate::ProtectionDomain::open_persistent) the same name again finds them.
///
/// Visible bytes are not necessarily durable. A peer's WRITE passes through the NIC, the PCIe queue of the
/// root complex and, with DDIO, the last-level cache; its completion does not say how far it has got. A CPU
/// store is in that CPU's cache. Bytes are durable
///
/// - when a [`persist`](PersistentRegion::persist) that began after they were visible has returned,
/// - when a [flush](crate::WorkRequest::flush) posted behind the WRITE on its queue pair has completed,
/// - when a READ behind the WRITE has completed, on machines where NIC writes bypass the caches (DDIO is off)
///   or the caches have backup power (eADR): reading memory pushes the writes before it (Kalia et al., SoCC
///   2020; Kashyap et al., "Correct, Fast Remote Persistence").
///
/// Each cache line of bytes that are not durable yet may be kept or lost; an aligned word is kept or lost
/// whole. Offsets are chosen by the owner, so an offset out of range panics.
#[derive(Debug)]
pub struct PersistentRegion {
    region: SharedRegion,
    persistence: Persistence,
}

impl PersistentRegion {
    pub(crate) fn new(region: SharedRegion, persistence: Persistence) -> PersistentRegion {
        PersistentRegion { region, persistence }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Whether it has no bytes. Always false.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// Its bytes as shared memory, to read them and to bind [memory windows](crate::MemoryWindow). Store by the methods of this type: a
    /// simulated node does not notice that others make lines of its caches dirty.
    pub fn shared(&self) -> &SharedRegion {
        &self.region
    }

    /// The operations that peers may use.
    pub fn access(&self) -> Access {
        self.region.access()
    }

    /// The address and key under which peers access this opening of the region.
    pub fn remote(&self) -> RemoteRegion {
        self.region.remote()
    }

    /// Loads the aligned word at `offset`, with acquire ordering.
    ///
    /// # Panics
    /// If the word does not lie in the region or is not aligned.
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.region.load_u64(offset)
    }

    /// Copies out of the region. A concurrent WRITE of a peer may leave a mixture of old and new bytes.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.region.copy_out(offset, bytes);
    }

    /// Stores the aligned word at `offset`, with release ordering.
    ///
    /// # Panics
    /// If the word does not lie in the region or is not aligned.
    pub fn store_release_u64(&self, offset: usize, value: u64) {
        self.region.store_release_u64(offset, value);
        self.stored(offset, 8);
    }

    /// Adds to the aligned word at `offset`, wrapping, and returns what it was: see [`SharedRegion::fetch_add_u64`].
    ///
    /// # Panics
    /// If the word does not lie in the region or is not aligned.
    pub fn fetch_add_u64(&self, offset: usize, add: u64) -> u64 {
        let old = self.region.fetch_add_u64(offset, add);
        self.stored(offset, 8);
        old
    }

    /// Replaces the aligned word at `offset` by `new` if it equals `expected`, and returns what it was: see
    /// [`SharedRegion::compare_and_swap_u64`].
    ///
    /// # Panics
    /// If the word does not lie in the region or is not aligned.
    pub fn compare_and_swap_u64(&self, offset: usize, expected: u64, new: u64) -> u64 {
        let old = self.region.compare_and_swap_u64(offset, expected, new);
        self.stored(offset, 8);
        old
    }

    /// Copies into the region, low addresses first.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.region.copy_in(offset, bytes);
        self.stored(offset, bytes.len());
    }

    /// A part of the region, for a work request. Bytes that a READ stores there are as durable as those of a
    /// peer's WRITE.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    pub fn slice(&self, offset: usize, len: usize) -> SharedSlice {
        self.region.slice(offset, len)
    }

    /// Makes the visible content of these bytes durable: writes their cache lines back and waits until that is
    /// done (CLWB and SFENCE).
    ///
    /// # Errors
    /// If the memory is gone, and with it all bytes that were not durable.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    pub fn persist(&self, range: Range<usize>) -> Result<(), VerbsError> {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.len(), "{start}..{end} of {} bytes", self.len());
        match self.persistence {
            #[cfg(feature = "sim")]
            Persistence::Sim(ref memory) => memory.persist(start, end - start),
        }
    }

    /// Records that the owner's CPU has stored these bytes.
    fn stored(&self, offset: usize, len: usize) {
        #[cfg(not(feature = "sim"))]
        let _ = (offset, len);
        match self.persistence {
            #[cfg(feature = "sim")]
            Persistence::Sim(ref memory) => memory.record_store(offset, len),
        }
    }
}
