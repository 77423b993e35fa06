//! The client's half: reserve, post, poll.

use std::sync::Arc;

use farcall_core::error::{FailureKind, ReserveError, TransportFailure};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{ClientTransport, Limits, ReplySink, SlotId, Unpark};

use super::calls::Calls;
use crate::completions::{Completions, POLL_BATCH, failure};

/// A session with one server thread.
#[derive(Debug)]
pub(crate) struct Client {
    // Dropped in this order: queue pair, completion queue.
    calls: Calls,
    completions: Completions,
}

impl Client {
    pub(crate) fn new(completions: Completions, calls: Calls) -> Client {
        Client { calls, completions }
    }
}

impl ClientTransport for Client {
    #[inline]
    fn now(&self) -> Instant {
        self.completions.now()
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
        let completed = match self.completions.poll() {
            Ok(completed) => completed,
            Err(error) => {
                self.calls.close(failure(error), sink);
                return Progress::IDLE;
            }
        };
        let found = completed.len();
        let mut progress = Progress { worked: found as u32, ..Progress::IDLE };
        for completion in completed {
            if let Err(broken) = self.calls.complete(completion, now, sink) {
                self.calls.close(broken, sink);
                return progress;
            }
        }
        if self.calls.needs_attention(now) {
            let more = found == POLL_BATCH;
            let (moved, next) = self.calls.drive(now, more, sink);
            progress.worked += moved;
            progress.next = next;
        }
        progress.next = progress.next.earlier(self.calls.poll_at());
        if found == POLL_BATCH {
            progress.next = PollAt::Now;
        }
        progress.scanned = self.completions.scanned();
        progress
    }

    fn park(&mut self, until: Option<Instant>) {
        self.completions.park(until, || self.calls.has_work());
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.completions.unparker()
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
