//! What others share with the poller of a completion queue, and set for it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;

use crossbeam_utils::CachePadded;

use crate::memory::growing_queue::GrowingQueue;
use crate::shm::context::Context;
use crate::shm::datagram::{DatagramReceiver, Path};
use crate::shm::events::Channel;
use crate::shm::pair::Pair;
use crate::shm::peer::lock;
use crate::shm::receive::Receiver;
use crate::{CompletionOpcode, Status, VerbsError};

/// Bits of the attention word.
pub(in crate::shm) mod attention {
    /// Queue pairs or senders were added or removed.
    pub(in crate::shm) const CHANGES: u32 = 1;
    /// Send completions are available.
    pub(in crate::shm) const SENDS: u32 = 2;
    /// A queue pair is in error, and its receives must be flushed.
    pub(in crate::shm) const ERRORS: u32 = 4;
    /// A queue pair has waiting work that polling retries.
    pub(in crate::shm) const WAITING: u32 = 8;
    /// The poller has armed events; the next poll disarms them.
    pub(in crate::shm) const ARMED: u32 = 16;
    /// More completions may be outstanding than fit, so every poll counts them.
    pub(in crate::shm) const CROWDED: u32 = 32;
    /// More completions were outstanding than fit.
    pub(in crate::shm) const OVERRUN: u32 = 64;
    /// Completions do not carry their messages.
    pub(in crate::shm) const HIDING: u32 = 128;
    /// Some that are dormant have something.
    pub(in crate::shm) const CALLED: u32 = 256;
    /// Bits that stay set until their condition ends.
    pub(in crate::shm) const LASTING: u32 = CROWDED | OVERRUN | HIDING;
}

/// A finished send work request.
#[derive(Clone, Copy, Debug)]
pub(in crate::shm) struct SendDone {
    pub(in crate::shm) pair: u64,
    pub(in crate::shm) qp: u32,
    pub(in crate::shm) number: u64,
    pub(in crate::shm) id: u64,
    pub(in crate::shm) opcode: CompletionOpcode,
    pub(in crate::shm) status: Status,
    pub(in crate::shm) byte_len: u32,
}

/// A change to the set of queue pairs that the poller serves.
pub(in crate::shm) enum Change {
    /// This queue pair may send completions here.
    Sender(Arc<Pair>),
    /// A connected queue pair receives here.
    Receiver(Box<Receiver>),
    /// A datagram queue pair receives here.
    Datagrams(Box<DatagramReceiver>),
    /// A datagram queue pair has a new sender.
    Path(u64, Arc<Path>),
    /// A queue pair was dropped.
    Gone(u64),
}

/// Queue pairs that call before the poller looks, with room from the beginning: they may be few and seldom.
pub(super) const FEW: usize = 4;

/// The state that others share with the poller.
pub(crate) struct CqShared {
    pub(super) attention: CachePadded<AtomicU32>,
    pub(super) armed: AtomicBool,
    pub(super) closed: AtomicBool,
    pub(super) capacity: usize,
    /// The number of completions that the attached queue pairs may have outstanding.
    demand: AtomicUsize,
    pub(super) sends: GrowingQueue<SendDone>,
    pub(super) changes: Mutex<Vec<Change>>,
    /// The ids of queue pairs and senders that have something, if they are dormant.
    pub(super) called: Mutex<Vec<u64>>,
    pub(super) channel: Option<Arc<Channel>>,
    /// Called instead of the channel.
    pub(super) waker: OnceLock<Waker>,
}

impl CqShared {
    pub(super) fn new(
        capacity: usize,
        channel: Option<Arc<Channel>>,
        hides_payloads: bool,
    ) -> Arc<CqShared> {
        let attention = if hides_payloads { attention::HIDING } else { 0 };
        Arc::new(CqShared {
            attention: CachePadded::new(AtomicU32::new(attention)),
            armed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            capacity,
            demand: AtomicUsize::new(0),
            sends: GrowingQueue::new(capacity),
            changes: Mutex::default(),
            called: Mutex::new(Vec::with_capacity(FEW)),
            channel,
            waker: OnceLock::new(),
        })
    }

    pub(in crate::shm) fn channel(&self) -> Option<&Arc<Channel>> {
        self.channel.as_ref()
    }

    /// Sets bits of the attention word, and wakes the poller if it sleeps.
    #[inline]
    pub(in crate::shm) fn notice(&self, bits: u32) {
        self.attention.fetch_or(bits, Ordering::SeqCst);
        if self.armed.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    #[cold]
    pub(super) fn wake(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            match (self.waker.get(), &self.channel) {
                (Some(waker), _) => waker.wake_by_ref(),
                (None, Some(channel)) => channel.wake(),
                (None, None) => {}
            }
        }
    }

    /// Has the poller look at this queue pair, even if it is dormant. A peer of this process does so at most once for each time that its inbox
    /// was armed; one of another process may call again and again, and the list does not grow by that.
    #[cold]
    pub(in crate::shm) fn call_on(&self, pair: u64) {
        let mut called = lock(&self.called);
        if !self.closed.load(Ordering::SeqCst) {
            if called.last() != Some(&pair) {
                called.push(pair);
            }
            drop(called);
            self.notice(attention::CALLED);
        }
    }

    /// The same for the poller itself, which looks at once.
    pub(in crate::shm) fn note_call(&self, pair: u64) {
        lock(&self.called).push(pair);
    }

    #[inline]
    pub(in crate::shm) fn push(&self, done: SendDone) {
        let bits = match self.sends.push(done) {
            Ok(()) => attention::SENDS,
            Err(_) => attention::OVERRUN,
        };
        self.notice(bits);
    }

    /// Queues a change for the poller. Does nothing if the queue is no longer polled.
    pub(in crate::shm) fn change(&self, change: Change) {
        let mut changes = lock(&self.changes);
        if !self.closed.load(Ordering::SeqCst) {
            changes.push(change);
            drop(changes);
            self.notice(attention::CHANGES);
        }
    }

    /// Adds `more` to the number of completions that may be outstanding.
    pub(in crate::shm) fn expect(&self, more: usize) {
        if self.demand.fetch_add(more, Ordering::SeqCst) + more > self.capacity {
            self.notice(attention::CROWDED);
        }
    }

    pub(in crate::shm) fn expect_no_more(&self, less: usize) {
        self.demand.fetch_sub(less, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for CqShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CqShared").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

/// A handle with which queue pairs are created on a completion queue.
#[derive(Clone, Debug)]
pub(crate) struct CqHandle {
    pub(super) shared: Arc<CqShared>,
    pub(super) context: Arc<Context>,
}

impl CqHandle {
    /// The queue.
    ///
    /// # Errors
    /// If it belongs to another device.
    pub(in crate::shm) fn of(&self, context: &Arc<Context>) -> Result<Arc<CqShared>, VerbsError> {
        if Arc::ptr_eq(&self.context, context) {
            Ok(Arc::clone(&self.shared))
        } else {
            Err(VerbsError::Foreign("completion queue"))
        }
    }
}
