//! The slots of a client, and what its messages do to them.

use bytes::Bytes;
use farcall_core::error::{Backpressure, FailureKind, ReserveError, TransportFailure};
use farcall_core::time::{Instant, PollAt};
use farcall_core::transport::{Message, ReplySink, SlotId};
use farcall_verbs::{Capabilities, CompletionOpcode, Status, WorkCompletion};
use zerocopy::{FromBytes, IntoBytes};

use super::carrier::{ClientCarrier, ReadNumber};
use super::free_slots::FreeSlots;
use super::link::{Arrived, Link};
use super::operations::Operations;
use super::wire::{HEADER_BYTES, Immediate, Kind, Op, split};
use crate::buffers::export::Exports;
use crate::contract::Terms;
use crate::kit::memory;
use crate::kit::scratch::Scratch;
use crate::rendezvous::client::{Transfer, Transfers};
use crate::rendezvous::wire::{Grant, Here, Lent, OverLimit};

/// Chunks of large messages that one poll moves: some 20 us of copying, which is what a small call
/// may have to wait for.
const STEPS_PER_POLL: usize = 2;

/// Parts of large responses that are read at a time by a client that reads small ones too: enough to keep a link busy, and some
/// 20 us on one of 100 Gbit/s.
const PARTS_AT_A_TIME: usize = 2;

/// How far a slot's request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    /// The caller fills it.
    Reserved,
    /// Posted whole; the next message of this slot is the response.
    Posted,
    /// The server was asked where it may land.
    Announced,
    /// It is written, chunk by chunk.
    Sending,
    /// Its response is read.
    Fetching,
    /// The server has dropped its request, and may have left something for it before, which is not fetched yet.
    Dropped,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) generation: u32,
    /// Bytes to post, header included; 0 for a large request.
    pub(super) len: u32,
    pub(super) phase: Phase,
    /// Nobody waits for the reply; the slot is kept until it has come.
    pub(super) abandoned: bool,
    /// The server has not been told so. Of no meaning otherwise.
    pub(super) cancellation_waits: bool,
}

/// The slots, and what became of them.
#[derive(Debug)]
pub(super) struct Window<C> {
    pub(super) link: Link<C>,
    pub(super) slots: Box<[Slot]>,
    pub(super) free: FreeSlots,
    pub(super) operations: Operations,
    pub(super) transfers: Transfers,
    exports: Exports,
    pub(super) arrived: Arrived,
    /// Slots of requests that the server has dropped, and the READ after which each is free.
    pub(super) dropped: Vec<(u32, ReadNumber)>,
    pub(super) max_message: u64,
    /// The longest request that goes in a slot.
    pub(super) max_small: usize,
    pub(super) over: Option<TransportFailure>,
    /// The sink was told so.
    told: bool,
    /// The server has said goodbye, and has left responses that are still to be fetched.
    pub(super) is_left: bool,
}

/// Why the connection must end.
pub(super) type Broken = FailureKind;

pub(super) const NONSENSE: Broken =
    FailureKind::PeerMisbehaved("a message that no request waits for");

impl Slot {
    /// The slot's next use, for a request of `len` bytes, header included; 0 for a large one.
    #[inline]
    pub(super) fn reserve(&mut self, index: u32, len: u32) -> SlotId {
        self.generation = self.generation.wrapping_add(1);
        (self.phase, self.len) = (Phase::Reserved, len);
        SlotId { index, generation: self.generation }
    }
}

impl<C: ClientCarrier> Window<C> {
    pub(super) fn new(
        link: Link<C>,
        transfers: Transfers,
        exports: Exports,
        terms: &Terms,
        caps: &Capabilities,
    ) -> Window<C> {
        let slot = Slot {
            generation: 0,
            len: 0,
            phase: Phase::Free,
            abandoned: false,
            cancellation_waits: false,
        };
        let max_message = usize::try_from(terms.max_message).unwrap_or(usize::MAX);
        Window {
            max_small: link.max_in_slot().min(max_message),
            operations: Operations::new(link.carrier.spare_receives()),
            link,
            slots: vec![slot; terms.window as usize].into(),
            free: FreeSlots::new(terms.window, caps),
            transfers,
            exports,
            arrived: Arrived::default(),
            dropped: Vec::new(),
            max_message: terms.max_message,
            over: None,
            told: false,
            is_left: false,
        }
    }

    /// A slot for a request with so many bytes in it, if that can be posted.
    #[inline]
    pub(super) fn take_free(&mut self, len: usize) -> Result<u32, Backpressure> {
        if !self.link.has_room() && !self.free.is_empty() {
            return Err(Backpressure::SendQueue);
        }
        self.free.take(len).ok_or(Backpressure::Credits)
    }

