//! A layer around a client's transport.

use super::{Body, ClientTransport, Closing, Delivery, Limits, ReplySink, SlotId};
use crate::error::ReserveError;
use crate::time::{Instant, Progress};

/// A layer around a client's transport. It overrides some methods; the transport does the rest.
pub trait ClientLayer: Send {
    /// The transport.
    fn inner(&self) -> &dyn ClientTransport;

    /// The transport, mutably.
    fn inner_mut(&mut self) -> &mut dyn ClientTransport;

    /// As [`ClientTransport::reserve`].
    #[inline]
    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        self.inner_mut().reserve(len)
    }

    /// As [`ClientTransport::post_parts`]. A layer that overrides `reserve` overrides this, too.
    #[inline]
    fn post_parts(
        &mut self,
        front: &[u8],
        body: Body<'_>,
        delivery: Delivery,
    ) -> Result<SlotId, ReserveError> {
        self.inner_mut().post_parts(front, body, delivery)
    }

    /// As [`ClientTransport::abandon`].
    fn abandon(&mut self, slot: SlotId) {
        self.inner_mut().abandon(slot);
    }

    /// As [`ClientTransport::poll`].
    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        self.inner_mut().poll(now, sink)
    }

    /// As [`ClientTransport::arm`].
    fn arm(&mut self) -> bool {
        self.inner_mut().arm()
    }
}

impl<L: ClientLayer> ClientTransport for L {
    fn limits(&self) -> Limits {
        self.inner().limits()
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        ClientLayer::reserve(self, len)
    }

    fn release(&mut self, slot: SlotId) {
        self.inner_mut().release(slot);
    }

    #[inline]
    fn post(&mut self, slot: SlotId, delivery: Delivery) {
        self.inner_mut().post(slot, delivery);
    }

    #[inline]
    fn post_parts(
        &mut self,
        front: &[u8],
        body: Body<'_>,
        delivery: Delivery,
    ) -> Result<SlotId, ReserveError> {
        ClientLayer::post_parts(self, front, body, delivery)
    }

    #[inline]
    fn flush(&mut self) {
        self.inner_mut().flush();
    }

    fn abandon(&mut self, slot: SlotId) {
        ClientLayer::abandon(self, slot);
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        ClientLayer::poll(self, now, sink)
    }

    fn arm(&mut self) -> bool {
        ClientLayer::arm(self)
    }

    fn disarm(&mut self) {
        self.inner_mut().disarm();
    }

    fn close(&mut self, why: Closing) {
        self.inner_mut().close(why);
    }
}
