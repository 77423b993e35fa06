//! Where a thread sleeps, and how others wake it.
//!
//! Each peer's device in another process has its own eventfd, which it rings for all its queue pairs whose completions come
//! here. The channel is an edge-triggered epoll set over them, so nothing is ever read back. A hostile peer that drains
//! or fills its eventfd therefore disturbs no connection but its own. Within the process the channel is woken itself.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io;

use super::peer::lock;
use super::wire::Gid;
use crate::event_fd::{new_event, ring};

/// A set of event descriptors to sleep on.
#[derive(Debug)]
pub(crate) struct Channel {
    epoll: OwnedFd,
    wake: OwnedFd,
    /// Those of peers' devices.
    of_peers: Mutex<HashMap<Gid, Weak<PeersEvent>>>,
}

/// What one peer's device rings.
#[derive(Debug)]
pub(super) struct PeersEvent {
    event: OwnedFd,
    /// Names it to the peer, which keeps one descriptor of it. Not 0.
    pub(super) number: u64,
    channel: Arc<Channel>,
}

impl PeersEvent {
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.event
    }
}

impl Drop for PeersEvent {
    fn drop(&mut self) {
        self.channel.remove(self.event.as_fd());
    }
}

/// The number of the next event.
static NEXT_EVENT: AtomicU64 = AtomicU64::new(1);

/// The most events taken by one wait; others stay for the next.
const EVENTS_PER_WAIT: usize = 32;

impl Channel {
    pub(crate) fn new() -> io::Result<Channel> {
        let channel = Channel {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wake: new_event()?,
            of_peers: Mutex::default(),
        };
        channel.add(channel.wake.as_fd())?;
        Ok(channel)
    }

    /// Makes `event` wake waiting threads. Call [`remove`](Channel::remove) before closing it: the peer also
    /// holds the descriptor, so closing it here would leave it in the set.
    pub(crate) fn add(&self, event: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, event, epoll::EventData::new_u64(0), flags)
    }

    /// The event of this peer's device, which all its queue pairs share.
    pub(super) fn event_of(self: &Arc<Self>, peer: Gid) -> io::Result<Arc<PeersEvent>> {
        let mut of_peers = lock(&self.of_peers);
        if let Some(event) = of_peers.get(&peer).and_then(Weak::upgrade) {
            return Ok(event);
        }
        let event = new_event()?;
        self.add(event.as_fd())?;
        let number = NEXT_EVENT.fetch_add(1, Ordering::Relaxed);
        let event = Arc::new(PeersEvent { event, number, channel: Arc::clone(self) });
        of_peers.retain(|_, event| event.strong_count() > 0);
        of_peers.insert(peer, Arc::downgrade(&event));
        Ok(event)
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
    fn a_peers_device_has_one_event_for_all_its_queue_pairs() {
        let channel = Arc::new(Channel::new().unwrap());
        let (first, again) =
            (channel.event_of([1; 16]).unwrap(), channel.event_of([1; 16]).unwrap());
        assert!(Arc::ptr_eq(&first, &again));
        let other = channel.event_of([2; 16]).unwrap();
        assert!(other.number != first.number && first.number != 0);
        ring(again.descriptor().as_fd());
        assert!(channel.wait(Duration::ZERO).unwrap());
        let at_the_peer = first.descriptor().try_clone().unwrap();
        drop((first, again));
        ring(at_the_peer.as_fd());
        assert!(!channel.wait(Duration::ZERO).unwrap(), "it is removed with the last queue pair");
        ring(other.descriptor().as_fd());
        assert!(channel.wait(Duration::ZERO).unwrap());
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
