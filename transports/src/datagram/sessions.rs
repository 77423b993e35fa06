//! The sessions of one server thread: their requests in, their answers out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use farcall_core::error::{Backpressure, ReserveError};
use farcall_core::time::Instant;
use farcall_core::transport::{CallToken, Message, Replies, RequestSink};
use farcall_verbs::{CompletionOpcode, Device, GRH_BYTES, Status, WorkCompletion};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::parts::Cut;
use super::passing::Passing;
use super::port::Port;
use super::session::{Age, Large, Session, State};
use super::settling::Settling;
use super::wire::{self, Header, Kind, LAST_COPY, LATE, OverLimit, Range};
use crate::door::{Arrival, Arrivals};
use crate::fair_queue::FairQueue;
use crate::memory::{Budget, LargeBuffers};
use crate::planted::{Bug, is_planted};

/// Parts that one turn sends: some 20 us of copying, which is what a small call may have to wait for.
pub(crate) const STEPS_PER_POLL: usize = 16;

#[derive(Debug)]
pub(crate) struct Sessions {
    pub(crate) port: Port,
    pub(crate) entries: Vec<Option<Box<Session>>>,
    pub(crate) count: usize,
    /// Sessions that have something to say, in order.
    dirty: Vec<u32>,
    /// Sessions that are told goodbye.
    leaving: VecDeque<u32>,
    /// Slots whose answers' parts are wanted, in turn.
    sending: VecDeque<(u32, u32)>,
    /// Sessions that hold what others wait for, and do not move on.
    pub(crate) stalled: Vec<u32>,
    pub(crate) arrivals: Arrivals<Session>,
    device: Device,
    /// Requests that wait for memory to come to.
    pub(crate) waiting: FairQueue,
    /// A request or an answer found no memory, for want of which others wait.
    pub(crate) shortage: bool,
    /// When sessions that hold memory others wait for are looked at next.
    pub(crate) stall_check: Instant,
    pub(crate) budget: Arc<Budget>,
    pub(crate) buffers: LargeBuffers,
    pub(crate) passing: Passing,
    pub(crate) settling: Settling,
    /// The queue pair is in error.
    pub(crate) failed: bool,
    /// Counts polls: what is answered in the turn that it came in tells the client how long the network takes.
    pub(crate) turn: u32,
}

/// Why a session ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Goodbye,
    Stalled,
    Lost,
}

impl Sessions {
    pub(crate) fn new(
        device: &Device,
        port: Port,
        arrivals: Arrivals<Session>,
        buffers: LargeBuffers,
        budget: Arc<Budget>,
        silence: Duration,
    ) -> Sessions {
        Sessions {
            port,
            entries: Vec::new(),
            count: 0,
            dirty: Vec::new(),
            leaving: VecDeque::new(),
            sending: VecDeque::new(),
            stalled: Vec::new(),
            arrivals,
            device: device.clone(),
            waiting: FairQueue::default(),
            shortage: false,
            stall_check: Instant::ZERO,
            budget,
            buffers,
            passing: Passing::default(),
            settling: Settling::new(silence),
            failed: false,
            turn: 0,
        }
    }

    /// Takes over whoever has come, and ends whom the accepting threads take back.
    #[cold]
    pub(crate) fn take_arrivals(&mut self, sink: &mut dyn RequestSink) {
        self.arrivals.lower_flag();
        while let Some(arrival) = self.arrivals.next() {
            match arrival {
                Arrival::New(session) => self.insert(session),
                Arrival::Withdrawn(seat) => {
                    let session = self.get(seat.number);
                    if session.is_some_and(|session| session.generation == seat.generation) {
                        self.remove(seat.number, End::Lost, sink);
                    }
                }
            }
        }
    }

    fn insert(&mut self, session: Box<Session>) {
        let index = session.number as usize;
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        self.entries[index] = Some(session);
        self.count += 1;
    }

    #[inline]
    pub(crate) fn get(&mut self, number: u32) -> Option<&mut Session> {
        self.entries.get_mut(number as usize)?.as_deref_mut()
    }

