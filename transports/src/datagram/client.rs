//! The client's half: reserve, post, poll.

use std::sync::Arc;

use farcall_core::error::{FailureKind, ReserveError, TransportFailure};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{ClientTransport, Limits, ReplySink, SlotId, Unpark};

use farcall_verbs::{
    CompletionOpcode, Device, GRH_BYTES, ProtectionDomain, Status, WorkCompletion,
};

use super::calls::{Broken, Calls};
use super::port::Port;
use super::setup::{EndSetup, Sizes, mix, qkey};
use super::wire::Header;
use crate::backend::SetupError;
use crate::completions::{Completions, failure};

/// A client's queue pair, ready, and where it completes.
#[derive(Debug)]
pub(crate) struct Line {
    // Dropped in this order: queue pair, completion queue.
    pub(crate) port: Port,
    pub(crate) completions: Completions,
    pub(crate) pd: ProtectionDomain,
    pub(crate) qkey: u32,
    pub(crate) mtu: usize,
    pub(crate) has_network: bool,
}

impl Line {
    pub(crate) fn open(device: &Device, sizes: &Sizes) -> Result<Line, SetupError> {
        let completions = Completions::in_batches(device, sizes.completions(), sizes.batch)?;
        let pd = device.alloc_pd()?;
        let mut port = Port::open(device, &pd, &completions.queue(), sizes)?;
        let qkey = qkey(&port.qp().endpoint(), device.now_ns());
        port.activate(qkey)?;
        let has_network = device.caps().network;
        Ok(Line { port, completions, pd, qkey, mtu: sizes.mtu, has_network })
    }

    /// What a client says of a session of that number.
    pub(crate) fn setup(&self, session: u32, now_ns: u64) -> Vec<u8> {
        let endpoint = self.port.qp().endpoint();
        let salt = mix(endpoint.to_bytes(), now_ns.wrapping_add(1) ^ u64::from(session) << 32);
        EndSetup::new(&endpoint, self.qkey, session, salt, self.mtu).to_bytes()
    }
}

/// A session with one server thread, over a queue pair of its own.
#[derive(Debug)]
pub(crate) struct Client {
    calls: Calls,
    line: Line,
}

impl Client {
    pub(crate) fn new(line: Line, calls: Calls) -> Client {
        Client { calls, line }
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
pub(crate) fn lost(completion: &WorkCompletion) -> Broken {
    tracing::debug!(status = ?completion.status, "a work request failed");
    match completion.status {
        Status::LocalProtection | Status::LocalLength => FailureKind::Device("local protection"),
        _ => FailureKind::Device("its queue pair is in error"),
    }
}

impl ClientTransport for Client {
    #[inline]
    fn now(&self) -> Instant {
        self.line.completions.now()
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
        self.calls.flush(&mut self.line.port);
    }

    fn abandon(&mut self, id: SlotId) {
        self.calls.abandon(id);
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        if let Some(why) = self.calls.over {
            self.calls.close(&mut self.line.port, why.kind, sink);
            return Progress::IDLE;
        }
        self.calls.stamp(now);
        let completed = match self.line.completions.poll() {
            Ok(completed) => completed,
            Err(error) => {
                self.calls.close(&mut self.line.port, failure(error), sink);
                return Progress::IDLE;
            }
        };
        let found = completed.len();
        let mut progress = Progress { worked: found as u32, ..Progress::IDLE };
        for completion in completed {
            if let Err(broken) =
                complete(&mut self.line.port, &mut self.calls, completion, now, sink)
            {
                self.calls.close(&mut self.line.port, broken, sink);
                return progress;
            }
        }
        if self.calls.needs_attention(now) || self.line.port.is_broken() {
            let more = self.line.completions.is_batch(found);
            let (moved, next) = self.calls.drive(&mut self.line.port, now, more, sink);
            progress.worked += moved;
            progress.next = next;
        }
        progress.next = progress.next.earlier(self.calls.poll_at());
        if self.line.completions.is_batch(found) {
            progress.next = PollAt::Now;
        }
        progress.scanned = self.line.completions.scanned();
        progress
    }

    fn park(&mut self, until: Option<Instant>) {
        self.line.completions.park(until, || self.calls.has_work(&self.line.port));
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.line.completions.unparker()
    }

    fn close(&mut self) {
        self.calls.say_goodbye(&mut self.line.port);
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
