//! A layer around a server thread's transport.

use super::{Replies, RequestSink, ServerTransport, WindDown};
use crate::time::{Instant, Progress};

/// A layer around a server thread's transport. It polls in a way of its own; the transport does the rest.
pub trait ServerLayer: Send {
    /// The transport.
    fn inner(&self) -> &dyn ServerTransport;

    /// The transport, mutably.
    fn inner_mut(&mut self) -> &mut dyn ServerTransport;

    /// Polls the transport for [`ServerTransport::poll`].
    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress;
}

impl<L: ServerLayer> ServerTransport for L {
    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress {
        ServerLayer::poll(self, now, sink)
    }

    fn replies(&mut self) -> &mut dyn Replies {
        self.inner_mut().replies()
    }

    fn flush(&mut self) {
        self.inner_mut().flush();
    }

    fn arm(&mut self) -> bool {
        self.inner_mut().arm()
    }

    fn connections(&self) -> usize {
        self.inner().connections()
    }

    fn is_vacant(&self) -> bool {
        self.inner().is_vacant()
    }

    fn wind_down(&mut self, now: Instant, step: WindDown) -> bool {
        self.inner_mut().wind_down(now, step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ReserveError;
    use crate::transport::CallToken;

    /// Notes which of its methods were called, and answers unlike the defaults.
    #[derive(Default)]
    struct Recorder(Vec<&'static str>);

    impl Replies for Recorder {
        fn reserve(&mut self, _: &CallToken, _: usize) -> Result<&mut [u8], ReserveError> {
            Err(ReserveError::Closed)
        }

        fn post(&mut self, _: CallToken, _: usize) {}

        fn waiting_limit(&self) -> u64 {
            7
        }
    }

    impl ServerTransport for Recorder {
        fn poll(&mut self, _: Instant, _: &mut dyn RequestSink) -> Progress {
            Progress::IDLE
        }

        fn replies(&mut self) -> &mut dyn Replies {
            self
        }

        fn flush(&mut self) {
            self.0.push("flush");
        }

        fn arm(&mut self) -> bool {
            self.0.push("arm");
            true
        }

        fn connections(&self) -> usize {
            0
        }

        fn is_vacant(&self) -> bool {
            false
        }

        fn wind_down(&mut self, _: Instant, step: WindDown) -> bool {
            assert_eq!(step, WindDown::Close);
            self.0.push("wind_down");
            true
        }
    }

    struct Layer(Recorder);

    impl ServerLayer for Layer {
        fn inner(&self) -> &dyn ServerTransport {
            &self.0
        }

        fn inner_mut(&mut self) -> &mut dyn ServerTransport {
            &mut self.0
        }

        fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress {
            self.0.poll(now, sink)
        }
    }

    #[test]
    fn a_layer_passes_on_every_method_once() {
        let mut layer = Layer(Recorder::default());
        let transport: &mut dyn ServerTransport = &mut layer;
        assert_eq!(transport.replies().waiting_limit(), 7);
        transport.flush();
        assert!(transport.arm() && transport.wind_down(Instant::ZERO, WindDown::Close));
        assert!(transport.connections() == 0 && !transport.is_vacant());
        assert_eq!(layer.0.0.join(" "), "flush arm wind_down");
    }
}
