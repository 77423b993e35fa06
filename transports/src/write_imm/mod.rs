//! `write_imm`: RC WRITE_WITH_IMM both ways, after Octopus (ATC 2017), section 3.3.
//!
//! # The life of a call
//!
//! 1. The client takes a free slot of its window and makes the request in a private buffer.
//! 2. One WRITE_WITH_IMM puts it into that slot of the region that the server keeps for this client.
//!    The immediate names operation, client and slot, so the server finds the message by its
//!    completion, without looking at any slot that has none.
//! 3. A short message is in the completion itself (where the device says so); a longer one is copied
//!    once out of the slot, which its writer could still change, into private scratch.
//! 4. The response goes the same way back, into the same slot of the client's region. Responses of
//!    one turn to one client leave under one doorbell.
//! 5. The response is what frees the slot: also that of a call that nobody waits for any more. It
//!    carries the generation of its request.
//!
//! A request larger than a slot is announced in its slot; the server grants a landing ring; the
//! client WRITEs it there in chunks, and the server takes each out while the next is written. A
//! larger response is lent: the client READs it, and releases it. The client drives all of it. Memory
//! for landing is bounded, and who must wait for it waits in a queue in which clients take turns.
//!
//! # Knobs
//!
//! `window` (calls outstanding; credits), `slot` (bytes), `max_message`, `memory` (bytes of large
//! messages per thread).
//!
//! # When to use it
//!
//! A good first choice: fewest round trips at any size. Each client costs the server a queue pair and
//! a region of `window * slot` bytes, so beyond some hundreds of clients per NIC its cache of
//! queue-pair contexts and translations misses.

mod begin;
mod chunks;
mod client;
mod clients;
mod entry;
mod intake;
mod landing;
mod layout;
mod link;
mod server;
mod setup;
mod transfer;

pub(crate) use begin::{prepare, serve};
pub(crate) use setup::check;

#[cfg(test)]
mod tests;
