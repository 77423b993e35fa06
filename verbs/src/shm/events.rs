//! Where a thread sleeps, and how others wake it.
//!
//! Each inbox has its own eventfd, which its one peer may write. The channel is an edge-triggered epoll set
//! over them, so nothing is ever read back. A hostile peer that drains or fills its eventfd therefore
//! disturbs no other connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io;

use crate::event_fd::{new_event, ring};

/// A set of event descriptors to sleep on.
#[derive(Debug)]
pub(crate) struct Channel {
    epoll: OwnedFd,
    wake: OwnedFd,
}

/// The most events taken by one wait; others stay for the next.
const EVENTS_PER_WAIT: usize = 32;

impl Channel {
    pub(crate) fn new() -> io::Result<Channel> {
        let channel =
            Channel { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, wake: new_event()? };
        channel.add(channel.wake.as_fd())?;
        Ok(channel)
    }

    /// Makes `event` wake waiting threads. Call [`remove`](Channel::remove) before closing it: the peer also
    /// holds the descriptor, so closing it here would leave it in the set.
    pub(crate) fn add(&self, event: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, event, epoll::EventData::new_u64(0), flags)
    }

    pub(crate) fn remove(&self, event: BorrowedFd<'_>) {
        let removed = epoll::delete(&self.epoll, event);
        debug_assert!(removed.is_ok());
    }

    /// Waits up to `timeout`. Returns whether an event happened.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(timeout)
            .unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 });
        let empty =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; EVENTS_PER_WAIT];
        match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            Err(io::Errno::INTR) => Ok(true), // A signal: let the caller check its state.
            Err(error) => Err(error),
        }
    }

    pub(crate) fn wake(&self) {
        ring(self.wake.as_fd());
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ring_is_an_event_although_the_eventfd_is_never_read() {
        let channel = Channel::new().unwrap();
        let event = new_event().unwrap();
        channel.add(event.as_fd()).unwrap();
        assert!(!channel.wait(Duration::ZERO).unwrap());
        for _ in 0..3 {
            ring(event.as_fd());
            assert!(channel.wait(Duration::ZERO).unwrap());
            assert!(!channel.wait(Duration::ZERO).unwrap());
        }
    }

    #[test]
    fn a_wake_before_the_wait_is_not_lost() {
        let channel = Channel::new().unwrap();
        channel.wake();
        assert!(channel.wait(Duration::from_secs(10)).unwrap());
    }

    #[test]
    fn a_removed_event_is_silent_although_the_peer_still_holds_it() {
        let channel = Channel::new().unwrap();
        let event = new_event().unwrap();
        let at_the_peer = event.try_clone().unwrap();
        channel.add(event.as_fd()).unwrap();
        channel.remove(event.as_fd());
        drop(event);
        ring(at_the_peer.as_fd());
        assert!(!channel.wait(Duration::ZERO).unwrap());
    }
}
