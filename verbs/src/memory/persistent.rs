//! Persistent memory: shared memory whose bytes can survive a loss of power.

use std::ops::Range;

use crate::dispatch::Persistence;
use crate::{Access, RemoteRegion, SharedRegion, SharedSlice, VerbsError};

/// Shared memory with a name, which keeps what is *durable* when the power goes, for whoever
/// [opens](crate::ProtectionDomain::open_persistent) that name again.
///
/// What can be seen is not durable for that. A peer's WRITE is on its way through the NIC, the PCIe queue of
/// the root complex and, with DDIO, the last-level cache, and its completion says nothing of how far it has
/// come; what a CPU stores is in its cache. It is durable
///
/// - when a [`persist`](PersistentRegion::persist) that began after it was visible has returned,
/// - when a [flush](crate::WorkRequest::flush) behind the WRITE on its queue pair has completed,
/// - and, where what NICs write goes past the caches (DDIO is off) or caches keep their lines without power
///   (eADR), when a READ behind it has completed: reading memory pushes the writes before it (Kalia et al.,
///   SoCC 2020; Kashyap et al., "Correct, Fast Remote Persistence").
///
/// Bytes that are not durable yet are lost or not, each line of a cache for itself; of an aligned word never
/// a part. Offsets are the owner's own: out of range they panic.
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

    /// Whether it has no bytes; never so.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// What peers may do with it.
    pub fn access(&self) -> Access {
        self.region.access()
    }

    /// Its name for peers: of this opening of it.
    pub fn remote(&self) -> RemoteRegion {
        self.region.remote()
    }

    /// The aligned word at `offset`, with acquire ordering.
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.region.load_u64(offset)
    }

    /// Copies out of the region. A peer that writes meanwhile may leave a mixture.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.region.copy_out(offset, bytes);
    }

    /// Stores the aligned word at `offset`, with release ordering.
    pub fn store_release_u64(&self, offset: usize, value: u64) {
        self.region.store_release_u64(offset, value);
        self.stored(offset, 8);
    }

    /// Copies into the region, low addresses first.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.region.copy_in(offset, bytes);
        self.stored(offset, bytes.len());
    }

    /// Part of it, for a work request. What a READ brings there is as durable as what a peer writes.
    pub fn slice(&self, offset: usize, len: usize) -> SharedSlice {
        self.region.slice(offset, len)
    }

    /// Makes what can be seen of these bytes durable: writes the lines back from the caches and waits for it
    /// (CLWB and SFENCE). An error: the memory is gone, and with it all that was not durable.
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

    /// The owner's CPU has stored something there.
    fn stored(&self, offset: usize, len: usize) {
        #[cfg(not(feature = "sim"))]
        let _ = (offset, len);
        match self.persistence {
            #[cfg(feature = "sim")]
            Persistence::Sim(ref memory) => memory.stored(offset, len),
        }
    }
}
