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

mod chunks;
mod client;
mod clients;
mod entry;
mod fair_queue;
mod intake;
mod landing;
mod layout;
mod link;
mod send_queue;
mod server;
mod setup;
mod transfer;

pub(crate) use begin::{prepare, serve};
pub(crate) use setup::check;

mod begin;

use farcall_core::time::Instant;
use farcall_core::transport::Unpark;
use farcall_verbs::CompletionChannel;
use std::time::Duration;

/// Completions that one poll takes.
const POLL_BATCH: usize = 16;

/// Chunks of large messages that one poll moves: some 20 us of copying, which is what a small call
/// may have to wait for.
const STEPS_PER_POLL: usize = 2;

/// When to look again for memory that comes back without an event.
const MEMORY_RETRY_NANOS: u64 = 200_000;

/// A parked thread looks around at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Wakes the thread that sleeps on the channel.
#[derive(Debug)]
struct Waker(CompletionChannel);

impl Unpark for Waker {
    fn unpark(&self) {
        self.0.wake();
    }
}

fn sleep_time(until: Option<Instant>, now: Instant) -> Duration {
    until.map_or(LONGEST_SLEEP, |until| LONGEST_SLEEP.min(until - now))
}

#[cfg(test)]
mod tests;
