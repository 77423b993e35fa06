//! What queue pairs and peers leave behind, until it is freed.
//!
//! A queue pair's memory may be freed only after the poller of its completion queue has let go of it. Unmapping that memory and
//! closing its descriptors takes a fraction of a millisecond, and a poller has other queue pairs to serve. So it puts the remains
//! here, and the control thread frees them. The same holds for what a sender maps of its peers.

use std::sync::{Arc, Mutex};

use super::datagram::{Path, Route};
use super::pair::Pair;
use super::peer::lock;
use super::receive::Receiver;
use super::region::MappedRegion;

/// Most that waits for the control thread: all of it holds memory, and some holds descriptors. Beyond that, it is freed in place.
const MOST_WAITING: usize = 1024;

/// Something to be freed.
#[derive(Debug)]
#[allow(dead_code)] // Only held for its drop.
pub(super) enum Remains {
    /// What the poller of a completion queue had of a queue pair.
    QueuePair(Option<Box<Receiver>>, Option<Arc<Pair>>),
    /// A region that its owner has deregistered.
    Region(Arc<MappedRegion>),
    /// The way to a receiver of datagrams that is gone.
    Route(Route),
    /// The inbox of a sender of datagrams that is gone.
    Path(Arc<Path>),
}

/// The remains that wait for the control thread.
#[derive(Debug, Default)]
pub(super) struct Discarded {
    waiting: Mutex<Waiting>,
    /// Held by the control thread while it frees remains.
    freeing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    remains: Vec<Remains>,
    /// The control thread has ended.
    is_closed: bool,
}

impl Discarded {
    /// Keeps `remains` for the control thread. `false`: they were freed at once, as too many wait or it has ended.
    pub(super) fn add(&self, remains: Vec<Remains>) -> bool {
        let mut waiting = lock(&self.waiting);
        let is_kept = !waiting.is_closed && waiting.remains.len() + remains.len() <= MOST_WAITING;
        if is_kept {
            waiting.remains.extend(remains);
        }
        is_kept // What is not kept is dropped after the lock.
    }

    fn take(&self) -> Vec<Remains> {
        std::mem::take(&mut lock(&self.waiting).remains)
    }

    /// Frees what waits, on the control thread.
    pub(super) fn free(&self) {
        let _freeing = lock(&self.freeing);
        drop(self.take());
    }

    /// Frees what waits, on another thread. Then the control thread has freed what it had taken.
    pub(super) fn free_now(&self) {
        // Without the lock: the last queue pair ends the context, which waits for the control thread.
        drop(self.take());
        drop(lock(&self.freeing));
    }

    /// Frees what waits, and keeps nothing from now on: the control thread ends.
    pub(super) fn close(&self) {
        lock(&self.waiting).is_closed = true;
        self.free();
    }
}
