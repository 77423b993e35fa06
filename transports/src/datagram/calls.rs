//! The calls of one session, at the client: its window of slots, and what is sent again.

use std::collections::VecDeque;

use farcall_core::error::{Backpressure, FailureKind, ReserveError, TransportFailure};
use farcall_core::time::{Instant, PollAt};
use farcall_core::transport::{Message, ReplySink, SlotId};
use farcall_verbs::{CompletionOpcode, GRH_BYTES, Status, WorkCompletion};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::port::{Port, Way};
use super::round_trip::RoundTrip;
use super::timers::Timers;
use super::transfers::{Step, Taken, Transfers};
use super::wire::{self, Header, Kind, Range};
use crate::memory;

/// Parts that one poll sends: some 20 us of copying, which is what a small call may have to wait for.
const STEPS_PER_POLL: usize = 16;

/// How far a slot's request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free,
    /// The caller fills it.
    Reserved,
    /// It goes whole; no word of it yet.
    Posted,
    /// It goes in parts, as soon as the server has room.
    Announced,
    /// Its parts are under way.
    Sending,
    /// The server has it.
    Known,
    /// Its long response is fetched, or waits for memory.
    Fetching,
}

/// What is to be sent of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Say {
    Nothing,
    /// The request, or its announcement.
    Request,
    /// What has become of it?
    Ask,
    Cancel,
    /// What is missing of the response.
    Missing,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    phase: Phase,
    say: Say,
    /// Nobody waits for the reply; the slot is kept until it has come.
    abandoned: bool,
    /// Some of it has left.
    sent: bool,
    /// How often it was sent again since the last progress, and whether ever.
    tries: u32,
    repeated: bool,
    /// When it was sent, and when it is sent again: known from the poll after it has left.
    sent_at: Instant,
    due: Instant,
    /// Bytes of a request that goes whole.
    len: usize,
    bytes: Vec<u8>,
}

/// A long response that has been taken, of which the server does not know yet.
#[derive(Debug)]
struct Release {
    slot: u32,
    generation: u32,
    unsaid: bool,
    tries: u32,
    due: Instant,
}

/// Why the session must end.
pub(crate) type Broken = FailureKind;

const NONSENSE: Broken = FailureKind::PeerMisbehaved("a message that no request waits for");

/// The slots, and what became of them.
#[derive(Debug)]
pub(crate) struct Calls {
    port: Port,
    way: Way,
    /// Our number of the session.
    session: u32,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Slots that have something to say, in order.
    outbox: VecDeque<u32>,
    /// Slots that were sent since the last poll: their time counts from the next.
    fresh: Vec<u32>,
    releases: Vec<Release>,
    transfers: Transfers,
    timers: Timers,
    round_trip: RoundTrip,
    pub(crate) max_message: u64,
    max_whole: usize,
    pub(crate) over: Option<TransportFailure>,
    /// The sink was told so.
    told: bool,
    goodbye: bool,
}

impl Calls {
    pub(crate) fn new(
        port: Port,
        way: Way,
        session: u32,
        window: u32,
        (max_message, max_whole): (u64, usize),
        transfers: Transfers,
    ) -> Calls {
        let slot = |_| Slot {
            generation: 0,
            phase: Phase::Free,
            say: Say::Nothing,
            abandoned: false,
            sent: false,
            tries: 0,
            repeated: false,
            sent_at: Instant::ZERO,
            due: Instant::FAR_FUTURE,
            len: 0,
            bytes: Vec::new(),
        };
        Calls {
            port,
            way,
            session,
            slots: (0..window).map(slot).collect(),
            // The lowest slot is taken first: the server keeps state for those that were ever used.
            free: (0..window).rev().collect(),
            outbox: VecDeque::with_capacity(window as usize),
            fresh: Vec::with_capacity(window as usize),
            releases: Vec::new(),
            transfers,
            timers: Timers::default(),
            round_trip: RoundTrip::default(),
            max_message,
            max_whole,
            over: None,
            told: false,
            goodbye: false,
        }
    }

    pub(crate) fn window(&self) -> u32 {
        self.slots.len() as u32
    }

