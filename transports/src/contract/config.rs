//! What one end of a connection is ready to give.

use std::time::Duration;

use farcall_core::transport::MESSAGE_HEADER_BYTES;

use super::{OptionValues, Terms};

/// Most calls that one connection of any backend may have outstanding.
pub const MAX_WINDOW: u32 = 1024;

/// Largest slot: a larger message costs less by rendezvous than by a copy out of the slot.
pub const MAX_SLOT_BYTES: u32 = 1 << 20;

/// Smallest `max_message`: less than a line of arguments helps nobody.
pub const MIN_MESSAGE_BYTES: u64 = 64;

/// Largest `max_message`. No buffer is this large; the bound keeps sums far from overflow.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 40;

/// Shortest `silence`: a busy machine, or a handful of lost datagrams, must not look like a dead one.
pub const MIN_SILENCE: Duration = Duration::from_secs(1);

/// Longest `silence`.
pub const MAX_SILENCE: Duration = Duration::from_secs(3600);

/// Shortest `idle_timeout`: less would disconnect clients between two calls of a usual program.
pub const MIN_IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest `idle_timeout`.
pub const MAX_IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// What one end of a connection is ready to give; the smaller of the two ends' limits holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Calls outstanding on one connection.
    pub window: u32,
    /// Bytes of one slot, both headers included. A larger message goes by rendezvous, or in parts.
    pub slot: u32,
    /// Most bytes of encoded arguments, or of an encoded result: a message without its header.
    pub max_message: u64,
    /// Bytes that messages larger than a slot may hold at a time, per thread.
    pub memory: u64,
    /// How long the peer may stay silent before it is declared dead.
    pub silence: Duration,
    /// At a server: the clients of one [source](super::Source) that it takes. Default: as many as it takes at all.
    pub max_clients_per_source: u32,
    /// At a server: the connections of one identity that it takes. Default: as many as it takes at all. No option of an address: the
    /// [quota](farcall_core::ClientQuota) of the server's clients says it.
    pub max_clients_per_identity: u32,
    /// At a server that has no room for another client: how long a client may be without a call before it makes room for one of a
    /// source with fewer clients.
    pub idle_timeout: Duration,
    /// The backend's own options.
    pub options: OptionValues,
}

impl Default for Config {
    fn default() -> Config {
        let max_message = 1 << 30;
        Config {
            window: 64,
            slot: 4096,
            max_message,
            memory: default_memory(max_message),
            silence: Duration::from_secs(5),
            max_clients_per_source: u32::MAX,
            max_clients_per_identity: u32::MAX,
            idle_timeout: Duration::from_secs(60),
            options: OptionValues::default(),
        }
    }
}

impl Config {
    /// What this end offers the other.
    pub fn terms(&self) -> Terms {
        Terms {
            window: self.window,
            slot: self.slot,
            max_message: self.max_message + MESSAGE_HEADER_BYTES as u64,
        }
    }
}

/// Room for the largest message in four places at once: a client may hold at most half of it, so two others can move
/// even while one is stalled.
pub(crate) const fn default_memory(max_message: u64) -> u64 {
    4 * max_message + LEAST_MEMORY_BYTES
}

/// Room for messages just above the slot.
pub(crate) const LEAST_MEMORY_BYTES: u64 = 16 << 20;
