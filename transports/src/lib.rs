//! The RPC backends of farcall, each written once against verbs.
//!
//! [`Address`] names a service and the backend that reaches it; it can be dialled and listened on. [`contract`] says what
//! a backend is, [`registry`] lists them. [`handshake`] is what two ends agree on first. The modules depend on each other
//! in one direction:
//!
//! ```text
//! bootstrap -> address -> hybrid
//! bootstrap -> address -> registry -> backends -> slots -> rendezvous, repair -> buffers -> kit -> contract
//!         \-> handshake, tls -> contract
//! ```
//!
//! [`remote_memory`] has the memory that a server lends. It uses `kit` alone.

#![forbid(unsafe_code)]

mod address;
pub mod bootstrap;
pub mod buffers;
pub mod contract;
pub mod datagram;
pub mod handshake;
pub mod hybrid;
mod kit;
#[cfg(feature = "planted-bugs")]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
#[expect(unreachable_pub, reason = "it is public where bugs can be planted")]
mod planted;
pub mod registry;
pub mod remote_memory;
mod rendezvous;
mod repair;
mod rfp;
mod scale;
pub mod send_recv;
mod slots;
mod tcp;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(not(feature = "tls"))]
mod tls;
pub mod write_imm;

pub use address::{
    Address, AddressBuilder, AddressError, AddressOptions, Carrier, DeviceChoice, HYBRID_OPTIONS,
    MAX_NAME_BYTES, Moves, NetworkPlace, OPTIONS, Place, RDMA_OPTIONS, SCHEMES, is_name,
    parse_address, runs_on_stream,
};
pub use bootstrap::DeviceError;
pub use contract::{Backend, Config, SetupError};

#[cfg(test)]
#[path = "../../rpc-core/tests/support/corpus.rs"]
#[expect(unreachable_pub, reason = "it is public in the tests of another package")]
mod corpus;
