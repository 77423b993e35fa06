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

use super::calls::Calls;
use super::completion_queue::CqShared;
use super::peer::lock;
use super::wire::Gid;
use crate::event_fd::{new_event, ring};

/// A set of event descriptors to sleep on.
#[derive(Debug)]
pub(crate) struct Channel {
    epoll: OwnedFd,
    wake: OwnedFd,
    /// The events of peers' devices, a set in that set: who does not sleep finds out at once which of them have rung.
    peers: OwnedFd,
    of_peers: Mutex<PeersEvents>,
}

/// Those of peers' devices, by device and by number.
#[derive(Debug, Default)]
struct PeersEvents {
    by_device: HashMap<Gid, Weak<PeersEvent>>,
    by_number: HashMap<u64, Weak<PeersEvent>, foldhash::fast::RandomState>,
}

/// What one peer's device rings.
#[derive(Debug)]
pub(super) struct PeersEvent {
    event: OwnedFd,
    /// Names it to the peer, which keeps one descriptor of it. Not 0.
    pub(super) number: u64,
    /// For which queue pairs it has rung.
    pub(super) calls: Calls,
    channel: Arc<Channel>,
}

impl PeersEvent {
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.event
    }
}

impl Drop for PeersEvent {
    fn drop(&mut self) {
        // The peer also holds the descriptor, so closing it here would leave it in the set.
        let removed = epoll::delete(&self.channel.peers, self.event.as_fd());
        debug_assert!(removed.is_ok());
    }
}

/// Where a peer rings for a queue pair, or a sender of datagrams.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) event: Arc<PeersEvent>,
    /// Where it says for which.
    pub(super) index: Option<u32>,
}

impl Caller {
    /// This peer, which rings for what has this id at the completion queue. `None` if the owner of the queue never sleeps.
    pub(super) fn of(peer: Gid, cq: &Arc<CqShared>, id: u64) -> io::Result<Option<Caller>> {
        let Some(channel) = cq.channel() else { return Ok(None) };
        let event = channel.event_of(peer)?;
        let index = event.calls.enter(cq, id);
        Ok(Some(Caller { event, index }))
    }

    /// It says for which.
    pub(super) fn calls(&self) -> bool {
        self.index.is_some()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            self.event.calls.leave(index);
        }
    }
}

/// The number of the next event.
static NEXT_EVENT: AtomicU64 = AtomicU64::new(1);

/// What has happened in the set of a channel.
const WAKE: u64 = 0;
const PEERS: u64 = 1;

/// The most events taken by one wait; others stay for the next.
const EVENTS_PER_WAIT: usize = 32;

const NO_EVENT: epoll::Event =
    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };

/// Events happen once, and are never read.
const ONCE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);

impl Channel {
    pub(crate) fn new() -> io::Result<Channel> {
        let set = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let channel = Channel {
            epoll: set()?,
            wake: new_event()?,
            peers: set()?,
            of_peers: Mutex::default(),
        };
        for (event, number) in [(&channel.wake, WAKE), (&channel.peers, PEERS)] {
            epoll::add(&channel.epoll, event, epoll::EventData::new_u64(number), ONCE)?;
        }
        Ok(channel)
    }

    /// The event of this peer's device, which all its queue pairs share.
    pub(super) fn event_of(self: &Arc<Self>, peer: Gid) -> io::Result<Arc<PeersEvent>> {
        let mut of_peers = lock(&self.of_peers);
        let PeersEvents { by_device, by_number } = &mut *of_peers;
        if let Some(event) = by_device.get(&peer).and_then(Weak::upgrade) {
            return Ok(event);
        }
        let (event, calls) = (new_event()?, Calls::new()?);
        let number = NEXT_EVENT.fetch_add(1, Ordering::Relaxed);
        epoll::add(&self.peers, &event, epoll::EventData::new_u64(number), ONCE)?;
        let event = Arc::new(PeersEvent { event, number, calls, channel: Arc::clone(self) });
        by_device.retain(|_, event| event.strong_count() > 0);
        by_device.insert(peer, Arc::downgrade(&event));
        by_number.retain(|_, event| event.strong_count() > 0);
        by_number.insert(number, Arc::downgrade(&event));
        Ok(event)
    }

    /// Passes the calls of peers that have rung on to the completion queues of the queue pairs that they called for. `own` is the caller's,
    /// if it polls one. Returns whether any has rung.
    pub(super) fn pass_on_calls(&self, own: Option<&Arc<CqShared>>) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut any = false;
        // Each event that has happened by now is taken in this time. One that happens again makes the channel readable again.
        let rounds = lock(&self.of_peers).by_number.len() / EVENTS_PER_WAIT + 1;
        for _ in 0..rounds {
            let mut events = [NO_EVENT; EVENTS_PER_WAIT];
            let count = epoll::wait(&self.peers, &mut events, Some(&now)).unwrap_or(0);
            any |= count > 0;
            for event in &events[..count] {
                let number = event.data.u64();
                let rung = lock(&self.of_peers).by_number.get(&number).and_then(Weak::upgrade);
                if let Some(rung) = rung {
                    rung.calls.pass_on(own);
                }
            }
            if count < EVENTS_PER_WAIT {
                break;
            }
        }
        any
    }

    /// Waits up to `timeout`, and passes calls on. Returns whether an event happened.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(timeout)
            .unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 });
        let mut events = [NO_EVENT; 2];
        match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok(count) => {
                if events[..count].iter().any(|event| event.data.u64() == PEERS) {
                    self.pass_on_calls(None);
                }
                Ok(count > 0)
            }
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
    use crate::shm::calls::PeersCalls;
    use crate::shm::completion_queue::CompletionQueue;

    #[test]
    fn every_ring_is_an_event_although_the_eventfd_is_never_read() {
        let channel = Arc::new(Channel::new().unwrap());
        let event = channel.event_of([1; 16]).unwrap();
        assert!(!channel.wait(Duration::ZERO).unwrap());
        for _ in 0..3 {
            ring(event.descriptor().as_fd());
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

    /// A thread that looks for calls takes the events, and one that sleeps still wakes up by the next.
    #[test]
    fn calls_of_many_peers_are_passed_on_by_one_look_and_the_next_ring_is_an_event() {
        let channel = Arc::new(Channel::new().unwrap());
        let mut queue = CompletionQueue::new(16, Some(Arc::clone(&channel)), false);
        let own = Arc::clone(queue.shared());
        let peers: Vec<_> = (0..100)
            .map(|number| {
                let event = channel.event_of([number; 16]).unwrap();
                let index = event.calls.enter(&own, number.into()).unwrap();
                let theirs = PeersCalls::map(event.calls.file().as_fd()).unwrap();
                (event, theirs, index)
            })
            .collect();
        for _ in 0..3 {
            assert!(!channel.pass_on_calls(Some(&own)));
            for (event, theirs, index) in &peers {
                theirs.call(*index);
                ring(event.descriptor().as_fd());
            }
            assert!(channel.pass_on_calls(Some(&own)));
            let mut called = queue.take_called();
            called.sort_unstable();
            assert_eq!(called, Vec::from_iter(0..100));
            // The set may still say that there was something.
            let _ = channel.wait(Duration::ZERO).unwrap();
            assert!(!channel.wait(Duration::ZERO).unwrap());
            let (event, theirs, index) = &peers[7];
            theirs.call(*index);
            ring(event.descriptor().as_fd());
            assert!(channel.wait(Duration::from_secs(10)).unwrap());
            assert_eq!(queue.take_called(), [7], "who sleeps passes calls on, too");
        }
    }
}