    /// A slot for a large request of this length, if that can be posted.
    fn take_free_for_large(&mut self, len: usize) -> Result<u32, ReserveError> {
        if len as u64 > self.max_message {
            return Err(ReserveError::TooLarge { len: len as u64, max: self.max_message });
        }
        Ok(self.take_free(0)?)
    }

    #[cold]
    pub(super) fn reserve_large(
        &mut self,
        len: usize,
    ) -> Result<(SlotId, &mut [u8]), ReserveError> {
        let index = self.take_free_for_large(len)?;
        let Some(bytes) = self.transfers.reserve(index, len) else {
            self.free.put(index);
            return Err(Backpressure::Memory.into());
        };
        Ok((self.slots[index as usize].reserve(index, 0), bytes))
    }

    /// Reserves a slot for a request that stays in its caller's memory.
    #[cold]
    pub(super) fn share_large(
        &mut self,
        front: &[u8],
        body: &Bytes,
    ) -> Result<SlotId, ReserveError> {
        let index = self.take_free_for_large(front.len() + body.len())?;
        self.transfers.share(index, front, body);
        Ok(self.slots[index as usize].reserve(index, 0))
    }

    /// Posts a request that stays in its caller's memory, where the server reads it, if that memory is registered and the server can.
    #[cold]
    pub(super) fn offer_large(
        &mut self,
        front: &[u8],
        body: &Bytes,
    ) -> Result<Option<SlotId>, ReserveError> {
        if !self.link.peer().reads_here || self.over.is_some() {
            return Ok(None);
        }
        // Before the peer is let to read it: a call that waits for a slot tries again and again.
        let index = self.take_free_for_large(front.len() + body.len())?;
        let export = self.exports.export(body);
        let here = export.as_ref().and_then(|export| Here::new(front, export.region));
        let (Some(export), Some(here)) = (export, here) else {
            self.free.put(index);
            return Ok(None);
        };
        self.transfers.offer(index, front, body, export);
        let id = self.slots[index as usize].reserve(index, 0);
        // The next message of this slot is the response, unless the server asks for the request to be written.
        self.slots[index as usize].phase = Phase::Posted;
        self.link.post_control(index, id.generation, Kind::RequestHere, here.as_bytes());
        Ok(Some(id))
    }

    #[inline]
    pub(super) fn is(&self, id: SlotId, phase: Phase) -> bool {
        self.slots
            .get(id.index as usize)
            .is_some_and(|slot| slot.generation == id.generation && slot.phase == phase)
    }

    /// The slot is free again.
    #[inline]
    pub(super) fn end(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.len == 0 {
            self.transfers.forget(index);
        }
        slot.phase = Phase::Free;
        slot.abandoned = false;
        self.free.put(index);
    }

    /// Frees the slots of dropped requests, if the server has left nothing for them that is not fetched.
    #[cold]
    pub(super) fn end_dropped(&mut self) {
        let Some(last) = self.link.carrier.last_empty_read() else { return };
        for at in (0..self.dropped.len()).rev() {
            let (index, read) = self.dropped[at];
            if read <= last {
                self.dropped.swap_remove(at);
                self.end(index);
            }
        }
    }

    #[inline]
    pub(super) fn complete(
        &mut self,
        completion: &WorkCompletion,
        scratch: &mut Scratch,
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        if completion.status != Status::Success {
            return Err(if self.is_left { FailureKind::Goodbye } else { self.lost(completion) });
        }
        match (completion.opcode, completion.imm) {
            (CompletionOpcode::Recv | CompletionOpcode::RecvWriteWithImm, Some(imm)) => {
                self.link.consume_receive();
                let Immediate { op, slot, .. } = Immediate::from_wire(imm);
                if op == Op::Message {
                    self.handle_message(completion, slot, scratch, sink)
                } else {
                    self.handle_operation(op, slot)
                }
            }
            (CompletionOpcode::Send | CompletionOpcode::Write | CompletionOpcode::Read, _) => {
                if C::FETCHES && completion.opcode == CompletionOpcode::Write {
                    self.link.carrier.sent();
                }
                self.link.retire(completion.id, &mut self.arrived);
                Ok(())
            }
            _ => Err(FailureKind::PeerMisbehaved("a completion of a kind that nobody asked for")),
        }
    }

