//! The client's half: reserve, post, poll.

use std::sync::Arc;

use farcall_core::error::{FailureKind, ReserveError, TransportFailure};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{ClientTransport, Limits, ReplySink, SlotId, Unpark};
use farcall_verbs::{CompletionChannel, CompletionQueue, CqError, Device, WorkCompletion};

use super::calls::Calls;
use crate::write_imm::pace::{POLL_BATCH, Waker, sleep_time};

/// A session with one server thread.
#[derive(Debug)]
pub(crate) struct Client {
    // Dropped in this order: queue pair, completion queue, channel, device.
    calls: Calls,
    cq: CompletionQueue,
    channel: CompletionChannel,
    completions: Box<[WorkCompletion]>,
    /// Completions found while going to sleep, for the next poll.
    held: usize,
    device: Device,
}

impl Client {
    pub(crate) fn new(
        device: Device,
        cq: CompletionQueue,
        channel: CompletionChannel,
        calls: Calls,
    ) -> Client {
        let completions = std::iter::repeat_with(WorkCompletion::default).take(POLL_BATCH);
        Client { calls, cq, channel, completions: completions.collect(), held: 0, device }
    }
}

impl ClientTransport for Client {
    #[inline]
    fn now(&self) -> Instant {
        Instant::from_nanos(self.device.now_ns())
    }

    fn limits(&self) -> Limits {
        Limits { window: self.calls.window(), max_message: self.calls.max_message }
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        self.calls.reserve(len)
    }

    fn release(&mut self, slot: SlotId) {
        self.calls.release(slot);
    }

    #[inline]
    fn post(&mut self, id: SlotId, _now: Instant) {
        self.calls.post(id);
    }

    #[inline]
    fn flush(&mut self, _now: Instant) {
        self.calls.flush();
    }

    fn abandon(&mut self, id: SlotId) {
        self.calls.abandon(id);
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        if let Some(why) = self.calls.over {
            self.calls.close(why.kind, sink);
            return Progress::IDLE;
        }
        self.calls.stamp(now);
        let found = match std::mem::take(&mut self.held) {
            0 => self.cq.poll(&mut self.completions),
            held => Ok(held),
        };
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                let what = match error {
                    CqError::DeviceLost => "it was removed, or has failed",
                    _ => "completion queue overrun",
                };
                self.calls.close(FailureKind::Device(what), sink);
                return Progress::IDLE;
            }
        };
        for completion in &mut self.completions[..found] {
            if let Err(broken) = self.calls.complete(completion, now, sink) {
                self.calls.close(broken, sink);
                return Progress { worked: found as u32, ..Progress::IDLE };
            }
        }
        let mut progress = Progress { worked: found as u32, ..Progress::IDLE };
        if self.calls.needs_attention(now) {
            let more = found == self.completions.len();
            let (moved, next) = self.calls.drive(now, more, sink);
            progress.worked += moved;
            progress.next = next;
        }
        progress.next = progress.next.earlier(self.calls.poll_at());
        if found == self.completions.len() {
            progress.next = PollAt::Now;
        }
        progress.scanned = self.cq.scanned();
        progress
    }

    fn park(&mut self, until: Option<Instant>) {
        if self.held > 0 || self.calls.has_work() {
            return;
        }
        self.cq.arm();
        // What came before the queue was armed makes no event.
        self.held = self.cq.poll(&mut self.completions).unwrap_or(0);
        if self.held > 0 {
            return;
        }
        let sleep = sleep_time(until, self.now());
        // A failure to sleep is a spurious wake-up: the driver polls and comes back.
        let _ = self.channel.wait(sleep);
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        Arc::new(Waker(self.channel.clone()))
    }

    fn close(&mut self) {
        self.calls.say_goodbye();
    }

    fn peer_gone(&mut self) {
        let why = TransportFailure::new(FailureKind::PeerGone, true);
        self.calls.over.get_or_insert(why);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}
