//! The RPC backends of farcall, each written once against verbs.
//!
//! [`Address`] names a service and the backend that reaches it; it can be dialled and listened on.
//! [`handshake`] is what two ends agree on first; [`BackendKind`] makes the ends of a connection from
//! the bytes that were exchanged, without sockets or threads of its own.

#![forbid(unsafe_code)]

mod address;
mod backend;
mod bootstrap;
mod completions;
pub mod datagram;
mod door;
mod fair_queue;
pub mod handshake;
mod memory;
#[cfg(feature = "planted-bugs")]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
#[expect(unreachable_pub, reason = "it is public where bugs can be planted")]
mod planted;
#[cfg(feature = "sim")]
pub mod rack;
mod send_queue;
mod tcp;
mod unix;
pub mod write_imm;

pub use address::{
    Address, AddressError, DeviceChoice, Limits, MAX_MESSAGE_BYTES, MAX_NAME_BYTES, MAX_SILENCE,
    MAX_SLOT_BYTES, MAX_WINDOW, MIN_SILENCE, MIN_SLOT_BYTES, NetworkPlace, OPTIONS, Optimization,
    Place, RDMA_OPTIONS, SCHEMES, Without,
};
pub use backend::{Accepted, BackendKind, Intake, Keepsake, PendingClient, ServerHalf, SetupError};
pub use bootstrap::DeviceError;
