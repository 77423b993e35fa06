//! The completions of one thread's half of a backend: polled while there are some, slept for when there are none.

use std::sync::Arc;
use std::time::Duration;

use farcall_core::error::FailureKind;
use farcall_core::time::Instant;
use farcall_core::transport::{CallToken, Message, Replies, RequestSink, Unpark};
use farcall_verbs::{
    CompletionChannel, CompletionQueue, CompletionQueueHandle, CqError, Device, WorkCompletion,
};

use crate::backend::SetupError;

/// Completions that one poll takes.
pub(crate) const POLL_BATCH: usize = 16;

/// A parked thread looks around at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// A completion queue with its channel. Whoever has queue pairs on it drops those before.
#[derive(Debug)]
pub(crate) struct Completions {
    // Dropped in this order: completion queue, channel, device.
    cq: CompletionQueue,
    channel: CompletionChannel,
    device: Device,
    capacity: usize,
    batch: Box<[WorkCompletion]>,
    /// Found while going to sleep, for the next poll.
    held: usize,
}

impl Completions {
    /// A queue with room for so many.
    pub(crate) fn new(device: &Device, capacity: usize) -> Result<Completions, SetupError> {
        Self::in_batches(device, capacity, POLL_BATCH)
    }

    /// The same, where one poll takes at most `batch`.
    pub(crate) fn in_batches(
        device: &Device,
        capacity: usize,
        batch: usize,
    ) -> Result<Completions, SetupError> {
        let channel = device.create_completion_channel()?;
        let cq = device.create_cq(capacity, Some(&channel))?;
        let batch = std::iter::repeat_with(WorkCompletion::default).take(batch).collect();
        Ok(Completions { cq, channel, device: device.clone(), capacity, batch, held: 0 })
    }

    /// A queue as large as the one before, in its place, which may be beyond use. Whoever sleeps for it or wakes it
    /// does so as before; its queue pairs are not this one's.
    #[cold]
    pub(crate) fn renew(&mut self) -> Result<(), SetupError> {
        self.cq = self.device.create_cq(self.capacity, Some(&self.channel))?;
        self.held = 0;
        Ok(())
    }

    /// For the queue pairs that complete here.
    pub(crate) fn queue(&self) -> CompletionQueueHandle {
        self.cq.handle()
    }

    /// Wakes whoever sleeps here.
    pub(crate) fn waker(&self) -> Waker {
        Waker(self.channel.clone())
    }

    pub(crate) fn unparker(&self) -> Arc<dyn Unpark> {
        Arc::new(self.waker())
    }

    /// The device's clock.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.device.now_ns())
    }

    /// What has completed, at most a batch.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<&mut [WorkCompletion], CqError> {
        let found = match std::mem::take(&mut self.held) {
            0 => self.cq.poll(&mut self.batch)?,
            held => held,
        };
        Ok(&mut self.batch[..found])
    }

    /// Whether a poll that found so many may have left some.
    #[inline]
    pub(crate) fn is_batch(&self, found: usize) -> bool {
        found == self.batch.len()
    }

    /// Entries that the last poll looked at, for a simulator that charges for them.
    #[inline]
    pub(crate) fn scanned(&self) -> u32 {
        self.cq.scanned()
    }

    /// Sleeps until something completes, somebody wakes it, or `until`; not at all while there is work.
    pub(crate) fn park(&mut self, until: Option<Instant>, has_work: impl Fn() -> bool) {
        if self.arm(has_work) {
            // A failure to sleep is a spurious wake-up: the driver polls and comes back.
            let _ = self.channel.wait(self.sleep_time(until));
        }
    }

    /// Gets ready to sleep: what completes from now on makes an event. `false`: there is work.
    pub(crate) fn arm(&mut self, has_work: impl Fn() -> bool) -> bool {
        if self.held > 0 || has_work() {
            return false;
        }
        self.cq.arm();
        // What came before the queue was armed makes no event.
        self.held = self.cq.poll(&mut self.batch).unwrap_or(0);
        self.held == 0 && !has_work()
    }

    /// How long to sleep, at most until then.
    pub(crate) fn sleep_time(&self, until: Option<Instant>) -> Duration {
        until.map_or(LONGEST_SLEEP, |until| LONGEST_SLEEP.min(until - self.now()))
    }

    /// Where to sleep.
    pub(crate) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }
}

/// Wakes the thread that sleeps on the channel.
#[derive(Debug)]
pub(crate) struct Waker(CompletionChannel);

impl Unpark for Waker {
    fn unpark(&self) {
        self.0.wake();
    }
}

/// What a failed completion queue says about its connections.
#[cold]
pub(crate) fn failure(error: CqError) -> FailureKind {
    FailureKind::Device(match error {
        CqError::DeviceLost => "it was removed, or has failed",
        _ => "completion queue overrun",
    })
}

/// Takes no requests: for a server that has said goodbye, and still polls until that has left.
pub(crate) struct Nobody;

impl RequestSink for Nobody {
    fn request(&mut self, _: CallToken, _: Message<'_>, _: &mut dyn Replies) {}
    fn cancelled(&mut self, _: u32, _: u32, _: u32, _: u32) {}
    fn disconnected(&mut self, _: u32, _: u32) {}
}
