//! A client's connection that ends when its peer is gone, as the liveness socket tells.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farcall_core::site::Site;
use farcall_core::time::{Instant, Progress};
use farcall_core::transport::{ClientLayer, ClientTransport, Closing, ReplySink};

use super::liveness::OnPeerGone;

/// Any transport, and what watches its peer.
struct LivenessLayer {
    // First: the connection says goodbye before the peer sees the liveness socket close.
    inner: Box<dyn ClientTransport>,
    is_peer_gone: Arc<AtomicBool>,
    /// The transport was told.
    is_told: bool,
    _watch: Box<dyn Send>,
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
    let is_peer_gone = Arc::new(AtomicBool::new(false));
    let (flag, site) = (Arc::clone(&is_peer_gone), site.clone());
    let on_peer_gone = move || {
        flag.store(true, Ordering::Release);
        site.wake();
    };
    let watch = watch(Box::new(on_peer_gone))?;
    Ok(Box::new(LivenessLayer { inner, is_peer_gone, is_told: false, _watch: watch }))
}

impl LivenessLayer {
    #[inline]
    fn has_news(&self) -> bool {
        self.is_peer_gone.load(Ordering::Acquire) && !self.is_told
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

    fn arm(&mut self) -> bool {
        !self.has_news() && self.inner.arm()
    }
}
