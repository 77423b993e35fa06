//! The address of a queue pair.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The data that a peer needs to connect to a queue pair or to send it datagrams. Numbers are little-endian
/// on the wire, the byte order of all machines that farcall supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct IbvEndpoint {
    pub(crate) gid: [u8; 16],
    pub(crate) qp: u32,
    /// The number of the first packet that it sends.
    pub(crate) psn: u32,
    pub(crate) lid: u16,
    /// The MTU of its port, as libibverbs encodes it.
    pub(crate) mtu: u8,
    pub(crate) ty: u8,
    /// The number of READs and atomics that it serves at once.
    pub(crate) serves: u8,
    /// Whether its port is Ethernet.
    pub(crate) ethernet: u8,
    pub(crate) reserved: [u8; 2],
}
