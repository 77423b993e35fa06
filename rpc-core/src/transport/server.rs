//! The server's half of a backend: all connections of one server thread.

use super::{Body, ClientEvent, ClientId, Message};
use crate::error::ReserveError;
use crate::time::{Instant, Progress};

/// The right to answer one request.
///
/// It is not `Copy`: each request is answered once. The transport chooses indices and generations. Indices of clients and of slots are
/// small, because core keeps tables by them; generations are only compared.
///
/// It is passed in two registers. Through memory it would be stored in parts and loaded whole. Such a load waits until all
/// earlier stores have left the core, including those to cache lines that the peer's core holds.
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
    /// The token of a request.
    #[inline]
    pub const fn new(client: u32, client_generation: u32, slot: u32, generation: u32) -> Self {
        CallToken { client: join(client, client_generation), slot: join(slot, generation) }
    }

    /// The index of the client.
    #[inline]
    pub const fn client(&self) -> u32 {
        self.client as u32
    }

    /// Which connection with that index.
    #[inline]
    pub const fn client_generation(&self) -> u32 {
        (self.client >> 32) as u32
    }

    /// The index of the client's slot.
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

/// The connections of one server thread at one address. The acceptor adds new ones. A client that dies or misbehaves is
/// dropped, without effect on the others.
pub trait ServerTransport: Send {
    /// Does what can be done now, and gives the sink what arrived. A poll is bounded: if there is more, it returns
    /// [`PollAt::Now`](crate::time::PollAt::Now). A poll that has given the sink a request has worked.
    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress;

    /// Where answers go that are made outside of `poll`, by handlers that take longer.
    fn replies(&mut self) -> &mut dyn Replies;

    /// Sends the turn's replies, with one doorbell. Cheap if there are none.
    fn flush(&mut self);

    /// Prepares for the thread to sleep: from now on, a request or a new connection makes an event at the thread's
    /// [`Site`](crate::site::Site). `false`: there is work, poll again first.
    fn arm(&mut self) -> bool;

    /// The number of open connections.
    fn connections(&self) -> usize;

    /// Nothing comes but new clients: a thread with several transports polls this one seldom, and arms it before it sleeps.
    fn is_vacant(&self) -> bool {
        self.connections() == 0
    }

    /// Works on one step of a shutdown. Returns whether the step is done; if not, it is called again, within a bound. After
    /// [`WindDown::Close`] is done, the transport is dropped. Dropping it earlier says goodbye too.
    fn wind_down(&mut self, now: Instant, step: WindDown) -> bool;
}

/// The steps in which a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindDown {
    /// Done when no posted answer waits for its client to fetch it. The driver polls in between and calls are still answered,
    /// so a step that was done may have more to do.
    Drain,
    /// Says goodbye to all clients, after everything that was flushed. Done when it has left: what is still here when the
    /// transport is dropped may be lost. The driver does not poll any more; requests that arrive now are not handled.
    Close,
}

/// Receives what arrived, from [`ServerTransport::poll`].
pub trait RequestSink {
    /// A request. It must be answered once: now through `replies`, or later through [`ServerTransport::replies`].
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies);

    /// The requests that come next have waited at their client, for so many nanoseconds as far as the transport knows; 0 ends that. A
    /// server that cannot serve all runs those first that will still be answered in time.
    fn have_waited(&mut self, _nanos: u64) {}

    /// Whether the server declares the method of this request idempotent. A client may say so too; a call runs more than once
    /// only if both do.
    fn is_idempotent(&self, request: &[u8]) -> bool;

    /// News of a client. A sink that has no use for it does nothing.
    fn client(&mut self, _client: ClientId, _event: ClientEvent) {}

    /// The transport's device is lost. The transport has told of the end of each client, and has no use any more: if it can be, it is
    /// [made once more](super::Renewal) when the device is back.
    fn device_lost(&mut self) {}
}

/// Where answers go.
pub trait Replies {
    /// Reserves exactly `len` bytes to fill with the answer. Their content is arbitrary at first.
    ///
    /// May be called again for the same call before `post`, for example to send an error instead: the last one counts. No
    /// other call's `reserve` comes between. An answer that fits the slot (at least [`MIN_REPLY_BYTES`]) always has room.
    ///
    /// # Errors
    /// [`ReserveError::Closed`]: the client is gone, and the answer can be dropped. After any other error the call is still
    /// unanswered.
    fn reserve(&mut self, call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError>;

    /// Hands over the filled bytes of this call's last `reserve`. They leave with the next flush.
    fn post(&mut self, call: CallToken, len: usize);

    /// Reserves and posts an answer that consists of the bytes of `front` and then those of `body`, and takes the `call`. A
    /// transport may send a long body from where it is, and keep a shared one until it has left.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve); then nothing was posted, and the call is not taken.
    fn post_parts(
        &mut self,
        call: &mut Option<CallToken>,
        front: &[u8],
        body: Body<'_>,
    ) -> Result<(), ReserveError> {
        post_copied_reply(self, call, front, &body)
    }

    /// Bounds the answers that wait elsewhere, after `reserve` had no memory for them: the bytes that large messages may hold
    /// here. Three quarters of that may wait for one client, and four times that for all.
    fn waiting_limit(&self) -> u64;
}

/// What [`Replies::post_parts`] does where nothing is to be gained: copies both parts into the memory of an answer, and posts it.
///
/// # Errors
/// Those of [`Replies::reserve`].
pub fn post_copied_reply(
    replies: &mut (impl Replies + ?Sized),
    call: &mut Option<CallToken>,
    front: &[u8],
    body: &[u8],
) -> Result<(), ReserveError> {
    let len = front.len() + body.len();
    if let Some(call) = call {
        let bytes = replies.reserve(call, len)?;
        bytes[..front.len()].copy_from_slice(front);
        bytes[front.len()..].copy_from_slice(body);
    }
    if let Some(call) = call.take() {
        replies.post(call, len);
    }
    Ok(())
}

/// Every transport has room for a reply of this length to each request, at all times: errors can always be sent.
pub const MIN_REPLY_BYTES: usize = 32;
