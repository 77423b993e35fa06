//! The shared state of a queue pair: used by its owner, the owners of its completion queues, and the
//! control thread.

use std::cell::UnsafeCell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crossbeam_utils::CachePadded;
use rustix::io;

use super::completion_queue::{CqShared, SendDone, attention};
use super::context::Context;
use super::datagram;
use super::domain::Sole;
use super::duplex::Flow;
use super::events::Caller;
use super::inbox::{Inbox, InboxState};
use super::peer::{Peer, lock};
use super::send::SendSide;
use super::shared_receive::CreditPage;
use super::slow::SlowQueue;
use super::wire::{Answer, Gid, Question, answer};
use crate::{CompletionOpcode, QpState, QpType, Status};

/// Bits of [`Pair::gate`]. Posting takes the fast path only while none is set.
pub(super) mod gate {
    /// Not ready to send.
    pub(crate) const CLOSED: u32 = 1;
    /// Work waits in the slow queue; the holder of its lock also owns the sending side.
    pub(crate) const SLOW: u32 = 2;
}

/// The inboxes that peers attach to.
#[derive(Debug)]
pub(super) enum Arrivals {
    /// Connected: one inbox for one peer.
    One {
        inbox: Arc<Inbox>,
        /// The inbox's file, until the peer has fetched it or shares the mapping.
        file: Mutex<Option<OwnedFd>>,
    },
    /// Datagrams: one inbox per sender.
    Many(datagram::Paths),
}

pub(crate) struct Pair {
    pub(super) number: u32,
    pub(super) ty: QpType,
    pub(super) pd: u32,
    /// The secret of the endpoint. Only a peer that knows it may attach.
    pub(super) secret: u64,
    pub(super) context: Arc<Context>,
    pub(super) send_cq: Arc<CqShared>,
    pub(super) recv_cq: Arc<CqShared>,
    /// Identifies it at its completion queues.
    pub(super) id: u64,
    pub(super) arrivals: Arrivals,
    /// Where a peer in another process rings, if the receive queue has a channel.
    caller: OnceLock<Caller>,
    /// The peer is in this process, and calls for this queue pair when it has a message.
    pub(super) is_announced: AtomicBool,
    /// Set if it is the only queue pair of its domain.
    pub(super) sole: Option<Arc<Sole>>,
    /// Where and how receives are counted when several peers share them (see
    /// [`receives`](super::wire::receives)).
    pub(super) credit: Option<Arc<CreditPage>>,
    pub(super) receives: u32,
    /// The peer it is to be connected with, once known from either side.
    attached_by: Mutex<Option<(Gid, u32)>>,
    pub(super) gate: CachePadded<AtomicU32>,
    state: AtomicU32,
    /// The connected peer: its context and its queue pair.
    pub(super) connected_to: OnceLock<(Arc<Peer>, u32)>,
    /// The peer is gone: waiting work ends with RetryExceeded.
    pub(super) peer_gone: AtomicBool,
    /// The owner has dropped it.
    pub(super) detached: AtomicBool,
    /// One more than the number of the last send work request retired by a polled completion.
    pub(super) retired: CachePadded<AtomicU64>,
    /// Receives consumed so far, wrapping; written by the owner of the receive queue.
    pub(super) consumed: CachePadded<AtomicU32>,
    pub(super) flow: Arc<CachePadded<Flow>>,
    pub(super) qkey: AtomicU32,
    pub(super) slow: Mutex<SlowQueue>,
    side: UnsafeCell<SendSide>,
}

// SAFETY: all fields but `side` may be shared. The queue pair's owner accesses `side` while the SLOW bit
// of `gate` is clear; while it is set, `side` is accessed under the lock of `slow`. Only the owner sets
// the bit, under the lock. It is cleared under the lock (release; the owner reads it with acquire). Raw
// pointers inside lead to memory that the same value keeps mapped.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

/// The arguments of [`Pair::new`].
pub(super) struct PairParts {
    pub(super) number: u32,
    pub(super) ty: QpType,
    pub(super) pd: u32,
    pub(super) secret: u64,
    pub(super) context: Arc<Context>,
    pub(super) send_cq: Arc<CqShared>,
    pub(super) recv_cq: Arc<CqShared>,
    pub(super) id: u64,
    pub(super) arrivals: Arrivals,
    pub(super) sole: Option<Arc<Sole>>,
    pub(super) credit: Option<Arc<CreditPage>>,
    pub(super) receives: u32,
}

impl Pair {
    pub(super) fn new(parts: PairParts) -> Pair {
        let PairParts {
            number,
            ty,
            pd,
            secret,
            context,
            send_cq,
            recv_cq,
            id,
            arrivals,
            sole,
            credit,
            receives,
        } = parts;
        Pair {
            number,
            ty,
            pd,
            secret,
            context,
            send_cq,
            recv_cq,
            id,
            arrivals,
            caller: OnceLock::new(),
            is_announced: AtomicBool::new(false),
            sole,
            credit,
            receives,
            attached_by: Mutex::default(),
            gate: CachePadded::new(AtomicU32::new(gate::CLOSED)),
            state: AtomicU32::new(QpState::Init as u32),
            connected_to: OnceLock::new(),
            peer_gone: AtomicBool::new(false),
            detached: AtomicBool::new(false),
            retired: CachePadded::new(AtomicU64::new(0)),
            consumed: CachePadded::new(AtomicU32::new(0)),
            flow: Arc::default(),
            qkey: AtomicU32::new(0),
            slow: Mutex::default(),
            side: UnsafeCell::new(SendSide::default()),
        }
    }

