//! Completion queues, and the channels on which their owners sleep.

use std::cell::Cell;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
#[cfg(any(feature = "faults", feature = "ibverbs"))]
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::dispatch::{self, on_device};
#[cfg(feature = "ibverbs")]
use crate::ibv;
use crate::{CqError, VerbsError, WorkCompletion, shm};

/// A queue of completions, owned by the thread that polls it. Queue pairs may be created on it from
/// other threads.
#[derive(Debug)]
pub struct CompletionQueue {
    queue: dispatch::CompletionQueue,
    handle: CompletionQueueHandle,
    _not_sync: PhantomData<Cell<()>>,
}

impl CompletionQueue {
    pub(crate) fn new(
        context: &dispatch::Context,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        let channel = channel.map(|channel| &channel.channel);
        let (queue, handle) = context.create_cq(capacity, channel)?;
        let handle = CompletionQueueHandle { queue: handle };
        Ok(CompletionQueue { queue, handle, _not_sync: PhantomData })
    }

    /// The same queue, whose poller sees what the injectors of a layer deliver.
    #[cfg(feature = "faults")]
    pub(crate) fn with_faults(mut self, layer: Option<&Arc<crate::faults::Layer>>) -> Self {
        if let Some(layer) = layer {
            let queue = crate::faults::CompletionQueue::new(layer, self.queue);
            self.queue = dispatch::CompletionQueue::Faulty(queue);
        }
        self
    }

    /// Writes available completions to the start of `out` and returns their number; 0 is not an error. The
    /// entries that are overwritten are dropped.
    ///
    /// # Errors
    /// If the queue has overrun or the device is lost.
    #[inline]
    pub fn poll(&mut self, out: &mut [WorkCompletion]) -> Result<usize, CqError> {
        on_device!(CompletionQueue, &mut self.queue, queue => queue.poll(out))
    }

    /// Requests an event on the channel for the next completion. There is one event, not one per completion:
    /// after arming, poll once more, then wait. Completions that are already available count too. The next poll
    /// that finds a completion disarms the queue.
    pub fn arm(&mut self) {
        on_device!(CompletionQueue, &mut self.queue, queue => queue.arm());
    }

    /// Takes back [`arm`](Self::arm), if the device can: the next completion then makes no event. Verbs have no call for it, so RDMA
    /// devices make the event.
    pub fn disarm(&mut self) {
        on_device!(CompletionQueue, &mut self.queue, queue => queue.disarm());
    }

    /// The events of this queue call this waker from now on. Returns whether all of them do: then a thread that has armed many queues looks
    /// at those again whose wakers are called, and not at all. On `shm` that is so for queue pairs, and senders of datagrams, that were
    /// there at the last poll. Events of RDMA devices, and of peers in other processes, call while a thread
    /// [waits](CompletionChannel::wait) on the channel.
    pub fn wake_with(&mut self, waker: &Waker) -> bool {
        match &mut self.queue {
            dispatch::CompletionQueue::Shm(queue) => queue.wake_with(waker),
            #[cfg(feature = "ibverbs")]
            dispatch::CompletionQueue::Ibv(queue) => queue.wake_with(waker),
            #[allow(unreachable_patterns)] // Without other devices.
            _ => false,
        }
    }

    /// A handle with which other threads create queue pairs on it.
    pub fn handle(&self) -> CompletionQueueHandle {
        self.handle.clone()
    }

    /// Cells that the last poll examined.
    #[inline]
    pub fn scanned(&self) -> u32 {
        on_device!(CompletionQueue, &self.queue, queue => queue.scanned())
    }
}

/// A handle to a completion queue, with which one thread creates queue pairs while another polls.
#[derive(Clone, Debug)]
pub struct CompletionQueueHandle {
    queue: dispatch::CqHandle,
}

impl CompletionQueueHandle {
    pub(crate) fn shm(&self) -> Result<&shm::CqHandle, VerbsError> {
        match &self.queue {
            dispatch::CqHandle::Shm(queue) => Ok(queue),
            #[cfg(any(feature = "ibverbs", feature = "sim"))]
            _ => Err(VerbsError::Foreign("completion queue")),
        }
    }

    #[cfg(feature = "sim")]
    pub(crate) fn sim(&self) -> Result<&crate::sim::CqHandle, VerbsError> {
        match &self.queue {
            dispatch::CqHandle::Sim(queue) => Ok(queue),
            _ => Err(VerbsError::Foreign("completion queue")),
        }
    }

    #[cfg(feature = "ibverbs")]
    pub(crate) fn ibv(&self) -> Result<&Arc<ibv::CqShared>, VerbsError> {
        match &self.queue {
            dispatch::CqHandle::Ibv(queue) => Ok(queue),
            _ => Err(VerbsError::Foreign("completion queue")),
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

/// Lets a thread sleep until an armed completion queue of this channel has a completion, until a peer writes into an
/// armed [region](crate::SharedRegion::watch) of this channel, or until woken. Clones refer to the same channel. The file
/// descriptor is readable when there is an event.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    channel: dispatch::Channel,
}

impl CompletionChannel {
    pub(crate) fn new(context: &dispatch::Context) -> Result<CompletionChannel, VerbsError> {
        Ok(CompletionChannel { channel: context.create_channel()? })
    }

    pub(crate) fn inner(&self) -> &dispatch::Channel {
        &self.channel
    }

    /// Sleeps until an event, a [`wake`](CompletionChannel::wake), or the end of `timeout`. Returns `false` if
    /// nothing happened. Events before the call are not lost.
    ///
    /// # Errors
    /// If the operating system refuses to wait.
    pub fn wait(&self, timeout: Duration) -> Result<bool, VerbsError> {
        let waited = on_device!(Channel, &self.channel, channel => channel.wait(timeout));
        waited.map_err(|error| VerbsError::System {
            what: "waiting on a completion channel",
            source: error.into(),
        })
    }

    /// Ends the current or the next [`wait`](CompletionChannel::wait). May be called from any thread.
    pub fn wake(&self) {
        on_device!(Channel, &self.channel, channel => channel.wake());
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        on_device!(Channel, &self.channel, channel => channel.as_fd())
    }
}