    /// What a completion in error says about the connection.
    #[cold]
    fn lost(&self, completion: &WorkCompletion) -> Broken {
        tracing::debug!(status = ?completion.status, "a work request failed");
        match completion.status {
            Status::RemoteAccess if self.is_in_large_memory() => {
                FailureKind::PeerMisbehaved("a key or range that gives no access")
            }
            Status::LocalLength => FailureKind::PeerMisbehaved("a message longer than its receive"),
            Status::LocalProtection => FailureKind::Device("local protection"),
            // Also if the server denies access to what it has registered for the whole connection: the kernel may take the
            // regions of a killed process before its queue pairs.
            _ => FailureKind::PeerGone,
        }
    }

    /// Whether work requests under way may access memory that the server named for a large message.
    fn is_in_large_memory(&self) -> bool {
        self.slots.iter().any(|slot| match slot.phase {
            Phase::Sending | Phase::Fetching => true,
            // Its last chunks may be under way.
            Phase::Posted => slot.len == 0,
            Phase::Free | Phase::Reserved | Phase::Announced | Phase::Dropped => false,
        })
    }

    /// A message is in one of our slots.
    #[inline]
    fn handle_message(
        &mut self,
        completion: &WorkCompletion,
        index: u32,
        scratch: &mut Scratch,
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        let message = self.link.read(completion, index, scratch).ok_or(NONSENSE)?;
        self.handle_bytes(index, message, sink)
    }

    /// This message is in the slot, or was fetched for it.
    #[inline]
    pub(super) fn handle_bytes(
        &mut self,
        index: u32,
        message: Message<'_>,
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        let Some(&slot) = self.slots.get(index as usize) else { return Err(NONSENSE) };
        let (generation, kind, body) = split(&message).ok_or(NONSENSE)?;
        if generation != slot.generation {
            return Err(NONSENSE);
        }
        if kind == Kind::Inline && slot.phase == Phase::Posted {
            self.end(index);
            if !slot.abandoned
                && let Some(body) = message.skip(HEADER_BYTES)
            {
                sink.reply(SlotId { index, generation }, body);
            }
            return Ok(());
        }
        self.handle_control(index, slot, kind, body, sink)
    }

    #[cold]
    fn handle_control(
        &mut self,
        index: u32,
        slot: Slot,
        kind: Kind,
        body: &[u8],
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        let id = SlotId { index, generation: slot.generation };
        let is_asked = match slot.phase {
            Phase::Announced => true,
            Phase::Posted => self.transfers.is_offered(index),
            _ => false,
        };
        match (kind, slot.phase) {
            (Kind::Grant, _) if is_asked => {
                let grant = Grant::read_from_bytes(body).map_err(|_| NONSENSE)?;
                if !slot.abandoned {
                    if !self.transfers.granted(index, &grant) {
                        return Err(FailureKind::PeerMisbehaved("a grant without room"));
                    }
                    self.slots[index as usize].phase = Phase::Sending;
                }
                Ok(())
            }
            (Kind::Grant, Phase::Dropped) => Ok(()),
            (Kind::Lent, Phase::Posted) => {
                let lent = Lent::read_from_bytes(body).map_err(|_| NONSENSE)?;
                // Of one that is not all there, the server still has to tell: it is read like any other.
                if slot.abandoned && lent.is_whole() {
                    self.release(index);
                    return Ok(());
                }
                if !self.transfers.lent(index, &lent, self.max_message) {
                    return Err(FailureKind::PeerMisbehaved("a response over the limit"));
                }
                self.slots[index as usize].phase = Phase::Fetching;
                Ok(())
            }
            (Kind::ResponseHere, Phase::Posted) => {
                let here = Here::read_from_bytes(body).map_err(|_| NONSENSE)?;
                if slot.abandoned {
                    self.release(index);
                    return Ok(());
                }
                if !self.transfers.lent_here(index, &here, self.max_message) {
                    return Err(FailureKind::PeerMisbehaved("a response over the limit"));
                }
                self.slots[index as usize].phase = Phase::Fetching;
                Ok(())
            }
            (Kind::OverLimit, _) if is_asked => {
                let limit = OverLimit::read_from_bytes(body).map_err(|_| NONSENSE)?;
                self.end(index);
                if !slot.abandoned {
                    let kind = FailureKind::TooLarge { len: limit.len.get(), max: limit.max.get() };
                    sink.failed(id, TransportFailure::new(kind, false));
                }
                Ok(())
            }
            _ => Err(NONSENSE),
        }
    }

