//! A queue pair with faults: what is posted in place of what, and how that is made up for when it completes.

use std::collections::VecDeque;
use std::ops::Range;

use super::copies::{Copies, Copy, Delayed};
use super::injector::Verdict;
use crate::dispatch::{self, on_device};
use crate::work_request::Work;
use crate::{
    Buffer, CompletionOpcode, Local, PostError, QpState, QpType, RemoteSlice, Status,
    WorkCompletion, WorkRequest,
};

/// No region has this key.
const NO_KEY: u32 = 0;

/// What a posted work request was before it was made one that nobody receives.
#[derive(Clone, Copy)]
enum Undelivered {
    /// A datagram, with its queue key.
    Datagram(u32),
    /// A SEND, with its immediate.
    Send(Option<u32>),
    /// A WRITE, with its target and its immediate.
    Write(RemoteSlice, Option<u32>),
}

/// A queue pair of any device, and what the layer knows of it.
pub(super) struct Pair {
    pub(super) qp: dispatch::QueuePair,
    domain: dispatch::Domain,
    ty: QpType,
    copies: Copies,
    delayed: Delayed,
    /// For each buffer under way, in the order of posting: whether it is a copy of ours.
    under_way: VecDeque<bool>,
    /// Buffers of the owner that came back while we looked for ours.
    reclaimed: VecDeque<Buffer>,
    /// What the signaled work requests of an unreliable connection were before some became WRITEs to nowhere.
    opcodes: VecDeque<CompletionOpcode>,
    /// The connection is lost, and the work request that tells has not completed.
    lost: bool,
}

impl Pair {
    pub(super) fn new(
        qp: dispatch::QueuePair,
        domain: &dispatch::Domain,
        ty: QpType,
        max_copies: usize,
    ) -> Pair {
        Pair {
            qp,
            domain: domain.clone(),
            ty,
            copies: Copies::new(max_copies, domain.caps().mtu),
            delayed: Delayed::default(),
            under_way: VecDeque::new(),
            reclaimed: VecDeque::new(),
            opcodes: VecDeque::new(),
            lost: false,
        }
    }

    fn state(&self) -> QpState {
        on_device!(QueuePair, &self.qp, qp => qp.state())
    }

    /// Posts a work request, or what stands for it.
    #[allow(clippy::result_large_err)] // The request is given back, with the buffer that it owns.
    pub(super) fn post<'a>(
        &mut self,
        request: WorkRequest<'a>,
        verdict: Verdict,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        let datagrams = self.ty == QpType::Ud;
        let mut delayed = None;
        match verdict {
            Verdict::Drop if self.ty != QpType::Rc => self.post_undelivered(request)?,
            Verdict::Drop | Verdict::Break => {
                if self.state() == QpState::ReadyToSend {
                    self.lost = verdict == Verdict::Drop;
                    self.fail();
                }
                self.forward(request)?;
            }
            Verdict::Duplicate if datagrams => {
                let copy = self.copy(&request);
                self.forward(request)?;
                copy.into_iter().for_each(|copy| self.send(copy));
            }
            Verdict::Delay(1..) | Verdict::Hold if datagrams => match self.copy(&request) {
                Some(copy) => {
                    self.post_undelivered(request)?;
                    delayed = Some(copy);
                }
                None => self.forward(request)?,
            },
            _ => self.forward(request)?,
        }
        for copy in self.delayed.count_down() {
            self.send(copy);
        }
        if let Some(copy) = delayed {
            let requests = match verdict {
                Verdict::Delay(requests) => Some(requests),
                _ => None,
            };
            self.delayed.push(requests, copy);
        }
        Ok(())
    }

    /// Posts a work request as it is.
    #[allow(clippy::result_large_err)] // As for `post`.
    fn forward<'a>(
        &mut self,
        request: WorkRequest<'a>,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        let opcode = opcode(&request.work);
        self.forward_as(opcode, request)
    }

    /// Posts a work request that its owner takes for one of that kind.
    #[allow(clippy::result_large_err)] // As for `post`.
    fn forward_as<'a>(
        &mut self,
        opcode: CompletionOpcode,
        request: WorkRequest<'a>,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        let (has_buffer, signaled) = (has_buffer(&request.work), request.signaled.is_some());
        on_device!(QueuePair, &mut self.qp, qp => qp.post(request))?;
        if has_buffer {
            self.under_way.push_back(false);
        }
        if signaled && self.ty == QpType::Uc {
            self.opcodes.push_back(opcode);
        }
        Ok(())
    }

    /// Posts a work request so that it completes in its turn and nobody receives it.
    #[allow(clippy::result_large_err)] // As for `post`.
    fn post_undelivered<'a>(
        &mut self,
        mut request: WorkRequest<'a>,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        let opcode = opcode(&request.work);
        let before = match make_undeliverable(request.work) {
            Ok((work, before)) => {
                request.work = work;
                before
            }
            Err(work) => {
                request.work = work;
                return self.forward(request);
            }
        };
        self.forward_as(opcode, request).map_err(|(error, mut request)| {
            request.work = restore(request.work, before);
            (error, request)
        })
    }

    /// A copy of a datagram, if there is a buffer for it.
    fn copy(&mut self, request: &WorkRequest<'_>) -> Option<Copy> {
        self.take_back();
        let domain = &self.domain;
        let buffer = self.copies.take(|len| domain.private(len).ok())?;
        Copy::of(request, buffer)
    }

    /// Sends a copy; where the queue is full it is lost, as datagrams may be.
    fn send(&mut self, copy: Copy) {
        let posted = copy
            .send(|request| on_device!(QueuePair, &mut self.qp, qp => qp.post(request)).is_ok());
        if posted {
            self.under_way.push_back(true);
        }
    }

    /// Sends all that is delayed, without a doorbell.
    pub(super) fn release_delayed(&mut self) {
        for copy in self.delayed.release() {
            self.send(copy);
        }
    }

    /// Takes back the buffers that were retired: copies are free again, the others wait for their owner.
    fn take_back(&mut self) {
        let Pair { under_way, reclaimed, .. } = self;
        on_device!(QueuePair, &mut self.qp, qp => qp.reclaim(&mut |buffer| {
            if under_way.pop_front() != Some(true) {
                reclaimed.push_back(buffer);
            }
        }));
    }

    pub(super) fn reclaim(&mut self, into: &mut dyn FnMut(Buffer)) {
        self.take_back();
        self.reclaimed.drain(..).for_each(into);
    }

    pub(super) fn fail(&mut self) {
        on_device!(QueuePair, &mut self.qp, qp => qp.fail());
    }

    pub(super) fn post_recv(&mut self, id: u64, buffer: Option<Buffer>) -> Result<(), PostError> {
        on_device!(QueuePair, &mut self.qp, qp => qp.post_recv(id, buffer))
    }

    pub(super) fn post_recvs(&mut self, ids: Range<u64>) -> Result<(), PostError> {
        on_device!(QueuePair, &mut self.qp, qp => qp.post_recvs(ids))
    }

    /// A send work request has completed: what its owner should see of it.
    pub(super) fn finish_send(&mut self, completion: &mut WorkCompletion) {
        match completion.status {
            Status::Success => {
                if let Some(opcode) = self.opcodes.pop_front() {
                    completion.opcode = opcode;
                }
            }
            Status::Flushed if std::mem::take(&mut self.lost) => {
                completion.status = Status::RetryExceeded;
            }
            _ => {}
        }
    }

    /// Posts the receive of a datagram that is dropped again, as long as its buffer can be. `false`: that
    /// failed, and the completion says so.
    pub(super) fn repost(&mut self, completion: &mut WorkCompletion) -> bool {
        let buffer = completion.buffer.take().map(|mut buffer| {
            buffer.set_len(buffer.capacity());
            buffer
        });
        let posted = self.post_recv(completion.id, buffer);
        if posted.is_err() {
            completion.status = Status::Flushed;
        }
        posted.is_ok()
    }
}

