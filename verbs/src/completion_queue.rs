//! Completion queues, and where their owner sleeps.

use std::cell::Cell;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::{CqError, VerbsError, WorkCompletion, shm};

/// A queue of completions, owned by the thread that polls it. Queue pairs may be created on it from
/// other threads.
#[derive(Debug)]
pub struct CompletionQueue {
    shm: shm::CompletionQueue,
    handle: CompletionQueueHandle,
    _not_sync: PhantomData<Cell<()>>,
}

impl CompletionQueue {
    pub(crate) fn new(
        context: &Arc<shm::Context>,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        let channel = channel.map(|channel| Arc::clone(&channel.shm));
        let shm = shm::CompletionQueue::new(capacity, channel).map_err(|error| {
            VerbsError::System { what: "event of a completion queue", source: error.into() }
        })?;
        let handle =
            CompletionQueueHandle { shm: Arc::clone(&shm.shared), context: Arc::clone(context) };
        Ok(CompletionQueue { shm, handle, _not_sync: PhantomData })
    }

    /// Takes what has completed, up to `out.len()`, and gives its number; 0 is not an error. What the
    /// array held before is dropped where it is overwritten.
    #[inline]
    pub fn poll(&mut self, out: &mut [WorkCompletion]) -> Result<usize, CqError> {
        self.shm.poll(out)
    }

    /// Asks for an event on the channel when the next completion comes. One event, not one per
    /// completion: after arming, poll once more, then wait. Completions that are there already count
    /// too. The next poll that finds something calls it off.
    pub fn arm(&mut self) {
        self.shm.arm();
    }

    /// A name for other threads to make queue pairs on it.
    pub fn handle(&self) -> CompletionQueueHandle {
        self.handle.clone()
    }

    /// Cells looked at by the last poll.
    #[inline]
    pub fn scanned(&self) -> u32 {
        self.shm.scanned()
    }
}

/// Names a completion queue to a thread that makes queue pairs on it while another polls it.
#[derive(Clone, Debug)]
pub struct CompletionQueueHandle {
    shm: Arc<shm::CqShared>,
    context: Arc<shm::Context>,
}

impl CompletionQueueHandle {
    /// The queue, if it belongs to this device.
    pub(crate) fn shm_of(
        &self,
        context: &Arc<shm::Context>,
    ) -> Result<Arc<shm::CqShared>, VerbsError> {
        if Arc::ptr_eq(&self.context, context) {
            Ok(Arc::clone(&self.shm))
        } else {
            Err(VerbsError::Foreign("completion queue"))
        }
    }
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
    shm: Arc<shm::Channel>,
}

impl CompletionChannel {
    pub(crate) fn new() -> Result<CompletionChannel, VerbsError> {
        let shm = shm::Channel::new().map_err(|error| VerbsError::System {
            what: "completion channel",
            source: error.into(),
        })?;
        Ok(CompletionChannel { shm: Arc::new(shm) })
    }

    /// Sleeps until an event, a [`wake`](CompletionChannel::wake), or the end of `timeout`; `false`
    /// says that nothing happened. Events that came before are not lost.
    pub fn wait(&self, timeout: Duration) -> Result<bool, VerbsError> {
        self.shm.wait(timeout).map_err(|error| VerbsError::System {
            what: "waiting on a completion channel",
            source: error.into(),
        })
    }

    /// Ends a present or the next [`wait`](CompletionChannel::wait), from any thread.
    pub fn wake(&self) {
        self.shm.wake();
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shm.as_fd()
    }
}
