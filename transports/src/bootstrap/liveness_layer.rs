//! A client's connection that ends when its tether breaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farcall_core::time::{Instant, Progress};
use farcall_core::transport::{ClientLayer, ClientTransport, ReplySink};

use super::Socket;
use super::tether::{OnBreak, Tether};

/// Any transport, and the tether of its connection.
struct Tethered {
    // First: the connection says goodbye before its tether breaks at the other end.
    inner: Box<dyn ClientTransport>,
    broken: Arc<AtomicBool>,
    /// The transport knows that the server is gone.
    told: bool,
    _tether: Box<dyn Send>,
}

/// Ties a connection to the socket of its handshake.
pub(super) fn tie(
    inner: Box<dyn ClientTransport>,
    socket: Box<dyn Socket>,
) -> std::io::Result<Box<dyn ClientTransport>> {
    tie_with(inner, |on_break| {
        let tether = Tether::hold(socket, on_break).map_err(|(error, _)| error)?;
        Ok(Box::new(tether) as Box<dyn Send>)
    })
}

/// Ties a connection to whatever calls what it is given when the server is gone, and lets go when dropped.
pub(crate) fn tie_with<E>(
    inner: Box<dyn ClientTransport>,
    hold: impl FnOnce(OnBreak) -> Result<Box<dyn Send>, E>,
) -> Result<Box<dyn ClientTransport>, E> {
    let broken = Arc::new(AtomicBool::new(false));
    let (flag, unparker) = (Arc::clone(&broken), inner.unparker());
    let on_break = move || {
        flag.store(true, Ordering::Release);
        unparker.unpark();
    };
    let tether = hold(Box::new(on_break))?;
    Ok(Box::new(Tethered { inner, broken, told: false, _tether: tether }))
}

impl Tethered {
    #[inline]
    fn has_news(&self) -> bool {
        self.broken.load(Ordering::Acquire) && !self.told
    }

    /// The server is gone, and all that it sent has been taken.
    #[cold]
    fn end(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        self.told = true;
        self.inner.peer_gone();
        self.inner.poll(now, sink)
    }
}

impl ClientLayer for Tethered {
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
        // Read before the poll: answers that came before the end are found by it.
        let news = self.has_news();
        let progress = self.inner.poll(now, sink);
        if news && progress.worked == 0 {
            return self.end(now, sink);
        }
        progress
    }

    fn park(&mut self, until: Option<Instant>) {
        if !self.has_news() {
            self.inner.park(until);
        }
    }
}
