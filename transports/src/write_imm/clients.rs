//! The clients of one server thread: their requests in, their replies out.

use std::sync::Arc;

use farcall_core::error::{Backpressure, ReserveError};
use farcall_core::time::Instant;
use farcall_core::transport::{CallToken, Message, Replies, RequestSink};
use farcall_verbs::{Buffer, CompletionOpcode, Device, Drafts, Status, WorkCompletion};
use zerocopy::{FromBytes, IntoBytes};

use super::entry::{Entry, Large, Phase};
use super::layout::{Announce, HEADER_BYTES, Immediate, Kind, Lent, Op, split};
use super::link::Fetched;
use crate::door::{Arrival, Arrivals};
use crate::fair_queue::FairQueue;
use crate::memory::{Budget, LargeBuffers};

#[derive(Debug)]
pub(crate) struct Clients {
    pub(crate) entries: Vec<Option<Box<Entry>>>,
    /// Clients with replies that wait for the doorbell.
    dirty: Vec<u32>,
    /// Clients whose posts failed; the next poll drops them.
    pub(crate) broken: Vec<u32>,
    pub(crate) count: usize,
    pub(crate) arrivals: Arrivals<Entry>,
    pub(crate) device: Device,
    /// Requests that wait for memory to land in.
    pub(crate) waiting: FairQueue,
    /// A request or a response found no memory, for want of which others wait.
    pub(crate) shortage: bool,
    /// When clients that hold memory others wait for are looked at next.
    pub(crate) stall_check: Instant,
    pub(crate) budget: Arc<Budget>,
    /// Where requests are put together.
    pub(crate) assembly: LargeBuffers,
    /// Where large responses are written.
    drafts: Drafts,
    fetched: Vec<Fetched>,
}

/// The rule that a client broke.
pub(crate) type Misbehaved = &'static str;

/// Why a client is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Drop {
    Misbehaved(Misbehaved),
    Lost(Status),
    Goodbye,
}

impl From<Misbehaved> for Drop {
    fn from(rule: Misbehaved) -> Drop {
        Drop::Misbehaved(rule)
    }
}

impl Clients {
    pub(crate) fn new(
        device: &Device,
        arrivals: Arrivals<Entry>,
        assembly: LargeBuffers,
        budget: Arc<Budget>,
    ) -> Clients {
        Clients {
            entries: Vec::new(),
            dirty: Vec::new(),
            broken: Vec::new(),
            count: 0,
            arrivals,
            device: device.clone(),
            waiting: FairQueue::default(),
            shortage: false,
            stall_check: Instant::ZERO,
            budget,
            assembly,
            drafts: Drafts::new(device),
            fetched: Vec::new(),
        }
    }

    /// Takes over whoever has come, and drops whom the accepting threads take back.
    #[cold]
    pub(crate) fn take_arrivals(&mut self, sink: &mut dyn RequestSink) {
        self.arrivals.lower_flag();
        while let Some(arrival) = self.arrivals.next() {
            match arrival {
                Arrival::New(entry) => self.insert(entry),
                Arrival::Withdrawn(seat) => {
                    let entry = self.entries.get(seat.number as usize).and_then(Option::as_ref);
                    if entry.is_some_and(|entry| entry.generation == seat.generation) {
                        self.remove(seat.number, Drop::Goodbye, sink);
                    }
                }
            }
        }
    }

    fn insert(&mut self, entry: Box<Entry>) {
        let index = entry.client as usize;
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        self.entries[index] = Some(entry);
        self.count += 1;
    }

    /// Drops one client, and all that it had.
    #[cold]
    pub(crate) fn remove(&mut self, client: u32, why: Drop, sink: &mut dyn RequestSink) {
        let Some(entry) = self.entries.get_mut(client as usize).and_then(Option::take) else {
            return;
        };
        match why {
            Drop::Misbehaved(rule) => {
                tracing::warn!(client, rule, "dropping a client that broke the protocol");
            }
            Drop::Lost(status) => tracing::debug!(client, ?status, "lost a client"),
            Drop::Goodbye => tracing::debug!(client, "a client said goodbye"),
        }
        self.waiting.remove_client(client);
        self.count -= 1;
        let generation = entry.generation;
        // Before its number is free: completions of the dead queue pair must not meet a new client.
        drop(entry);
        self.arrivals.give_back(client);
        sink.disconnected(client, generation);
        // Those that waited for its memory are served when they are looked at next.
        self.shortage |= !self.waiting.is_empty();
    }

