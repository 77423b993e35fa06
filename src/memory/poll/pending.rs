//! The token of a started batch, and the list of those that were dropped.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farcall_transports::remote_memory::BatchId;

/// Operations of a [`PollMemory`](super::PollMemory) that are under way. Pass it to `take` until they have ended, or to `cancel`.
///
/// The token borrows nothing. The client keeps the outcomes until they are taken. Dropping the token before that gives the operations up, as
/// `cancel` does, with the client's next poll.
#[must_use = "dropping it gives the operations up; take their outcomes"]
pub struct PendingBatch {
    id: BatchId,
    /// Where the batch is named if this is dropped; `None` when it was taken or cancelled.
    dropped: Option<Arc<DroppedBatches>>,
}

impl PendingBatch {
    #[inline]
    pub(super) fn new(id: BatchId, dropped: &Arc<DroppedBatches>) -> PendingBatch {
        PendingBatch { id, dropped: Some(Arc::clone(dropped)) }
    }

    #[inline]
    pub(super) fn id(&self) -> BatchId {
        self.id
    }

    /// It is of the client with this list, and neither taken nor cancelled.
    #[inline]
    pub(super) fn is_of(&self, client: &Arc<DroppedBatches>) -> bool {
        self.dropped.as_ref().is_some_and(|dropped| Arc::ptr_eq(dropped, client))
    }

    /// It is over: dropping the token does nothing any more.
    #[inline]
    pub(super) fn end(&mut self) -> BatchId {
        self.dropped = None;
        self.id
    }
}

impl Drop for PendingBatch {
    #[inline]
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            dropped.add(self.id);
        }
    }
}

impl fmt::Debug for PendingBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingBatch({:?})", self.id)
    }
}

/// The batches of one client whose tokens were dropped.
#[derive(Default)]
pub(super) struct DroppedBatches {
    is_some: AtomicBool,
    ids: Mutex<Vec<BatchId>>,
}

impl DroppedBatches {
    #[cold]
    fn add(&self, id: BatchId) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.push(id);
        self.is_some.store(true, Ordering::Relaxed);
    }

    /// There are some. The lock orders what their owners did before.
    #[inline]
    pub(super) fn is_some(&self) -> bool {
        self.is_some.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self) -> Vec<BatchId> {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_some.store(false, Ordering::Relaxed);
        std::mem::take(&mut *ids)
    }
}
