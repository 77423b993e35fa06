//! Receives that several senders use: shared receive queues, and those of datagrams.
//!
//! Several senders cannot each count for themselves, so the number of posted receives is one word in a
//! page that all of them map. A hostile sender can take or add credits: it can keep the others waiting, as
//! it could by sending on hardware, and make messages arrive that have no receive, which wait or are
//! dropped.
//!
//! A datagram may be dropped, so nobody need own the receive that it will meet: where a datagram queue pair has
//! receives of its own, the page says how many were posted and used, and each sender looks there only
//! when it has sent as many as there were. What several of them sent to one receive is dropped on arrival.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_queue::ArrayQueue;
use rustix::io;

use super::context::Context;
use super::domain::Domain;
use super::memfd;
use super::receive::Receive;
use crate::memory::mapping::{Mapping, PAGE_BYTES};
use crate::{Buffer, PostError, VerbsError};

/// What senders know of shared receives: how many no sender has taken, and how short they are.
#[derive(Debug)]
pub(super) struct CreditPage {
    mapping: Mapping,
    file: Option<OwnedFd>,
}

impl CreditPage {
    pub(super) fn create() -> io::Result<CreditPage> {
        let (file, mapping) = memfd::create("farcall-credit", PAGE_BYTES)?;
        Ok(CreditPage { mapping, file: Some(file) })
    }

    /// A peer's.
    pub(super) fn map(file: BorrowedFd<'_>) -> io::Result<CreditPage> {
        Ok(CreditPage { mapping: memfd::map_foreign(file, PAGE_BYTES, true)?, file: None })
    }

    /// The file of a page of ours.
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

    /// Whether a message of this length fits every receive there may be. Asked after [`take`](Self::take).
    #[inline]
    pub(super) fn surely_fits(&self, len: usize) -> bool {
        len < self.shortest().load(Ordering::Relaxed) as usize
    }

    /// A receive of this length is about to be given.
    fn lend(&self, len: usize) {
        let len = u32::try_from(len).unwrap_or(u32::MAX - 1).saturating_add(1);
        let shortest = self.shortest().load(Ordering::Relaxed);
        if shortest == 0 || len < shortest {
            self.shortest().store(len, Ordering::Relaxed);
        }
    }

    /// Receives posted to a datagram queue pair of its own since the beginning, wrapping.
    #[inline]
    pub(super) fn posted(&self) -> &AtomicU32 {
        // SAFETY: a word in the third cache line of a mapped page, which only atomics touch.
        unsafe { &*self.mapping.start().add(128).cast::<AtomicU32>() }
    }

    /// Those of them that were used since the beginning, wrapping.
    #[inline]
    pub(super) fn consumed(&self) -> &AtomicU32 {
        // SAFETY: a word in the fourth cache line of a mapped page, which only atomics touch.
        unsafe { &*self.mapping.start().add(192).cast::<AtomicU32>() }
    }

    #[inline]
    pub(super) fn available(&self) -> u32 {
        self.word().load(Ordering::Acquire)
    }

    /// Takes one, if there is one.
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

    /// A sender is gone: gives back what it had taken for messages that never came. What it claims is
    /// believed up to the number of messages that its inbox could have held.
    pub(super) fn settle(&self, taken: u32, arrived: u32, cells: u32) {
        let lost = taken.wrapping_sub(arrived);
        if lost <= cells {
            self.give(lost);
        }
    }
}

/// A queue of receives that several queue pairs, or several senders of one, draw from.
#[derive(Debug)]
pub(super) struct ReceivePool {
    receives: ArrayQueue<Receive>,
    pub(super) credit: Arc<CreditPage>,
    pub(super) pd: u32,
}

impl ReceivePool {
    pub(super) fn new(max_wr: usize, pd: u32) -> io::Result<ReceivePool> {
        let credit = Arc::new(CreditPage::create()?);
        Ok(ReceivePool { receives: ArrayQueue::new(max_wr), credit, pd })
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

    pub(super) fn capacity(&self) -> usize {
        self.receives.capacity()
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

    /// Whether it is of this device.
    pub(super) fn belongs_to(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(crate) fn post_recv(&mut self, id: u64, buffer: Option<Buffer>) -> Result<(), PostError> {
        if buffer.as_ref().is_some_and(|buffer| buffer.pd() != self.pool.pd) {
            return Err(PostError::Foreign);
        }
        self.pool.post(id, buffer).map_err(|(error, _)| error)
    }
}
