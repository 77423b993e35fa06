//! Posting send work requests.

use std::ptr::null_mut;

use super::attachment::Key;
use super::in_flight::{Held, Memory, Sent};
use super::pending::Bytes;
use super::queue_pair::QueuePair;
use super::status;
use super::sys::{
    atomic_t, bind_mw_t, ibv_post_send, ibv_send_flags, ibv_wr_opcode as opcode, rdma_t, ud_t,
};
use crate::work_request::Work;
use crate::{
    CompletionOpcode, Local, LocalMut, PostError, QpState, QpType, RemoteSlice, WorkRequest,
};

/// The local side of a work request: its bytes, and their owner.
fn local(local: Local<'_>) -> (Bytes<'_>, Option<Memory>) {
    match local {
        Local::Inline(bytes) => (Bytes::Inline(bytes), None),
        Local::Buffer(buffer) => {
            let at = Bytes::At(
                buffer.start().expose_provenance() as u64,
                buffer.len() as u32,
                buffer.lkey(),
            );
            (at, Some(Memory::Buffer(buffer)))
        }
        Local::Shared(slice) => {
            let at = Bytes::At(
                slice.start().expose_provenance() as u64,
                slice.len() as u32,
                slice.lkey(),
            );
            (at, Some(Memory::Shared(slice)))
        }
    }
}

fn room<'a>(into: LocalMut) -> (Bytes<'a>, Option<Memory>) {
    local(match into {
        LocalMut::Buffer(buffer) => Local::Buffer(buffer),
        LocalMut::Shared(slice) => Local::Shared(slice),
    })
}

