//! A queue pair in the hands of its owner.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io;
use rustix::rand::{GetRandomFlags, getrandom};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::completion_queue::{Change, CqShared, attention};
use super::context::{Context, MAX_INLINE_BYTES, MTU_BYTES};
use super::datagram::{DatagramReceiver, Paths, To};
use super::events::new_event;
use super::inbox::{Inbox, InboxLayout, InboxState};
use super::pair::{Arrivals, Pair, PairParts, gate};
use super::peer::{Peer, lock};
use super::receive::{MAX_MESSAGE_BYTES, Posted, Receive, Receiver, Source};
use super::send::Outbox;
use super::shared_receive::{CreditPage, ReceivePool, SharedReceiveQueue};
use super::slow::{Bytes, Change as AtomicChange, Item, Outcome, Room, Task};
use super::spsc::{Producer, queue};
use super::wire::{Gid, Question, ask};
use crate::work_request::Work;
use crate::{
    Buffer, CompletionOpcode, ConnectError, ConnectOptions, Local, LocalMut, Operation, PostError,
    QpState, QpType, RemoteSlice, Status, VerbsError, WorkRequest,
};

/// Names a queue pair to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ShmEndpoint {
    pub(crate) secret: u64,
    pub(crate) gid: Gid,
    pub(crate) uid: u32,
    pub(crate) qp: u32,
    pub(crate) ty: u32,
    pub(crate) reserved: u32,
}

/// Names queue pairs at completion queues; never used twice in a process.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// What a queue pair is made of, numbers checked.
pub(crate) struct Config<'a> {
    pub(crate) ty: QpType,
    pub(crate) pd: u32,
    pub(crate) send_cq: Arc<CqShared>,
    pub(crate) recv_cq: Arc<CqShared>,
    pub(crate) srq: Option<&'a SharedReceiveQueue>,
    pub(crate) max_send_wr: usize,
    pub(crate) max_recv_wr: usize,
}

/// Where receives are posted.
enum Receives {
    /// To the poller, who alone takes them.
    Own(Producer<Posted>),
    /// To the datagram queue pair's own pool.
    Pool(Arc<ReceivePool>),
    /// To a shared receive queue, not here.
    Srq,
}

pub(crate) struct QueuePair {
    pair: Arc<Pair>,
    /// Send work requests taken since the beginning, and how many there may have been so far.
    posted: u64,
    limit: u64,
    max_send_wr: u64,
    /// Buffers of send work requests, with their numbers, until these are retired.
    in_flight: VecDeque<(u64, Buffer)>,
    receives: Receives,
    /// Receives posted since the beginning, wrapping.
    posted_receives: u32,
    max_recv_wr: u32,
    /// Receives with buffers have been posted: their lengths are in the inbox's table, which has to be
    /// kept from then on.
    lengths_used: bool,
    /// What this queue pair may have outstanding at its completion queues.
    demand: (usize, usize),
}

