//! The device `shm`: memory shared between threads and processes of one machine.
//!
//! The initiator's CPU plays the NIC. WRITE, READ and atomics act on the target's memory, mapped from a
//! memory file that the target's [control](control) thread hands out for a key. SEND and immediates go
//! through an [inbox]: a ring of 64-byte [cells](cell) that belongs to the receiving queue pair and is
//! written by its one peer. A small WRITE_WITH_IMM puts its bytes both in the target's memory and in the
//! cell, so that the receiver needs one cache line per message.
//!
//! There is no daemon and there are no files: memory files and abstract sockets vanish with the
//! processes that hold them. A peer that dies closes its sockets, which the control thread notices.
//!
//! Nothing that a peer can write is trusted: it is read once, checked, then used.

mod cell;
mod completion_queue;
mod context;
mod control;
mod datagram;
mod domain;
mod duplex;
mod events;
mod inbox;
mod memfd;
mod outbox;
mod pair;
mod peer;
mod queue_pair;
mod receive;
mod region;
mod region_words;
mod send;
mod shared_receive;
mod slow;
mod spsc;
mod sync;
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

/// The device's name.
pub(crate) const NAME: &str = "shm";

/// Its name when it promises no more than the usual NIC does: for those who want to know whether
/// they ask for more.
pub(crate) const PLAIN_NAME: &str = "shm-plain";
