//! Completion queues: the poller's state, and the state that others share with the poller.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;

use crossbeam_utils::CachePadded;

use super::attachment::{Attached, Change, Directory, Key};
use super::channel::Channel;
use super::context::Context;
use super::queue_pair::QpShared;
use super::receive::{Owner, ReceiveSlots};
use super::status;
use super::sys::{
    Handle, Zeroed, ibv_cq, ibv_poll_cq, ibv_req_notify_cq, ibv_wc, ibv_wc_flags, ibv_wc_opcode,
};
use crate::{
    Buffer, CompletionOpcode, CqError, DatagramSource, GRH_BYTES, QpNumber, QpType, Status,
    VerbsError, WorkCompletion,
};

/// Bits of the attention word.
pub(super) mod attention {
    /// Queue pairs were added or removed.
    pub(in crate::ibv) const CHANGES: u32 = 1;
    /// The device did not take work requests that we had accepted.
    pub(in crate::ibv) const UNPOSTED: u32 = 2;
    /// More completions arrived than fit. Stays set.
    pub(in crate::ibv) const OVERRUN: u32 = 4;
    /// The device is gone. Stays set.
    pub(in crate::ibv) const LOST: u32 = 8;
    /// Bits that stay set until their condition ends.
    pub(in crate::ibv) const LASTING: u32 = UNPOSTED | OVERRUN | LOST;
}

/// Completions taken from the device in one call.
const BATCH: usize = 16;

/// The state that others share with the poller.
#[derive(Debug)]
pub(super) struct CqState {
    attention: CachePadded<AtomicU32>,
    changes: Mutex<Vec<Change>>,
    /// The queue is no longer polled.
    closed: AtomicBool,
    channel: Option<Arc<Channel>>,
    /// Called instead of the channel.
    waker: OnceLock<Waker>,
}

impl CqState {
    /// Wakes the poller.
    pub(super) fn wake(&self) {
        match (self.waker.get(), &self.channel) {
            (Some(waker), _) => waker.wake_by_ref(),
            (None, Some(channel)) => channel.wake(),
            (None, None) => {}
        }
    }

    /// The device has an event of this queue, and who waits on the channel is awake.
    pub(super) fn call_waker(&self) {
        self.waker.get().into_iter().for_each(Waker::wake_by_ref);
    }

    /// Sets bits of the attention word, and wakes the poller if it may sleep.
    pub(super) fn notice(&self, bits: u32) {
        self.attention.fetch_or(bits, Ordering::SeqCst);
        if bits != attention::CHANGES {
            self.wake();
        }
    }

