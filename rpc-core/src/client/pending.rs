//! The token of a started call, and the list of those that were dropped.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A started call of a [`Connection`](super::Connection). Pass it to `take` until the call has ended, or to `cancel`.
///
/// The token borrows nothing, and may be moved to another thread. The connection keeps the result until it is taken.
/// Dropping the token before that cancels the call, as `cancel` does: with its next poll the connection tells the server, and
/// frees the memory of the call.
#[must_use = "dropping it cancels the call; take its result"]
pub struct PendingCall<R> {
    /// Index and generation in one word.
    id: u64,
    /// Where the call is named if this is dropped; `None` when its result was taken, or it was cancelled.
    dropped: Option<Arc<DroppedCalls>>,
    result: PhantomData<fn() -> R>,
}

impl<R> PendingCall<R> {
    #[inline]
    pub(super) fn new(Started { id, dropped }: Started) -> Self {
        PendingCall { id, dropped: Some(dropped), result: PhantomData }
    }

    /// The call is one of the connection with this list, and is neither taken nor cancelled.
    #[inline]
    pub(super) fn is_of(&self, connection: &Arc<DroppedCalls>) -> bool {
        self.dropped.as_ref().is_some_and(|dropped| Arc::ptr_eq(dropped, connection))
    }

    /// The call is over: dropping the token does nothing any more.
    #[inline]
    pub(super) fn end(&mut self) -> Option<Arc<DroppedCalls>> {
        self.dropped.take()
    }

    #[inline]
    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl<R> Drop for PendingCall<R> {
    #[inline]
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            dropped.add(self.id);
        }
    }
}

impl<R> fmt::Debug for PendingCall<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingCall({}.{})", self.id as u32, self.id >> 32)
    }
}

/// A call that was just started, for its token.
pub(super) struct Started {
    pub(super) id: u64,
    pub(super) dropped: Arc<DroppedCalls>,
}

/// The calls of one connection whose tokens were dropped, for the connection to cancel. Not more than the connection has.
#[derive(Default)]
pub(super) struct DroppedCalls {
    is_some: AtomicBool,
    ids: Mutex<Vec<u64>>,
}

impl DroppedCalls {
    #[cold]
    fn add(&self, id: u64) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.push(id);
        self.is_some.store(true, Ordering::Relaxed);
    }

    /// There are some. The lock orders what their owners did before.
    #[inline]
    pub(super) fn is_some(&self) -> bool {
        self.is_some.load(Ordering::Relaxed)
    }

    /// Exchanges them for `spare`, which is empty.
    pub(super) fn swap(&self, spare: &mut Vec<u64>) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_some.store(false, Ordering::Relaxed);
        core::mem::swap(&mut *ids, spare);
    }
}
