//! Completion queues, and where their owner sleeps.

use std::cell::Cell;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::{CqError, VerbsError, WorkCompletion};

/// A queue of completions, owned by the thread that polls it. Queue pairs may be created on it from
/// other threads.
#[derive(Debug)]
pub struct CompletionQueue {
    _not_sync: PhantomData<Cell<()>>,
}

impl CompletionQueue {
    /// Takes what has completed, up to `out.len()`, and gives its number; 0 is not an error. What the
    /// array held before is dropped where it is overwritten.
    #[inline]
    pub fn poll(&mut self, out: &mut [WorkCompletion]) -> Result<usize, CqError> {
        unimplemented!()
    }

    /// Asks for an event on the channel when the next completion comes. One event, not one per
    /// completion: after arming, poll once more, then wait. Completions that are there already count
    /// too.
    pub fn arm(&mut self) {
        unimplemented!()
    }

    /// A name for other threads to make queue pairs on it.
    pub fn handle(&self) -> CompletionQueueHandle {
        unimplemented!()
    }

    /// Cells looked at by the last poll.
    #[inline]
    pub fn scanned(&self) -> u32 {
        unimplemented!()
    }
}

/// Names a completion queue to a thread that makes queue pairs on it while another polls it.
#[derive(Clone, Debug)]
pub struct CompletionQueueHandle {
    _private: (),
}

impl From<&CompletionQueue> for CompletionQueueHandle {
    fn from(queue: &CompletionQueue) -> Self {
        queue.handle()
    }
}

impl From<&CompletionQueueHandle> for CompletionQueueHandle {
    fn from(handle: &CompletionQueueHandle) -> Self {
        handle.clone()
    }
}

/// Where a thread sleeps until an armed completion queue of this channel has something, or until
/// woken. Clones are the same channel. The file descriptor is readable when there is an event.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    _private: (),
}

impl CompletionChannel {
    /// Sleeps until an event, a [`wake`](CompletionChannel::wake), or the end of `timeout`; `false`
    /// says that nothing happened. Events that came before are not lost.
    pub fn wait(&self, timeout: Duration) -> Result<bool, VerbsError> {
        unimplemented!()
    }

    /// Ends a present or the next [`wait`](CompletionChannel::wait), from any thread.
    pub fn wake(&self) {
        unimplemented!()
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        unimplemented!()
    }
}
