//! A client's connection that ends when its peer is gone, as the liveness socket tells.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use farcall_core::site::Site;
use farcall_core::time::{Instant, Progress};
use farcall_core::transport::{Armed, ClientLayer, ClientTransport, Closing, ReplySink};

use super::liveness::OnPeerGone;

/// Any transport, and what watches its peer.
struct LivenessLayer {
    // First: the connection says goodbye before the peer sees the liveness socket close.
    inner: Box<dyn ClientTransport>,
    peer: Arc<Peer>,
    /// The transport was told.
    is_told: bool,
    _watch: Box<dyn Send>,
}

/// What the one who watches the peer shares with the connection.
#[derive(Default)]
struct Peer {
    is_gone: AtomicBool,
    /// Called when it is, once there is one.
    waker: OnceLock<Waker>,
}

impl Peer {
    fn end(&self) {
        self.is_gone.store(true, Ordering::Release);
        // Either this sees the waker, or the connection sees that the peer is gone when it arms.
        fence(Ordering::SeqCst);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }
}

/// Ends the connection when the peer is gone: `watch` gets what to call then, and gives what is dropped with the
/// connection.
///
/// # Errors
/// Those of `watch`.
pub fn end_with_peer<E>(
    inner: Box<dyn ClientTransport>,
    site: &Site,
    watch: impl FnOnce(OnPeerGone) -> Result<Box<dyn Send>, E>,
) -> Result<Box<dyn ClientTransport>, E> {
    let peer = Arc::new(Peer::default());
    let (watched, site) = (Arc::clone(&peer), site.clone());
    let on_peer_gone = move || {
        watched.end();
        site.wake();
    };
    let watch = watch(Box::new(on_peer_gone))?;
    Ok(Box::new(LivenessLayer { inner, peer, is_told: false, _watch: watch }))
}

impl LivenessLayer {
    #[inline]
    fn has_news(&self) -> bool {
        self.peer.is_gone.load(Ordering::Acquire) && !self.is_told
    }

    /// The server is gone, and everything that it sent has been taken.
    #[cold]
    fn end(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        self.is_told = true;
        self.inner.close(Closing::PeerGone);
        self.inner.poll(now, sink)
    }
}

impl ClientLayer for LivenessLayer {
    #[inline]
    fn inner(&self) -> &dyn ClientTransport {
        &*self.inner
    }

    #[inline]
    fn inner_mut(&mut self) -> &mut dyn ClientTransport {
        &mut *self.inner
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        // Read before the poll, so that the poll finds the answers that came before the end.
        let news = self.has_news();
        let progress = self.inner.poll(now, sink);
        if news && progress.worked == 0 {
            return self.end(now, sink);
        }
        progress
    }

    fn arm(&mut self, waker: Option<&Waker>) -> Armed {
        if let Some(waker) = waker {
            self.peer.waker.get_or_init(|| waker.clone());
        }
        // After the waker was stored: see `Peer::end`.
        fence(Ordering::SeqCst);
        match self.has_news() {
            true => Armed::No,
            false => self.inner.arm(waker),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    use farcall_core::error::{FailureKind, ReserveError, TransportFailure};
    use farcall_core::transport::{Delivery, Limits, Message, SlotId};

    use super::*;

    /// A transport on which nothing arrives.
    struct Silent {
        calls_wakers: bool,
        end: Option<TransportFailure>,
    }

    impl ClientTransport for Silent {
        fn limits(&self) -> Limits {
            Limits { window: 1, max_message: 1 }
        }

        fn reserve(&mut self, _: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
            Err(ReserveError::Closed)
        }

        fn release(&mut self, _: SlotId) {}
        fn post(&mut self, _: SlotId, _: Delivery) {}
        fn flush(&mut self) {}
        fn abandon(&mut self, _: SlotId) {}

        fn poll(&mut self, _: Instant, sink: &mut dyn ReplySink) -> Progress {
            if let Some(why) = self.end.take() {
                sink.closed(why);
            }
            Progress::IDLE
        }

        fn arm(&mut self, waker: Option<&Waker>) -> Armed {
            Armed::of(true, self.calls_wakers && waker.is_some())
        }

        fn close(&mut self, _: Closing) {
            self.end = Some(TransportFailure::new(FailureKind::PeerGone, true));
        }
    }

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[derive(Default)]
    struct Ends(u32);

    impl ReplySink for Ends {
        fn reply(&mut self, _: SlotId, _: Message<'_>) {}
        fn failed(&mut self, _: SlotId, _: TransportFailure) {}

        fn lane_lost(&mut self, _: core::ops::Range<u32>, _: TransportFailure) {
            panic!("it has one lane");
        }

        fn closed(&mut self, _: TransportFailure) {
            self.0 += 1;
        }
    }

    /// A connection, and what to call when its peer is gone.
    fn connection(calls_wakers: bool) -> (Box<dyn ClientTransport>, OnPeerGone) {
        let mut tell = None;
        let inner = Box::new(Silent { calls_wakers, end: None });
        let client = end_with_peer(inner, &Site::new(), |on_peer_gone| {
            tell = Some(on_peer_gone);
            Ok::<_, Infallible>(Box::new(()))
        });
        (client.unwrap_or_else(|never| match never {}), tell.expect("it was given"))
    }

    #[test]
    fn the_end_of_the_peer_calls_the_waker_of_a_connection_that_sleeps() {
        let (mut client, on_peer_gone) = connection(true);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        assert_eq!(client.arm(Some(&waker)), Armed::ByWaker);
        assert_eq!(woken.0.load(Ordering::SeqCst), 0);
        on_peer_gone();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        let mut ends = Ends::default();
        client.poll(Instant::from_nanos(0), &mut ends);
        assert_eq!(ends.0, 1);
        assert!(client.arm(None).may_sleep(), "it was told");
    }

    #[test]
    fn a_connection_whose_peer_went_before_it_slept_does_not_sleep() {
        let (mut client, on_peer_gone) = connection(true);
        on_peer_gone();
        assert_eq!(client.arm(Some(Waker::noop())), Armed::No);
    }

    #[test]
    fn the_waker_is_called_for_everything_only_if_the_transport_calls_it() {
        assert_eq!(connection(false).0.arm(Some(Waker::noop())), Armed::AtSite);
        assert_eq!(connection(true).0.arm(Some(Waker::noop())), Armed::ByWaker);
        assert_eq!(connection(true).0.arm(None), Armed::AtSite);
    }
}