    /// Ends one session, and drops all that it had.
    #[cold]
    pub(crate) fn remove(&mut self, number: u32, why: End, sink: &mut dyn RequestSink) {
        self.seal_passing();
        let Some(session) = self.entries.get_mut(number as usize).and_then(Option::take) else {
            return;
        };
        match why {
            End::Stalled => tracing::warn!(number, "dropping a client that does not move on"),
            End::Goodbye | End::Lost => tracing::debug!(number, ?why, "a session is over"),
        }
        self.waiting.remove_client(number);
        self.count -= 1;
        let generation = session.generation;
        drop(session);
        self.arrivals.give_back(number);
        sink.disconnected(number, generation);
        // Those that waited for its memory are served when they are looked at next.
        self.shortage |= !self.waiting.is_empty();
    }

    #[inline]
    pub(crate) fn complete(
        &mut self,
        completion: &mut WorkCompletion,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) {
        if completion.status != Status::Success {
            return self.unsuccessful(completion);
        }
        if completion.opcode != CompletionOpcode::Recv {
            return self.port.retire(completion);
        }
        let Some(buffer) = completion.buffer.take() else { return };
        let datagram = buffer.get(GRH_BYTES..completion.byte_len as usize);
        if let Some((number, epoch, messages)) = datagram.and_then(Header::split)
            && let Some(session) = self.get(number)
            && session.way.leads_to(epoch, completion.source)
        {
            session.heard = now;
            self.settling.heard(now);
            for message in messages {
                self.message(number, &message, now, sink);
            }
        }
        self.port.recycle(buffer);
    }

    #[cold]
    fn unsuccessful(&mut self, completion: &mut WorkCompletion) {
        match (completion.status, completion.buffer.take()) {
            // A datagram that nobody of ours has sent.
            (Status::LocalLength, Some(buffer)) => self.port.recycle(buffer),
            (status, _) => {
                tracing::debug!(?status, "a work request failed");
                self.failed = true;
            }
        }
    }

    #[inline]
    fn message(
        &mut self,
        number: u32,
        message: &wire::Message<'_>,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) {
        let turn = self.turn;
        // Gone, if the message before was its goodbye.
        let Some(session) = self.get(number) else { return };
        let wire::Message { kind, slot: index, generation, mark, body } = *message;
        if kind == Kind::Idempotent {
            return self.idempotent(number, message, sink);
        }
        let Some(slot) = session.slot(index) else { return };
        let age = slot.age(generation);
        if kind == Kind::Request && (age == Age::New || is_planted(Bug::LostDuplicateCheck)) {
            session.begin(index, generation, State::Running);
            session.came(index, mark, turn);
            let token = session.token(index);
            return sink.request(token, Message::Borrowed(body), self);
        }
        self.unusual(number, message, age, now, sink);
    }

    /// All but a new request.
    #[cold]
    fn unusual(
        &mut self,
        number: u32,
        message: &wire::Message<'_>,
        age: Age,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) {
        let turn = self.turn;
        let Some(session) = self.get(number) else { return };
        let (index, generation) = (message.slot, message.generation);
        let client_generation = session.generation;
        if age != Age::Stale {
            session.came(index, message.mark, turn);
        }
        let Some(slot) = session.slot(index) else { return };
        match (message.kind, age, slot.state) {
            (Kind::Goodbye, ..) => self.remove(number, End::Goodbye, sink),
            (Kind::Announce, Age::New, _) => {
                let Some(len) = message.len() else { return };
                self.announced(number, index, generation, len, now);
            }
            // It has overtaken its request, which will be too late.
            (Kind::Cancel, Age::New, _) => {
                session.begin(index, generation, State::Over);
                self.say(number, index);
            }
            (_, Age::New, _) => {}
            (Kind::Part, Age::Same, State::Coming) => {
                self.landed(number, message, now, sink);
            }
            (Kind::Ask, Age::Same, State::Answered) if !message.body.is_empty() => {
                let Some(range) = message.range() else { return };
                self.wanted(number, index, range, now);
            }
            (Kind::Cancel, Age::Same, State::Coming) => self.give_up(number, index, now),
            (Kind::Cancel, Age::Same, State::Running) => {
                sink.cancelled(number, client_generation, index, generation);
                self.say(number, index);
            }
            (Kind::Release, Age::Same, State::Answered | State::Forgotten | State::Over) => {
                self.released(number, index, now);
            }
            (Kind::Release, Age::Stale, _) => {
                self.say_released(number, index, generation);
            }
            (_, Age::Same, _) => self.say(number, index),
            (_, Age::Stale, _) => {}
        }
    }

