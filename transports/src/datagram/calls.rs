//! The calls of one session, at the client: what is sent of them, and what becomes of them.

use farcall_core::error::{Backpressure, FailureKind, ReserveError, TransportFailure};
use farcall_core::time::{Instant, PollAt};
use farcall_core::transport::{Delivery, Limits, Message, ReplySink, SlotId, Usage};
use farcall_verbs::DatagramSource;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::ablation::{Optimization, Without};
use super::client_port::ClientPort;
use super::port::{Peer, Port};
use super::setup::{CREDITS, FEW_CALLS, max_small, part_bytes};
use super::wire::{self, Id, Kind, Messages, Range};
use crate::contract::{Config, Terms};
use crate::kit::memory;
use crate::planted::{Bug, is_planted};
use crate::repair::releases::Releases;
use crate::repair::retransmission::Retransmission;
use crate::repair::transfers::{Step, Taken, Transfers};
use crate::repair::window::{LATE, Phase, Slot, ToSend, Window};

/// Parts that one poll sends: some 20 us of copying, which is what a small call may have to wait for.
const STEPS_PER_POLL: usize = 16;

/// Why the session must end.
pub(crate) type Broken = FailureKind;

const NONSENSE: Broken = FailureKind::PeerMisbehaved("a message that no request waits for");

#[derive(Debug)]
pub(crate) struct Calls {
    peer: Peer,
    /// The server has said what our datagrams must carry, by datagram.
    has_epoch: bool,
    /// Our number for the session.
    session: u32,
    window: Window,
    retransmission: Retransmission,
    transfers: Transfers,
    releases: Releases,
    without: Without,
    max_message: u64,
    max_small: usize,
}

impl Calls {
    /// The calls of the session of that number, with a server that gave so many credits.
    pub(crate) fn new(
        port: &ClientPort,
        session: u32,
        terms: &Terms,
        peer: Peer,
        credits: u32,
        config: &Config,
    ) -> Calls {
        let (part, max_small) = (part_bytes(peer.mtu()), max_small(terms, peer.mtu()));
        // No more than we have receives for.
        let credits = credits.min(CREDITS);
        let without = Without::of(config);
        let is_controlled = port.has_network && !without.has(Optimization::Congestion);
        let most = if is_controlled { terms.window.max(CREDITS) } else { 0 };
        Calls {
            peer,
            has_epoch: false,
            session,
            window: Window::new(terms.window),
            retransmission: Retransmission::new(terms.window, most, config.silence),
            transfers: Transfers::new(terms.window, &port.pd, config.memory, part, credits),
            releases: Releases::default(),
            without,
            max_message: terms.max_message,
            max_small,
        }
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The server has said what our datagrams must carry.
    pub(crate) fn has_epoch(&self) -> bool {
        self.has_epoch
    }

    /// Whether slots are in use.
    pub(crate) fn usage(&self) -> Usage {
        let in_use = self.window.slots.iter().filter(|slot| slot.phase != Phase::Free);
        Usage::of(in_use.map(|slot| slot.abandoned))
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits { window: self.window.size(), max_message: self.max_message }
    }

    #[inline]
    pub(crate) fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        if len as u64 > self.max_message {
            return Err(ReserveError::TooLarge { len: len as u64, max: self.max_message });
        }
        if len > self.max_small {
            return self.reserve_large(len);
        }
        self.window.reserve(len).ok_or(Backpressure::Credits.into())
    }

    #[cold]
    fn reserve_large(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        let Some(index) = self.window.next_free() else { return Err(Backpressure::Credits.into()) };
        let Some(bytes) = self.transfers.reserve(index, len) else {
            return Err(Backpressure::Memory.into());
        };
        let Some(id) = self.window.reserve_large() else {
            return Err(Backpressure::Credits.into());
        };
        Ok((id, bytes))
    }

    pub(crate) fn release(&mut self, id: SlotId) {
        if self.window.get(id).is_some_and(|slot| slot.phase == Phase::Reserved) {
            self.end(id.index);
        }
    }

    #[inline]
    pub(crate) fn post(&mut self, id: SlotId, delivery: Delivery) {
        self.window.post(id, delivery);
        if !self.releases.is_empty() {
            self.releases.remove_slot(id.index);
        }
    }