fn opcode(work: &Work<'_>) -> CompletionOpcode {
    match work {
        Work::Send { .. } => CompletionOpcode::Send,
        Work::Write { .. } => CompletionOpcode::Write,
        Work::Read { .. } => CompletionOpcode::Read,
        Work::CompareAndSwap { .. } => CompletionOpcode::CompareAndSwap,
        Work::FetchAdd { .. } => CompletionOpcode::FetchAdd,
        Work::Flush { .. } => CompletionOpcode::Flush,
        Work::BindWindow { .. } => CompletionOpcode::BindWindow,
        Work::InvalidateWindow { .. } => CompletionOpcode::InvalidateWindow,
    }
}

/// Whether the queue pair holds a buffer until the work request is retired.
fn has_buffer(work: &Work<'_>) -> bool {
    match work {
        Work::Send { local, .. } | Work::Write { local, .. } => matches!(local, Local::Buffer(_)),
        Work::Read { into, .. }
        | Work::CompareAndSwap { into, .. }
        | Work::FetchAdd { into, .. } => matches!(into, crate::LocalMut::Buffer(_)),
        Work::Flush { .. } | Work::BindWindow { .. } | Work::InvalidateWindow { .. } => false,
    }
}

/// A datagram gets a key that its receiver does not have; what goes over an unreliable connection becomes a
/// WRITE to memory that is not there, which the receiver ignores. Anything else is given back.
fn make_undeliverable(work: Work<'_>) -> Result<(Work<'_>, Undelivered), Work<'_>> {
    let nowhere = |len: usize| RemoteSlice::new(0, NO_KEY, len as u64);
    match work {
        Work::Send { local, imm, to: Some(mut to) } => {
            let before = Undelivered::Datagram(to.qkey);
            // With the highest bit set it would stand for the sender's own key.
            to.qkey = (to.qkey ^ 1) & (u32::MAX >> 1);
            Ok((Work::Send { local, imm, to: Some(to) }, before))
        }
        Work::Send { local, imm, to: None } => {
            let remote = nowhere(local.len());
            Ok((Work::Write { local, remote, imm: None }, Undelivered::Send(imm)))
        }
        Work::Write { local, remote, imm } => {
            let before = Undelivered::Write(remote, imm);
            let remote = nowhere(local.len());
            Ok((Work::Write { local, remote, imm: None }, before))
        }
        other => Err(other),
    }
}

/// The work request as it was before [`make_undeliverable`].
fn restore(work: Work<'_>, before: Undelivered) -> Work<'_> {
    match (work, before) {
        (Work::Send { local, imm, to: Some(mut to) }, Undelivered::Datagram(qkey)) => {
            to.qkey = qkey;
            Work::Send { local, imm, to: Some(to) }
        }
        (Work::Write { local, .. }, Undelivered::Send(imm)) => Work::Send { local, imm, to: None },
        (Work::Write { local, .. }, Undelivered::Write(remote, imm)) => {
            Work::Write { local, remote, imm }
        }
        (work, _) => work,
    }
}