    /// Parts of a long answer are asked for.
    fn wanted(&mut self, number: u32, index: u32, range: Range, now: Instant) {
        let Some(session) = self.get(number) else { return };
        session.moved = now;
        let Some(Large::Offer { base, wanted, .. }) = session.large(index) else {
            return self.say(number, index);
        };
        let (asked, mask) = (range.base.get(), range.mask.get());
        // One that was overtaken will be repeated if it still matters.
        let Some(moved) = asked.checked_sub(*base) else { return };
        *wanted = wanted.checked_shr(moved).unwrap_or(0) | mask;
        *base = asked;
        let Some(slot) = session.slot(index) else { return };
        if !std::mem::replace(&mut slot.sending, true) {
            self.sending.push_back((number, index));
        }
    }

    #[inline]
    pub(crate) fn say(&mut self, number: u32, index: u32) {
        let Some(session) = self.get(number) else { return };
        if session.say(index) {
            self.dirty.push(number);
        }
    }

    /// Tells the client that a long answer is gone.
    #[cold]
    pub(crate) fn say_released(&mut self, number: u32, index: u32, generation: u32) {
        let Some(session) = self.get(number) else { return };
        if session.say_released(index, generation) {
            self.dirty.push(number);
        }
    }

    /// There is more to do at once than completions say.
    pub(crate) fn has_news(&self) -> bool {
        let posts = self.has_posts() && self.port.has_room();
        posts || self.arrivals.has_news() || !self.stalled.is_empty()
    }

    /// Something waits to be sent.
    #[inline]
    pub(crate) fn has_posts(&self) -> bool {
        !self.dirty.is_empty()
            || self.has_passing()
            || !self.sending.is_empty()
            || !self.leaving.is_empty()
    }

    /// Answers wait to be sent.
    #[inline]
    pub(crate) fn has_answers(&self) -> bool {
        !self.dirty.is_empty() || self.has_passing()
    }

    /// Long answers that clients have not taken.
    pub(crate) fn has_offers(&self) -> bool {
        let mut bodies = self.entries.iter().flatten().flat_map(|session| session.bodies());
        bodies.any(|body| matches!(body.large.as_deref(), Some(Large::Offer { .. })))
    }

    /// Tells all goodbye, after what they are told now.
    pub(crate) fn say_goodbye(&mut self) {
        self.leaving = self.entries.iter().flatten().map(|session| session.number).collect();
        self.ring();
    }

    /// One doorbell for all that there is to say, and for some parts. What the send queue has no room for waits.
    /// Answers how many parts left.
    #[inline]
    pub(crate) fn ring(&mut self) -> usize {
        self.seal_passing();
        let mut told = 0;
        while told < self.dirty.len() && self.tell(self.dirty[told]) {
            told += 1;
        }
        self.dirty.drain(..told);
        let mut parts = 0;
        if !self.sending.is_empty() {
            parts = self.send_parts();
        }
        if !self.leaving.is_empty() && self.dirty.is_empty() {
            self.take_leave();
        }
        self.port.ring();
        parts
    }

    /// Puts all that a session has to say into datagrams, as far as there is room.
    #[inline]
    fn tell(&mut self, number: u32) -> bool {
        let Sessions { entries, port, turn, .. } = self;
        let Some(Some(session)) = entries.get_mut(number as usize) else { return true };
        let mut told = 0;
        while told < session.outbox.len() && put(port, session, session.outbox[told].into(), *turn)
        {
            told += 1;
        }
        let all = told == session.outbox.len();
        session.outbox.drain(..told);
        let all = all && tell_released(port, session);
        session.dirty = !all;
        port.seal(&session.way);
        all
    }