    /// The sending side.
    ///
    /// # Safety
    /// The caller is the owner and the SLOW bit is clear, or it holds the lock of `slow` and the slow
    /// queue is not empty, or it is the owner and holds that lock. No other reference from here is alive.
    #[inline]
    #[allow(clippy::mut_from_ref)] // The protocol of `gate` makes it exclusive.
    pub(super) unsafe fn side(&self) -> &mut SendSide {
        // SAFETY: exclusive by the protocol above, which the caller vouches for.
        unsafe { &mut *self.side.get() }
    }

    pub(super) fn inbox(&self) -> Option<&Arc<Inbox>> {
        match &self.arrivals {
            Arrivals::One { inbox, .. } => Some(inbox),
            Arrivals::Many(_) => None,
        }
    }

    pub(super) fn set_inbox_state(&self, state: InboxState) {
        match &self.arrivals {
            Arrivals::One { inbox, .. } => inbox.set_state(state),
            Arrivals::Many(paths) => paths.set_state(state),
        }
    }

    #[inline]
    pub(super) fn state(&self) -> QpState {
        QpState::of(self.state.load(Ordering::Acquire))
    }

    /// Changes the state from `from` to `to`; `false` if the state is no longer `from` (only errors change it
    /// in between).
    pub(super) fn advance(&self, from: QpState, to: QpState) -> bool {
        let (from, to) = (from as u32, to as u32);
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Binds the queue pair to the first peer that asks, from either side. Returns `false` for any other.
    pub(super) fn bind_to(&self, gid: Gid, qp: u32) -> bool {
        let is_bound = *lock(&self.attached_by).get_or_insert((gid, qp)) == (gid, qp);
        if is_bound
            && Context::of_this_process(&gid).is_some()
            && let Some(sole) = &self.sole
        {
            sole.set_within_process();
        }
        is_bound
    }

    /// Answers a peer's request to attach.
    pub(super) fn admit(self: &Arc<Self>, question: &Question) -> Result<Admitted, u32> {
        if question.secret != self.secret || self.detached.load(Ordering::Acquire) {
            return Err(answer::NO_QUEUE_PAIR);
        }
        if question.ty != self.ty as u32 {
            return Err(answer::TYPE);
        }
        match &self.arrivals {
            Arrivals::One { inbox, file } => {
                if !self.bind_to(question.gid, question.from_qp) {
                    return Err(answer::TAKEN);
                }
                let file = lock(file).take().ok_or(answer::TAKEN)?;
                let attached = Attached::Connected(Arc::downgrade(self));
                if Context::of_this_process(&question.gid).is_some() {
                    // It finds everything at this queue pair.
                    self.is_announced.store(true, Ordering::Release);
                    let answer = self.answer(inbox, None);
                    return Ok(Admitted { answer, fds: Vec::new(), attached });
                }
                self.take_caller(question.gid).map_err(|_| answer::RESOURCES)?;
                self.admitted(inbox, file, attached, self.caller())
            }
            Arrivals::Many(paths) => {
                let (path, file) =
                    paths.open(self, question.gid, question.from_qp).ok_or(answer::RESOURCES)?;
                let attached = Attached::Sender(Arc::downgrade(self), Arc::downgrade(&path));
                self.admitted(path.inbox(), file, attached, path.caller())
            }
        }
    }

    fn admitted(
        &self,
        inbox: &Inbox,
        file: OwnedFd,
        attached: Attached,
        caller: Option<&Caller>,
    ) -> Result<Admitted, u32> {
        let mut fds = vec![file];
        let clone = |fd: &OwnedFd| fd.try_clone().map_err(|_| answer::RESOURCES);
        if let Some(credit) = &self.credit {
            fds.extend(credit.file().map(clone).transpose()?);
        }
        if let Some(Caller { event, index }) = caller {
            fds.extend(index.map(|_| clone(event.calls.file())).transpose()?);
            fds.push(clone(event.descriptor())?);
        }
        Ok(Admitted { answer: self.answer(inbox, caller), fds, attached })
    }

    fn answer(&self, inbox: &Inbox, caller: Option<&Caller>) -> Answer {
        let layout = inbox.layout();
        let index = caller.and_then(|caller| caller.index);
        Answer {
            pd: self.pd,
            cells: layout.cells,
            lengths: layout.lengths,
            receives: self.receives,
            event: caller.map_or(0, |caller| caller.event.number),
            slot: index.map_or(0, |index| index + 1),
            ..Answer::default()
        }
    }

    /// Has the peer ring, if the owner of the receive queue sleeps at all.
    fn take_caller(&self, peer: Gid) -> io::Result<()> {
        if let Some(caller) = Caller::of(peer, &self.recv_cq, self.id)? {
            let _ = self.caller.set(caller); // There is one peer.
        }
        Ok(())
    }

    /// Where a peer in another process rings for this queue pair.
    pub(super) fn caller(&self) -> Option<&Caller> {
        self.caller.get()
    }

    /// Handles the death of the peer's process or context. UC and UD do not notice it, as on hardware.
    pub(super) fn handle_peer_death(self: &Arc<Self>) {
        if self.ty == QpType::Rc {
            // What waited for the end of an access of the peer's has not failed: that end came before.
            self.progress();
            // A peer that is told that this pair has failed closes its own: that is not why this one failed.
            if self.state() != QpState::Error {
                self.peer_gone.store(true, Ordering::SeqCst);
            }
            self.fail();
        }
    }

    /// Enters the error state. Waiting sends are flushed here, posted receives by the owner of their completion
    /// queue.
    pub(super) fn fail(&self) {
        // Locked first: a peer that is told closes its own, and whoever retries the waiting work meanwhile would take that for why it
        // failed.
        let mut slow = lock(&self.slow);
        self.enter_error();
        self.flush(&mut slow);
    }

    /// Enters the error state and notifies all sides. The caller must flush waiting work.
    pub(super) fn enter_error(&self) {
        let before = self.state.swap(QpState::Error as u32, Ordering::SeqCst);
        self.gate.fetch_or(gate::CLOSED, Ordering::SeqCst);
        self.set_inbox_state(InboxState::Error);
        if before != QpState::Error as u32 {
            self.notify_peer();
        }
        // Its receives are flushed even if nothing looks at it at present.
        self.recv_cq.call_on(self.id);
        self.recv_cq.notice(attention::ERRORS);
        self.send_cq.notice(attention::ERRORS);
    }

    /// A peer that only waits would never look at our inbox's state: wake it.
    pub(super) fn notify_peer(&self) {
        if let Some((peer, to_qp)) = self.connected_to.get()
            && !self.peer_gone.load(Ordering::SeqCst)
        {
            peer.notify_closed(self.number, *to_qp);
        }
    }

    /// Flushes all waiting work. The `slow` argument proves that the caller holds the lock.
    pub(super) fn flush(&self, slow: &mut SlowQueue) {
        let mut status = slow.status_of_oldest(self);
        while let Some(item) = slow.pop() {
            self.complete(item.done(status, 0));
            status = Status::Flushed;
        }
        self.gate.fetch_and(!gate::SLOW, Ordering::SeqCst);
    }

    /// Retries waiting work. Returns whether some is still waiting.
    pub(super) fn progress(&self) -> bool {
        if self.gate.load(Ordering::Acquire) & gate::SLOW == 0 {
            return false;
        }
        let mut slow = lock(&self.slow);
        slow.run(self)
    }

    /// Reports a finished send work request.
    #[inline]
    pub(super) fn complete(&self, done: SendDone) {
        self.send_cq.push(done);
    }

    /// The completion of work request `number`.
    #[inline]
    pub(super) fn done(
        &self,
        number: u64,
        id: u64,
        opcode: CompletionOpcode,
        status: Status,
        byte_len: u32,
    ) -> SendDone {
        SendDone { pair: self.id, qp: self.number, number, id, opcode, status, byte_len }
    }
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair")
            .field("number", &self.number)
            .field("ty", &self.ty)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// The reply to a peer that may attach.
pub(super) struct Admitted {
    pub(super) answer: Answer,
    pub(super) fds: Vec<OwnedFd>,
    pub(super) attached: Attached,
}

/// The object to notify when a connection ends.
#[derive(Debug)]
pub(super) enum Attached {
    /// A connected queue pair of ours.
    Connected(Weak<Pair>),
    /// One sender of datagrams.
    Sender(Weak<Pair>, Weak<datagram::Path>),
}

impl Attached {
    /// Whether it is a queue pair that gives access to regions of this protection domain.
    pub(super) fn reaches(&self, pd: u32) -> bool {
        match self {
            Attached::Connected(pair) => pair.upgrade().is_some_and(|pair| pair.pd == pd),
            Attached::Sender(..) => false, // Datagrams access no memory.
        }
    }

    pub(super) fn is_live(&self) -> bool {
        match self {
            Attached::Connected(pair) => pair.strong_count() > 0,
            Attached::Sender(pair, path) => pair.strong_count() > 0 && path.strong_count() > 0,
        }
    }

    pub(super) fn handle_peer_death(self) {
        match self {
            Attached::Connected(pair) => {
                if let Some(pair) = pair.upgrade() {
                    pair.handle_peer_death();
                }
            }
            Attached::Sender(pair, path) => {
                if let (Some(pair), Some(path)) = (pair.upgrade(), path.upgrade()) {
                    path.close();
                    // It is removed even if nothing looks at it at present.
                    pair.recv_cq.call_on(path.id());
                    pair.recv_cq.notice(attention::ERRORS);
                }
            }
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.context.remove_pair(self.number);
    }
}
