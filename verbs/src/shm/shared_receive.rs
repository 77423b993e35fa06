//! Receives that several senders use: shared receive queues, and the receives of datagram queue pairs.
//!
//! Several senders cannot each keep their own count, so the number of posted receives is one word in a page
//! that all of them map. A hostile sender can take or add credits. It can then delay the others, as it
//! could on hardware by sending, and make messages arrive that have no receive, which wait or are dropped.
//!
//! A datagram may be dropped, so its sender need not reserve a receive. If a datagram queue pair has its
//! own receives, the page says how many were posted and used. A sender reads the page only when it has sent
//! as many datagrams as there were receives. A datagram that finds its receive used by another sender's is
//! dropped on arrival.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crossbeam_queue::ArrayQueue;
use rustix::io;

use super::completion_queue::CqShared;
use super::context::Context;
use super::domain::Domain;
use super::memfd;
use super::peer::lock;
use super::receive::Receive;
use crate::memory::mapping::{Mapping, PAGE_BYTES, Population};
use crate::{Buffer, PostError, VerbsError};

/// What senders know about shared receives: how many are not taken, and the shortest length.
#[derive(Debug)]
pub(super) struct CreditPage {
    mapping: Mapping,
    file: Option<OwnedFd>,
}

impl CreditPage {
    pub(super) fn create() -> io::Result<CreditPage> {
        let (file, mapping) = memfd::create(
            "farcall-credit",
            PAGE_BYTES,
            memfd::Peers::ReadAndWrite,
            Population::AtOnce,
        )?;
        Ok(CreditPage { mapping, file: Some(file) })
    }

    /// Maps a peer's page.
    pub(super) fn map(file: BorrowedFd<'_>) -> io::Result<CreditPage> {
        Ok(CreditPage { mapping: memfd::map_foreign(file, PAGE_BYTES, true)?, file: None })
    }

    /// Maps our own page once more, for a sender of this process.
    pub(super) fn map_again(&self) -> io::Result<CreditPage> {
        let file = self.file.as_ref().ok_or(io::Errno::BADF)?;
        CreditPage::map(file.as_fd())
    }

    /// The file of our own page.
    pub(super) fn file(&self) -> Option<&OwnedFd> {
        self.file.as_ref()
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the first word of a mapped page, which only atomics touch on either side.
        unsafe { &*self.mapping.start().cast::<AtomicU32>() }
    }

    /// One more than the length of the shortest receive ever posted; 0 before the first.
    #[inline]
    fn shortest(&self) -> &AtomicU32 {
        // SAFETY: a word in the second cache line of a mapped page, which only atomics touch.
        unsafe { &*self.mapping.start().add(64).cast::<AtomicU32>() }
    }

    /// Whether a message of this length fits every posted receive. Call it after [`take`](Self::take).
    #[inline]
    pub(super) fn surely_fits(&self, len: usize) -> bool {
        len < self.shortest().load(Ordering::Relaxed) as usize
    }

    /// Records the length of a receive before it is posted.
    fn lend(&self, len: usize) {
        let len = u32::try_from(len).unwrap_or(u32::MAX - 1).saturating_add(1);
        let shortest = self.shortest().load(Ordering::Relaxed);
        if shortest == 0 || len < shortest {
            self.shortest().store(len, Ordering::Relaxed);
        }
    }

    /// Receives posted to a datagram queue pair that has its own, since its creation, wrapping.
    #[inline]
    pub(super) fn posted(&self) -> &AtomicU32 {
        // SAFETY: a word in the third cache line of a mapped page, which only atomics touch.
        unsafe { &*self.mapping.start().add(128).cast::<AtomicU32>() }
    }

    /// How many of those were used, wrapping.
    #[inline]
    pub(super) fn consumed(&self) -> &AtomicU32 {
        // SAFETY: a word in the fourth cache line of a mapped page, which only atomics touch.
        unsafe { &*self.mapping.start().add(192).cast::<AtomicU32>() }
    }

    #[inline]
    pub(super) fn available(&self) -> u32 {
        self.word().load(Ordering::Acquire)
    }

    /// Takes one receive, if one is left.
    #[inline]
    pub(super) fn take(&self) -> bool {
        self.word()
            .try_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1))
            .is_ok()
    }

    #[inline]
    pub(super) fn give(&self, count: u32) {
        self.word().fetch_add(count, Ordering::AcqRel);
    }

    /// Returns the receives that a dead sender had taken for messages it never sent. Its count is trusted only
    /// up to the number of messages that its inbox could have held.
    pub(super) fn settle(&self, taken: u32, arrived: u32, cells: u32) {
        let lost = taken.wrapping_sub(arrived);
        if lost <= cells {
            self.give(lost);
        }
    }
}

/// A queue of receives used by several queue pairs, or by several senders of one.
#[derive(Debug)]
pub(super) struct ReceivePool {
    receives: ArrayQueue<Receive>,
    pub(super) credit: Arc<CreditPage>,
    pub(super) pd: u32,
    /// The completion queues that count on completions of these receives, each once.
    queues: Mutex<Vec<Weak<CqShared>>>,
}

impl ReceivePool {
    pub(super) fn new(max_wr: usize, pd: u32) -> io::Result<ReceivePool> {
        let credit = Arc::new(CreditPage::create()?);
        let queues = Mutex::default();
        Ok(ReceivePool { receives: ArrayQueue::new(max_wr), credit, pd, queues })
    }

    pub(super) fn post(
        &self,
        id: u64,
        buffer: Option<Buffer>,
    ) -> Result<(), (PostError, Option<Buffer>)> {
        let len = buffer.as_ref().map_or(0, |buffer| buffer.len());
        self.receives
            .push(Receive { id, buffer })
            .map_err(|receive| (PostError::QueueFull, receive.buffer))?;
        self.credit.lend(len);
        self.credit.give(1);
        Ok(())
    }

    #[inline]
    pub(super) fn pop(&self) -> Option<Receive> {
        self.receives.pop()
    }

    /// All receives may complete on this queue, whichever of its queue pairs use them.
    pub(super) fn expect_in(&self, queue: &Arc<CqShared>) {
        let mut queues = lock(&self.queues);
        queues.retain(|known| known.strong_count() > 0);
        if !queues.iter().any(|known| known.as_ptr() == Arc::as_ptr(queue)) {
            queues.push(Arc::downgrade(queue));
            queue.expect(self.receives.capacity());
        }
    }
}

impl Drop for ReceivePool {
    fn drop(&mut self) {
        for queue in lock(&self.queues).drain(..).filter_map(|queue| queue.upgrade()) {
            queue.expect_no_more(self.receives.capacity());
        }
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(super) pool: Arc<ReceivePool>,
    context: Arc<Context>,
}

impl SharedReceiveQueue {
    pub(crate) fn new(domain: &Domain, max_wr: usize) -> Result<SharedReceiveQueue, VerbsError> {
        let pool = ReceivePool::new(max_wr, domain.number).map_err(|error| VerbsError::System {
            what: "memory for a shared receive queue",
            source: error.into(),
        })?;
        Ok(SharedReceiveQueue { pool: Arc::new(pool), context: Arc::clone(&domain.context) })
    }

    /// Whether it belongs to this device.
    pub(super) fn belongs_to(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(crate) fn post_recv(&self, id: u64, buffer: Option<Buffer>) -> Result<(), PostError> {
        if buffer.as_ref().is_some_and(|buffer| buffer.pd() != self.pool.pd) {
            return Err(PostError::Foreign);
        }
        self.pool.post(id, buffer).map_err(|(error, _)| error)
    }
}