    #[inline]
    pub(crate) fn complete(
        &mut self,
        completion: &WorkCompletion,
        scratch: &mut [u8],
        now: Instant,
        sink: &mut dyn RequestSink,
    ) {
        let client = (completion.id >> 32) as u32;
        let Some(Some(entry)) = self.entries.get_mut(client as usize) else { return };
        // Left over from an earlier client of that number.
        if entry.qp != completion.qp {
            return;
        }
        if completion.status != Status::Success {
            return self.remove(client, Drop::Lost(completion.status), sink);
        }
        if completion.opcode != CompletionOpcode::RecvWriteWithImm {
            return self.sent(client, completion);
        }
        entry.link.consumed();
        // The queue pair knows who it is; the immediate must say the same.
        let imm = completion.imm.unwrap_or(u32::MAX);
        if let Some(index) = Immediate::message_of(client, imm)
            && let Some(slot) = entry.slots.get_mut(index as usize)
            && slot.phase == Phase::Idle
            && let Some(message) = entry.link.read(completion, index, scratch)
            && let Some((generation, Kind::Inline, body)) = split(message)
        {
            slot.generation = generation;
            slot.phase = Phase::Busy;
            let token = entry.token(index);
            return sink.request(token, Message::Borrowed(body), self);
        }
        if let Err(why) = self.unusual(client, imm, completion, scratch, now, sink) {
            self.remove(client, why, sink);
        }
    }

    /// A send work request has completed, and so have all before it.
    fn sent(&mut self, client: u32, completion: &WorkCompletion) {
        let Some(Some(entry)) = self.entries.get_mut(client as usize) else { return };
        entry.link.retire(completion.id, &mut self.fetched);
        if entry.link.has_posts() {
            self.touch(client);
        }
    }

    /// All but a request in its slot.
    #[cold]
    fn unusual(
        &mut self,
        client: u32,
        imm: u32,
        completion: &WorkCompletion,
        scratch: &mut [u8],
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Result<(), Drop> {
        let Some(Some(entry)) = self.entries.get_mut(client as usize) else { return Ok(()) };
        let Some(Immediate { op, client: named, slot: index }) = Immediate::from_wire(imm) else {
            return Err("an immediate that names no operation".into());
        };
        if named != client {
            return Err("an immediate that names another client".into());
        }
        if op != Op::Message {
            return self.operation(client, op, index, completion, now, sink);
        }
        let Some(slot) = entry.slots.get_mut(index as usize) else {
            return Err("a slot outside the window".into());
        };
        if slot.phase != Phase::Idle {
            return Err("a request in a slot that is not free".into());
        }
        let Some(message) = entry.link.read(completion, index, scratch) else {
            return Err("a length beyond the slot".into());
        };
        let Some((generation, Kind::Announce, body)) = split(message) else {
            return Err("a malformed header".into());
        };
        let Ok(announce) = Announce::read_from_bytes(body) else {
            return Err("a malformed announcement".into());
        };
        slot.generation = generation;
        self.announced(client, index, announce.len.get(), now)
    }

    #[cold]
    fn operation(
        &mut self,
        client: u32,
        op: Op,
        index: u32,
        completion: &WorkCompletion,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Result<(), Drop> {
        let Some(Some(entry)) = self.entries.get_mut(client as usize) else { return Ok(()) };
        let Some(&slot) = entry.slots.get(index as usize) else {
            return Err("a slot outside the window".into());
        };
        match op {
            Op::Chunk if slot.phase == Phase::Landing => {
                self.landed(client, index, completion.byte_len.into(), now, sink)
            }
            Op::Cancel => {
                match slot.phase {
                    Phase::Waiting | Phase::Landing => self.drop_announced(client, index, now),
                    Phase::Busy => {
                        sink.cancelled(client, entry.generation, index, slot.generation);
                    }
                    // Answered already: the cancellation has crossed the answer.
                    Phase::Idle | Phase::Lent => {}
                }
                Ok(())
            }
            Op::Release if slot.phase == Phase::Lent => {
                self.released(client, index, now);
                Ok(())
            }
            Op::Goodbye => Err(Drop::Goodbye),
            Op::Chunk | Op::Release | Op::Dropped | Op::Message => {
                Err("an operation that the slot does not wait for".into())
            }
        }
    }

    /// There is more to do than completions say.
    #[inline]
    pub(crate) fn need_attention(&self) -> bool {
        self.shortage || !self.broken.is_empty()
    }

    /// The client has posts that wait for the doorbell.
    #[inline]
    pub(crate) fn touch(&mut self, client: u32) {
        if let Some(Some(entry)) = self.entries.get_mut(client as usize)
            && !entry.dirty
        {
            entry.dirty = true;
            self.dirty.push(client);
        }
    }

    /// Answers that clients have not read yet, or that have not left.
    #[cold]
    pub(crate) fn has_unfetched(&self) -> bool {
        self.entries.iter().flatten().any(|entry| {
            entry.link.has_posts() || entry.slots.iter().any(|slot| slot.phase == Phase::Lent)
        })
    }

    /// One doorbell for each client that has posts.
    #[inline]
    pub(crate) fn ring(&mut self) {
        while let Some(client) = self.dirty.pop() {
            let Some(Some(entry)) = self.entries.get_mut(client as usize) else { continue };
            entry.dirty = false;
            entry.link.ring();
            if entry.link.is_broken() {
                self.broken.push(client);
            }
        }
    }
}

/// The entry of a call, if its client and slot are still what they were.
#[inline]
fn find<'e>(entries: &'e mut [Option<Box<Entry>>], call: &CallToken) -> Option<&'e mut Entry> {
    let entry = entries.get_mut(call.client() as usize)?.as_deref_mut()?;
    let slot = entry.slots.get(call.slot() as usize)?;
    let same = entry.generation == call.client_generation()
        && slot.generation == call.generation()
        && slot.phase == Phase::Busy;
    same.then_some(entry)
}

