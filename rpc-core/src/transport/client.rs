//! The client's half of a backend: one connection.

use bytes::Bytes;

use super::Message;
use crate::error::{ReserveError, TransportFailure};
use crate::time::{Instant, Progress};
use core::ops::{Deref, Range};
use core::task::Waker;

/// One outstanding request of one connection.
///
/// The index is below [`ClientTransport::slots`]. It is reused as soon as its request has ended, with another generation, so that
/// the transport recognizes a late reply and drops it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId {
    /// Which slot of the window.
    pub index: u32,
    /// Which use of that slot.
    pub generation: u32,
}

/// What a connection can carry. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit of outstanding requests; at least 1.
    pub window: u32,
    /// The longest message in bytes, including core's header.
    pub max_message: u64,
}

/// A client's connection to one server thread.
///
/// The life of a request: `reserve` a slot, fill its bytes, `post` it, `flush`, then `poll` until the sink gets the reply.
/// Only `reserve` can fail. From `post` on, the slot belongs to the transport until the reply, a failure, or (after
/// `abandon`) its completion; the caller has only the [`SlotId`].
pub trait ClientTransport: Send {
    /// What this connection can carry.
    fn limits(&self) -> Limits;

    /// The indices of its slots are below this: [`Limits::window`], or more where requests of two windows may be under way for a
    /// while. It never changes.
    fn slots(&self) -> u32 {
        self.limits().window
    }

    /// Reserves a slot with exactly `len` bytes to fill. Their content is arbitrary at first.
    ///
    /// The transport may send a large request in another way, and later; the caller sees no difference.
    ///
    /// # Errors
    /// - [`ReserveError::Backpressure`]: there is no room, or it is not this client's turn. Poll and try again.
    /// - [`ReserveError::TooLarge`]: longer than [`Limits::max_message`].
    /// - [`ReserveError::Closed`]: the connection is over.
    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError>;

    /// Frees a reserved slot that will not be posted.
    fn release(&mut self, slot: SlotId);

    /// Hands over a filled slot, which leaves with the next `flush`. Cannot fail: the sink hears of later failures.
    fn post(&mut self, slot: SlotId, delivery: Delivery);

    /// Reserves and posts a request that consists of the bytes of `front` and then those of `body`. A transport may send a long
    /// body from where it is, and keep a shared one instead of a copy if it is sent later.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve); then nothing was posted.
    fn post_parts(
        &mut self,
        front: &[u8],
        body: Body<'_>,
        delivery: Delivery,
    ) -> Result<SlotId, ReserveError> {
        post_copied_request(self, front, &body, delivery)
    }

    /// Sends what was posted, with one doorbell. Cheap if nothing was.
    fn flush(&mut self);

    /// Gives up a posted request: it was cancelled, or its deadline has passed. The transport keeps the slot until its
    /// completion, and tells the server if it can. The sink hears no more of it.
    fn abandon(&mut self, slot: SlotId);

    /// Whether slots are in use. A connection that moves among transports keeps one that does not say so for as long as it lives.
    fn usage(&self) -> Usage {
        Usage::Awaited
    }

    /// Does what can be done now, and gives the sink what arrived.
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress;

    /// Prepares for the thread to sleep: from now on, what arrives makes an event at the thread's [`Site`](crate::site::Site), and
    /// calls the `waker` if the transport can. It is the same waker each time.
    fn arm(&mut self, waker: Option<&Waker>) -> Armed;

    /// Takes back [`arm`](Self::arm): another thread than the one that sleeps polls from now on, and needs no events. A transport
    /// whose device cannot do that does nothing; the event then wakes a thread that has nothing to do.
    #[inline]
    fn disarm(&mut self) {}

    /// Ends the connection. Dropping the transport does it too, with [`Closing::Goodbye`].
    fn close(&mut self, why: Closing);
}

/// Whether slots of a client's transport are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Usage {
    /// None: every request was answered or has failed, and of those that were given up the server keeps nothing.
    Unused,
    /// Only those of requests that were given up.
    GivenUp,
    /// Those of requests that somebody waits for.
    Awaited,
}

impl Usage {
    /// Of these slots that are in use: `true` for a request that was given up.
    pub fn of(given_up: impl Iterator<Item = bool>) -> Usage {
        let usage = |given_up| if given_up { Usage::GivenUp } else { Usage::Awaited };
        given_up.map(usage).max().unwrap_or(Usage::Unused)
    }
}

/// Whether a thread may sleep that has [armed](ClientTransport::arm) a client's transport, and what ends that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Armed {
    /// There is work: the thread is to poll again first.
    No,
    /// An event at the site tells that something may have arrived, for this transport or another.
    AtSite,
    /// All that arrives calls the waker: the thread need not look at this transport before.
    ByWaker,
}

impl Armed {
    /// The thread may sleep.
    pub fn may_sleep(self) -> bool {
        self != Armed::No
    }

    /// Of a transport that is idle or not, and calls its waker or does not.
    pub fn of(is_idle: bool, calls_waker: bool) -> Armed {
        match (is_idle, calls_waker) {
            (false, _) => Armed::No,
            (true, false) => Armed::AtSite,
            (true, true) => Armed::ByWaker,
        }
    }
}

/// What [`ClientTransport::post_parts`] does where nothing is to be gained: copies both parts into a slot, and posts it.
///
/// # Errors
/// Those of [`ClientTransport::reserve`].
pub fn post_copied_request(
    transport: &mut (impl ClientTransport + ?Sized),
    front: &[u8],
    body: &[u8],
    delivery: Delivery,
) -> Result<SlotId, ReserveError> {
    let (slot, bytes) = transport.reserve(front.len() + body.len())?;
    bytes[..front.len()].copy_from_slice(front);
    bytes[front.len()..].copy_from_slice(body);
    transport.post(slot, delivery);
    Ok(slot)
}

/// Most of a message: see [`ClientTransport::post_parts`] and [`Replies::post_parts`](super::Replies::post_parts).
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// Of the caller, until the message is posted.
    Borrowed(&'a [u8]),
    /// In memory that can be shared.
    Shared(&'a Bytes),
}

impl Deref for Body<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Body::Borrowed(bytes) => bytes,
            Body::Shared(bytes) => bytes,
        }
    }
}

/// How often the handler of a posted request may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// At most once, whatever the network loses or duplicates.
    AtMostOnce,
    /// [Any number of times](crate::service::Method::IDEMPOTENT): the backend need not remember the request or its reply.
    Idempotent,
}

impl Delivery {
    /// The delivery of a method's calls.
    #[inline]
    pub const fn of(idempotent: bool) -> Delivery {
        if idempotent { Delivery::Idempotent } else { Delivery::AtMostOnce }
    }
}

/// Why a client's connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// This end has no more calls: the server is told.
    Goodbye,
    /// The server is known to be gone, although the device has not noticed: the next poll reports the end of the
    /// connection.
    PeerGone,
}

/// Receives what arrived, from [`ClientTransport::poll`].
pub trait ReplySink {
    /// The reply to a posted request; its slot is free again. Comes at most once per post.
    fn reply(&mut self, slot: SlotId, message: Message<'_>);

    /// A posted request has failed alone; its slot is free again.
    fn failed(&mut self, slot: SlotId, why: TransportFailure);

    /// All posted requests in these slots have failed, and their slots are free again: what carried them has ended. The connection goes on.
    fn lane_lost(&mut self, slots: Range<u32>, why: TransportFailure);

    /// The connection is over: nothing more will arrive. All posted requests without a reply have failed for this reason.
    /// From now on `reserve` returns [`ReserveError::Closed`].
    fn closed(&mut self, why: TransportFailure);
}