impl QueuePair {
    /// Posts one work request, without ringing.
    #[inline]
    #[allow(clippy::result_large_err)] // The request is given back, with the buffer that it owns.
    pub(crate) fn post<'a>(
        &mut self,
        request: WorkRequest<'a>,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        if let Work::Write { local: Local::Inline(bytes), remote, imm } = request.work
            && self.append_inline_write(bytes, remote, imm, request.signaled)
        {
            self.identify_last(request.failure_id);
            return Ok(());
        }
        if let Err(error) = self.check(&request) {
            return Err((error, request));
        }
        if self.pending.is_full() {
            self.ring_doorbell();
        }
        let WorkRequest { work, signaled, failure_id } = request;
        match work {
            Work::BindWindow { window, memory, access } => {
                return self.post_binding(window, memory, access, signaled);
            }
            Work::InvalidateWindow { window } => self.post_invalidation(window, signaled),
            work => self.take(work, signaled),
        }
        self.identify_last(failure_id);
        Ok(())
    }

    /// Notes the id of the last work request, which the device does not have yet, if it fails.
    #[inline]
    fn identify_last(&self, failure_id: u64) {
        if failure_id != 0 {
            self.shared.sends.identify(self.posted - 1, failure_id);
        }
    }

    /// Posts an inline WRITE_WITH_IMM, without ringing.
    #[inline]
    pub(crate) fn post_write_imm(
        &mut self,
        bytes: &[u8],
        remote: RemoteSlice,
        imm: u32,
        signaled: Option<u64>,
    ) -> Result<(), PostError> {
        let request = WorkRequest::inline_write_imm(bytes, remote, imm, signaled);
        self.post(request).map_err(|(error, _)| error)
    }

    /// Appends an inline WRITE, the most common work request, without the checks that other requests need.
    /// `false`: it is not valid, which [`check`](Self::check) explains, or the list is full.
    #[inline]
    fn append_inline_write(
        &mut self,
        bytes: &[u8],
        remote: RemoteSlice,
        imm: Option<u32>,
        signaled: Option<u64>,
    ) -> bool {
        let fits = bytes.len() <= self.pending.max_inline() && bytes.len() as u64 == remote.len;
        let ready = self.shared.ty != QpType::Ud
            && self.shared.state() == QpState::ReadyToSend
            && self.shared.unposted().is_none();
        if !fits || !ready || self.posted == self.limit || self.pending.is_full() {
            return false;
        }
        let raw_opcode = match imm {
            None => opcode::IBV_WR_RDMA_WRITE,
            Some(_) => opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
        };
        let (bytes, to) = (Bytes::Inline(bytes), RawTo::memory(remote));
        self.append(bytes, raw_opcode, CompletionOpcode::Write, imm, signaled, to);
        true
    }

    /// Whether a work request may be posted.
    #[inline]
    fn check(&mut self, request: &WorkRequest<'_>) -> Result<(), PostError> {
        let state = self.shared.state();
        if matches!(state, QpState::Init | QpState::ReadyToReceive) {
            return Err(PostError::State(state));
        }
        let domain = &self.domain;
        request.check(self.shared.ty, domain.number, &self.binder, domain.context.caps())?;
        match &request.work {
            // The device would give the same answer, but break the queue pair first.
            Work::CompareAndSwap { remote, .. } | Work::FetchAdd { remote, .. }
                if !remote.addr.is_multiple_of(8) =>
            {
                return Err(PostError::Misaligned { addr: remote.addr });
            }
            Work::Send { to: Some(to), .. } => {
                let address = to.handle.ibv().ok_or(PostError::Foreign)?;
                if address.domain.number != domain.number {
                    return Err(PostError::Foreign);
                }
            }
            _ => {}
        }
        if self.shared.unposted().is_some() {
            return Err(PostError::State(QpState::Error));
        }
        if self.posted == self.limit {
            self.limit = self.shared.sends.retired() + self.max_send_wr;
            if self.posted == self.limit {
                return Err(PostError::QueueFull);
            }
        }
        Ok(())
    }

    /// Appends a checked work request to the list that waits for the doorbell.
    #[inline]
    fn take(&mut self, work: Work<'_>, signaled: Option<u64>) {
        let mut address = None;
        let (bytes, memory, raw_opcode, kind, imm, raw_to) = match work {
            Work::Send { local: from, imm, to } => {
                let (bytes, memory) = local(from);
                let (plain, with_imm) = (opcode::IBV_WR_SEND, opcode::IBV_WR_SEND_WITH_IMM);
                let to = to.and_then(|to| {
                    let handle = to.handle.ibv()?;
                    address = Some(std::sync::Arc::clone(handle));
                    let ud =
                        ud_t { ah: handle.raw.raw(), remote_qpn: to.qp.0, remote_qkey: to.qkey };
                    Some(RawTo::Datagram(ud))
                });
                let raw = if imm.is_some() { with_imm } else { plain };
                (bytes, memory, raw, CompletionOpcode::Send, imm, to.unwrap_or(RawTo::Connected))
            }
            Work::Write { local: from, remote, imm } => {
                let (bytes, memory) = local(from);
                let (plain, with_imm) =
                    (opcode::IBV_WR_RDMA_WRITE, opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
                let raw = if imm.is_some() { with_imm } else { plain };
                (bytes, memory, raw, CompletionOpcode::Write, imm, RawTo::memory(remote))
            }
            Work::Read { into, remote } => {
                let (bytes, memory) = room(into);
                let raw = opcode::IBV_WR_RDMA_READ;
                (bytes, memory, raw, CompletionOpcode::Read, None, RawTo::memory(remote))
            }
            Work::CompareAndSwap { into, remote, expected, new } => {
                let (bytes, memory) = room(into);
                let raw = opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
                let to = RawTo::word(remote, expected, new);
                (bytes, memory, raw, CompletionOpcode::CompareAndSwap, None, to)
            }
            Work::FetchAdd { into, remote, add } => {
                let (bytes, memory) = room(into);
                let raw = opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
                let to = RawTo::word(remote, add, 0);
                (bytes, memory, raw, CompletionOpcode::FetchAdd, None, to)
            }
            Work::BindWindow { .. } | Work::InvalidateWindow { .. } | Work::Flush { .. } => {
                unreachable!("posted by `post`, or refused by WorkRequest::check")
            }
        };
        let number = self.posted;
        self.append(bytes, raw_opcode, kind, imm, signaled, raw_to);
        if memory.is_some() || address.is_some() {
            self.in_flight.push(number, Held { memory, address }, self.shared.sends.retired());
        }
    }

    /// Appends an entry to the list. Inlined, because most of it depends on the constant arguments.
    #[inline(always)]
    pub(super) fn append(
        &mut self,
        bytes: Bytes<'_>,
        opcode: opcode::Type,
        kind: CompletionOpcode,
        imm: Option<u32>,
        signaled: Option<u64>,
        to: RawTo,
    ) {
        let len = match bytes {
            Bytes::Inline(bytes) => bytes.len() as u32,
            Bytes::At(_, len, _) => len,
        };
        let number = self.posted;
        self.posted = number + 1;
        let sent = Sent { id: signaled.unwrap_or(0), opcode: kind, len };
        self.shared.sends.post(number, sent);
        let raw = self.pending.push(bytes);
        raw.wr_id = self.key.wr_id(number as u32);
        raw.opcode = opcode;
        if signaled.is_some() {
            raw.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        raw.imm_data_invalidated_rkey_union.imm_data = imm.unwrap_or(0).to_be();
        match to {
            RawTo::Connected => {}
            RawTo::Memory(rdma) => raw.wr.rdma = rdma,
            RawTo::Word(atomic) => raw.wr.atomic = atomic,
            RawTo::Datagram(ud) => raw.wr.ud = ud,
            RawTo::Window(bind) => raw.bind_mw_tso_union.bind_mw = bind,
            RawTo::Invalidated(rkey) => raw.imm_data_invalidated_rkey_union.invalidated_rkey = rkey,
        }
    }

    /// Passes all pending work requests to the device.
    #[inline]
    pub(crate) fn ring_doorbell(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let first = self.posted - self.pending.len() as u64;
        let list = self.pending.take();
        let mut refused = null_mut();
        // SAFETY: the queue pair lives. The list is linked and stays where it is during the call; memory
        // that its elements name is held in `in_flight` until their completions, inline bytes are copied
        // by the call.
        let code = unsafe { ibv_post_send(self.raw.raw(), list, &mut refused) };
        if code != 0 {
            // SAFETY: the device says which element it did not take; it is in the list.
            let from = (!refused.is_null()).then(|| unsafe { (*refused).wr_id });
            self.handle_refusal(first, from, code);
        }
    }

    /// Handles a refusal by the device. Accepted requests cannot be given back, so they complete as flushed.
    #[cold]
    fn handle_refusal(&self, first: u64, wr_id: Option<u64>, code: i32) {
        let from = match wr_id {
            Some(wr_id) => first + u64::from(Key::of(wr_id).1.wrapping_sub(first as u32)),
            // The device took all, and then the kernel refused the doorbell.
            None => self.posted,
        };
        let errno = status::returned(code);
        tracing::error!(qp = self.shared.number, %errno, "the device refused work requests");
        self.mark_unposted(from);
    }
}

/// The remote side of a work request, as the device wants it.
#[derive(Clone, Copy)]
pub(super) enum RawTo {
    Connected,
    Memory(rdma_t),
    Word(atomic_t),
    Datagram(ud_t),
    /// A window of ours that is bound.
    Window(bind_mw_t),
    /// A key of ours that is invalidated.
    Invalidated(u32),
}

impl RawTo {
    #[inline]
    fn memory(remote: RemoteSlice) -> RawTo {
        RawTo::Memory(rdma_t { remote_addr: remote.addr, rkey: remote.rkey })
    }

    #[inline]
    fn word(remote: RemoteSlice, compare_add: u64, swap: u64) -> RawTo {
        let RemoteSlice { addr, rkey, .. } = remote;
        RawTo::Word(atomic_t { remote_addr: addr, compare_add, swap, rkey })
    }
}