    #[cold]
    pub(crate) fn abandon(&mut self, id: SlotId) {
        let Some(slot) = self.window.get(id) else { return };
        if !slot.is_posted() || slot.abandoned {
            return;
        }
        if !slot.sent {
            // It has not left: nothing to wait for.
            return self.end(id.index);
        }
        if slot.phase == Phase::Fetching {
            return self.end_fetched(id.index);
        }
        slot.abandoned = true;
        slot.repeats = 0;
        self.transfers.forget(id.index);
        self.window.queue(id.index, ToSend::Cancel);
    }

    /// Sends what waits, under one doorbell.
    #[inline]
    pub(crate) fn flush(&mut self, port: &mut Port) {
        if port.has_few_receives() && self.window.used() > FEW_CALLS {
            port.post_all_receives();
        }
        while let Some(&index) = self.window.outbox.front() {
            if !self.put(port, index) {
                break;
            }
            self.window.outbox.pop_front();
        }
        if !self.releases.is_empty() {
            self.releases.send(|slot, generation| {
                let id = Id { slot, generation, mark: 0 };
                port.put(&self.peer, Kind::Release, id, (&[], &[]))
            });
        }
        port.post(&self.peer);
        port.ring();
    }

    /// Puts what is to be sent of the slot into a datagram, if there is room.
    #[inline]
    fn put(&mut self, port: &mut Port, index: u32) -> bool {
        let Calls { peer, window, retransmission, transfers, .. } = self;
        let slot = &mut window.slots[index as usize];
        if slot.to_send != ToSend::Request || !slot.is_unknown() {
            return self.put_question(port, index);
        }
        let len;
        let (kind, body) = match (slot.phase, slot.delivery) {
            (Phase::Posted, Delivery::AtMostOnce) => (Kind::Request, slot.request()),
            (Phase::Posted, Delivery::Idempotent) => (Kind::Idempotent, slot.request()),
            _ => {
                len = U64::from(transfers.request_len(index));
                (Kind::Announce, len.as_bytes())
            }
        };
        if retransmission.is_full() && !port.fits(peer, body.len()) {
            return false;
        }
        let has_room = port.put(peer, kind, next_id(index, slot), (body, &[]));
        if has_room {
            retransmission.add_request(index, slot, port.posted());
        }
        has_room
    }

    /// The same of anything but a request.
    #[cold]
    fn put_question(&mut self, port: &mut Port, index: u32) -> bool {
        let Calls { peer, window, retransmission, transfers, .. } = self;
        let slot = &mut window.slots[index as usize];
        let id = next_id(index, slot);
        let has_room = match (slot.to_send, slot.phase) {
            (ToSend::Ask, Phase::Known) => port.put(peer, Kind::Ask, id, (&[], &[])),
            (ToSend::Cancel, _) => port.put(peer, Kind::Cancel, id, (&[], &[])),
            (ToSend::Missing, Phase::Fetching) => match transfers.missing(index) {
                Some((base, mask)) => {
                    let id = Id { mark: transfers.round(index), ..id };
                    port.put(peer, Kind::Ask, id, (Range::new(base, mask).as_bytes(), &[]))
                }
                None => true,
            },
            // Answered meanwhile.
            _ => {
                slot.to_send = ToSend::Nothing;
                return true;
            }
        };
        if has_room {
            retransmission.add(index, slot);
        }
        has_room
    }

    /// The slot is free again.
    #[inline]
    fn end(&mut self, index: u32) {
        let slot = &mut self.window.slots[index as usize];
        self.retransmission.forget_datagram(slot);
        if slot.is_large() || slot.phase == Phase::Fetching {
            self.transfers.forget(index);
        }
        if slot.abandoned && is_planted(Bug::DoubleCredit) {
            self.window.free(index);
        }
        self.window.free(index);
    }

    /// The slot is free, and the server may free the large response.
    #[cold]
    fn end_fetched(&mut self, index: u32) {
        self.releases.push(index, self.window.slots[index as usize].generation);
        self.retransmission.queue_release();
        self.end(index);
    }

    /// Begins the timeouts of what was sent since the last poll.
    #[inline]
    pub(crate) fn start_timers(&mut self, now: Instant) {
        if self.without.has(Optimization::Recovery) {
            return self.retransmission.discard_timers();
        }
        self.retransmission.start_timers(&mut self.window, now);
    }

    /// Something is to be sent, or is due.
    #[inline]
    pub(crate) fn need_attention(&self, now: Instant) -> bool {
        self.retransmission.is_due(now)
            || !self.window.outbox.is_empty()
            || !self.transfers.is_idle()
    }

