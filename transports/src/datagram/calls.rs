//! The calls of one session, at the client: how they are posted, and what is sent of them.

use farcall_core::error::{Backpressure, FailureKind, ReserveError, TransportFailure};
use farcall_core::time::{Instant, PollAt};
use farcall_core::transport::{Limits, ReplySink, SlotId};
use farcall_verbs::DatagramSource;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::congestion::Congestion;
use super::flight::Flight;
use super::port::{Port, Way};
use super::round_trip::RoundTrip;
use super::setup::CREDITS;
use super::timers::Timers;
use super::transfers::{Step, Transfers};
use super::window::{Phase, Say, Window};
use super::wire::{Kind, Range};
use crate::address::{self, Optimization};
use crate::memory;

/// Parts that one poll sends: some 20 us of copying, which is what a small call may have to wait for.
const STEPS_PER_POLL: usize = 16;

/// A long response that has been taken, of which the server does not know yet.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) unsaid: bool,
    pub(crate) tries: u32,
    pub(crate) due: Instant,
}

/// Why the session must end.
pub(crate) type Broken = FailureKind;

/// The calls, and what became of them. What is heard of them is in `heard.rs`, what is sent again in `overdue.rs`.
#[derive(Debug)]
pub(crate) struct Calls {
    way: Way,
    /// Our number of the session.
    session: u32,
    pub(crate) window: Window,
    /// Slots that were sent since the last poll: their time counts from the next.
    pub(crate) fresh: Vec<u32>,
    pub(crate) releases: Vec<Release>,
    pub(crate) flight: Flight,
    pub(crate) congestion: Congestion,
    pub(crate) transfers: Transfers,
    pub(crate) timers: Timers,
    pub(crate) round_trip: RoundTrip,
    /// What is lost is sent again.
    pub(crate) recovers: bool,
    pub(crate) max_message: u64,
    max_whole: usize,
    pub(crate) over: Option<TransportFailure>,
    /// The sink was told so.
    told: bool,
    goodbye: bool,
}

impl Calls {
    pub(crate) fn new(
        way: Way,
        session: u32,
        window: u32,
        (max_message, max_whole): (u64, usize),
        transfers: Transfers,
        limits: &address::Limits,
        has_network: bool,
    ) -> Calls {
        Calls {
            way,
            session,
            window: Window::new(window),
            fresh: Vec::with_capacity(window as usize),
            releases: Vec::new(),
            flight: Flight::new(window),
            congestion: Congestion::new(
                if has_network && !limits.without.has(Optimization::Congestion) {
                    window.max(CREDITS)
                } else {
                    0
                },
            ),
            transfers,
            timers: Timers::new(limits.silence),
            round_trip: RoundTrip::default(),
            recovers: !limits.without.has(Optimization::Recovery),
            max_message,
            max_whole,
            over: None,
            told: false,
            goodbye: false,
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits { window: self.window.slots.len() as u32, max_message: self.max_message }
    }

    /// Whether a datagram with this header came from this session's server.
    #[inline]
    pub(crate) fn is_ours(&self, session: u32, epoch: u64, source: Option<DatagramSource>) -> bool {
        session == self.session && self.way.leads_to(epoch, source)
    }

    #[inline]
    pub(crate) fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        if self.over.is_some() {
            return Err(ReserveError::Closed);
        }
        if len as u64 > self.max_message {
            return Err(ReserveError::TooLarge { len: len as u64, max: self.max_message });
        }
        if len > self.max_whole {
            return self.reserve_long(len);
        }
        self.window.take(len).ok_or(Backpressure::Credits.into())
    }

    #[cold]
    fn reserve_long(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        let Some(index) = self.window.next_free() else { return Err(Backpressure::Credits.into()) };
        let Some(bytes) = self.transfers.reserve(index, len) else {
            return Err(Backpressure::Memory.into());
        };
        let Some(id) = self.window.take_long() else { return Err(Backpressure::Credits.into()) };
        Ok((id, bytes))
    }

    pub(crate) fn release(&mut self, id: SlotId) {
        if self.window.is(id, Phase::Reserved) {
            self.end(id.index);
        }
    }

    #[inline]
    pub(crate) fn post(&mut self, id: SlotId, idempotent: bool) {
        assert!(self.window.is(id, Phase::Reserved), "posted slot {id:?} was not reserved");
        let slot = &mut self.window.slots[id.index as usize];
        slot.idempotent = idempotent;
        slot.phase = if slot.is_long() { Phase::Announced } else { Phase::Posted };
        if !self.releases.is_empty() {
            // The next generation says it too.
            self.releases.retain(|release| release.slot != id.index);
        }
        self.window.say(id.index, Say::Request);
    }

