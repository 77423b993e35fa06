//! A layer around a client's transport.

use super::{Armed, Body, ClientTransport, Closing, Delivery, Limits, ReplySink, SlotId, Usage};
use crate::error::ReserveError;
use crate::time::{Instant, Progress};
use core::task::Waker;

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

    /// As [`ClientTransport::arm`]. A layer with events of its own calls the waker, too.
    fn arm(&mut self, waker: Option<&Waker>) -> Armed {
        self.inner_mut().arm(waker)
    }
}

impl<L: ClientLayer> ClientTransport for L {
    fn limits(&self) -> Limits {
        self.inner().limits()
    }

    fn slots(&self) -> u32 {
        self.inner().slots()
    }

    fn usage(&self) -> Usage {
        self.inner().usage()
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

    fn arm(&mut self, waker: Option<&Waker>) -> Armed {
        ClientLayer::arm(self, waker)
    }

    fn disarm(&mut self) {
        self.inner_mut().disarm();
    }

    fn close(&mut self, why: Closing) {
        self.inner_mut().close(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::TransportFailure;
    use crate::time::PollAt;
    use crate::transport::Message;

    /// Notes which of its methods were called, and answers unlike the defaults.
    #[derive(Default)]
    struct Recorder {
        called: Vec<&'static str>,
        bytes: [u8; 4],
    }

    const SLOT: SlotId = SlotId { index: 3, generation: 7 };

    impl ClientTransport for Recorder {
        fn limits(&self) -> Limits {
            Limits { window: 5, max_message: 77 }
        }

        fn slots(&self) -> u32 {
            10
        }

        fn usage(&self) -> Usage {
            Usage::GivenUp
        }

        fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
            self.called.push("reserve");
            Ok((SLOT, &mut self.bytes[..len]))
        }

        fn release(&mut self, _: SlotId) {
            self.called.push("release");
        }

        fn post(&mut self, _: SlotId, _: Delivery) {
            self.called.push("post");
        }

        fn post_parts(
            &mut self,
            _: &[u8],
            _: Body<'_>,
            _: Delivery,
        ) -> Result<SlotId, ReserveError> {
            self.called.push("post_parts");
            Ok(SLOT)
        }

        fn flush(&mut self) {
            self.called.push("flush");
        }

        fn abandon(&mut self, _: SlotId) {
            self.called.push("abandon");
        }

        fn poll(&mut self, _: Instant, _: &mut dyn ReplySink) -> Progress {
            self.called.push("poll");
            Progress { worked: 9, next: PollAt::Now, ..Progress::IDLE }
        }

        fn arm(&mut self, waker: Option<&Waker>) -> Armed {
            self.called.push("arm");
            Armed::of(true, waker.is_some())
        }

        fn disarm(&mut self) {
            self.called.push("disarm");
        }

        fn close(&mut self, _: Closing) {
            self.called.push("close");
        }
    }

    struct Layer(Recorder);

    impl ClientLayer for Layer {
        fn inner(&self) -> &dyn ClientTransport {
            &self.0
        }

        fn inner_mut(&mut self) -> &mut dyn ClientTransport {
            &mut self.0
        }
    }

    struct NoSink;

    impl ReplySink for NoSink {
        fn reply(&mut self, _: SlotId, _: Message<'_>) {}
        fn failed(&mut self, _: SlotId, _: TransportFailure) {}
        fn lane_lost(&mut self, _: core::ops::Range<u32>, _: TransportFailure) {
            panic!("it has one lane");
        }

        fn closed(&mut self, _: TransportFailure) {}
    }

    #[test]
    fn a_layer_that_overrides_nothing_passes_on_every_method_once() {
        let mut layer = Layer(Recorder::default());
        let transport: &mut dyn ClientTransport = &mut layer;
        assert_eq!(transport.limits(), Limits { window: 5, max_message: 77 });
        assert_eq!((transport.slots(), transport.usage()), (10, Usage::GivenUp));
        assert_eq!(transport.reserve(4).map(|(slot, bytes)| (slot, bytes.len())), Ok((SLOT, 4)));
        transport.release(SLOT);
        transport.post(SLOT, Delivery::Idempotent);
        let posted = transport.post_parts(b"front", Body::Borrowed(b"body"), Delivery::AtMostOnce);
        assert_eq!(posted, Ok(SLOT));
        transport.flush();
        transport.abandon(SLOT);
        assert_eq!(transport.poll(Instant::FAR_FUTURE, &mut NoSink).worked, 9);
        assert_eq!(transport.arm(Some(Waker::noop())), Armed::ByWaker);
        transport.disarm();
        transport.close(Closing::Goodbye);
        let all = "reserve release post post_parts flush abandon poll arm disarm close";
        assert_eq!(layer.0.called.join(" "), all);
    }
}
