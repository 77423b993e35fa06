//! A layer around what receives a server's requests.

use super::{CallToken, ClientEvent, ClientId, Message, Replies, RequestSink};

/// A layer around the sink of a server transport's requests. It handles requests, and may look at the clients' events; the sink does the
/// rest.
pub trait RequestLayer {
    /// The sink.
    fn inner(&self) -> &dyn RequestSink;

    /// The sink, mutably.
    fn inner_mut(&mut self) -> &mut dyn RequestSink;

    /// Takes a request for [`RequestSink::request`].
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies);

    /// Takes news of a client for [`RequestSink::client`], and passes them on if a layer does not override this.
    fn client(&mut self, client: ClientId, event: ClientEvent) {
        self.inner_mut().client(client, event);
    }
}

impl<L: RequestLayer> RequestSink for L {
    #[inline]
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        RequestLayer::request(self, call, message, replies);
    }

    fn have_waited(&mut self, nanos: u64) {
        self.inner_mut().have_waited(nanos);
    }

    #[inline]
    fn is_idempotent(&self, request: &[u8]) -> bool {
        self.inner().is_idempotent(request)
    }

    fn client(&mut self, client: ClientId, event: ClientEvent) {
        RequestLayer::client(self, client, event);
    }

    fn device_lost(&mut self) {
        self.inner_mut().device_lost();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ReserveError;

    /// Notes which of its methods were called, and answers unlike the defaults.
    #[derive(Default)]
    struct Recorder(Vec<&'static str>);

    impl RequestSink for Recorder {
        fn request(&mut self, _: CallToken, _: Message<'_>, _: &mut dyn Replies) {
            self.0.push("request");
        }

        fn have_waited(&mut self, nanos: u64) {
            assert_eq!(nanos, 7);
            self.0.push("have_waited");
        }

        fn is_idempotent(&self, request: &[u8]) -> bool {
            request == b"idempotent"
        }

        fn client(&mut self, client: ClientId, _: ClientEvent) {
            assert_eq!(client, CLIENT);
            self.0.push("client");
        }

        fn device_lost(&mut self) {
            self.0.push("device_lost");
        }
    }

    const CLIENT: ClientId = ClientId { number: 3, generation: 5 };

    struct Layer(Recorder);

    impl RequestLayer for Layer {
        fn inner(&self) -> &dyn RequestSink {
            &self.0
        }

        fn inner_mut(&mut self) -> &mut dyn RequestSink {
            &mut self.0
        }

        fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
            self.0.request(call, message, replies);
        }
    }

    struct NoReplies;

    impl Replies for NoReplies {
        fn reserve(&mut self, _: &CallToken, _: usize) -> Result<&mut [u8], ReserveError> {
            Err(ReserveError::Closed)
        }

        fn post(&mut self, _: CallToken, _: usize) {}

        fn waiting_limit(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_layer_passes_on_every_method_once() {
        let mut layer = Layer(Recorder::default());
        let sink: &mut dyn RequestSink = &mut layer;
        sink.request(CallToken::new(3, 5, 1, 2), Message::Borrowed(b"call"), &mut NoReplies);
        sink.have_waited(7);
        assert!(sink.is_idempotent(b"idempotent") && !sink.is_idempotent(b"once"));
        sink.client(CLIENT, ClientEvent::Left);
        sink.device_lost();
        assert_eq!(layer.0.0.join(" "), "request have_waited client device_lost");
    }
}
