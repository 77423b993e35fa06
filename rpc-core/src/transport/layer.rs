//! A client's transport around another one.

use std::sync::Arc;

use super::{ClientTransport, Limits, ReplySink, SlotId, Unpark};
use crate::error::ReserveError;
use crate::time::{Instant, Progress};

/// Stands around a transport, which does all that the layer does not do in another way.
pub trait ClientLayer: Send {
    /// The transport.
    fn inner(&self) -> &dyn ClientTransport;

    /// The same, to be changed.
    fn inner_mut(&mut self) -> &mut dyn ClientTransport;

    /// As [`ClientTransport::reserve`].
    #[inline]
    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        self.inner_mut().reserve(len)
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

    /// As [`ClientTransport::park`].
    fn park(&mut self, until: Option<Instant>) {
        self.inner_mut().park(until);
    }
}

impl<L: ClientLayer> ClientTransport for L {
    #[inline]
    fn now(&self) -> Instant {
        self.inner().now()
    }

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
    fn post(&mut self, slot: SlotId, now: Instant) {
        self.inner_mut().post(slot, now);
    }

    #[inline]
    fn post_idempotent(&mut self, slot: SlotId, now: Instant) {
        self.inner_mut().post_idempotent(slot, now);
    }

    #[inline]
    fn flush(&mut self, now: Instant) {
        self.inner_mut().flush(now);
    }

    fn abandon(&mut self, slot: SlotId) {
        ClientLayer::abandon(self, slot);
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        ClientLayer::poll(self, now, sink)
    }

    fn park(&mut self, until: Option<Instant>) {
        ClientLayer::park(self, until);
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.inner().unparker()
    }

    fn close(&mut self) {
        self.inner_mut().close();
    }

    fn peer_gone(&mut self) {
        self.inner_mut().peer_gone();
    }
}
