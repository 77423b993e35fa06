//! The client's half of a backend.

use super::Message;
use crate::error::{ReserveError, TransportFailure};
use crate::time::{Instant, Progress};

/// One outstanding request of one connection.
///
/// The index is below [`Limits::window`] and is used again as soon as its request has ended; the generation then
/// differs, so that a late reply is recognised and dropped by the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId {
    /// Which slot of the window.
    pub index: u32,
    /// Which use of that slot.
    pub generation: u32,
}

/// What a connection can carry; fixed for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most requests outstanding at once; at least 1.
    pub window: u32,
    /// Longest message in bytes, core's header included.
    pub max_message: u64,
}

/// A client's connection to one server thread.
///
/// The life of a request: `reserve` a slot, fill its bytes, `post` it, `flush`, `poll` until the reply comes to the
/// sink. `reserve` is the only step that can fail. From `post` on the slot belongs to the transport until the reply,
/// a failure, or (after `abandon`) its completion; the caller holds only the [`SlotId`].
pub trait ClientTransport: Send {
    /// What this connection can carry.
    fn limits(&self) -> Limits;

    /// A slot with exactly `len` bytes to fill. Their content is arbitrary before.
    ///
    /// A large request may go another way, and later; the caller sees no difference. A slot may also be short because it is
    /// not this client's turn: [`Backpressure`](crate::error::Backpressure) says to poll and try again.
    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError>;

    /// Gives back a reserved slot that will not be posted.
    fn release(&mut self, slot: SlotId);

    /// Hands over a filled slot. Cannot fail: what goes wrong later comes to the sink. Leaves with the next `flush`.
    fn post(&mut self, slot: SlotId, delivery: Delivery);

    /// One doorbell for what was posted. Cheap when nothing was.
    fn flush(&mut self);

    /// Nobody wants this posted request's reply any more (cancelled, or its deadline passed). The slot stays owned by
    /// the transport until its completion; the server is told, best effort. The sink hears nothing more of it.
    fn abandon(&mut self, slot: SlotId);

    /// Does what can be done now, and hands what arrived to the sink.
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress;

    /// Gets ready for its thread to sleep: what comes from now on makes an event on the thread's [`Site`](crate::site::Site).
    /// `false`: there is work, poll again first.
    fn arm(&mut self) -> bool;

    /// Ends the connection. Dropping the transport says goodbye too.
    fn close(&mut self, why: Closing);
}

/// How often the handler of a posted request may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// At most once, whatever is lost and repeated.
    AtMostOnce,
    /// [As often as it takes](crate::service::Method::IDEMPOTENT): what a backend keeps so that others run at most once it
    /// need not keep for this.
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
    /// This end wants no more: the server is told.
    Goodbye,
    /// The server is known to be gone, though the device has not noticed: the next poll says that the connection is over.
    PeerGone,
}

/// Where [`ClientTransport::poll`] puts what arrived.
pub trait ReplySink {
    /// The reply to a posted request; its slot is free again. Comes at most once per post.
    fn reply(&mut self, slot: SlotId, message: Message<'_>);

    /// A posted request has failed alone; its slot is free again.
    fn failed(&mut self, slot: SlotId, why: TransportFailure);

    /// The connection is over: nothing more will come. Posted requests that neither had a reply nor failed have failed
    /// for the same reason. `reserve` answers [`ReserveError::Closed`] from now on.
    fn closed(&mut self, why: TransportFailure);
}
