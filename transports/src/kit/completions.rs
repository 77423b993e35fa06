//! The completions of one transport: polled while there are some, announced to the site when there are none.

use std::sync::Arc;
use std::task::Waker;

use farcall_core::error::FailureKind;
use farcall_core::site::Site;
use farcall_core::transport::{Armed, CallToken, Message, Replies, RequestSink};
use farcall_verbs::{CompletionQueue, CompletionQueueHandle, CqError, Device, WorkCompletion};

use super::device_channel::DeviceChannel;
use crate::contract::SetupError;

/// Completions that one poll takes.
pub(crate) const POLL_BATCH: usize = 16;

/// A completion queue on its site's completion channel. Its queue pairs are dropped before it.
#[derive(Debug)]
pub(crate) struct Completions {
    // Dropped in this order: completion queue, channel, device.
    cq: CompletionQueue,
    channel: Arc<DeviceChannel>,
    device: Device,
    capacity: usize,
    batch: Box<[WorkCompletion]>,
    /// Found while arming, for the next poll.
    held: usize,
    /// It is in error, as its owner knows.
    has_failed: bool,
}

impl Completions {
    /// A queue with room for `capacity` completions.
    pub(crate) fn new(
        site: &Site,
        device: &Device,
        capacity: usize,
    ) -> Result<Completions, SetupError> {
        Self::in_batches(site, device, capacity, POLL_BATCH)
    }

    /// The same, where one poll takes at most `batch`.
    pub(crate) fn in_batches(
        site: &Site,
        device: &Device,
        capacity: usize,
        batch: usize,
    ) -> Result<Completions, SetupError> {
        let channel = DeviceChannel::at(site, device)?;
        let cq = device.create_cq(capacity, Some(channel.channel()))?;
        let batch = std::iter::repeat_with(WorkCompletion::default).take(batch).collect();
        Ok(Completions {
            cq,
            channel,
            device: device.clone(),
            capacity,
            batch,
            held: 0,
            has_failed: false,
        })
    }

    /// Replaces the queue, which may be in error, by a new one of the same capacity. Queue pairs of the old queue do not
    /// complete here any more.
    #[cold]
    pub(crate) fn renew(&mut self) -> Result<(), SetupError> {
        self.cq = self.device.create_cq(self.capacity, Some(self.channel.channel()))?;
        (self.held, self.has_failed) = (0, false);
        Ok(())
    }

    /// For the queue pairs that complete here.
    pub(crate) fn queue(&self) -> CompletionQueueHandle {
        self.cq.handle()
    }

    /// What has completed, at most a batch.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<&mut [WorkCompletion], CqError> {
        let found = match std::mem::take(&mut self.held) {
            0 => match self.cq.poll(&mut self.batch) {
                Ok(found) => found,
                Err(error) => return Err(self.fail(error)),
            },
            held => held,
        };
        Ok(&mut self.batch[..found])
    }

    #[cold]
    fn fail(&mut self, error: CqError) -> CqError {
        self.has_failed = true;
        error
    }

    /// Whether a poll that found `found` completions may have left some.
    #[inline]
    pub(crate) fn is_batch(&self, found: usize) -> bool {
        found == self.batch.len()
    }

    /// Entries that the last poll looked at, for a simulator that charges for them.
    #[inline]
    pub(crate) fn scanned(&self) -> u32 {
        self.cq.scanned()
    }

    /// Gets ready to sleep: what completes from now on makes an event. `false`: there is work.
    pub(crate) fn arm(&mut self, has_work: impl Fn() -> bool) -> bool {
        self.arm_with(None, has_work).may_sleep()
    }

    /// Gets ready to sleep: what completes from now on makes an event, and calls this waker if the device can.
    pub(crate) fn arm_with(&mut self, waker: Option<&Waker>, has_work: impl Fn() -> bool) -> Armed {
        if self.held > 0 || has_work() {
            return Armed::No;
        }
        let calls_waker = waker.is_some_and(|waker| self.cq.wake_with(waker));
        self.cq.arm();
        // What came before the queue was armed makes no event.
        match self.cq.poll(&mut self.batch) {
            Ok(found) => self.held = found,
            // The next poll tells its owner.
            Err(_) if !self.has_failed => return Armed::No,
            Err(_) => {}
        }
        Armed::of(self.held == 0 && !has_work(), calls_waker)
    }

    /// Takes back `arm`, if the device can.
    pub(crate) fn disarm(&mut self) {
        self.cq.disarm();
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

/// Discards requests: for a server that has said goodbye, and polls until that has left.
pub(crate) struct DiscardRequests;

impl RequestSink for DiscardRequests {
    fn request(&mut self, _: CallToken, _: Message<'_>, _: &mut dyn Replies) {}

    fn is_idempotent(&self, _: &[u8]) -> bool {
        false
    }
}
