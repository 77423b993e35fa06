//! Shared memory: peers may read or write it at any time, so no reference into it is ever given.

use crate::RemoteRegion;

bitflags::bitflags! {
    /// What peers may do with a shared region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// Peers may READ.
        const REMOTE_READ = 1;
        /// Peers may WRITE.
        const REMOTE_WRITE = 2;
        /// Peers may use atomics.
        const REMOTE_ATOMIC = 4;
    }
}

/// Memory that peers may use, as its access flags say. Clones are the same region; it is deregistered
/// when the last one is gone. Offsets are the owner's own: out of range they panic.
#[derive(Clone, Debug)]
pub struct SharedRegion {
    _private: (),
}

impl SharedRegion {
    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        unimplemented!()
    }

    /// Whether it has no bytes; never so.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What peers may do with it.
    pub fn access(&self) -> Access {
        unimplemented!()
    }

    /// Its name for peers.
    #[inline]
    pub fn remote(&self) -> RemoteRegion {
        unimplemented!()
    }

    /// The aligned word at `offset`, with acquire ordering.
    #[inline]
    pub fn load_u32(&self, offset: usize) -> u32 {
        unimplemented!()
    }

    /// The aligned word at `offset`, with acquire ordering.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> u64 {
        unimplemented!()
    }

    /// Stores the aligned word at `offset`, with release ordering.
    #[inline]
    pub fn store_release_u32(&self, offset: usize, value: u32) {
        unimplemented!()
    }

    /// Stores the aligned word at `offset`, with release ordering.
    #[inline]
    pub fn store_release_u64(&self, offset: usize, value: u64) {
        unimplemented!()
    }

    /// Copies into the region. The last aligned 8 bytes are stored last, with release ordering.
    #[inline]
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        unimplemented!()
    }

    /// Copies out of the region. A peer that writes meanwhile may leave a mixture.
    #[inline]
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        unimplemented!()
    }

    /// Part of it, for a work request.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> SharedSlice {
        unimplemented!()
    }
}

/// Part of a shared region: local memory of a work request.
#[derive(Clone, Debug)]
pub struct SharedSlice {
    _private: (),
}

impl SharedSlice {
    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        unimplemented!()
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