    #[inline]
    pub(crate) fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        if self.over.is_some() {
            return Err(ReserveError::Closed);
        }
        if len as u64 > self.max_message {
            return Err(ReserveError::TooLarge { len: len as u64, max: self.max_message });
        }
        let Some(&index) = self.free.last() else { return Err(Backpressure::Credits.into()) };
        let slot = &mut self.slots[index as usize];
        let long = len > self.max_whole;
        let bytes = if long {
            let Some(bytes) = self.transfers.reserve(index, len) else {
                return Err(Backpressure::Memory.into());
            };
            bytes
        } else {
            if slot.bytes.len() < len {
                slot.bytes.resize(len, 0);
            }
            &mut slot.bytes[..len]
        };
        self.free.pop();
        slot.generation = slot.generation.wrapping_add(1);
        slot.phase = Phase::Reserved;
        slot.len = if long { usize::MAX } else { len };
        Ok((SlotId { index, generation: slot.generation }, bytes))
    }

    pub(crate) fn release(&mut self, id: SlotId) {
        if self.is(id, Phase::Reserved) {
            self.end(id.index);
        }
    }

    #[inline]
    pub(crate) fn post(&mut self, id: SlotId) {
        assert!(self.is(id, Phase::Reserved), "posted slot {id:?} was not reserved");
        let slot = &mut self.slots[id.index as usize];
        slot.phase = if slot.len == usize::MAX { Phase::Announced } else { Phase::Posted };
        if !self.releases.is_empty() {
            // The next generation says it too.
            self.releases.retain(|release| release.slot != id.index);
        }
        self.say(id.index, Say::Request);
    }

    #[cold]
    pub(crate) fn abandon(&mut self, id: SlotId) {
        let Some(slot) = self.slots.get_mut(id.index as usize) else { return };
        let posted = !matches!(slot.phase, Phase::Free | Phase::Reserved);
        if slot.generation != id.generation || !posted || slot.abandoned {
            return;
        }
        if !slot.sent {
            // It has not left: nothing to wait for.
            self.outbox.retain(|index| *index != id.index);
            return self.end(id.index);
        }
        if slot.phase == Phase::Fetching {
            return self.let_go(id.index);
        }
        slot.abandoned = true;
        slot.tries = 0;
        self.transfers.forget(id.index);
        self.say(id.index, Say::Cancel);
    }

    /// Sends what waits, under one doorbell.
    #[inline]
    pub(crate) fn flush(&mut self) {
        while let Some(&index) = self.outbox.front() {
            if !self.put(index) {
                break;
            }
            self.outbox.pop_front();
        }
        if !self.releases.is_empty() {
            self.put_releases();
        }
        self.port.seal(&self.way);
        self.port.ring();
    }

    /// Puts what the slot has to say into a datagram, if there is room.
    #[inline]
    fn put(&mut self, index: u32) -> bool {
        let Calls { port, way, transfers, .. } = self;
        let slot = &mut self.slots[index as usize];
        let id = (index, slot.generation);
        let room = match (slot.say, slot.phase) {
            (Say::Request, Phase::Posted) => {
                port.put(way, Kind::Request, id, (&slot.bytes[..slot.len], &[]))
            }
            (Say::Request, Phase::Announced) => {
                let len = U64::from(transfers.request_len(index));
                port.put(way, Kind::Announce, id, (len.as_bytes(), &[]))
            }
            (Say::Ask, Phase::Known) => port.put(way, Kind::Ask, id, (&[], &[])),
            (Say::Cancel, _) => port.put(way, Kind::Cancel, id, (&[], &[])),
            (Say::Missing, Phase::Fetching) => match transfers.ask_again(index) {
                Some((base, mask)) => {
                    let range = Range::new(base, mask);
                    port.put(way, Kind::Ask, id, (range.as_bytes(), &[]))
                }
                None => true,
            },
            // Answered meanwhile.
            _ => {
                slot.say = Say::Nothing;
                return true;
            }
        };
        if room {
            slot.say = Say::Nothing;
            slot.sent = true;
            if slot.due == Instant::FAR_FUTURE {
                self.fresh.push(index);
            }
        }
        room
    }

    #[cold]
    fn put_releases(&mut self) {
        for release in &mut self.releases {
            let id = (release.slot, release.generation);
            if release.unsaid && self.port.put(&self.way, Kind::Release, id, (&[], &[])) {
                release.unsaid = false;
            }
        }
    }

    /// Whoever was sent since the last poll was sent now.
    #[inline]
    pub(crate) fn stamp(&mut self, now: Instant) {
        if self.fresh.is_empty() {
            return;
        }
        let due = now.saturating_add_nanos(self.round_trip.timeout(0));
        for index in self.fresh.drain(..) {
            let slot = &mut self.slots[index as usize];
            if slot.due == Instant::FAR_FUTURE {
                (slot.sent_at, slot.due) = (now, due);
            }
        }
        self.timers.at(due);
    }

    #[inline]
    pub(crate) fn complete(
        &mut self,
        completion: &mut WorkCompletion,
        now: Instant,
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        if completion.status != Status::Success {
            return Err(lost(completion));
        }
        if completion.opcode != CompletionOpcode::Recv {
            self.port.retire(completion);
            return Ok(());
        }
        let Some(buffer) = completion.buffer.take() else { return Ok(()) };
        let source = completion.source.is_none_or(|source| source.qp == self.way.qp);
        let datagram = buffer.get(GRH_BYTES..completion.byte_len as usize);
        let mut outcome = Ok(());
        if let Some((session, epoch, messages)) = datagram.and_then(Header::split)
            && (session, epoch, source) == (self.session, self.way.epoch, true)
        {
            self.timers.heard();
            for message in messages {
                outcome = self.message(&message, now, sink);
                if outcome.is_err() {
                    break;
                }
            }
        }
        self.port.recycle(buffer);
        outcome
    }

    #[inline]
    fn message(
        &mut self,
        message: &wire::Message<'_>,
        now: Instant,
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        let index = message.slot;
        if message.kind == Kind::Response
            && let Some(slot) = self.slots.get(index as usize)
            && slot.generation == message.generation
            && slot.waits()
        {
            if !slot.repeated && slot.due != Instant::FAR_FUTURE {
                self.round_trip.measured(now - slot.sent_at);
            }
            let abandoned = slot.abandoned;
            self.end(index);
            if !abandoned {
                let id = SlotId { index, generation: message.generation };
                sink.reply(id, Message::Borrowed(message.body));
            }
            return Ok(());
        }
        self.unusual(message, now, sink)
    }

    /// All but a whole response that is waited for.
    #[cold]
    fn unusual(
        &mut self,
        message: &wire::Message<'_>,
        now: Instant,
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        let wire::Message { kind, slot: index, generation, .. } = *message;
        match kind {
            Kind::Goodbye => return Err(FailureKind::Goodbye),
            Kind::Released => {
                self.releases.retain(|r| (r.slot, r.generation) != (index, generation));
                return Ok(());
            }
            _ => {}
        }
        let Some(slot) = self.slots.get_mut(index as usize) else { return Err(NONSENSE) };
        if slot.generation != generation {
            return Ok(()); // A copy of something old.
        }
        let phase = slot.phase;
        match kind {
            Kind::Running if slot.waits() && phase != Phase::Known => {
                slot.phase = Phase::Known;
                self.transfers.forget(index);
                self.moved_on(index, now);
            }
            Kind::Progress if phase == Phase::Announced => {
                if !slot.abandoned {
                    slot.phase = Phase::Sending;
                    self.transfers.start(index);
                }
                self.moved_on(index, now);
            }
            Kind::Progress if phase == Phase::Sending && !slot.abandoned => {
                let range = message.range().ok_or(NONSENSE)?;
                let (base, come) = (range.base.get(), range.mask.get());
                let (news, done) = self.transfers.acknowledge(index, base, come).ok_or(NONSENSE)?;
                if done {
                    self.slots[index as usize].phase = Phase::Known;
                }
                if news {
                    self.moved_on(index, now);
                }
            }
            Kind::Offer if slot.waits() => {
                let len = message.len().ok_or(NONSENSE)?;
                if slot.abandoned {
                    self.let_go(index);
                    return Ok(());
                }
                if len > self.max_message || !self.transfers.offered(index, len) {
                    return Err(FailureKind::PeerMisbehaved("a response over the limit"));
                }
                self.slots[index as usize].phase = Phase::Fetching;
                self.moved_on(index, now);
            }
            Kind::Part if phase == Phase::Fetching => {
                let (number, bytes) = message.part().ok_or(NONSENSE)?;
                match self.transfers.take(index, number, bytes) {
                    Taken::No => {}
                    Taken::Yes => self.moved_on(index, now),
                    Taken::Whole(whole) => {
                        self.let_go(index);
                        let message = Message::Owned(bytes::Bytes::from_owner(whole));
                        sink.reply(SlotId { index, generation }, message);
                    }
                }
            }
            Kind::Dropped if slot.abandoned => self.end(index),
            Kind::OverLimit if slot.waits() => {
                let limit = message.over_limit().ok_or(NONSENSE)?;
                let abandoned = slot.abandoned;
                self.end(index);
                if !abandoned {
                    let kind = FailureKind::TooLarge { len: limit.len.get(), max: limit.max.get() };
                    let id = SlotId { index, generation };
                    sink.failed(id, TransportFailure::new(kind, false));
                }
            }
            // Copies of what came before, and what a request in this phase is told again.
            _ => {}
        }
        Ok(())
    }

    /// There was progress: the timeout begins anew.
    fn moved_on(&mut self, index: u32, now: Instant) {
        let slot = &mut self.slots[index as usize];
        slot.tries = 0;
        slot.due = now.saturating_add_nanos(self.round_trip.timeout(0));
        // Of what is waited for now no round trip can be measured.
        slot.repeated = true;
        self.timers.at(slot.due);
    }

    /// The slot is free, and the server may free the long response.
    #[cold]
    fn let_go(&mut self, index: u32) {
        let generation = self.slots[index as usize].generation;
        let due = Instant::ZERO;
        self.releases.push(Release { slot: index, generation, unsaid: true, tries: 0, due });
        self.timers.at(due);
        self.end(index);
    }

    #[inline]
    fn say(&mut self, index: u32, what: Say) {
        let slot = &mut self.slots[index as usize];
        if slot.say == Say::Nothing {
            self.outbox.push_back(index);
        }
        slot.say = what;
    }

    #[inline]
    fn is(&self, id: SlotId, phase: Phase) -> bool {
        self.slots
            .get(id.index as usize)
            .is_some_and(|slot| slot.generation == id.generation && slot.phase == phase)
    }

    /// The slot is free again.
    #[inline]
    fn end(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.len == usize::MAX || slot.phase == Phase::Fetching {
            self.transfers.forget(index);
        }
        if slot.say != Say::Nothing {
            self.outbox.retain(|waiting| *waiting != index);
            slot.say = Say::Nothing;
        }
        slot.phase = Phase::Free;
        (slot.abandoned, slot.sent, slot.repeated, slot.tries) = (false, false, false, 0);
        slot.due = Instant::FAR_FUTURE;
        self.free.push(index);
    }

    /// Something is to be sent, is due, or must be told.
    #[inline]
    pub(crate) fn needs_attention(&self, now: Instant) -> bool {
        self.timers.next() <= now
            || !self.outbox.is_empty()
            || !self.transfers.is_idle()
            || self.port.is_broken()
    }

    /// Whether a poll would have something to do at once.
    pub(crate) fn has_work(&self) -> bool {
        let news = self.over.is_some() || self.port.is_broken();
        (news && !self.told) || (!news && !self.outbox.is_empty() && self.port.has_room())
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
        now: Instant,
        more: bool,
        sink: &mut dyn ReplySink,
    ) -> (u32, PollAt) {
        if self.over.is_some() {
            return (0, PollAt::OnEvent);
        }
        if self.port.is_broken() {
            self.close(FailureKind::Device("its queue pair is in error"), sink);
            return (0, PollAt::OnEvent);
        }
        if !more && self.timers.next() <= now && self.fire(now) {
            self.close(FailureKind::PeerGone, sink);
            return (0, PollAt::OnEvent);
        }
        // What waited before goes before.
        self.flush();
        let mut moved = 0;
        while moved < STEPS_PER_POLL && self.port.has_room() {
            let Some(step) = self.transfers.step() else { break };
            moved += 1;
            let slot = match step {
                Step::Part { slot, number, range } => {
                    let number = U32::from(number);
                    let bytes = self.transfers.bytes(slot, range);
                    let id = (slot, self.slots[slot as usize].generation);
                    self.port.put(&self.way, Kind::Part, id, (number.as_bytes(), bytes));
                    slot
                }
                Step::Ask { slot, base, mask } => {
                    let id = (slot, self.slots[slot as usize].generation);
                    let range = Range::new(base, mask);
                    self.port.put(&self.way, Kind::Ask, id, (range.as_bytes(), &[]));
                    slot
                }
            };
            self.port.seal(&self.way);
            let slot = &mut self.slots[slot as usize];
            slot.due = now.saturating_add_nanos(self.round_trip.timeout(slot.tries));
            self.timers.at(slot.due);
        }
        self.port.ring();
        let next = if moved == STEPS_PER_POLL {
            PollAt::Now
        } else if self.transfers.wants_memory() {
            PollAt::At(now.saturating_add_nanos(memory::RETRY_NANOS))
        } else {
            PollAt::OnEvent
        };
        (moved as u32, next)
    }

    /// Sends again what is due. Answers whether the server counts as gone.
    fn fire(&mut self, now: Instant) -> bool {
        self.timers.fire();
        let mut asked = false;
        for index in 0..self.slots.len() as u32 {
            let slot = &mut self.slots[index as usize];
            if matches!(slot.phase, Phase::Free | Phase::Reserved) {
                continue;
            }
            if slot.due > now {
                self.timers.at(slot.due);
                continue;
            }
            slot.tries = slot.tries.saturating_add(1);
            slot.repeated = true;
            slot.due = now.saturating_add_nanos(self.round_trip.timeout(slot.tries));
            self.timers.at(slot.due);
            let what = match slot.phase {
                Phase::Free | Phase::Reserved => continue,
                _ if slot.abandoned => Say::Cancel,
                Phase::Posted | Phase::Announced => Say::Request,
                Phase::Known => Say::Ask,
                Phase::Sending => {
                    self.transfers.timed_out(index);
                    Say::Nothing
                }
                // Nothing is missing where the response waits for memory.
                Phase::Fetching if self.transfers.ask_again(index).is_none() => continue,
                Phase::Fetching => Say::Missing,
            };
            asked = true;
            if what != Say::Nothing {
                self.say(index, what);
            }
        }
        for release in &mut self.releases {
            if release.due <= now {
                // It counts from the first poll after it was said.
                release.unsaid |= release.due > Instant::ZERO;
                release.due = now.saturating_add_nanos(self.round_trip.timeout(release.tries));
                release.tries = release.tries.saturating_add(1);
                asked |= release.tries > 1;
            }
            self.timers.at(release.due);
        }
        asked && self.timers.asked_again(now)
    }

    /// Says goodbye.
    pub(crate) fn say_goodbye(&mut self) {
        if std::mem::replace(&mut self.goodbye, true) {
            return;
        }
        self.over.get_or_insert(TransportFailure::new(FailureKind::Closed, true));
        self.port.put(&self.way, Kind::Goodbye, (0, 0), (&[], &[]));
        self.port.seal_last(&self.way);
        self.port.ring();
    }

    /// The session is over; the sink hears of it once.
    #[cold]
    pub(crate) fn close(&mut self, kind: FailureKind, sink: &mut dyn ReplySink) {
        let why = *self.over.get_or_insert(TransportFailure::new(kind, true));
        if !std::mem::replace(&mut self.told, true) {
            tracing::debug!(%why, "session closed");
            if kind == FailureKind::Goodbye {
                // The server waits for it, for a moment.
                self.say_goodbye();
            }
            sink.closed(why);
        }
    }
}

impl Slot {
    /// It was posted, and its response is not known.
    #[inline]
    fn waits(&self) -> bool {
        matches!(self.phase, Phase::Posted | Phase::Announced | Phase::Sending | Phase::Known)
    }
}

/// What a completion in error says about the session.
#[cold]
fn lost(completion: &WorkCompletion) -> Broken {
    tracing::debug!(status = ?completion.status, "a work request failed");
    match completion.status {
        Status::LocalProtection | Status::LocalLength => FailureKind::Device("local protection"),
        _ => FailureKind::Device("its queue pair is in error"),
    }
}