    #[cold]
    fn send_parts(&mut self) -> usize {
        let Sessions { entries, port, sending, .. } = self;
        let mut sent = 0;
        while sent < STEPS_PER_POLL && port.has_room() {
            let Some((number, index)) = sending.pop_front() else { break };
            let Some(Some(session)) = entries.get_mut(number as usize) else { continue };
            let Some(step) = next_part(session, index) else { continue };
            let Some(slot) = session.slots().get(index as usize) else { continue };
            let large = session.bodies().get(index as usize).and_then(|body| body.large.as_deref());
            let Some(Large::Offer { whole, cut, wanted, .. }) = large else { continue };
            if let Some(range) = cut.range(step) {
                let mark = session.bodies().get(index as usize).map_or(0, |body| body.mark);
                let id = (index, slot.generation, mark & LAST_COPY | LATE);
                let part = U32::from(step);
                port.put(&session.way, Kind::Part, id, (part.as_bytes(), &whole[range]));
                port.seal(&session.way);
                sent += 1;
            }
            if *wanted != 0 {
                sending.push_back((number, index));
            } else if let Some(slot) = session.slot(index) {
                slot.sending = false;
            }
        }
        sent
    }

    #[cold]
    fn take_leave(&mut self) {
        let Sessions { entries, port, leaving, .. } = self;
        while let Some(&number) = leaving.front() {
            if let Some(Some(session)) = entries.get(number as usize) {
                if !port.put(&session.way, Kind::Goodbye, (0, 0, 0), (&[], &[])) {
                    return;
                }
                port.seal_last(&session.way);
            }
            leaving.pop_front();
        }
    }
}

/// Says which long answers are gone, as far as there is room.
#[inline]
fn tell_released(port: &mut Port, session: &mut Session) -> bool {
    while let Some(&(index, generation)) = session.released.last() {
        let id = (index.into(), generation, LATE);
        if !port.put(&session.way, Kind::Released, id, (&[], &[])) {
            return false;
        }
        session.released.pop();
    }
    true
}

/// The next part that is wanted of the slot's answer.
fn next_part(session: &mut Session, index: u32) -> Option<u32> {
    let slot = session.slot(index)?;
    if !slot.sending {
        return None; // Another session's, under the same number.
    }
    if let Some(Large::Offer { base, wanted, .. }) = session.large(index)
        && *wanted != 0
    {
        let ahead = wanted.trailing_zeros();
        *wanted &= *wanted - 1;
        return Some(base.saturating_add(ahead));
    }
    session.slot(index)?.sending = false;
    None
}

/// Puts what the slot has to say into a datagram, if there is room.
#[inline]
fn put(port: &mut Port, session: &mut Session, index: u32, turn: u32) -> bool {
    let (way, max) = (&session.way, session.bounds.max_message);
    let Some(slot) = session.slots().get(index as usize) else { return true };
    if !slot.unsaid {
        return true;
    }
    let body = session.bodies().get(index as usize);
    let mark =
        body.map_or(
            LATE,
            |body| if body.turn == turn { body.mark & LAST_COPY } else { body.mark | LATE },
        );
    let id = (index, slot.generation, mark);
    let large = body.and_then(|body| body.large.as_deref());
    // Whoever misses this answer lets its call run again.
    let last = slot.idempotent && slot.state == State::Answered && large.is_none();
    let room = match (slot.state, large) {
        (State::Answered, None) => {
            let reply = body.map_or(&[][..], |body| &body.reply);
            port.put(way, Kind::Response, id, (reply, &[]))
        }
        (State::Answered, Some(Large::Offer { whole, .. })) => {
            let len = U64::from(whole.len() as u64);
            port.put(way, Kind::Offer, id, (len.as_bytes(), &[]))
        }
        (State::Answered, Some(Large::OverLimit { len })) => {
            let limit = OverLimit { len: (*len).into(), max: max.into() };
            port.put(way, Kind::OverLimit, id, (limit.as_bytes(), &[]))
        }
        (State::Coming, Some(Large::Landing { incoming, .. })) => {
            let (base, come) = incoming.come();
            let range = Range::new(base, come);
            port.put(way, Kind::Progress, id, (range.as_bytes(), &[]))
        }
        (State::Coming, _) => port.put(way, Kind::Wait, id, (&[], &[])),
        (State::Running, _) => port.put(way, Kind::Running, id, (&[], &[])),
        (State::Over, _) => port.put(way, Kind::Dropped, id, (&[], &[])),
        (State::Forgotten, _) => port.put(way, Kind::Forgotten, id, (&[], &[])),
        (State::Unused, _) | (State::Answered, Some(_)) => true,
    };
    if room && let Some(slot) = session.slot(index) {
        slot.unsaid = false;
        if last {
            slot.state = State::Over;
        }
        if is_planted(Bug::ForgottenResponse) {
            session.body(index).reply.clear();
        }
    }
    room
}

