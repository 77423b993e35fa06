//! A peer's memory, by name.

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::OutOfRange;

/// Names a shared region to a peer: plain data, which may be sent in a message. 24 bytes.
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
    /// The address of its first byte, as its owner sees it.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The key that gives access.
    pub rkey: u32,
    reserved: u32,
}

impl RemoteRegion {
    /// The region with these values.
    pub const fn new(addr: u64, rkey: u32, len: u64) -> RemoteRegion {
        RemoteRegion { addr, len, rkey, reserved: 0 }
    }

    /// Part of it.
    #[inline]
    pub fn slice(&self, offset: u64, len: u64) -> Result<RemoteSlice, OutOfRange> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(RemoteSlice { addr: self.addr.wrapping_add(offset), len, rkey: self.rkey })
            }
            _ => Err(OutOfRange { offset, len, region: self.len }),
        }
    }

    /// All of it.
    #[inline]
    pub fn all(&self) -> RemoteSlice {
        RemoteSlice { addr: self.addr, len: self.len, rkey: self.rkey }
    }
}

/// Part of a peer's memory: the target of a WRITE, READ or atomic. That it lies in the region, and that
/// the region still exists, is checked where it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) rkey: u32,
}

impl RemoteSlice {
    /// A slice by raw address and key, unchecked until it is used.
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