    /// Something waits for room in the send queue, or for answers.
    pub(crate) fn wait_for_room(&self) -> bool {
        !self.window.outbox.is_empty()
    }

    /// Something waits, and could be sent now.
    pub(crate) fn can_send(&self, port: &Port) -> bool {
        self.wait_for_room() && port.has_room() && !self.retransmission.is_full()
    }

    /// When a poll has something to do that no event announces.
    #[inline]
    pub(crate) fn poll_at(&self) -> PollAt {
        // Timers of calls that have ended may still be set.
        if self.window.is_empty() && self.releases.is_empty() {
            return PollAt::OnEvent;
        }
        self.retransmission.poll_at()
    }

    /// Queues again what is due.
    pub(crate) fn queue_due(&mut self, now: Instant) -> Result<(), Broken> {
        let Calls { window, retransmission, transfers, releases, .. } = self;
        let is_due = retransmission.is_due(now);
        match is_due && retransmission.queue_due(window, transfers, releases, now) {
            true => Err(FailureKind::PeerGone),
            false => Ok(()),
        }
    }

    /// Moves large messages on. Answers how many steps it took, and when to come back.
    pub(crate) fn move_large(&mut self, port: &mut Port, now: Instant) -> (u32, PollAt) {
        if port.has_few_receives() && !self.transfers.is_idle() {
            port.post_all_receives();
        }
        let Calls { peer, window, retransmission, transfers, .. } = self;
        let mut moved = 0;
        while moved < STEPS_PER_POLL && port.has_room() {
            let Some(step) = transfers.step(now, retransmission.allowance()) else { break };
            moved += 1;
            let (Step::Part { slot: index, .. } | Step::Ask { slot: index, .. }) = step;
            let slot = &mut window.slots[index as usize];
            let mark = transfers.round(index);
            let id = Id { slot: index, generation: slot.generation, mark };
            match step {
                Step::Part { number, range, .. } => {
                    let bytes = transfers.bytes(index, range);
                    port.put(peer, Kind::Part, id, (U32::from(number).as_bytes(), bytes));
                }
                Step::Ask { base, mask, .. } => {
                    port.put(peer, Kind::Ask, id, (Range::new(base, mask).as_bytes(), &[]));
                }
            }
            port.post(peer);
            retransmission.start_timer(slot, now);
        }
        port.ring();
        let next = if moved == STEPS_PER_POLL {
            PollAt::Now
        } else if transfers.wants_memory() {
            PollAt::At(now.saturating_add_nanos(memory::RETRY_NANOS))
        } else {
            PollAt::OnEvent
        };
        (moved as u32, next)
    }

