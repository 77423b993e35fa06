//! What an injector sees, and what it may decide.

use crate::work_request::Work;
use crate::{
    DatagramSource, GRH_BYTES, Local, Operation, QpNumber, QpType, RemoteSlice, WorkCompletion,
    WorkRequest,
};

/// The most bytes of a message that an injector sees.
pub const PAYLOAD_VIEW_BYTES: usize = 64;

/// Decides what becomes of messages. It is asked by all threads that use the device.
pub trait FaultInjector: Send + Sync {
    /// A work request is about to be posted. One that the device cannot take at all (too long, say) is not
    /// asked about; one that it refuses because its queue is full is asked about again with the next attempt.
    fn outgoing(&self, request: &Outgoing<'_>) -> Verdict {
        let _ = request;
        Verdict::Pass
    }

    /// A datagram has arrived, and is about to be polled. Datagrams that meet a shared receive queue are not
    /// asked about: only the owner of that queue could post their receives again.
    fn incoming(&self, datagram: &Incoming<'_>) -> Reception {
        let _ = datagram;
        Reception::Deliver
    }

    /// Whether a completion queue that is about to be polled overruns now. From then on all its polls fail, as after any overrun.
    /// Queues are numbered from 0, in the order in which they were created on this device.
    fn overruns(&self, queue: u32) -> bool {
        let _ = queue;
        false
    }

    /// Whether the device is lost: it has failed, or was removed. From the first poll on that hears of it, all polls of that
    /// completion queue fail.
    fn is_lost(&self) -> bool {
        false
    }
}

/// A closure decides on work requests, and delivers what arrives.
impl<F: Fn(&Outgoing<'_>) -> Verdict + Send + Sync> FaultInjector for F {
    fn outgoing(&self, request: &Outgoing<'_>) -> Verdict {
        self(request)
    }
}

/// What becomes of a work request. Where its queue pair cannot have the fault, the work request passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It goes on to the device.
    Pass,
    /// It is lost. Over UC and UD it succeeds for its sender, and nobody receives it. Over RC the connection is
    /// lost: the oldest work request that has not completed ends as
    /// [`RetryExceeded`](crate::Status::RetryExceeded), and all others are flushed.
    Drop,
    /// A datagram arrives twice.
    Duplicate,
    /// A datagram is overtaken by so many later work requests of its queue pair; for its sender it succeeds in
    /// its turn.
    Delay(u32),
    /// A datagram waits until [`QueuePair::release_delayed`](crate::QueuePair::release_delayed).
    Hold,
    /// The queue pair goes into error before the work request, which is flushed with all others.
    Break,
}

/// What becomes of a datagram that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// It is polled.
    Deliver,
    /// It is lost: its receive is posted again, behind the others.
    Drop,
}

/// A work request on its way to the device.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Outgoing<'a> {
    /// The queue pair it is posted on.
    pub qp: QpNumber,
    /// The type of that queue pair.
    pub ty: QpType,
    /// What it does.
    pub operation: Operation,
    /// The destination of a datagram.
    pub to: Option<QpNumber>,
    /// The memory of the peer that it names.
    pub remote: Option<RemoteSlice>,
    /// Bytes that it moves.
    pub len: u64,
    /// Its immediate.
    pub imm: Option<u32>,
    /// Whether its success is reported.
    pub signaled: bool,
    /// The first bytes of what a SEND or WRITE carries, [`PAYLOAD_VIEW_BYTES`] at most. Of shared memory they
    /// are a copy: a peer may change them before the device looks.
    pub payload: &'a [u8],
}

/// A datagram on its way to its poller.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Incoming<'a> {
    /// The queue pair it arrived on.
    pub qp: QpNumber,
    /// Who sent it.
    pub source: Option<DatagramSource>,
    /// Its bytes, without the route header.
    pub len: u64,
    /// Its immediate.
    pub imm: Option<u32>,
    /// Its first bytes, [`PAYLOAD_VIEW_BYTES`] at most.
    pub payload: &'a [u8],
}

impl<'a> Outgoing<'a> {
    /// What there is to see of a work request; `room` is for bytes that have to be copied.
    pub(super) fn of(
        qp: QpNumber,
        ty: QpType,
        request: &'a WorkRequest<'_>,
        room: &'a mut [u8; PAYLOAD_VIEW_BYTES],
    ) -> Outgoing<'a> {
        let one_of = |without_imm, with_imm, imm: Option<u32>| match imm {
            Some(_) => with_imm,
            None => without_imm,
        };
        let (operation, remote, local, imm) = match &request.work {
            Work::Send { local, imm, .. } => {
                (one_of(Operation::Send, Operation::SendWithImm, *imm), None, Some(local), *imm)
            }
            Work::Write { local, remote, imm } => {
                let operation = one_of(Operation::Write, Operation::WriteWithImm, *imm);
                (operation, Some(*remote), Some(local), *imm)
            }
            Work::Read { remote, .. } => (Operation::Read, Some(*remote), None, None),
            Work::CompareAndSwap { remote, .. } => {
                (Operation::CompareAndSwap, Some(*remote), None, None)
            }
            Work::FetchAdd { remote, .. } => (Operation::FetchAdd, Some(*remote), None, None),
            Work::Flush { remote } => (Operation::Flush, Some(*remote), None, None),
            Work::BindWindow { .. } => (Operation::BindWindow, None, None, None),
            Work::InvalidateWindow { .. } => (Operation::InvalidateWindow, None, None, None),
        };
        let to = match &request.work {
            Work::Send { to, .. } => to.map(|to| to.qp),
            _ => None,
        };
        let len = match local {
            Some(local) => local.len() as u64,
            None => remote.map_or(0, |remote| remote.len()),
        };
        let payload = local.map_or(&[][..], |local| front(local, room));
        let signaled = request.signaled.is_some();
        Outgoing { qp, ty, operation, to, remote, len, imm, signaled, payload }
    }
}

/// The first bytes of a message.
fn front<'a>(local: &'a Local<'_>, room: &'a mut [u8; PAYLOAD_VIEW_BYTES]) -> &'a [u8] {
    let len = local.len().min(PAYLOAD_VIEW_BYTES);
    match local {
        Local::Buffer(buffer) => &buffer[..len],
        Local::Inline(bytes) => &bytes[..len],
        Local::Shared(slice) => {
            slice.copy_out(&mut room[..len]);
            &room[..len]
        }
    }
}

impl<'a> Incoming<'a> {
    /// What there is to see of a datagram that was received; `None` if it was received without its bytes.
    pub(super) fn of(completion: &'a WorkCompletion) -> Option<Incoming<'a>> {
        let payload = completion.buffer.as_ref()?.get(GRH_BYTES..)?;
        Some(Incoming {
            qp: completion.qp,
            source: completion.source,
            len: payload.len() as u64,
            imm: completion.imm,
            payload: &payload[..payload.len().min(PAYLOAD_VIEW_BYTES)],
        })
    }
}
