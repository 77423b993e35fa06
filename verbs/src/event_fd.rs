//! Event descriptors with which one thread wakes another.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

pub(crate) fn new_event() -> io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Signals the event. The only failure is a full counter, which means it is signaled already.
#[cold]
pub(crate) fn ring(event: BorrowedFd<'_>) {
    let _ = io::retry_on_intr(|| io::write(event, &1u64.to_ne_bytes()));
}
