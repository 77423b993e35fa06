//! Completion channels. In virtual time nobody sleeps: a wait tells at once whether there was an event,
//! and whoever drives the world asks again after a step. Waking one gives the actor that polls its queues a
//! turn.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

use super::world::{World, lock};

/// Whether something has happened.
#[derive(Debug)]
pub(crate) struct Channel {
    ready: AtomicBool,
    /// Made when somebody asks for it: a rack may have more channels than a process may have descriptors.
    event: OnceLock<OwnedFd>,
    /// For when there is none left: one that always says that there may have been something.
    stand_in: &'static OwnedFd,
    world: Weak<Mutex<World>>,
    node: u16,
    /// The actor that polls queues of this channel; no actor's number is so large.
    poller: AtomicU64,
}

/// No actor.
const NOBODY: u64 = u64::MAX;

impl Channel {
    pub(super) fn new(world: Weak<Mutex<World>>, node: u16) -> io::Result<Channel> {
        Ok(Channel {
            ready: AtomicBool::new(false),
            event: OnceLock::new(),
            stand_in: always_readable()?,
            world,
            node,
            poller: AtomicU64::new(NOBODY),
        })
    }

    /// Whether there was an event since the last time. It does not sleep, however long the timeout.
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

    /// Somebody wants it to wake. Not for the world itself, which wakes its actors without this.
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

    /// There is an event.
    pub(super) fn signal(&self) {
        if !self.ready.swap(true, Ordering::SeqCst)
            && let Some(event) = self.event.get()
        {
            show(event);
        }
    }

    /// An actor polls a queue of this channel.
    #[inline]
    pub(super) fn polled_by(&self, actor: u32) {
        self.poller.store(actor.into(), Ordering::Relaxed);
    }
}

/// It cannot fail in a way that matters: full means that it tells already.
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
