//! References to a peer's memory.

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::OutOfRange;

/// Refers to a peer's shared region by address and key. Plain data of 24 bytes that may be sent in a
/// message.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct RemoteRegion {
    /// The address of its first byte at its owner.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The key that gives access.
    pub rkey: u32,
    reserved: u32,
}

impl RemoteRegion {
    /// A region with these values.
    pub const fn new(addr: u64, rkey: u32, len: u64) -> RemoteRegion {
        RemoteRegion { addr, len, rkey, reserved: 0 }
    }

    /// A part of it.
    ///
    /// # Errors
    /// If the part does not lie in the region.
    #[inline]
    pub fn slice(&self, offset: u64, len: u64) -> Result<RemoteSlice, OutOfRange> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(RemoteSlice { addr: self.addr.wrapping_add(offset), len, rkey: self.rkey })
            }
            _ => Err(OutOfRange { offset, len, region: self.len }),
        }
    }

    /// The whole region.
    #[inline]
    pub fn all(&self) -> RemoteSlice {
        RemoteSlice { addr: self.addr, len: self.len, rkey: self.rkey }
    }
}

/// A part of a peer's memory: the target of a WRITE, READ or atomic. The operation checks that the region
/// still exists and that the slice lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) rkey: u32,
}

impl RemoteSlice {
    /// A slice by raw address and key. It is not checked until it is used.
    pub const fn new(addr: u64, rkey: u32, len: u64) -> RemoteSlice {
        RemoteSlice { addr, len, rkey }
    }

    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