    #[cold]
    fn handle_operation(&mut self, op: Op, index: u32) -> Result<(), Broken> {
        if op == Op::Mode || op == Op::Credit {
            let makes_sense = match op {
                Op::Mode => self.link.carrier.handle_mode(index),
                _ => self.handle_credit(index),
            };
            return if makes_sense { Ok(()) } else { Err(NONSENSE) };
        }
        let slot = *self.slots.get(index as usize).ok_or(NONSENSE)?;
        let unsent = match slot.phase {
            Phase::Announced | Phase::Sending => true,
            Phase::Posted => self.transfers.is_offered(index),
            _ => false,
        };
        match op {
            Op::Dropped if slot.abandoned && unsent => {
                match self.link.carrier.next_read() {
                    None => self.end(index),
                    Some(read) => {
                        self.slots[index as usize].phase = Phase::Dropped;
                        self.dropped.push((index, read));
                    }
                }
                Ok(())
            }
            Op::Chunk if slot.phase == Phase::Fetching => {
                if self.transfers.more_is_there(index) {
                    Ok(())
                } else {
                    Err(NONSENSE)
                }
            }
            // For an abandoned request it comes too late to matter.
            Op::Chunk if slot.abandoned => Ok(()),
            Op::Chunk if slot.phase == Phase::Sending && self.transfers.credit(index) => Ok(()),
            Op::Goodbye if C::FETCHES && self.link.carrier.server_leaves() => {
                self.is_left = true;
                Ok(())
            }
            Op::Goodbye => Err(FailureKind::Goodbye),
            _ => Err(NONSENSE),
        }
    }

    /// No large message is under way, and nothing is wrong.
    #[inline]
    pub(super) fn is_calm(&self) -> bool {
        self.transfers.is_idle() && !self.link.is_urgent()
    }

    pub(super) fn has_work(&self) -> bool {
        let news = self.over.is_some() || self.link.is_broken();
        let moves = self.transfers.can_move() && self.may_move();
        let posts = self.link.has_posts() || moves;
        let fetches = C::FETCHES && self.must_fetch();
        (news && !self.told) || ((posts || fetches) && !news && self.link.has_room())
    }

    /// One more part of a large message may be posted. Where responses are fetched, a READ of small ones waits for those of
    /// large ones that were posted before.
    #[inline]
    fn may_move(&self) -> bool {
        let may_read = !C::FETCHES || self.link.parts_under_way() < PARTS_AT_A_TIME;
        self.link.has_room() && may_read && self.has_receive_for_chunk()
    }

    /// Moves large messages on, a bounded number of bytes, and notices what broke. Answers how many
    /// steps it took, and when to come back.
    #[cold]
    pub(super) fn drive(&mut self, now: Instant, sink: &mut dyn ReplySink) -> (u32, PollAt) {
        if self.over.is_some() {
            return (0, PollAt::OnEvent);
        }
        if self.link.is_broken() {
            self.close(FailureKind::PeerGone, sink);
            return (0, PollAt::OnEvent);
        }
        let mut moved = 0;
        for (slot, part) in self.arrived.parts.drain(..) {
            self.transfers.fetched(slot, part);
        }
        while let Some((index, buffer)) = self.transfers.take_whole() {
            let slot = self.slots[index as usize];
            self.release(index);
            moved += 1;
            if !slot.abandoned {
                let whole = Message::Owned(self.transfers.hand_over(buffer));
                sink.reply(SlotId { index, generation: slot.generation }, whole);
            }
        }
        // What waited before goes before.
        self.link.ring();
        for _ in 0..STEPS_PER_POLL {
            if !self.may_move() {
                break;
            }
            let Some((index, transfer)) = self.transfers.next() else { break };
            moved += 1;
            match transfer {
                Transfer::Chunk { chunk, remote, last } => {
                    self.link.write_chunk(index, chunk, remote);
                    self.count_operation();
                    if last {
                        self.slots[index as usize].phase = Phase::Posted;
                    }
                }
                Transfer::Fetch { into, remote } => self.link.fetch_part(index, into, remote),
            }
        }
        let next = if self.transfers.can_move() && self.may_move() {
            PollAt::Now
        } else if self.transfers.wants_memory() {
            PollAt::At(now.saturating_add_nanos(memory::RETRY_NANOS))
        } else {
            PollAt::OnEvent
        };
        (moved, next)
    }

    /// The connection is over; the sink hears of it once.
    #[cold]
    pub(super) fn close(&mut self, kind: FailureKind, sink: &mut dyn ReplySink) {
        let why = *self.over.get_or_insert(TransportFailure::new(kind, true));
        if !std::mem::replace(&mut self.told, true) {
            tracing::debug!(%why, "connection closed");
            sink.closed(why);
        }
    }
}
