//! The bodies of the control messages, as they cross the wire.

use farcall_verbs::RemoteRegion;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Client: a request of this many bytes wants to land.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Announce {
    /// Bytes of the request.
    pub(crate) len: U64,
}

/// A [`RemoteRegion`] on the wire.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct WireRegion {
    addr: U64,
    len: U64,
    rkey: U32,
}

impl From<RemoteRegion> for WireRegion {
    fn from(region: RemoteRegion) -> WireRegion {
        WireRegion { addr: region.addr.into(), len: region.len.into(), rkey: region.rkey.into() }
    }
}

impl From<WireRegion> for RemoteRegion {
    fn from(region: WireRegion) -> RemoteRegion {
        RemoteRegion::new(region.addr.get(), region.rkey.get(), region.len.get())
    }
}

/// Server: the announced request may be written here, to a ring of chunks. Chunk `k` of the request goes to position
/// `k % (region.len / chunk)`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Grant {
    /// The landing ring.
    pub(crate) region: WireRegion,
    /// Bytes of each chunk but the last.
    pub(crate) chunk: U32,
}

/// Server: the response waits here, to be read and then released. Not all of it may be there yet.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Lent {
    /// Exactly the bytes of the response.
    pub(crate) region: WireRegion,
    /// Its first bytes are there, so many. The server tells when as many more are.
    pub(crate) part: U64,
}

impl Lent {
    /// All of it is there.
    pub(crate) fn is_whole(&self) -> bool {
        self.part.get() >= self.region.len.get()
    }
}

/// Bytes in front of a message that waits to be read.
pub(crate) const FRONT_BYTES: usize = 8;

/// Either: the message is these bytes in front, and then those that wait here to be read. A request waits until it is answered, a response
/// until it is released.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Here {
    /// Exactly the bytes behind the front.
    pub(crate) region: WireRegion,
    pub(crate) front: [u8; FRONT_BYTES],
}

impl Here {
    /// A message of these bytes, and then those of this memory. `None` if there are not as many in front as such a message has.
    pub(crate) fn new(front: &[u8], region: RemoteRegion) -> Option<Here> {
        Some(Here { region: region.into(), front: front.try_into().ok()? })
    }

    /// Bytes of the whole message.
    pub(crate) fn message_len(&self) -> u64 {
        self.region.len.get().saturating_add(FRONT_BYTES as u64)
    }
}

/// Server: the announced request is over the limit.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct OverLimit {
    /// Bytes of the request.
    pub(crate) len: U64,
    /// The most that the server takes.
    pub(crate) max: U64,
}
