//! The server's half of a backend: all connections of one server thread.

use super::Message;
use crate::error::ReserveError;
use crate::time::{Instant, Progress};

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
    /// Does what can be done now, and hands what arrived to the sink. A poll is bounded: one that finds more than it
    /// takes answers [`PollAt::Now`](crate::time::PollAt::Now).
    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress;

    /// For answers made outside `poll`, by handlers that took longer.
    fn replies(&mut self) -> &mut dyn Replies;

    /// Replies that wait for one doorbell leave, at the end of the turn. Cheap when there are none.
    fn flush(&mut self);

    /// Gets ready for its thread to sleep: a request, or a new connection, makes an event on the thread's
    /// [`Site`](crate::site::Site) from now on. `false`: there is work, poll again first.
    fn arm(&mut self) -> bool;

    /// Connections open now.
    fn connections(&self) -> usize;

    /// One step of the end of a server, asked for again and again, within a bound, until the answer is `true`: this step
    /// is done. Dropping the transport says goodbye too.
    fn wind_down(&mut self, now: Instant, step: WindDown) -> bool;
}

/// The steps in which a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindDown {
    /// Done when no posted answer waits here for its client to fetch it. The driver polls in between.
    Drain,
    /// Says goodbye to all clients, after what was flushed. Done when all that was posted has left for the clients: where a
    /// device or the system carries it on its own, what is still here when the transport is dropped is lost. Polls by
    /// itself; requests that come now are not handled.
    Close,
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
}

/// Every transport has room for a reply of this length to each request, at once: errors must always be able to leave.
pub const MIN_REPLY_BYTES: usize = 32;
