//! The calls of one connection that were started and not yet taken, and their deadlines.

use super::PendingCall;
use super::pending::{DroppedCalls, Started};
use crate::blocking;
use crate::error::{FailureKind, RpcError, TransportFailure};
use crate::service::{Answer, Method};
use crate::time::Instant;
use crate::transport::{ClientTransport, Message, ReplySink, SlotId};
use crate::wire;
use bytes::Bytes;
use core::any::Any;
use core::ops::Range;
use std::sync::Arc;

/// In the table of slots: no call.
const NO_CALL: u32 = u32::MAX;

/// Longer reply buffers are freed after use instead of kept for the next call.
const KEPT_REPLY_BYTES: usize = 64 << 10;

/// Index and generation of a call in one word, which moves in a register.
#[inline]
fn id_of(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

/// The calls, found by token (index and generation) or by slot.
pub(super) struct Calls {
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_slot: Vec<Posted>,
    /// Started since the last turn: their deadlines count from the next reading of the clock. May name calls that have
    /// ended.
    unstamped: Vec<u32>,
    /// No deadline is before this. A turn compares it once; calls that end in time do not update it.
    earliest: Instant,
    waiting: u32,
    capacity: usize,
    /// Those whose tokens were dropped.
    dropped: Arc<DroppedCalls>,
    /// Empty, and keeps its memory.
    swept: Vec<u64>,
    closed: Option<TransportFailure>,
}

#[derive(Clone, Copy)]
struct Posted {
    generation: u32,
    call: u32,
}

struct Entry {
    generation: u32,
    state: State,
    slot: SlotId,
    timeout_ns: u64,
    deadline: Instant,
    /// Makes the method's result from the answer; the token is too small to carry it.
    read: Read,
    reply: Vec<u8>,
    /// A share of the connection's list, which is the token's from the start of a call to its end: counting each time would be
    /// two atomic operations per call. `None` before the first call, too.
    spare: Option<Arc<DroppedCalls>>,
}

/// Reads an answer into an `Option` of the method's result type.
pub(super) type Read = fn(Answer<'_>, &mut dyn Any);

/// The [`Read`] of one method.
#[inline]
pub(super) fn read_into<M: Method>(answer: Answer<'_>, result: &mut dyn Any)
where
    M::Output: 'static,
{
    if let Some(result) = result.downcast_mut::<Option<M::Output>>() {
        *result = Some(M::read(answer));
    }
}

enum State {
    Free,
    Waiting,
    /// The response is in `reply`.
    Replied,
    RepliedOwned(Bytes),
    Failed(RpcError),
}

impl Calls {
    /// Room for four windows of calls: those in flight, and those whose results were not taken yet.
    pub(super) fn new(window: u32, slots: u32) -> Self {
        let capacity = (window as usize * 4).max(64);
        let entry = |_| Entry {
            generation: 0,
            state: State::Free,
            slot: SlotId { index: 0, generation: 0 },
            timeout_ns: 0,
            deadline: Instant::FAR_FUTURE,
            read: |_, _| {},
            reply: Vec::new(),
            spare: None,
        };
        Calls {
            entries: (0..capacity).map(entry).collect(),
            // The lowest index is used first, so that a small window stays in few cache lines.
            free: (0..capacity as u32).rev().collect(),
            by_slot: vec![Posted { generation: 0, call: NO_CALL }; slots as usize],
            unstamped: Vec::with_capacity(capacity),
            earliest: Instant::FAR_FUTURE,
            waiting: 0,
            capacity,
            dropped: Arc::default(),
            swept: Vec::new(),
            closed: None,
        }
    }

    #[inline]
    pub(super) fn why_closed(&self) -> Option<TransportFailure> {
        self.closed
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Calls that have not ended.
    pub(super) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// This call has not ended.
    pub(super) fn is_waiting<R>(&self, call: &PendingCall<R>) -> bool {
        let entry = self.entries.get(call.id() as u32 as usize);
        call.is_of(&self.dropped) && entry.is_some_and(|e| matches!(e.state, State::Waiting))
    }

    /// Fails all calls: this end closes the connection.
    pub(super) fn close(&mut self) {
        ReplySink::closed(self, TransportFailure::new(FailureKind::Closed, true));
    }

    /// Records a call that leaves in this slot. The caller has checked [`has_room`](Self::has_room). Returns its token.
    #[inline]
    pub(super) fn start(&mut self, slot: SlotId, timeout_ns: u64, read: Read) -> Started {
        let index = self.free.pop().expect("the caller has checked for room");
        let entry = &mut self.entries[index as usize];
        entry.state = State::Waiting;
        entry.slot = slot;
        entry.timeout_ns = timeout_ns;
        entry.read = read;
        entry.deadline = Instant::FAR_FUTURE;
        let id = id_of(index, entry.generation);
        let spare = entry.spare.take();
        self.by_slot[slot.index as usize] = Posted { generation: slot.generation, call: index };
        if self.unstamped.len() == self.capacity {
            self.remove_cancelled_from_unstamped();
        }
        self.unstamped.push(index);
        self.waiting += 1;
        Started { id, dropped: spare.unwrap_or_else(|| Arc::clone(&self.dropped)) }
    }

    /// Needed only after a caller started and cancelled many calls without a poll.
    #[cold]
    fn remove_cancelled_from_unstamped(&mut self) {
        self.unstamped.retain(|i| matches!(self.entries[*i as usize].state, State::Waiting));
        self.unstamped.sort_unstable();
        self.unstamped.dedup();
    }

    #[inline]
    pub(super) fn has_unstamped(&self) -> bool {
        !self.unstamped.is_empty()
    }

    /// Sets the deadlines of the calls that were started since the last turn: they count from `now`.
    #[inline]
    pub(super) fn stamp(&mut self, now: Instant) {
        for index in self.unstamped.drain(..) {
            let entry = &mut self.entries[index as usize];
            if entry.deadline == Instant::FAR_FUTURE && matches!(entry.state, State::Waiting) {
                entry.deadline = now.saturating_add_nanos(entry.timeout_ns);
                self.earliest = self.earliest.min(entry.deadline);
            }
        }
    }

    /// No call ends by its deadline before this moment.
    #[inline]
    pub(super) fn earliest(&self) -> Instant {
        self.earliest
    }

    /// Ends the calls whose deadline has passed.
    #[cold]
    pub(super) fn expire(&mut self, now: Instant, transport: &mut dyn ClientTransport) {
        self.earliest = Instant::FAR_FUTURE;
        for entry in &mut self.entries {
            if !matches!(entry.state, State::Waiting) {
                continue;
            }
            if entry.deadline <= now {
                transport.abandon(entry.slot);
                self.by_slot[entry.slot.index as usize].call = NO_CALL;
                self.waiting -= 1;
                entry.state = State::Failed(blocking::late_answer());
            } else {
                self.earliest = self.earliest.min(entry.deadline);
            }
        }
    }

    /// The result of a call, if it has ended.
    #[inline]
    pub(super) fn take<R: 'static>(&mut self, call: &mut PendingCall<R>) -> Option<R> {
        if !call.is_of(&self.dropped) {
            return None;
        }
        let index = call.id() as u32;
        let entry = self.entries.get_mut(index as usize)?;
        let mut result: Option<R> = None;
        match &mut entry.state {
            State::Free | State::Waiting => return None,
            State::Replied => {
                let message = Message::Borrowed(&entry.reply);
                (entry.read)(wire::open_response(message), &mut result);
            }
            State::RepliedOwned(bytes) => {
                let message = Message::Owned(core::mem::take(bytes));
                (entry.read)(wire::open_response(message), &mut result);
            }
            State::Failed(error) => (entry.read)(Answer::Failed(error.clone()), &mut result),
        }
        entry.spare = call.end();
        self.release(index);
        result
    }

    /// Removes a call. Returns its slot if it is still in flight, to be abandoned. A call of another connection is cancelled
    /// there.
    pub(super) fn cancel<R>(&mut self, mut call: PendingCall<R>) -> Option<SlotId> {
        if !call.is_of(&self.dropped) {
            return None;
        }
        self.entries.get_mut(call.id() as u32 as usize)?.spare = call.end();
        self.remove(call.id())
    }

    /// Tokens were dropped since the last [`cancel_dropped`](Self::cancel_dropped).
    #[inline]
    pub(super) fn has_dropped(&self) -> bool {
        self.dropped.is_some()
    }

    /// Cancels the calls whose tokens were dropped.
    #[cold]
    pub(super) fn cancel_dropped(&mut self, transport: &mut dyn ClientTransport) {
        let mut ids = core::mem::take(&mut self.swept);
        self.dropped.swap(&mut ids);
        for id in ids.drain(..) {
            if let Some(slot) = self.remove(id) {
                transport.abandon(slot);
            }
        }
        self.swept = ids;
    }

    /// Removes a call. Returns its slot if it is still in flight.
    fn remove(&mut self, id: u64) -> Option<SlotId> {
        let index = id as u32;
        let entry = self.entries.get_mut(index as usize);
        let entry = entry.filter(|entry| id_of(index, entry.generation) == id)?;
        let in_flight = match entry.state {
            State::Free => return None,
            State::Waiting => Some(entry.slot),
            _ => None,
        };
        if let Some(slot) = in_flight {
            self.by_slot[slot.index as usize].call = NO_CALL;
            self.waiting -= 1;
        }
        self.release(index);
        in_flight
    }

    #[inline]
    fn release(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.state = State::Free;
        if entry.reply.capacity() > KEPT_REPLY_BYTES {
            entry.reply = Vec::new();
        }
        self.free.push(index);
    }

    /// The waiting call that owns a slot; `None` if it was abandoned, or the slot has been used again.
    #[inline]
    fn owner(&mut self, slot: SlotId) -> Option<&mut Entry> {
        let posted = self.by_slot.get_mut(slot.index as usize)?;
        if posted.call == NO_CALL || posted.generation != slot.generation {
            return None;
        }
        let call = core::mem::replace(&mut posted.call, NO_CALL);
        self.waiting -= 1;
        Some(&mut self.entries[call as usize])
    }
}

impl ReplySink for Calls {
    #[inline]
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        let Some(entry) = self.owner(slot) else { return };
        match message {
            Message::Borrowed(bytes) => {
                entry.reply.clear();
                entry.reply.extend_from_slice(bytes);
                entry.state = State::Replied;
            }
            Message::Owned(bytes) => entry.state = State::RepliedOwned(bytes),
        }
    }

    #[cold]
    fn failed(&mut self, slot: SlotId, why: TransportFailure) {
        if let Some(entry) = self.owner(slot) {
            entry.state = State::Failed(why.into());
        }
    }

    #[cold]
    fn lane_lost(&mut self, slots: Range<u32>, why: TransportFailure) {
        for index in slots.start..slots.end.min(self.by_slot.len() as u32) {
            let generation = self.by_slot[index as usize].generation;
            self.failed(SlotId { index, generation }, why);
        }
    }

    #[cold]
    fn closed(&mut self, why: TransportFailure) {
        for entry in &mut self.entries {
            if matches!(entry.state, State::Waiting) {
                entry.state = State::Failed(why.into());
            }
        }
        self.by_slot.iter_mut().for_each(|posted| posted.call = NO_CALL);
        self.waiting = 0;
        self.earliest = Instant::FAR_FUTURE;
        self.closed.get_or_insert(why);
    }
}
