//! The connection of a process in a child that it forks: it stays the parent's.

use super::Connection;
use crate::error::{FailureKind, ReserveError, TransportFailure};
use crate::home::Home;
use crate::time::{Instant, Progress};
use crate::transport::{Armed, ClientTransport, Closing, Delivery, Limits, ReplySink, SlotId};
use core::task::Waker;

impl Connection {
    /// A forked child must not touch the transport: its memory is not there, and its sockets are its parent's too.
    #[inline]
    pub(super) fn check_home(&mut self) {
        if !self.home.is_here() {
            self.lose_to_parent();
        }
    }

    /// This is a forked child, and the connection is its parent's, where it goes on.
    #[cold]
    fn lose_to_parent(&mut self) {
        self.home = Home::here();
        let of_parent = core::mem::replace(&mut self.transport, Box::new(Forked));
        // To drop it would say goodbye to the server in the parent's name.
        core::mem::forget(of_parent);
        self.unposted = None;
        ReplySink::closed(&mut self.calls, TransportFailure::new(FailureKind::Forked, true));
    }
}

/// What a forked child has instead of its parent's connection.
struct Forked;

impl ClientTransport for Forked {
    fn limits(&self) -> Limits {
        Limits { window: 0, max_message: 0 }
    }

    fn reserve(&mut self, _: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        Err(ReserveError::Closed)
    }

    fn release(&mut self, _: SlotId) {}
    fn post(&mut self, _: SlotId, _: Delivery) {}
    fn flush(&mut self) {}
    fn abandon(&mut self, _: SlotId) {}

    fn poll(&mut self, _: Instant, _: &mut dyn ReplySink) -> Progress {
        Progress::IDLE
    }

    fn arm(&mut self, _: Option<&Waker>) -> Armed {
        Armed::No
    }

    fn close(&mut self, _: Closing) {}
}
