//! Posting send work requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::QueuePair;
use crate::dispatch;
use crate::shm::cell::CELL_PAYLOAD_BYTES;
use crate::shm::completion_queue::attention;
use crate::shm::context::{MAX_INLINE_BYTES, MTU_BYTES};
use crate::shm::pair::gate;
use crate::shm::peer::lock;
use crate::shm::send::SendSide;
use crate::shm::slow::{Bytes, Change as AtomicChange, Item, Outcome, Room, Task};
use crate::shm::window::{Bind, Window};
use crate::work_request::{Destination, Work};
use crate::{
    Buffer, CompletionOpcode, Local, LocalMut, MemoryWindow, PostError, QpState, QpType,
    RemoteSlice, Status, WorkRequest,
};

impl QueuePair {
    /// Posts one work request, without ringing.
    #[inline]
    #[allow(clippy::result_large_err)] // The request is given back, with the buffer that it owns.
    pub(crate) fn post<'a>(
        &mut self,
        mut request: WorkRequest<'a>,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        if let Work::Write { local: Local::Inline(bytes), remote, imm: Some(imm) } = &request.work
            && (self.try_write_imm(bytes, *remote, *imm, request.signaled)
                || self.try_write_imm_parts(&[], bytes, *remote, *imm, request.signaled))
        {
            return Ok(());
        }
        if let Work::Send { local: Local::Inline(bytes), imm: None, to: Some(to) } = &request.work
            && self.try_send_datagram(bytes, *to, request.signaled)
        {
            return Ok(());
        }
        if let Work::Send { local: Local::Inline(bytes), imm, to: None } = &request.work
            && self.try_send(bytes, *imm, request.signaled)
        {
            return Ok(());
        }
        if let Work::Write { local: Local::Inline(bytes), remote, imm: None } = &request.work
            && self.try_write(bytes, *remote, request.signaled)
        {
            return Ok(());
        }
        if let Work::Read { into: LocalMut::Buffer(buffer), remote } = &mut request.work
            && self.try_read(buffer, *remote)
        {
            self.keep_and_complete(request);
            return Ok(());
        }
        self.post_general(request)
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
        if self.try_write_imm(bytes, remote, imm, signaled) {
            return Ok(());
        }
        self.post_write_imm_long(bytes, remote, imm, signaled)
    }

    /// Apart, so that the code that drops any work request does not become part of every caller.
    #[inline(never)]
    fn post_write_imm_long(
        &mut self,
        bytes: &[u8],
        remote: RemoteSlice,
        imm: u32,
        signaled: Option<u64>,
    ) -> Result<(), PostError> {
        if self.try_write_imm_parts(&[], bytes, remote, imm, signaled) {
            return Ok(());
        }
        let request = WorkRequest::inline_write_imm(bytes, remote, imm, signaled);
        self.post_general(request).map_err(|(error, _)| error)
    }

    /// The sending side, for a fast path: nothing waits, the send queue has room, and at most `most` bytes are inline.
    #[inline(always)]
    fn fast_side(&mut self, len: usize, most: usize) -> Option<&mut SendSide> {
        if len > most || self.posted == self.limit || self.pair.gate.load(Ordering::Acquire) != 0 {
            return None;
        }
        // SAFETY: we are the owner and the SLOW bit is clear.
        Some(unsafe { self.pair.side() })
    }

    /// Counts a work request that a fast path has executed.
    #[inline(always)]
    fn executed(&mut self, opcode: CompletionOpcode, len: usize, signaled: Option<u64>) {
        let number = self.posted;
        self.posted = number + 1;
        if let Some(id) = signaled {
            self.pair.complete(self.pair.done(number, id, opcode, Status::Success, len as u32));
        }
    }

    /// The fast path of a WRITE_WITH_IMM that does not fit a cell, of the bytes of `front` and then those of `rest`. `false`:
    /// nothing was done.
    #[inline]
    pub(crate) fn try_write_imm_parts(
        &mut self,
        front: &[u8],
        rest: &[u8],
        remote: RemoteSlice,
        imm: u32,
        signaled: Option<u64>,
    ) -> bool {
        let len = front.len() + rest.len();
        let side = self.fast_side(len, MAX_INLINE_BYTES).filter(|_| len > CELL_PAYLOAD_BYTES);
        let done = side.is_some_and(|side| side.write_imm_long(front, rest, remote, imm));
        if done {
            self.executed(CompletionOpcode::Write, len, signaled);
        }
        done
    }

    /// The fast path of a WRITE_WITH_IMM: the bytes fit a cell. `false`: nothing was done.
    #[inline]
    fn try_write_imm(
        &mut self,
        bytes: &[u8],
        remote: RemoteSlice,
        imm: u32,
        signaled: Option<u64>,
    ) -> bool {
        let done = self
            .fast_side(bytes.len(), CELL_PAYLOAD_BYTES)
            .is_some_and(|side| side.write_imm_small(bytes, remote, imm));
        if done {
            self.executed(CompletionOpcode::Write, bytes.len(), signaled);
        }
        done
    }

    /// The fast path of a WRITE: the peer's region is known. `false`: nothing was done.
    #[inline(never)]
    fn try_write(&mut self, bytes: &[u8], remote: RemoteSlice, signaled: Option<u64>) -> bool {
        let done = self
            .fast_side(bytes.len(), MAX_INLINE_BYTES)
            .is_some_and(|side| side.write_inline(bytes, remote));
        if done {
            self.executed(CompletionOpcode::Write, bytes.len(), signaled);
        }
        done
    }

    /// The fast path of a READ: the peer's region is known. `false`: nothing was done; otherwise the buffer has to be
    /// [kept](Self::keep_and_complete).
    #[inline]
    fn try_read(&mut self, into: &mut Buffer, remote: RemoteSlice) -> bool {
        let pair = &self.pair;
        if pair.ty != QpType::Rc || into.pd() != pair.pd {
            return false;
        }
        self.fast_side(into.len(), MTU_BYTES).is_some_and(|side| side.read_known(into, remote))
    }

    /// Ends a READ into a buffer that a fast path has executed.
    #[inline]
    fn keep_and_complete(&mut self, request: WorkRequest<'_>) {
        if let Work::Read { into: LocalMut::Buffer(buffer), .. } = request.work {
            let len = buffer.len();
            self.in_flight.push_back((self.posted, buffer));
            self.executed(CompletionOpcode::Read, len, request.signaled);
        }
    }

    /// The fast path of a SEND: the bytes fit a cell. `false`: nothing was done.
    #[inline(never)]
    fn try_send(&mut self, bytes: &[u8], imm: Option<u32>, signaled: Option<u64>) -> bool {
        let done = self
            .fast_side(bytes.len(), CELL_PAYLOAD_BYTES)
            .is_some_and(|side| side.send_small(bytes, imm));
        if done {
            self.executed(CompletionOpcode::Send, bytes.len(), signaled);
        }
        done
    }

    /// The fast path of a datagram: to a known destination. `false`: nothing was done.
    #[inline]
    fn try_send_datagram(
        &mut self,
        bytes: &[u8],
        to: Destination<'_>,
        signaled: Option<u64>,
    ) -> bool {
        let Some(handle) = to.handle.shm() else { return false };
        if self.pair.ty != QpType::Ud {
            return false;
        }
        let Some(side) = self.fast_side(bytes.len(), MTU_BYTES) else { return false };
        let Some(route) = side.destinations.find_known(&handle.peer, to.qp.0) else { return false };
        side.destinations.send(route, bytes, None, to.qkey);
        self.executed(CompletionOpcode::Send, bytes.len(), signaled);
        true
    }

    /// Wakes the peer for what was posted on the fast path.
    #[inline]
    pub(crate) fn ring_doorbell(&mut self) {
        if self.pair.gate.load(Ordering::Acquire) == 0 {
            // SAFETY: we are the owner and the SLOW bit is clear.
            unsafe { self.pair.side() }.ring_doorbell();
        } else {
            self.ring_slowly();
        }
    }

    /// Rings while work waits: another thread may be retrying it with the sending side.
    #[cold]
    fn ring_slowly(&mut self) {
        let _slow = lock(&self.pair.slow);
        // SAFETY: we are the owner and hold the lock.
        unsafe { self.pair.side() }.ring_doorbell();
    }

    #[cold]
    #[inline(never)]
    #[allow(clippy::result_large_err)] // As for `post`.
    fn post_general<'a>(
        &mut self,
        request: WorkRequest<'a>,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        if let Err(error) = self.check(&request) {
            return Err((error, request));
        }
        let WorkRequest { work, signaled, failure_id } = request;
        let (task, buffer) = self.task(work);
        let number = self.posted;
        self.posted = number + 1;
        let mut item = Item {
            task,
            number,
            id: signaled.unwrap_or(failure_id),
            signaled: signaled.is_some(),
            pair: self.pair.id,
            qp: self.pair.number,
        };
        let inline = buffer.is_none();
        if let Some(buffer) = buffer {
            self.in_flight.push_back((number, buffer));
        }
        if !self.carry_out(&mut item) {
            self.defer(item, inline);
        }
        Ok(())
    }

    /// Executes an accepted work request. `false`: it has to wait.
    fn carry_out(&mut self, item: &mut Item) -> bool {
        let pair = &self.pair;
        let gate = pair.gate.load(Ordering::Acquire);
        if gate & gate::SLOW != 0 {
            return false; // Work posted earlier still waits.
        }
        if pair.state() == QpState::Error {
            pair.complete(item.done(Status::Flushed, 0));
            return true;
        }
        // SAFETY: we are the owner and the SLOW bit is clear.
        match unsafe { pair.side() }.execute(pair, item) {
            Outcome::Done(len) => {
                if item.signaled {
                    pair.complete(item.done(Status::Success, len));
                }
                true
            }
            Outcome::Failed(status) => {
                pair.complete(item.done(status, 0));
                pair.fail();
                true
            }
            Outcome::Wait(_) => false,
        }
    }

    /// Queues a work request behind the waiting ones, and retries them.
    fn defer(&mut self, mut item: Item, inline: bool) {
        if inline {
            item.keep_bytes();
        }
        let mut slow = lock(&self.pair.slow);
        slow.push(item);
        self.pair.gate.fetch_or(gate::SLOW, Ordering::SeqCst);
        if self.pair.state() == QpState::Error {
            return self.pair.flush(&mut slow);
        }
        let waits = slow.run(&self.pair);
        drop(slow);
        if waits {
            self.pair.send_cq.notice(attention::WAITING);
            self.pair.recv_cq.notice(attention::WAITING);
            self.pair.context.control.retry(&self.pair);
        }
    }

    /// Whether a work request may be posted.
    fn check(&mut self, request: &WorkRequest<'_>) -> Result<(), PostError> {
        let pair = &self.pair;
        if matches!(pair.state(), QpState::Init | QpState::ReadyToReceive) {
            return Err(PostError::State(pair.state()));
        }
        request.check(pair.ty, pair.pd, &self.binder, pair.context.caps())?;
        if let Work::Send { to: Some(to), .. } = &request.work {
            to.handle.shm().ok_or(PostError::Foreign)?;
        }
        self.limit = self.pair.retired.load(Ordering::Acquire) + self.max_send_wr;
        if self.posted >= self.limit { Err(PostError::QueueFull) } else { Ok(()) }
    }

    /// Converts a checked work request to a task, and the buffer it holds until it is retired.
    fn task(&mut self, work: Work<'_>) -> (Task, Option<Buffer>) {
        fn bytes(local: Local<'_>) -> (Bytes, Option<Buffer>) {
            match local {
                Local::Buffer(buffer) => (Bytes::At(buffer.start(), buffer.len()), Some(buffer)),
                Local::Inline(slice) => (Bytes::At(slice.as_ptr(), slice.len()), None),
                Local::Shared(slice) => (Bytes::Shared(slice), None),
            }
        }
        fn room(into: LocalMut) -> (Room, Option<Buffer>) {
            match into {
                LocalMut::Buffer(buffer) => (Room::At(buffer.start()), Some(buffer)),
                LocalMut::Shared(slice) => (Room::Shared(slice), None),
            }
        }
        fn of_window(window: &MemoryWindow) -> Arc<Window> {
            match window.device() {
                dispatch::Window::Shm(window) => Arc::clone(window),
                #[cfg(any(feature = "ibverbs", feature = "sim"))]
                _ => unreachable!("its domain belongs to this device: WorkRequest::check"),
            }
        }
        match work {
            Work::Send { local, imm, to } => {
                let (bytes, buffer) = bytes(local);
                let task = match to.and_then(|to| Some((to.handle.shm()?, to))) {
                    None => Task::Send { bytes, imm, sent: None },
                    Some((handle, to)) => {
                        // SAFETY: we are the owner, and datagrams never wait: SLOW is never set.
                        let destinations = &mut unsafe { self.pair.side() }.destinations;
                        let route = destinations.find_or_ask(&self.pair, &handle.peer, to.qp.0);
                        Task::Datagram { bytes, imm, route, qkey: to.qkey }
                    }
                };
                (task, buffer)
            }
            Work::Write { local, remote, imm } => {
                let (bytes, buffer) = bytes(local);
                (Task::Write { bytes, remote, imm }, buffer)
            }
            Work::Read { into, remote } => {
                let (room, buffer) = room(into);
                (Task::Read { room, remote }, buffer)
            }
            Work::CompareAndSwap { into, remote, expected, new } => {
                let (room, buffer) = room(into);
                let change = AtomicChange::CompareAndSwap { expected, new };
                (Task::Atomic { room, remote, change }, buffer)
            }
            Work::FetchAdd { into, remote, add } => {
                let (room, buffer) = room(into);
                (Task::Atomic { room, remote, change: AtomicChange::Add(add) }, buffer)
            }
            Work::BindWindow { window, memory, access } => {
                let region = memory.region_key();
                let binding = window.bind(&self.binder, memory, access);
                let bind = Bind::new(of_window(window), &binding, region, self.pair.number);
                (Task::BindWindow(bind), None)
            }
            Work::InvalidateWindow { window } => {
                window.invalidate();
                (Task::InvalidateWindow { window: of_window(window), inside: None }, None)
            }
            Work::Flush { .. } => unreachable!("refused by WorkRequest::check"),
        }
    }

    #[inline]
    pub(crate) fn reclaim(&mut self, into: &mut dyn FnMut(Buffer)) {
        if self.in_flight.is_empty() {
            return;
        }
        let retired = self.pair.retired.load(Ordering::Acquire);
        while let Some((_, buffer)) = self.in_flight.pop_front_if(|(number, _)| *number < retired) {
            into(buffer);
        }
    }
}