impl Replies for Clients {
    #[inline]
    fn reserve(&mut self, call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError> {
        let Some(entry) = find(&mut self.entries, call) else { return Err(ReserveError::Closed) };
        if len > entry.max_small {
            let buffer = reserve_large(entry, &self.budget, &mut self.shortage, call, len)?;
            return Ok(self.drafts.open(buffer));
        }
        entry.slots[call.slot() as usize].large_reply = false;
        match entry.link.stage(call.slot()) {
            Some(staged) => Ok(&mut staged[HEADER_BYTES..HEADER_BYTES + len]),
            None => Err(Backpressure::SendQueue.into()),
        }
    }

    #[inline]
    fn post(&mut self, call: CallToken, len: usize) {
        let Some(entry) = find(&mut self.entries, &call) else { return };
        let slot = &mut entry.slots[call.slot() as usize];
        if slot.large_reply {
            post_large(entry, &mut self.drafts, &call, len);
        } else {
            slot.phase = Phase::Idle;
            entry.link.post(call.slot(), call.generation(), Kind::Inline, HEADER_BYTES + len);
        }
        if !entry.dirty {
            entry.dirty = true;
            self.dirty.push(call.client());
        }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.device.now_ns())
    }
}

#[cold]
fn reserve_large<'e>(
    entry: &'e mut Entry,
    budget: &Arc<Budget>,
    shortage: &mut bool,
    call: &CallToken,
    len: usize,
) -> Result<&'e mut Buffer, ReserveError> {
    if len as u64 > entry.max_message {
        return Err(ReserveError::TooLarge { len: len as u64, max: entry.max_message });
    }
    // A client that does not read its responses holds its share, and no more.
    let within = entry.held == 0 || entry.held + len as u64 <= budget.limit() / 2;
    let buffer = if within { entry.reply_buffer(len, budget) } else { Ok(None) };
    let buffer = buffer.unwrap_or_else(|error| {
        tracing::warn!(%error, len, "no memory for a large response");
        None
    });
    let Some(buffer) = buffer else {
        // The next poll frees what is kept for later, and looks for who does not move on.
        *shortage |= within;
        return Err(Backpressure::Memory.into());
    };
    entry.slots[call.slot() as usize].large_reply = true;
    let large = entry.large(call.slot());
    *large = Large::Reply(buffer);
    match large {
        Large::Reply(buffer) => Ok(buffer),
        _ => Err(ReserveError::Closed),
    }
}

#[cold]
fn post_large(entry: &mut Entry, drafts: &mut Drafts, call: &CallToken, len: usize) {
    let Large::Reply(mut buffer) = entry.take_large(call.slot()) else { return };
    let slot = &mut entry.slots[call.slot() as usize];
    slot.large_reply = false;
    buffer.set_len(len);
    drafts.publish(&mut buffer);
    if len <= entry.max_small {
        // The answer came out shorter than was reserved.
        slot.phase = Phase::Idle;
        if let Some(staged) = entry.link.stage(call.slot()) {
            staged[HEADER_BYTES..HEADER_BYTES + len].copy_from_slice(&buffer);
        }
        entry.link.post(call.slot(), call.generation(), Kind::Inline, HEADER_BYTES + len);
        return;
    }
    // Published memory always has a name.
    let Some(region) = buffer.remote() else { return };
    slot.phase = Phase::Lent;
    let lent = Lent { region: region.into() };
    entry.held += len as u64;
    // When is not known here; the next look at stalled clients dates it.
    entry.moved = Instant::ZERO;
    *entry.large(call.slot()) = Large::Reply(buffer);
    entry.link.post_control(call.slot(), call.generation(), Kind::Lent, lent.as_bytes());
}