    #[cold]
    pub(crate) fn abandon(&mut self, id: SlotId) {
        let Some(slot) = self.window.slots.get_mut(id.index as usize) else { return };
        let posted = !matches!(slot.phase, Phase::Free | Phase::Reserved);
        if slot.generation != id.generation || !posted || slot.abandoned {
            return;
        }
        if !slot.sent {
            // It has not left: nothing to wait for.
            self.window.outbox.retain(|index| *index != id.index);
            return self.end(id.index);
        }
        if slot.phase == Phase::Fetching {
            return self.let_go(id.index);
        }
        slot.abandoned = true;
        slot.tries = 0;
        self.transfers.forget(id.index);
        self.window.say(id.index, Say::Cancel);
    }

    /// Sends what waits, under one doorbell.
    #[inline]
    pub(crate) fn flush(&mut self, port: &mut Port) {
        while let Some(&index) = self.window.outbox.front() {
            if !self.put(port, index) {
                break;
            }
            self.window.outbox.pop_front();
        }
        if !self.releases.is_empty() {
            self.put_releases(port);
        }
        port.seal(&self.way);
        port.ring();
    }

    /// Puts what the slot has to say into a datagram, if there is room.
    #[inline]
    fn put(&mut self, port: &mut Port, index: u32) -> bool {
        let slot = &self.window.slots[index as usize];
        if slot.say != Say::Request || !slot.is_unheard() {
            return self.put_other(port, index);
        }
        let announced;
        let (kind, body): (Kind, &[u8]) = if slot.phase == Phase::Posted {
            let kind = if slot.idempotent { Kind::Idempotent } else { Kind::Request };
            (kind, slot.request())
        } else {
            announced = U64::from(self.transfers.request_len(index));
            (Kind::Announce, announced.as_bytes())
        };
        if self.is_held() && !port.takes(&self.way, body.len()) {
            return false;
        }
        let room =
            port.put(&self.way, kind, (index, slot.generation, slot.next_copy()), (body, &[]));
        if room {
            let datagram = self.flight.enter(port.sealed());
            self.window.slots[index as usize].datagram = Some(datagram);
            self.has_said(index);
        }
        room
    }

    /// The same of anything but a request.
    #[cold]
    fn put_other(&mut self, port: &mut Port, index: u32) -> bool {
        let slot = &self.window.slots[index as usize];
        let id = (index, slot.generation, slot.next_copy());
        let room = match (slot.say, slot.phase) {
            (Say::Ask, Phase::Known) => port.put(&self.way, Kind::Ask, id, (&[], &[])),
            (Say::Cancel, _) => port.put(&self.way, Kind::Cancel, id, (&[], &[])),
            (Say::Missing, Phase::Fetching) => match self.transfers.ask_again(index) {
                Some((base, mask)) => {
                    let range = Range::new(base, mask);
                    let id = (index, slot.generation, self.transfers.round(index));
                    port.put(&self.way, Kind::Ask, id, (range.as_bytes(), &[]))
                }
                None => true,
            },
            // Answered meanwhile.
            _ => {
                self.window.slots[index as usize].say = Say::Nothing;
                return true;
            }
        };
        if room {
            self.has_said(index);
        }
        room
    }

    #[inline]
    fn has_said(&mut self, index: u32) {
        let slot = &mut self.window.slots[index as usize];
        slot.say = Say::Nothing;
        slot.copy = slot.next_copy();
        slot.sent = true;
        self.fresh.push(index);
    }

    #[cold]
    fn put_releases(&mut self, port: &mut Port) {
        for release in &mut self.releases {
            let id = (release.slot, release.generation, 0);
            if release.unsaid && port.put(&self.way, Kind::Release, id, (&[], &[])) {
                release.unsaid = false;
            }
        }
    }

    /// The slot is free again.
    #[inline]
    pub(crate) fn end(&mut self, index: u32) {
        self.heard_of(index);
        let slot = &self.window.slots[index as usize];
        if slot.is_long() || slot.phase == Phase::Fetching {
            self.transfers.forget(index);
        }
        self.window.end(index);
    }

    /// The slot is free, and the server may free the long response.
    #[cold]
    pub(crate) fn let_go(&mut self, index: u32) {
        let generation = self.window.slots[index as usize].generation;
        let due = Instant::ZERO;
        self.releases.push(Release { slot: index, generation, unsaid: true, tries: 0, due });
        self.timers.at(due);
        self.end(index);
    }

