//! The device `shm`: memory shared between threads and processes of one machine.
//!
//! The initiator's CPU acts as the NIC. WRITE, READ and atomics access the target's memory through a
//! mapping of its memory file, which the target's [control](control) thread returns for a key. SEND and
//! immediates go through an [inbox]: a ring of 64-byte [cells](cell) that belongs to the receiving queue
//! pair and is written by its one peer. A small WRITE_WITH_IMM stores its bytes both in the target's memory
//! and in the cell, so that the receiver needs one cache line per message.
//!
//! There is no daemon and nothing in the file system: memory files and abstract sockets vanish with the
//! processes that hold them. When a peer dies, its sockets close, which the control thread notices.
//!
//! Everything that a peer can write is untrusted: it is read once, checked, then used.

mod accesses;
mod bell;
mod calls;
mod cell;
mod changed_by;
mod completion_queue;
mod context;
mod control;
mod datagram;
mod discarded;
mod domain;
mod dormant;
mod duplex;
mod events;
mod guesses;
mod identity;
#[cfg(all(test, not(loom)))]
mod impostor;
mod inbox;
mod listening;
mod lookup;
mod memfd;
mod outbox;
mod pair;
mod peer;
mod questions;
mod queue_pair;
mod receive;
mod region;
mod region_words;
mod send;
mod shared_receive;
mod slow;
mod spsc;
mod sync;
mod window;
mod wire;

pub(crate) use completion_queue::{CompletionQueue, CqHandle};
pub(crate) use context::Context;
pub(crate) use datagram::AddressHandle;
pub(crate) use domain::Domain;
#[cfg(test)]
pub(crate) use domain::private_region;
pub(crate) use events::Channel;
pub(crate) use queue_pair::{Config as QueuePairParts, QueuePair, ShmEndpoint};
pub(crate) use region::Pages;
pub(crate) use shared_receive::SharedReceiveQueue;
pub(crate) use window::Window;

/// The device's name.
pub(crate) const NAME: &str = "shm";

/// The device's name when it only has the capabilities of a typical NIC, to test whether a program relies
/// on more.
pub(crate) const PLAIN_NAME: &str = "shm-plain";
