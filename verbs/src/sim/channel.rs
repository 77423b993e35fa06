//! Completion channels. No thread sleeps in virtual time: a wait returns immediately and says whether there
//! was an event, and the driver of the simulation waits again after a step. Waking a channel gives the actor
//! that polls its queues a turn.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

use super::world::{World, lock};

/// The event state of a channel.
#[derive(Debug)]
pub(crate) struct Channel {
    ready: AtomicBool,
    /// Created on first use: a rack may have more channels than a process may have descriptors.
    event: OnceLock<OwnedFd>,
    /// The descriptor if no other is available: always readable, so it reports possible events.
    stand_in: &'static OwnedFd,
    world: Weak<Mutex<World>>,
    node: u16,
    /// The actor that polls queues of this channel, or [`NO_ACTOR`].
    poller: AtomicU64,
}

/// Larger than any actor's number.
const NO_ACTOR: u64 = u64::MAX;

impl Channel {
    pub(super) fn new(world: Weak<Mutex<World>>, node: u16) -> io::Result<Channel> {
        Ok(Channel {
            ready: AtomicBool::new(false),
            event: OnceLock::new(),
            stand_in: always_readable()?,
            world,
            node,
            poller: AtomicU64::new(NO_ACTOR),
        })
    }

    /// Returns whether there was an event since the last call. Does not sleep, whatever the timeout.
    pub(crate) fn wait(&self, _timeout: Duration) -> io::Result<bool> {
        let ready = self.ready.swap(false, Ordering::SeqCst);
        if ready && let Some(event) = self.event.get() {
            match io::read(event, &mut [0; 8]) {
                Ok(_) | Err(io::Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ready)
    }

    /// Wakes the poller. The simulation itself wakes its actors without this.
    pub(crate) fn wake(&self) {
        self.signal();
        if let Some(actor) = self.poller()
            && let Some(world) = self.world.upgrade()
        {
            lock(&world).wake(actor);
        }
    }

    /// Whether it belongs to a device of that node.
    pub(super) fn is_of(&self, world: &Weak<Mutex<World>>, node: u16) -> bool {
        self.world.ptr_eq(world) && self.node == node
    }

    /// The actor that polls queues of this channel, if any has.
    pub(super) fn poller(&self) -> Option<u32> {
        u32::try_from(self.poller.load(Ordering::Relaxed)).ok()
    }

    /// Signals an event.
    pub(super) fn signal(&self) {
        if !self.ready.swap(true, Ordering::SeqCst)
            && let Some(event) = self.event.get()
        {
            show(event);
        }
    }

    /// Records the actor that polls a queue of this channel.
    #[inline]
    pub(super) fn polled_by(&self, actor: u32) {
        self.poller.store(actor.into(), Ordering::Relaxed);
    }
}

/// Makes the descriptor readable. The only failure is a full counter, which means it is readable already.
fn show(event: &OwnedFd) {
    let _ = io::write(event, &1_u64.to_ne_bytes());
}

fn always_readable() -> io::Result<&'static OwnedFd> {
    static NULL: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(null) = NULL.get() {
        return Ok(null);
    }
    let null = File::open("/dev/null")
        .map_err(|error| io::Errno::from_io_error(&error).unwrap_or(io::Errno::IO))?;
    Ok(NULL.get_or_init(|| null.into()))
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        if let Some(event) = self.event.get() {
            return event.as_fd();
        }
        let Ok(event) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
            return self.stand_in.as_fd();
        };
        let event = self.event.get_or_init(|| event);
        if self.ready.load(Ordering::SeqCst) {
            show(event);
        }
        event.as_fd()
    }
}
