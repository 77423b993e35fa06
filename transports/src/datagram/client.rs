//! The client's half: reserve, post, poll.

use std::sync::Arc;

use farcall_core::error::{FailureKind, ReserveError, TransportFailure};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{ClientTransport, Limits, ReplySink, SlotId, Unpark};

use farcall_verbs::{CompletionOpcode, GRH_BYTES, Status, WorkCompletion};

use super::calls::{Broken, Calls};
use super::port::Port;
use super::wire::Header;
use crate::completions::{Completions, failure};

/// A session with one server thread.
#[derive(Debug)]
pub(crate) struct Client {
    calls: Calls,
    // Dropped in this order: queue pair, completion queue.
    port: Port,
    completions: Completions,
}

impl Client {
    pub(crate) fn new(completions: Completions, port: Port, calls: Calls) -> Client {
        Client { calls, port, completions }
    }
}

/// What a completion of the queue pair says about the calls.
#[inline]
fn complete(
    port: &mut Port,
    calls: &mut Calls,
    completion: &mut WorkCompletion,
    now: Instant,
    sink: &mut dyn ReplySink,
) -> Result<(), Broken> {
    if completion.status != Status::Success {
        return Err(lost(completion));
    }
    if completion.opcode != CompletionOpcode::Recv {
        port.retire(completion);
        return Ok(());
    }
    let Some(buffer) = completion.buffer.take() else { return Ok(()) };
    let datagram = buffer.get(GRH_BYTES..completion.byte_len as usize);
    let outcome = match datagram.and_then(Header::split) {
        Some((session, epoch, messages)) if calls.is_ours(session, epoch, completion.source) => {
            calls.datagram(messages, now, sink)
        }
        _ => Ok(()),
    };
    port.recycle(buffer);
    outcome
}

/// What a completion in error says about the session.
#[cold]
fn lost(completion: &WorkCompletion) -> Broken {
    tracing::debug!(status = ?completion.status, "a work request failed");
    match completion.status {
        Status::LocalProtection | Status::LocalLength => FailureKind::Device("local protection"),
        _ => FailureKind::Device("its queue pair is in error"),
    }
}

impl ClientTransport for Client {
    #[inline]
    fn now(&self) -> Instant {
        self.completions.now()
    }

    fn limits(&self) -> Limits {
        self.calls.limits()
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
        self.calls.post(id, false);
    }

    #[inline]
    fn post_idempotent(&mut self, id: SlotId, _now: Instant) {
        self.calls.post(id, true);
    }

    #[inline]
    fn flush(&mut self, _now: Instant) {
        self.calls.flush(&mut self.port);
    }

    fn abandon(&mut self, id: SlotId) {
        self.calls.abandon(id);
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        if let Some(why) = self.calls.over {
            self.calls.close(&mut self.port, why.kind, sink);
            return Progress::IDLE;
        }
        self.calls.stamp(now);
        let completed = match self.completions.poll() {
            Ok(completed) => completed,
            Err(error) => {
                self.calls.close(&mut self.port, failure(error), sink);
                return Progress::IDLE;
            }
        };
        let found = completed.len();
        let mut progress = Progress { worked: found as u32, ..Progress::IDLE };
        for completion in completed {
            if let Err(broken) = complete(&mut self.port, &mut self.calls, completion, now, sink) {
                self.calls.close(&mut self.port, broken, sink);
                return progress;
            }
        }
        if self.calls.needs_attention(now) || self.port.is_broken() {
            let more = self.completions.is_batch(found);
            let (moved, next) = self.calls.drive(&mut self.port, now, more, sink);
            progress.worked += moved;
            progress.next = next;
        }
        progress.next = progress.next.earlier(self.calls.poll_at());
        if self.completions.is_batch(found) {
            progress.next = PollAt::Now;
        }
        progress.scanned = self.completions.scanned();
        progress
    }

    fn park(&mut self, until: Option<Instant>) {
        self.completions.park(until, || self.calls.has_work(&self.port));
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.completions.unparker()
    }

    fn close(&mut self) {
        self.calls.say_goodbye(&mut self.port);
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