/// The session of a call, if its slot is still what it was.
#[inline]
fn find<'e>(entries: &'e mut [Option<Box<Session>>], call: &CallToken) -> Option<&'e mut Session> {
    let session = entries.get_mut(call.client() as usize)?.as_deref_mut()?;
    let slot = session.slots().get(call.slot() as usize)?;
    let same = session.generation == call.client_generation()
        && slot.generation == call.generation()
        && slot.state == State::Running;
    same.then_some(session)
}

impl Replies for Sessions {
    #[inline]
    fn reserve(&mut self, call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError> {
        if self.reserve_passing(call, len).is_some() {
            return Ok(self.port.body(len));
        }
        let Sessions { entries, budget, buffers, shortage, .. } = self;
        let Some(session) = find(entries, call) else { return Err(ReserveError::Closed) };
        let (bounds, held) = (session.bounds, session.held);
        let body = session.body(call.slot());
        if len <= bounds.max_whole && len as u64 <= bounds.max_message {
            body.large = None;
            body.reply.resize(len, 0);
            return Ok(&mut body.reply);
        }
        if len as u64 > bounds.max_message {
            return Err(ReserveError::TooLarge { len: len as u64, max: bounds.max_message });
        }
        // A client that does not take its answers holds its share, and no more.
        let within = held == 0 || held + len as u64 <= budget.limit() / 2;
        let buffer = if within { buffers.take(len) } else { Ok(None) };
        let buffer = buffer.unwrap_or_else(|error| {
            tracing::warn!(%error, len, "no memory for a long answer");
            None
        });
        let Some(buffer) = buffer else {
            // The next poll frees what is kept for later, and looks for who does not move on.
            *shortage |= within;
            return Err(Backpressure::Memory.into());
        };
        match &mut **body.large.insert(Box::new(Large::Draft(buffer))) {
            Large::Draft(buffer) => Ok(buffer),
            _ => Err(ReserveError::Closed),
        }
    }

    #[inline]
    fn post(&mut self, call: CallToken, len: usize) {
        if self.post_passing(&call, len) {
            return;
        }
        let Some(session) = find(&mut self.entries, &call) else { return };
        let bounds = session.bounds;
        let Some(slot) = session.slot(call.slot()) else { return };
        slot.state = State::Answered;
        let body = session.body(call.slot());
        if body.large.is_none() {
            body.reply.truncate(len);
        } else if let Some(Large::Draft(mut whole)) = body.large.take().map(|large| *large) {
            whole.set_len(len);
            match Cut::new(len as u64, bounds.part_bytes) {
                Some(cut) if len > bounds.max_whole => {
                    let offer = Large::Offer { whole, cut, base: 0, wanted: 0 };
                    body.large = Some(Box::new(offer));
                    session.held += len as u64;
                    // When is not known here; the next look at stalled sessions dates it.
                    session.moved = Instant::ZERO;
                }
                // It came out shorter than was reserved.
                _ => {
                    body.reply.clear();
                    body.reply.extend_from_slice(&whole);
                }
            }
        }
        if session.say(call.slot()) {
            self.dirty.push(call.client());
        }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.device.now_ns())
    }
}