impl QueuePair {
    pub(crate) fn new(context: &Arc<Context>, config: Config<'_>) -> Result<QueuePair, VerbsError> {
        let system =
            |what| move |error: io::Errno| VerbsError::System { what, source: error.into() };
        let Config { ty, pd, send_cq, recv_cq, srq, max_send_wr, max_recv_wr } = config;
        let mut secret = [0; 8];
        let event = match recv_cq.channel() {
            Some(channel) if ty != QpType::Ud => {
                let event = new_event().map_err(system("event of a queue pair"))?;
                channel.add(event.as_fd()).map_err(system("event of a queue pair"))?;
                Some(event)
            }
            _ => None,
        };
        let (arrivals, pool) = if ty == QpType::Ud {
            let pool = match srq {
                Some(srq) => Arc::clone(&srq.pool),
                None => Arc::new(
                    ReceivePool::new(max_recv_wr, pd)
                        .map_err(system("memory for the receives of a queue pair"))?,
                ),
            };
            (Arrivals::Many(Paths::default()), Some(pool))
        } else {
            getrandom(&mut secret, GetRandomFlags::empty()).map_err(system("random secret"))?;
            let layout = InboxLayout::for_receives(
                max_recv_wr.max(srq.map_or(0, |srq| srq.pool.capacity())),
            );
            let (inbox, file) =
                Inbox::create(layout).map_err(system("memory for an inbox of a queue pair"))?;
            let arrivals = Arrivals::One { inbox, file: Some(file).into() };
            (arrivals, srq.map(|srq| Arc::clone(&srq.pool)))
        };
        let number = context.new_qp_number();
        let pair = Arc::new(Pair::new(PairParts {
            number,
            ty,
            pd,
            secret: u64::from_ne_bytes(secret),
            context: Arc::clone(context),
            send_cq: Arc::clone(&send_cq),
            recv_cq: Arc::clone(&recv_cq),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            arrivals,
            event,
            credit: pool.as_ref().map(|pool| Arc::clone(&pool.credit)),
        }));
        context.add_pair(number, &pair);
        let own = srq.is_none();
        let demand = (max_send_wr, srq.map_or(max_recv_wr, |srq| srq.pool.capacity()));
        send_cq.expect(demand.0);
        recv_cq.expect(demand.1);
        let receives = match pool {
            Some(pool) if ty == QpType::Ud => {
                let receiver = DatagramReceiver::new(Arc::clone(&pair), Arc::clone(&pool), own);
                recv_cq.change(Change::Datagrams(Box::new(receiver)));
                if own { Receives::Pool(pool) } else { Receives::Srq }
            }
            pool => {
                let (source, receives) = match pool {
                    Some(pool) => (Source::Shared(pool), Receives::Srq),
                    None => {
                        let (producer, consumer) = queue(max_recv_wr);
                        (Source::Own(consumer), Receives::Own(producer))
                    }
                };
                if let Some(receiver) = Receiver::new(Arc::clone(&pair), source) {
                    recv_cq.change(Change::Receiver(Box::new(receiver)));
                }
                receives
            }
        };
        if !Arc::ptr_eq(&send_cq, &recv_cq) {
            send_cq.change(Change::Sender(Arc::clone(&pair)));
        }
        Ok(QueuePair {
            pair,
            posted: 0,
            limit: max_send_wr as u64,
            max_send_wr: max_send_wr as u64,
            in_flight: VecDeque::with_capacity(max_send_wr),
            receives,
            posted_receives: 0,
            max_recv_wr: max_recv_wr as u32,
            lengths_used: false,
            demand,
        })
    }

    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.pair.number
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        self.pair.state()
    }

    pub(crate) fn endpoint(&self) -> ShmEndpoint {
        ShmEndpoint {
            secret: self.pair.secret,
            gid: self.pair.context.gid,
            uid: self.pair.context.uid,
            qp: self.pair.number,
            ty: self.pair.ty as u32,
            reserved: 0,
        }
    }

    pub(crate) fn connect(
        &mut self,
        peer: &ShmEndpoint,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        let pair = &self.pair;
        if pair.ty == QpType::Ud {
            return Err(ConnectError::Type(pair.ty));
        }
        if pair.state() != QpState::Init {
            return Err(ConnectError::State(pair.state()));
        }
        if peer.ty != pair.ty as u32 {
            return Err(ConnectError::Mismatch("it names a queue pair of another type"));
        }
        if peer.uid != pair.context.uid {
            return Err(ConnectError::OtherUser { theirs: peer.uid, ours: pair.context.uid });
        }
        if !pair.bind_to(peer.gid, peer.qp) {
            return Err(ConnectError::Mismatch("another queue pair has connected to this one"));
        }
        let context = pair.context.peer(peer.gid, options.setup_timeout)?;
        let outbox = attach(pair, &context, peer.qp, peer.secret, options.setup_timeout)?;
        // SAFETY: we are the owner, and nothing waits in a queue pair that was never connected.
        let side = unsafe { pair.side() };
        side.outbox = Some(outbox);
        side.peer = Some(Arc::clone(&context));
        side.rnr_retry = options.rnr_retry;
        side.rnr_timer_ns = options.rnr_timer_ns;
        side.retry_timeout_ns = options.retry_timeout_ns;
        let _ = pair.connected_to.set((Arc::clone(&context), peer.qp));
        if !pair.advance(QpState::Init, QpState::ReadyToReceive) {
            return Err(ConnectError::State(pair.state()));
        }
        pair.set_inbox_state(InboxState::Ready);
        self.ready_to_send();
        context.watch(&self.pair);
        Ok(())
    }

    /// The last step; an error that came meanwhile stays.
    fn ready_to_send(&self) {
        if self.pair.advance(QpState::ReadyToReceive, QpState::ReadyToSend) {
            self.pair.gate.fetch_and(!gate::CLOSED, Ordering::SeqCst);
        }
        if self.pair.state() == QpState::Error {
            self.pair.gate.fetch_or(gate::CLOSED, Ordering::SeqCst);
            self.pair.set_inbox_state(InboxState::Error);
        }
    }

    pub(crate) fn activate(&mut self, qkey: u32) -> Result<(), ConnectError> {
        let pair = &self.pair;
        if pair.ty != QpType::Ud {
            return Err(ConnectError::Type(pair.ty));
        }
        pair.qkey.store(qkey, Ordering::Release);
        if !pair.advance(QpState::Init, QpState::ReadyToReceive) {
            return Err(ConnectError::State(pair.state()));
        }
        self.ready_to_send();
        if self.pair.state() == QpState::ReadyToSend {
            self.pair.set_inbox_state(InboxState::Ready);
        }
        Ok(())
    }

    /// Posts one work request, without ringing.
    #[inline]
    #[allow(clippy::result_large_err)] // The request is given back, with the buffer that it owns.
    pub(crate) fn post<'a>(
        &mut self,
        request: WorkRequest<'a>,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        if let Work::Write { local: Local::Inline(bytes), remote, imm: Some(imm) } = &request.work
            && self.write_imm_at_once(bytes, *remote, *imm, request.signaled)
        {
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
        if self.write_imm_at_once(bytes, remote, imm, signaled) {
            return Ok(());
        }
        let request = WorkRequest::write(bytes, remote).imm(imm);
        let request = match signaled {
            Some(id) => request.signaled(id),
            None => request.unsignaled(),
        };
        self.post_general(request).map_err(|(error, _)| error)
    }

    /// The common case: nothing waits, and the bytes fit a cell. `false`: nothing was done.
    #[inline]
    fn write_imm_at_once(
        &mut self,
        bytes: &[u8],
        remote: RemoteSlice,
        imm: u32,
        signaled: Option<u64>,
    ) -> bool {
        if bytes.len() > super::cell::CELL_PAYLOAD_BYTES
            || self.posted == self.limit
            || self.pair.gate.load(Ordering::Acquire) != 0
        {
            return false;
        }
        // SAFETY: we are the owner and the SLOW bit is clear.
        let side = unsafe { self.pair.side() };
        if !side.write_imm_small(bytes, remote, imm) {
            return false;
        }
        let number = self.posted;
        self.posted = number + 1;
        if let Some(id) = signaled {
            self.pair.complete(self.pair.done(
                number,
                id,
                CompletionOpcode::Write,
                Status::Success,
                bytes.len() as u32,
            ));
        }
        true
    }

    /// Rings the peer for what was posted on the common way.
    #[inline]
    pub(crate) fn ring_doorbell(&mut self) {
        if self.pair.gate.load(Ordering::Acquire) == 0 {
            // SAFETY: we are the owner and the SLOW bit is clear.
            unsafe { self.pair.side() }.ring_doorbell();
        } else {
            self.ring_slowly();
        }
    }

    /// Work waits, and shares the sending side with whoever tries it again.
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
        let WorkRequest { work, signaled } = request;
        let (task, buffer) = self.task(work);
        let number = self.posted;
        self.posted = number + 1;
        let mut item = Item {
            task,
            number,
            id: signaled.unwrap_or(0),
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

    /// Carries out an accepted work request. `false`: it has to wait.
    fn carry_out(&mut self, item: &mut Item) -> bool {
        let pair = &self.pair;
        let gate = pair.gate.load(Ordering::Acquire);
        if gate & gate::SLOW != 0 {
            return false; // Behind what waits already.
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

    /// Puts a work request behind what waits, and tries.
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
        let (operation, local, remote) = match &request.work {
            Work::Send { local, imm: None, .. } => (Operation::Send, local.len(), None),
            Work::Send { local, .. } => (Operation::SendWithImm, local.len(), None),
            Work::Write { local, remote, imm: None } => {
                (Operation::Write, local.len(), Some(remote))
            }
            Work::Write { local, remote, .. } => {
                (Operation::WriteWithImm, local.len(), Some(remote))
            }
            Work::Read { into, remote } => (Operation::Read, into.len(), Some(remote)),
            Work::CompareAndSwap { into, remote, .. } => {
                (Operation::CompareAndSwap, into.len(), Some(remote))
            }
            Work::FetchAdd { into, remote, .. } => (Operation::FetchAdd, into.len(), Some(remote)),
        };
        if !pair.context.caps().supports(pair.ty, operation) {
            return Err(PostError::Unsupported { ty: pair.ty, operation });
        }
        let len = local as u64;
        if let Some(remote) = remote {
            let atomic = matches!(operation, Operation::CompareAndSwap | Operation::FetchAdd);
            if remote.len != len || (atomic && len != 8) {
                return Err(PostError::Length { local: len, remote: remote.len });
            }
        }
        let max = if pair.ty == QpType::Ud { MTU_BYTES as u64 } else { MAX_MESSAGE_BYTES };
        if len > max {
            return Err(PostError::TooLong { len, max });
        }
        self.check_memory(&request.work)?;
        self.limit = self.pair.retired.load(Ordering::Acquire) + self.max_send_wr;
        if self.posted >= self.limit { Err(PostError::QueueFull) } else { Ok(()) }
    }

    fn check_memory(&self, work: &Work<'_>) -> Result<(), PostError> {
        let pd = match work {
            Work::Send { local, to, .. } => {
                if to.is_some() != (self.pair.ty == QpType::Ud) {
                    return Err(PostError::Destination);
                }
                self.local_pd(local)?
            }
            Work::Write { local, .. } => self.local_pd(local)?,
            Work::Read { into, .. }
            | Work::CompareAndSwap { into, .. }
            | Work::FetchAdd { into, .. } => match into {
                LocalMut::Buffer(buffer) => buffer.pd(),
                LocalMut::Shared(slice) => slice.pd(),
            },
        };
        if pd == self.pair.pd { Ok(()) } else { Err(PostError::Foreign) }
    }

    /// The protection domain of local memory; inline bytes belong to any.
    fn local_pd(&self, local: &Local<'_>) -> Result<u32, PostError> {
        match local {
            Local::Buffer(buffer) => Ok(buffer.pd()),
            Local::Shared(slice) => Ok(slice.pd()),
            Local::Inline(bytes) if bytes.len() > MAX_INLINE_BYTES => {
                Err(PostError::TooLong { len: bytes.len() as u64, max: MAX_INLINE_BYTES as u64 })
            }
            Local::Inline(_) => Ok(self.pair.pd),
        }
    }

    /// A checked work request as the device carries it out, and the buffer it holds meanwhile.
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
        match work {
            Work::Send { local, imm, to } => {
                let (bytes, buffer) = bytes(local);
                let task = match to {
                    None => Task::Send { bytes, imm, sent: None },
                    Some(to) => {
                        let (peer, qp) = (to.handle.shm_peer(), to.qp.0);
                        // SAFETY: we are the owner, and datagrams never wait: SLOW is never set.
                        unsafe { self.pair.side() }.destinations.prepare(&self.pair, peer, qp);
                        Task::Datagram { bytes, imm, to: To { gid: peer.gid, qp, qkey: to.qkey } }
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
        }
    }

    pub(crate) fn post_recv(&mut self, id: u64, buffer: Option<Buffer>) -> Result<(), PostError> {
        if buffer.as_ref().is_some_and(|buffer| buffer.pd() != self.pair.pd) {
            return Err(PostError::Foreign);
        }
        match &mut self.receives {
            Receives::Srq => return Err(PostError::HasSrq),
            Receives::Pool(pool) => pool.post(id, buffer).map_err(|(error, _)| error)?,
            Receives::Own(posted) => {
                if receive_room(&self.pair, self.posted_receives, self.max_recv_wr) == 0 {
                    return Err(PostError::QueueFull);
                }
                let len = buffer.as_ref().map_or(0, |buffer| buffer.len());
                self.lengths_used |= len > 0;
                if let Some(inbox) = self.pair.inbox().filter(|_| self.lengths_used) {
                    let len = u32::try_from(len).unwrap_or(u32::MAX);
                    inbox.receive_length(self.posted_receives).store(len, Ordering::Relaxed);
                }
                posted
                    .push(Posted::One(Receive { id, buffer }))
                    .map_err(|_| PostError::QueueFull)?;
                self.announce_receives(1);
            }
        }
        self.flush_if_in_error();
        Ok(())
    }

    #[inline]
    pub(crate) fn post_recvs(&mut self, ids: Range<u64>) -> Result<(), PostError> {
        let count = ids.end.saturating_sub(ids.start);
        if count == 0 {
            return Ok(());
        }
        let Receives::Own(posted) = &mut self.receives else {
            return self.post_recvs_one_by_one(ids);
        };
        if u64::from(receive_room(&self.pair, self.posted_receives, self.max_recv_wr)) < count {
            return Err(PostError::QueueFull);
        }
        let count = count as u32;
        if self.lengths_used
            && let Some(inbox) = self.pair.inbox()
        {
            for ahead in 0..count {
                let position = self.posted_receives.wrapping_add(ahead);
                inbox.receive_length(position).store(0, Ordering::Relaxed);
            }
        }
        posted.push(Posted::Run { id: ids.start, count }).map_err(|_| PostError::QueueFull)?;
        self.announce_receives(count);
        if self.pair.gate.load(Ordering::Acquire) != 0 {
            self.flush_if_in_error();
        }
        Ok(())
    }

    #[cold]
    fn post_recvs_one_by_one(&mut self, ids: Range<u64>) -> Result<(), PostError> {
        match &self.receives {
            Receives::Pool(pool) if (pool.room() as u64) < ids.end - ids.start => {
                Err(PostError::QueueFull)
            }
            _ => ids.into_iter().try_for_each(|id| self.post_recv(id, None)),
        }
    }

    /// The peer may use `count` more receives.
    #[inline]
    fn announce_receives(&mut self, count: u32) {
        self.posted_receives = self.posted_receives.wrapping_add(count);
        if let Some(inbox) = self.pair.inbox() {
            inbox.lines().credit.posted.store(self.posted_receives, Ordering::Release);
        }
    }

    /// What is posted in error is flushed by the poller, who has to know.
    fn flush_if_in_error(&self) {
        if self.pair.state() == QpState::Error {
            self.pair.recv_cq.notice(attention::ERRORS);
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

    pub(crate) fn fail(&mut self) {
        self.pair.fail();
    }
}

/// How many more receives may be posted.
#[inline]
fn receive_room(pair: &Pair, posted: u32, max: u32) -> u32 {
    max.saturating_sub(posted.wrapping_sub(pair.consumed.load(Ordering::Acquire)))
}

/// Asks a peer for the inbox of its queue pair, and maps it.
pub(super) fn attach(
    pair: &Pair,
    peer: &Peer,
    to_qp: u32,
    secret: u64,
    timeout: Duration,
) -> Result<Outbox, ConnectError> {
    let question = Question {
        what: ask::ATTACH,
        gid: pair.context.gid,
        from_qp: pair.number,
        to_qp,
        secret,
        ty: pair.ty as u32,
        ..Question::default()
    };
    let (answer, fds) = peer.ask(&question, timeout)?;
    let layout = InboxLayout { cells: answer.cells, lengths: answer.lengths }
        .checked()
        .ok_or(ConnectError::Malformed("layout of an inbox"))?;
    let mut fds = fds.into_iter();
    let mut next = |what| fds.next().ok_or(ConnectError::Malformed(what));
    let file: OwnedFd = next("no inbox")?;
    let inbox = Inbox::map(file.as_fd(), layout).map_err(|_| ConnectError::Malformed("inbox"))?;
    let credit = match answer.shared_credit {
        0 => None,
        _ => {
            let file = next("no credit page")?;
            let page = CreditPage::map(file.as_fd());
            Some(page.map_err(|_| ConnectError::Malformed("credit page"))?)
        }
    };
    let inbox = Arc::new(inbox);
    let (flow, peers_lines) = match pair.inbox() {
        Some(own) => {
            let _ = pair.flow.outbox.set(Arc::clone(&inbox));
            (Arc::clone(&pair.flow), Some(own.duplex_lines()))
        }
        None => (Arc::default(), None), // Datagrams go one way.
    };
    Ok(Outbox::new(inbox, answer.pd, credit, fds.next(), flow, peers_lines))
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let pair = &self.pair;
        pair.detached.store(true, Ordering::SeqCst);
        let was_in_error = pair.state() == QpState::Error;
        pair.fail();
        pair.set_inbox_state(InboxState::Destroyed);
        if was_in_error {
            pair.tell_peer(); // It was told of the error; now its record of us can go too.
        }
        {
            let _slow = lock(&pair.slow);
            // SAFETY: we are the owner and hold the lock.
            unsafe { pair.side() }.destinations.close(pair.number);
        }
        pair.context.remove_pair(pair.number);
        pair.send_cq.expect_no_more(self.demand.0);
        pair.recv_cq.expect_no_more(self.demand.1);
        pair.recv_cq.change(Change::Gone(pair.id));
        pair.send_cq.change(Change::Gone(pair.id));
        // The CPU is the NIC here: nothing is under way any more, so the buffers may go.
        self.in_flight.clear();
    }
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair").field("pair", &self.pair).finish_non_exhaustive()
    }
}
