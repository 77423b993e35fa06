//! Completion channels. In virtual time nobody sleeps: a wait tells at once whether there was an event,
//! and whoever drives the world asks again after a step.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

/// Whether something has happened.
#[derive(Debug)]
pub(crate) struct Channel {
    ready: AtomicBool,
    /// Somebody looks at the descriptor: it has to tell the same.
    shown: AtomicBool,
    event: OwnedFd,
}

impl Channel {
    pub(super) fn new() -> io::Result<Channel> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Channel { ready: AtomicBool::new(false), shown: AtomicBool::new(false), event })
    }

    /// Whether there was an event since the last time. It does not sleep, however long the timeout.
    pub(crate) fn wait(&self, _timeout: Duration) -> io::Result<bool> {
        let ready = self.ready.swap(false, Ordering::SeqCst);
        if ready && self.shown.load(Ordering::SeqCst) {
            match io::read(&self.event, &mut [0; 8]) {
                Ok(_) | Err(io::Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ready)
    }

    pub(crate) fn wake(&self) {
        if !self.ready.swap(true, Ordering::SeqCst) && self.shown.load(Ordering::SeqCst) {
            self.show();
        }
    }

    /// It cannot fail in a way that matters: full means that it tells already.
    fn show(&self) {
        let _ = io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        if !self.shown.swap(true, Ordering::SeqCst) && self.ready.load(Ordering::SeqCst) {
            self.show();
        }
        self.event.as_fd()
    }
}
