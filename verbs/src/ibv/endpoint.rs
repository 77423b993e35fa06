//! How a queue pair is named to peers.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// All that a peer has to know of a queue pair to connect to it, or to send datagrams there. Numbers are
/// in little-endian order on the wire, as all machines that farcall runs on have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct IbvEndpoint {
    pub(crate) gid: [u8; 16],
    pub(crate) qp: u32,
    /// The number of the first packet that it sends.
    pub(crate) psn: u32,
    pub(crate) lid: u16,
    /// The MTU of its port, as libibverbs numbers them.
    pub(crate) mtu: u8,
    pub(crate) ty: u8,
    /// READs and atomics that it serves at once.
    pub(crate) serves: u8,
    /// Whether its port is Ethernet.
    pub(crate) ethernet: u8,
    pub(crate) reserved: [u8; 2],
}