    /// Something is to be sent, is due, or must be told.
    #[inline]
    pub(crate) fn needs_attention(&self, now: Instant) -> bool {
        self.timers.next() <= now || !self.window.outbox.is_empty() || !self.transfers.is_idle()
    }

    /// Whether a poll would have something to do at once.
    pub(crate) fn has_work(&self, port: &Port) -> bool {
        let news = self.over.is_some() || port.is_broken();
        (news && !self.told)
            || (!news && !self.window.outbox.is_empty() && port.has_room() && !self.is_held())
    }

    /// No more requests may be under way.
    #[inline]
    fn is_held(&self) -> bool {
        self.flight.under_way() >= self.congestion.window() || !self.flight.has_room()
    }

    /// Something could not be sent, for want of room in the send queue.
    pub(crate) fn waits_for_room(&self) -> bool {
        !self.window.outbox.is_empty()
    }

    /// When a poll has something to do that no event announces.
    #[inline]
    pub(crate) fn poll_at(&self) -> PollAt {
        match self.timers.next() {
            Instant::FAR_FUTURE => PollAt::OnEvent,
            at => PollAt::At(at),
        }
    }

    /// Moves long messages on, and sends again what is due, unless there is more that has come and was not looked
    /// at. Answers how many steps it took, and when to come back.
    #[cold]
    pub(crate) fn drive(
        &mut self,
        port: &mut Port,
        now: Instant,
        more: bool,
        sink: &mut dyn ReplySink,
    ) -> (u32, PollAt) {
        if self.over.is_some() {
            return (0, PollAt::OnEvent);
        }
        if port.is_broken() {
            self.close(port, FailureKind::Device("its queue pair is in error"), sink);
            return (0, PollAt::OnEvent);
        }
        if !more && self.timers.next() <= now && self.fire(now) {
            self.close(port, FailureKind::PeerGone, sink);
            return (0, PollAt::OnEvent);
        }
        // What waited before goes before.
        self.flush(port);
        let mut moved = 0;
        while moved < STEPS_PER_POLL && port.has_room() {
            let Some(step) = self.transfers.step(now, self.congestion.window()) else { break };
            moved += 1;
            let slot = match step {
                Step::Part { slot, number, range } => {
                    let number = U32::from(number);
                    let bytes = self.transfers.bytes(slot, range);
                    let generation = self.window.slots[slot as usize].generation;
                    let id = (slot, generation, self.transfers.round(slot));
                    port.put(&self.way, Kind::Part, id, (number.as_bytes(), bytes));
                    slot
                }
                Step::Ask { slot, base, mask } => {
                    let generation = self.window.slots[slot as usize].generation;
                    let id = (slot, generation, self.transfers.round(slot));
                    let range = Range::new(base, mask);
                    port.put(&self.way, Kind::Ask, id, (range.as_bytes(), &[]));
                    slot
                }
            };
            port.seal(&self.way);
            let slot = &mut self.window.slots[slot as usize];
            slot.due = now.saturating_add_nanos(self.round_trip.timeout(slot.tries));
            self.timers.at(slot.due);
        }
        port.ring();
        let next = if moved == STEPS_PER_POLL {
            PollAt::Now
        } else if self.transfers.wants_memory() {
            PollAt::At(now.saturating_add_nanos(memory::RETRY_NANOS))
        } else {
            PollAt::OnEvent
        };
        (moved as u32, next)
    }

    /// Says goodbye.
    pub(crate) fn say_goodbye(&mut self, port: &mut Port) {
        if std::mem::replace(&mut self.goodbye, true) {
            return;
        }
        self.over.get_or_insert(TransportFailure::new(FailureKind::Closed, true));
        port.put(&self.way, Kind::Goodbye, (0, 0, 0), (&[], &[]));
        port.seal_last(&self.way);
        port.ring();
    }

    /// The session is over; the sink hears of it once.
    #[cold]
    pub(crate) fn close(&mut self, port: &mut Port, kind: FailureKind, sink: &mut dyn ReplySink) {
        let why = *self.over.get_or_insert(TransportFailure::new(kind, true));
        if !std::mem::replace(&mut self.told, true) {
            tracing::debug!(%why, "session closed");
            if kind == FailureKind::Goodbye {
                // The server waits for it, for a moment.
                self.say_goodbye(port);
            }
            sink.closed(why);
        }
    }
}