    /// A datagram with these messages has arrived; it is dropped if it is not of this session.
    #[inline]
    pub(crate) fn on_datagram(
        &mut self,
        (session, epoch, messages): (u32, u64, Messages<'_>),
        source: Option<DatagramSource>,
        now: Instant,
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        if session != self.session || !self.peer.has_sent(epoch, source) {
            return Ok(());
        }
        self.retransmission.note_datagram(&mut self.window, &mut self.releases, now);
        for message in messages {
            self.handle_message(&message, now, sink)?;
        }
        if self.retransmission.has_overtaken() {
            self.retransmission.queue_overtaken(&mut self.window, now);
        }
        Ok(())
    }

    #[inline]
    fn handle_message(
        &mut self,
        message: &wire::Message<'_>,
        now: Instant,
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        let Id { slot: index, generation, mark } = message.id;
        if message.kind == Kind::Response
            && let Some(slot) = self.window.slots.get(index as usize)
            && slot.generation == generation
            && slot.awaits_response()
        {
            let abandoned = slot.abandoned;
            self.retransmission.acknowledge_copy(slot, mark, now);
            self.end(index);
            if !abandoned {
                sink.reply(SlotId { index, generation }, Message::Borrowed(message.body));
            }
            return Ok(());
        }
        self.handle_uncommon(message, now, sink)
    }

    /// Everything but a small response that is waited for.
    #[cold]
    fn handle_uncommon(
        &mut self,
        message: &wire::Message<'_>,
        now: Instant,
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        let wire::Message { kind, id: Id { slot: index, generation, mark }, .. } = *message;
        match kind {
            Kind::Goodbye => return Err(FailureKind::Goodbye),
            Kind::Challenge => {
                self.take_epoch(message.challenge().ok_or(NONSENSE)?);
                return Ok(());
            }
            Kind::Released => {
                self.releases.acknowledge(index, generation);
                return Ok(());
            }
            _ => {}
        }
        let Calls { window, retransmission, transfers, .. } = self;
        let Some(slot) = window.slots.get_mut(index as usize) else {
            // A copy of something old, too, or a slot that there is not.
            return if index < window.size() { Ok(()) } else { Err(NONSENSE) };
        };
        if slot.generation != generation {
            return Ok(()); // A copy of something old.
        }
        retransmission.acknowledge_copy(slot, mark, now);
        retransmission.forget_datagram(slot);
        let (phase, round) = (slot.phase, mark & !LATE);
        match kind {
            Kind::Running if slot.awaits_response() && phase != Phase::Known => {
                slot.phase = Phase::Known;
                transfers.forget(index);
                retransmission.restart_timer(slot, now);
            }
            Kind::Progress if phase == Phase::Announced => {
                if !slot.abandoned {
                    slot.phase = Phase::Sending;
                    transfers.start(index);
                }
                retransmission.restart_timer(slot, now);
            }
            Kind::Progress if phase == Phase::Sending && !slot.abandoned => {
                let range = message.range().ok_or(NONSENSE)?;
                let arrived = (range.base.get(), range.mask.get());
                let (is_new, is_done) =
                    transfers.acknowledge(index, round, arrived).ok_or(NONSENSE)?;
                if let Some(sent_at) = transfers.finish_timing() {
                    retransmission.record_round_trip(now, sent_at, None);
                }
                if is_done {
                    slot.phase = Phase::Known;
                }
                if is_new {
                    retransmission.restart_timer(slot, now);
                }
            }
            Kind::Lent if slot.awaits_response() => {
                let len = message.len().ok_or(NONSENSE)?;
                if slot.abandoned {
                    self.end_fetched(index);
                    return Ok(());
                }
                if len > self.max_message || !transfers.lent(index, len) {
                    return Err(FailureKind::PeerMisbehaved("a response over the limit"));
                }
                slot.phase = Phase::Fetching;
                retransmission.restart_timer(slot, now);
            }
            Kind::Part if phase == Phase::Fetching => {
                let (number, bytes) = message.part().ok_or(NONSENSE)?;
                let taken = transfers.take_part(index, round, number, bytes);
                if let Some(sent_at) = transfers.finish_timing() {
                    retransmission.record_round_trip(now, sent_at, None);
                }
                match taken {
                    Taken::No => {}
                    Taken::Yes => retransmission.restart_timer(slot, now),
                    Taken::Whole(whole) => {
                        let message = Message::Owned(transfers.hand_over(whole));
                        self.end_fetched(index);
                        sink.reply(SlotId { index, generation }, message);
                    }
                }
            }
            Kind::Dropped if slot.abandoned => self.end(index),
            // The response has left, and was lost.
            Kind::Dropped
                if phase == Phase::Known
                    && slot.delivery == Delivery::Idempotent
                    && !slot.is_large() =>
            {
                slot.phase = Phase::Posted;
                retransmission.restart_timer(slot, now);
                window.queue(index, ToSend::Request);
            }
            Kind::Forgotten if slot.awaits_response() => {
                self.fail(index, TransportFailure::new(FailureKind::PeerGone, true), sink);
            }
            Kind::OverLimit if slot.awaits_response() => {
                let limit = message.over_limit().ok_or(NONSENSE)?;
                let kind = FailureKind::TooLarge { len: limit.len.get(), max: limit.max.get() };
                self.fail(index, TransportFailure::new(kind, false), sink);
            }
            // Copies of what arrived before, and what the client knows already.
            _ => {}
        }
        Ok(())
    }

    /// The server says what our datagrams must carry. It never changes, and copies come later.
    fn take_epoch(&mut self, epoch: u64) {
        if !std::mem::replace(&mut self.has_epoch, true) {
            self.peer.epoch = epoch;
        }
    }

    /// The slot is free again, and its call fails alone.
    fn fail(&mut self, index: u32, why: TransportFailure, sink: &mut dyn ReplySink) {
        let slot = &self.window.slots[index as usize];
        let (abandoned, generation) = (slot.abandoned, slot.generation);
        self.end(index);
        if !abandoned {
            sink.failed(SlotId { index, generation }, why);
        }
    }
}

/// The slot's message that leaves next.
#[inline]
fn next_id(index: u32, slot: &Slot) -> Id {
    Id { slot: index, generation: slot.generation, mark: slot.next_copy() }
}