    pub(super) fn change(&self, change: Change) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.closed.load(Ordering::SeqCst) {
            changes.push(change);
            drop(changes);
            self.notice(attention::CHANGES);
        }
    }

    fn take_changes(&self) -> Vec<Change> {
        std::mem::take(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A completion queue of the device. Queue pairs keep it alive.
#[derive(Debug)]
pub(crate) struct CqShared {
    pub(super) raw: Handle<ibv_cq>,
    pub(super) state: Arc<CqState>,
    context: Arc<Context>,
}

impl CqShared {
    /// This queue, if it belongs to `context`.
    pub(super) fn of(self: &Arc<Self>, context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        if Arc::ptr_eq(&self.context, context) {
            Ok(Arc::clone(self))
        } else {
            Err(VerbsError::Foreign("completion queue"))
        }
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.context.events.registry.remove_queue(self.raw.address());
        // SAFETY: queue pairs keep the queue alive, so none is left that uses it, unless one had to be leaked:
        // then this call fails, and the queue stays until the process ends.
        unsafe { (self.context.library.destroy_cq)(self.raw.raw()) };
    }
}

/// The sources of completions of a queue.
#[derive(Debug, Default)]
struct Table {
    attached: Directory,
    /// Queue pairs that use shared receive queues, by number.
    joined: HashMap<u32, Arc<QpShared>, foldhash::fast::RandomState>,
}

/// The poller's side of a completion queue.
pub(crate) struct CompletionQueue {
    shared: Arc<CqShared>,
    table: Table,
    /// The last batch from the device; `next` to `end` have not been returned yet.
    batch: Box<[ibv_wc; BATCH]>,
    next: usize,
    end: usize,
}

impl CompletionQueue {
    pub(crate) fn create(
        context: &Arc<Context>,
        capacity: usize,
        channel: Option<&Arc<Channel>>,
    ) -> Result<CompletionQueue, VerbsError> {
        if channel.is_some_and(|channel| !channel.belongs_to(context)) {
            return Err(VerbsError::Foreign("completion channel"));
        }
        let raw_channel = channel.map_or(std::ptr::null_mut(), |channel| channel.raw());
        // SAFETY: context and channel live; the capacity is within what the device reports.
        let raw = Handle::new(unsafe {
            let capacity = capacity as i32;
            (context.library.create_cq)(
                context.raw.raw(),
                capacity,
                std::ptr::null_mut(),
                raw_channel,
                0,
            )
        });
        let raw = raw.ok_or_else(|| status::resource("completion queue")(status::last()))?;
        let state = Arc::new(CqState {
            attention: CachePadded::new(AtomicU32::new(0)),
            changes: Mutex::default(),
            closed: AtomicBool::new(false),
            channel: channel.cloned(),
            waker: OnceLock::new(),
        });
        context.events.registry.add_queue(raw.address(), &state);
        let shared = Arc::new(CqShared { raw, state, context: Arc::clone(context) });
        Ok(CompletionQueue {
            shared,
            table: Table::default(),
            batch: Box::new(std::array::from_fn(|_| ibv_wc::zeroed())),
            next: 0,
            end: 0,
        })
    }

    pub(crate) fn handle(&self) -> Arc<CqShared> {
        Arc::clone(&self.shared)
    }

    #[inline]
    pub(crate) fn poll(&mut self, out: &mut [WorkCompletion]) -> Result<usize, CqError> {
        let bits = self.shared.state.attention.load(Ordering::Acquire);
        if bits != 0 {
            return self.poll_attentively(out);
        }
        self.collect(out)
    }

    #[inline]
    pub(crate) fn scanned(&self) -> u32 {
        1
    }

    #[inline]
    fn collect(&mut self, out: &mut [WorkCompletion]) -> Result<usize, CqError> {
        // Most polls find nothing: return early.
        if self.next == self.end && self.fetch(out.len().min(BATCH))? == 0 {
            return Ok(0);
        }
        self.hand_out(out)
    }

    /// Translates the fetched completions, and fetches more until the device has none or `out` is full.
    fn hand_out(&mut self, out: &mut [WorkCompletion]) -> Result<usize, CqError> {
        let mut count = 0;
        loop {
            while self.next < self.end {
                let Some(completion) = out.get_mut(count) else { return Ok(count) };
                let raw = &self.batch[self.next];
                self.next += 1;
                let mut found = self.table.fill(completion, raw);
                if found == Found::Unknown {
                    found = self.table.fill_late(completion, raw, &self.shared.state);
                }
                count += usize::from(found == Found::Completion);
            }
            // A batch that was not full was the last one, or `out` had no room for more.
            let room = (out.len() - count).min(BATCH);
            if self.end < BATCH || room == 0 || self.fetch(room)? == 0 {
                return Ok(count);
            }
        }
    }

    /// Fetches up to `room` completions from the device. Earlier ones have been returned.
    #[inline]
    fn fetch(&mut self, room: usize) -> Result<usize, CqError> {
        let batch = self.batch.as_mut_ptr().cast::<ibv_wc>();
        // SAFETY: the queue lives, and the array has room for `room <= BATCH` completions.
        let polled = unsafe { ibv_poll_cq(self.shared.raw.raw(), room as i32, batch) };
        let polled = usize::try_from(polled).map_err(|_| CqError::DeviceLost)?;
        (self.next, self.end) = (0, polled.min(room));
        Ok(self.end)
    }

    #[cold]
    fn poll_attentively(&mut self, out: &mut [WorkCompletion]) -> Result<usize, CqError> {
        let state = Arc::clone(&self.shared.state);
        let bits = state.attention.fetch_and(attention::LASTING, Ordering::SeqCst);
        if bits & attention::CHANGES != 0 {
            self.table.apply(state.take_changes());
        }
        if bits & attention::LOST != 0 {
            return Err(CqError::DeviceLost);
        }
        if bits & attention::OVERRUN != 0 {
            return Err(CqError::Overrun);
        }
        let mut count = self.collect(out)?;
        if bits & attention::UNPOSTED != 0 {
            // Before the look: a thread that finds more later sets it again.
            state.attention.fetch_and(!attention::UNPOSTED, Ordering::SeqCst);
            let (filled, more) = self.table.flush_unposted(&mut out[count..]);
            count += filled;
            if more {
                state.attention.fetch_or(attention::UNPOSTED, Ordering::SeqCst);
            }
        }
        Ok(count)
    }

    /// Requests an event on the channel for the next completion, and signals it at once if a completion is
    /// available: the device only reports later ones.
    pub(crate) fn arm(&mut self) {
        let state = &self.shared.state;
        if state.channel.is_none() {
            return;
        }
        // SAFETY: the queue lives.
        unsafe { ibv_req_notify_cq(self.shared.raw.raw(), 0) };
        if self.next == self.end {
            // The next poll returns the error.
            let _ = self.fetch(BATCH);
        }
        if self.next != self.end || self.shared.state.attention.load(Ordering::SeqCst) != 0 {
            self.shared.state.wake();
        }
    }

    /// Events call this waker. Returns whether all do.
    pub(crate) fn wake_with(&mut self, waker: &Waker) -> bool {
        self.shared.state.waker.get_or_init(|| waker.clone()).will_wake(waker)
    }

    /// Verbs have no such call: the next completion makes its event.
    pub(crate) fn disarm(&mut self) {}
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.shared.state.closed.store(true, Ordering::SeqCst);
        // The changes hold queue pairs, which hold this queue.
        drop(self.shared.state.take_changes());
    }
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// The result of translating a raw completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Completion,
    /// It belongs to a queue pair that has been dropped.
    Stale,
    /// Its key is unknown; nothing was done.
    Unknown,
}

impl Table {
    #[cold]
    fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Attach(key, attached) => self.attached.insert(key, attached),
                Change::Detach(key) => self.attached.remove(key),
                Change::Join(pair) => drop(self.joined.insert(pair.number, pair)),
                Change::Leave(number) => drop(self.joined.remove(&number)),
            }
        }
    }

    /// Translates a completion whose source may have been attached a moment ago. If it was not, a dropped queue
    /// pair left the completion behind, and the shared receive that it used is returned.
    #[cold]
    fn fill_late(
        &mut self,
        completion: &mut WorkCompletion,
        raw: &ibv_wc,
        state: &CqState,
    ) -> Found {
        self.apply(state.take_changes());
        let found = self.fill(completion, raw);
        if found == Found::Unknown {
            let (key, place) = Key::of(raw.wr_id);
            if let Some(Attached::Receives(slots)) = self.attached.get(key) {
                drop(slots.take(place));
            }
            return Found::Stale;
        }
        found
    }

    /// Translates a raw completion.
    #[inline]
    fn fill(&self, completion: &mut WorkCompletion, raw: &ibv_wc) -> Found {
        let (key, place) = Key::of(raw.wr_id);
        match self.attached.get(key) {
            Some(Attached::Sends(pair)) => {
                let Some(sent) = pair.sends.retire(place) else { return Found::Stale };
                completion.id = sent.id;
                completion.qp = QpNumber(pair.number);
                completion.status = status::status(raw.status);
                completion.opcode = sent.opcode;
                completion.byte_len = sent.len;
                completion.imm = None;
                completion.source = None;
                completion.buffer = None;
                completion.payload_len = u8::MAX;
                if completion.status != Status::Success {
                    completion.byte_len = 0;
                    pair.handle_failure();
                }
                Found::Completion
            }
            Some(Attached::Receives(slots)) => self.fill_receive(completion, raw, slots, place),
            None => Found::Unknown,
        }
    }

    #[inline]
    fn fill_receive(
        &self,
        completion: &mut WorkCompletion,
        raw: &ibv_wc,
        slots: &ReceiveSlots,
        place: u32,
    ) -> Found {
        let pair = match &slots.owner {
            Owner::Pair(pair) => pair,
            Owner::Shared => match self.joined.get(&raw.qp_num) {
                Some(pair) => pair,
                None => return Found::Unknown,
            },
        };
        let Some(mut receive) = slots.take(place) else { return Found::Stale };
        completion.id = receive.id;
        completion.qp = QpNumber(pair.number);
        completion.status = status::receive_status(raw.status);
        completion.opcode = CompletionOpcode::Recv;
        completion.byte_len = 0;
        completion.imm = None;
        completion.source = None;
        completion.payload_len = u8::MAX;
        if completion.status == Status::Success {
            completion.byte_len = raw.byte_len;
            if raw.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0 {
                // SAFETY: the flag says that the union holds an immediate; any bits are a number.
                let imm = unsafe { raw.imm_data_invalidated_rkey_union.imm_data };
                completion.imm = Some(u32::from_be(imm));
            }
            if raw.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM {
                completion.opcode = CompletionOpcode::RecvWriteWithImm;
            } else if let Some(buffer) = &mut receive.buffer {
                let len = buffer.capacity().min(raw.byte_len as usize);
                buffer.set_len(len);
                if pair.ty == QpType::Ud {
                    completion.source = source(raw, buffer, pair.ipv4);
                }
            }
        } else {
            pair.handle_failure();
        }
        completion.buffer = receive.buffer;
        Found::Completion
    }

    /// Completes the work requests that never reached the device as flushed, once those before them have
    /// completed. Returns the number, and whether there may be more.
    fn flush_unposted(&self, out: &mut [WorkCompletion]) -> (usize, bool) {
        let (mut count, mut more) = (0, false);
        for attached in self.attached.values() {
            let Attached::Sends(pair) = attached else { continue };
            while let Some(from) = pair.unposted() {
                let retired = pair.sends.retired();
                if retired == pair.sends.posted() {
                    break;
                }
                let Some(completion) = out.get_mut(count).filter(|_| retired >= from) else {
                    more = true;
                    break;
                };
                let Some(sent) = pair.sends.retire(retired as u32) else { break };
                *completion = WorkCompletion {
                    id: sent.id,
                    qp: QpNumber(pair.number),
                    status: Status::Flushed,
                    opcode: sent.opcode,
                    ..WorkCompletion::default()
                };
                count += 1;
            }
        }
        (count, more)
    }
}

/// The sender of a datagram, from the route header in front of it: within an InfiniBand subnet there may be none. RoCEv2 over
/// IPv4 has an IPv4 header in the last 20 bytes instead (RoCEv2 annex A17.4.5.1), and leaves the others unchanged.
fn source(raw: &ibv_wc, buffer: &Buffer, ipv4: bool) -> Option<DatagramSource> {
    let header = buffer.get(..GRH_BYTES)?;
    let mut gid = [0; 16];
    if ipv4 && header[20] >> 4 == 4 {
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&header[32..36]);
    } else {
        gid.copy_from_slice(&header[8..24]);
    }
    let has_header = ipv4 || raw.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0;
    Some(DatagramSource { qp: QpNumber(raw.src_qp), gid: has_header.then_some(gid) })
}
