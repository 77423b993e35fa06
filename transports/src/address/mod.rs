//! Where a service is, and how to talk to it: `shm://NAME?backend=write_imm&window=64`, or
//! `rdma://HOST:PORT?device=rxe0`.

mod error;
#[cfg(test)]
mod fuzz;
mod parse;
mod place;
mod without;

pub use error::AddressError;
#[cfg(feature = "sim")]
pub(crate) use parse::Parts;
#[cfg(feature = "sim")]
pub(crate) use place::is_name;
pub use place::{DeviceChoice, NetworkPlace, Place};
pub use without::{Optimization, Without};

use std::time::Duration;

use crate::backend::BackendKind;
use crate::handshake::Terms;

/// The schemes an address may have.
pub const SCHEMES: &[&str] = &["shm", "rdma"];

/// The options an address of any scheme may carry after its `?`.
pub const OPTIONS: &[&str] =
    &["backend", "window", "slot", "max_message", "memory", "silence", "without"];

/// The options that only an `rdma://` address may carry, besides.
pub const RDMA_OPTIONS: &[&str] = &["device", "gid_index", "ib_port"];

/// Longest name of a `shm://` address: an abstract Unix socket's name has 107 bytes, and the
/// user id and a prefix go in front of ours.
pub const MAX_NAME_BYTES: usize = 64;

/// Most calls one connection may have outstanding: the immediate has ten bits for the slot.
pub const MAX_WINDOW: u32 = 1024;

/// Smallest slot: one cache line, which holds both headers and a small message.
pub const MIN_SLOT_BYTES: u32 = 64;

/// Largest slot: above this, rendezvous is cheaper than a copy out of the slot.
pub const MAX_SLOT_BYTES: u32 = 1 << 20;

/// Largest `max_message`. No buffer is this large; the bound keeps sums far from overflow.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 40;

/// Shortest `silence`: a busy machine, or a handful of lost datagrams, must not look like a dead one.
pub const MIN_SILENCE: Duration = Duration::from_secs(1);

/// Longest `silence`: whoever waits longer does not want to know.
pub const MAX_SILENCE: Duration = Duration::from_secs(3600);

/// What one end of a connection is ready to give; the smaller of the two ends' limits holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Calls outstanding on one connection.
    pub window: u32,
    /// Bytes of one slot, both headers included. A larger message goes by rendezvous.
    pub slot: u32,
    /// Largest message in bytes, in either direction.
    pub max_message: u64,
    /// Bytes that messages larger than a slot may hold at a time, per thread.
    pub memory: u64,
    /// So long the other end's machine may say nothing before this end takes it for gone.
    pub silence: Duration,
    /// What this end of a `datagram` connection does without, to measure what it is worth.
    pub without: Without,
}

impl Default for Limits {
    fn default() -> Limits {
        let max_message = 1 << 30;
        let (memory, silence) = (usual_memory(max_message), Duration::from_secs(5));
        let without = Without::default();
        Limits { window: 64, slot: 4096, max_message, memory, silence, without }
    }
}

impl Limits {
    /// What this end offers the other.
    pub fn terms(&self) -> Terms {
        Terms { window: self.window, slot: self.slot, max_message: self.max_message }
    }
}

/// Room for the largest message in four places at once: a client may hold at most half of it, so
/// two others can move even while one is stalled.
const fn usual_memory(max_message: u64) -> u64 {
    4 * max_message + LEAST_MEMORY_BYTES
}

/// Room for messages just above the slot.
const LEAST_MEMORY_BYTES: u64 = 16 << 20;

/// The address of a service: where it is, which backend reaches it, and the limits of this end.
///
/// ```
/// let address: farcall_transports::Address = "shm://kv?window=32".parse().unwrap();
/// assert_eq!(address.name(), "kv");
/// assert_eq!(address.limits().window, 32);
///
/// let address: farcall_transports::Address = "rdma://10.0.0.1:7471?device=rxe0".parse().unwrap();
/// assert_eq!(address.name(), "10.0.0.1:7471");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    place: Place,
    /// The place in text.
    name: String,
    backend: BackendKind,
    limits: Limits,
}

impl Address {
    /// The address `shm://NAME` with every option at its default.
    pub fn shm(name: &str) -> Result<Address, AddressError> {
        let place = Place::shm(name)?;
        let backend = BackendKind::default();
        Ok(Address { name: place.to_text(), place, backend, limits: Limits::default() })
    }

    /// Where the server is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The part between `://` and `?`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The backend that carries the calls.
    pub fn backend(&self) -> BackendKind {
        self.backend
    }

    /// The limits of this end.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The same address with the TCP port that the system chose.
    pub(crate) fn with_port(&self, chosen: u16) -> Address {
        let mut address = self.clone();
        if let Place::Rdma(NetworkPlace { port, .. }) = &mut address.place {
            *port = chosen;
        }
        address.name = address.place.to_text();
        address
    }
}
