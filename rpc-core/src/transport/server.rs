//! The server's half of a backend: all connections of one server thread.

use super::{Message, Unpark};
use crate::error::ReserveError;
use crate::time::{Instant, Progress};
use std::sync::Arc;

/// The right to answer one request.
///
/// Not `Copy`: each request is answered once. Indices and generations are the transport's own; core only compares them.
///
/// It travels in two registers. Through memory it would be written in parts and read whole, and such a read waits until
/// every earlier store has left the core, those to lines that the peer's core holds included.
#[derive(Debug, PartialEq, Eq)]
pub struct CallToken {
    client: u64,
    slot: u64,
}

#[inline]
const fn join(index: u32, generation: u32) -> u64 {
    (generation as u64) << 32 | index as u64
}

impl CallToken {
    /// The token of a request in this use of a slot, of this connection under a client's index.
    #[inline]
    pub const fn new(client: u32, client_generation: u32, slot: u32, generation: u32) -> Self {
        CallToken { client: join(client, client_generation), slot: join(slot, generation) }
    }

    /// Which client of this thread.
    #[inline]
    pub const fn client(&self) -> u32 {
        self.client as u32
    }

    /// Which connection under that index.
    #[inline]
    pub const fn client_generation(&self) -> u32 {
        (self.client >> 32) as u32
    }

    /// Which slot of that client.
    #[inline]
    pub const fn slot(&self) -> u32 {
        self.slot as u32
    }

    /// Which use of that slot.
    #[inline]
    pub const fn generation(&self) -> u32 {
        (self.slot >> 32) as u32
    }
}

/// One server thread's connections. The acceptor hands it new ones; it drops a client that dies or misbehaves, alone.
pub trait ServerTransport: Send {
    /// The transport's clock. Only the driver of the thread calls it, at most once per turn.
    fn now(&self) -> Instant;

    /// Does what can be done now, and hands what arrived to the sink. A poll is bounded: one that finds more than it
    /// takes answers [`PollAt::Now`](crate::time::PollAt::Now).
    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress;

    /// For answers made outside `poll`, by handlers that took longer.
    fn replies(&mut self) -> &mut dyn Replies;

    /// Replies that wait for one doorbell leave, at the end of the turn. Cheap when there are none.
    fn flush(&mut self, now: Instant);

    /// Sleeps until an event (a request, a new connection), an unpark, or `until`. Returns at once if work is pending.
    fn park(&mut self, until: Option<Instant>);

    /// Wakes `park`, from any thread.
    fn unparker(&self) -> Arc<dyn Unpark>;

    /// Connections open now.
    fn connections(&self) -> usize;

    /// Do answers that were posted still wait here for their clients to fetch them? They are lost by `close`; a server
    /// that shuts down waits for them, within its bound.
    fn has_unfetched(&self) -> bool {
        false
    }

    /// Tells all clients goodbye, after what was flushed. Dropping the transport does it too.
    fn close(&mut self);

    /// After [`close`](Self::close): has all that was posted left for the clients? Where a device or the system carries it on its
    /// own, what is still here when the transport is dropped is lost. Asking polls; the driver asks until it is so,
    /// within a bound.
    fn has_left(&mut self, now: Instant) -> bool {
        let _ = now;
        true
    }
}

/// Where [`ServerTransport::poll`] puts what arrived.
pub trait RequestSink {
    /// A request. It must be answered once, now through `replies` or later through [`ServerTransport::replies`].
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies);

    /// The client no longer wants this request's answer. It must still be answered (that frees the slot), with
    /// anything, soon. May come for a request that was answered already, or twice.
    fn cancelled(&mut self, client: u32, client_generation: u32, slot: u32, generation: u32);

    /// A client is gone. Answers to its requests find [`ReserveError::Closed`].
    fn disconnected(&mut self, client: u32, client_generation: u32);
}

/// Where answers go.
pub trait Replies {
    /// Exactly `len` bytes to fill with the answer. Their content is arbitrary before.
    ///
    /// May be called again for the same call before `post` (an answer could not be made and an error goes instead):
    /// the last one counts. No other call's comes between a `reserve` and its `post`. An answer that fits the slot (at least [`MIN_REPLY_BYTES`]) always has room.
    /// `Closed` says that the client is gone: the answer can be dropped. After an error the call is still unanswered.
    fn reserve(&mut self, call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError>;

    /// Hands over what the last `reserve` for this call gave, filled. Leaves with the next flush.
    fn post(&mut self, call: CallToken, len: usize);

    /// The transport's clock, for the rare case that a turn takes long and a deadline is near.
    fn now(&self) -> Instant;
}

/// Every transport has room for a reply of this length to each request, at once: errors must always be able to leave.
pub const MIN_REPLY_BYTES: usize = 32;
