//! The sessions of one server thread: what their datagrams bring.

use farcall_core::metrics::RefusalReason;
use farcall_core::time::Instant;
use farcall_core::transport::{ClientEvent, ClientId, Message, RequestSink};
use farcall_verbs::{CompletionOpcode, DatagramSource, GRH_BYTES, Status, WorkCompletion};

use super::idle_sessions::IdleSessions;
use super::outgoing::Outgoing;
use super::session::{Age, Phase, Session};
use super::wire::{self, CHALLENGE_BYTES, Header, Id, Kind};
use crate::kit::lending::Lending;
use crate::kit::memory::LargeBuffers;
use crate::kit::roster::Roster;
use crate::planted::{Bug, is_planted};

#[derive(Debug)]
pub(crate) struct Sessions {
    pub(crate) roster: Roster<Session>,
    pub(crate) outgoing: Outgoing,
    pub(crate) lending: Lending,
    /// Where large messages are, of both directions.
    pub(crate) buffers: LargeBuffers,
    pub(crate) idle: IdleSessions,
    /// Clients that hold memory and do not move on, or for whose request the system has none; the next poll drops them.
    pub(crate) broken: Vec<u32>,
}

/// Why a client is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Disconnect {
    Goodbye,
    Stalled,
    Lost,
}

impl Sessions {
    /// Takes new clients over, and drops those that were withdrawn.
    #[cold]
    pub(crate) fn take_arrivals(&mut self, sink: &mut dyn RequestSink) {
        while let Some(client) = self.roster.take_arrivals(sink) {
            self.remove(client, Disconnect::Lost, sink);
        }
    }

    /// Drops one client, and all that it had.
    #[cold]
    pub(crate) fn remove(&mut self, client: u32, why: Disconnect, sink: &mut dyn RequestSink) {
        self.outgoing.post_in_place(&mut self.roster);
        let refusal = match why {
            Disconnect::Stalled => Some(RefusalReason::Stalled),
            Disconnect::Goodbye | Disconnect::Lost => None,
        };
        if !self.roster.remove(client, refusal, sink) {
            return;
        }
        match why {
            Disconnect::Stalled => {
                tracing::warn!(client, "dropping a client that holds memory and does not move on");
            }
            Disconnect::Goodbye | Disconnect::Lost => {
                tracing::debug!(client, ?why, "a session ended")
            }
        }
        self.lending.forget(client);
        // A later client may have its number.
        self.broken.retain(|broken| *broken != client);
    }

    #[inline]
    pub(crate) fn complete(
        &mut self,
        completion: &mut WorkCompletion,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) {
        if completion.status != Status::Success {
            return self.handle_failure(completion);
        }
        if completion.opcode != CompletionOpcode::Recv {
            return self.outgoing.port.retire(completion);
        }
        let Some(buffer) = completion.buffer.take() else { return };
        let datagram = buffer.get(GRH_BYTES..completion.byte_len as usize);
        if let Some((client, epoch, messages)) = datagram.and_then(Header::split)
            && let Some(session) = self.roster.get(client)
            && session.peer.has_sent(epoch, completion.source)
        {
            session.heard_at = now;
            self.idle.note_datagram(now);
            for message in messages {
                self.handle_message(client, &message, now, sink);
            }
        } else {
            self.handle_stranger(datagram, completion.source);
        }
        self.outgoing.port.recycle(buffer);
    }

    /// The client does not know yet what its datagrams must carry. If it asks, it is told at the address that it gave: if it
    /// is not there, it is never served, and no response goes there. The answer is no longer than the question.
    fn answer_question(&mut self, client: u32, mut messages: wire::Messages<'_>) {
        let is_question = |message: wire::Message<'_>| {
            message.kind == Kind::Challenge && message.body.len() == CHALLENGE_BYTES
        };
        if messages.next().is_some_and(is_question) {
            self.outgoing.challenge(&mut self.roster, client);
        }
    }

    /// A datagram that is not one of a session: a client may ask what its datagrams must carry.
    #[cold]
    fn handle_stranger(&mut self, datagram: Option<&[u8]>, source: Option<DatagramSource>) {
        let reason = match datagram.and_then(Header::split) {
            None => RefusalReason::BadDatagram,
            Some((client, epoch, messages)) => match self.roster.get(client) {
                Some(session) if session.peer.lacks_epoch(epoch, source) => {
                    return self.answer_question(client, messages);
                }
                Some(session) if session.peer.knows(epoch) => RefusalReason::WrongSource,
                _ => RefusalReason::UnknownSession,
            },
        };
        self.roster.count_refusal(reason);
        tracing::debug!(?source, reason = reason.name(), "dropped a datagram");
    }

    #[cold]
    fn handle_failure(&mut self, completion: &mut WorkCompletion) {
        match (completion.status, completion.buffer.take()) {
            // A datagram longer than any of our clients sends.
            (Status::LocalLength, Some(buffer)) => self.outgoing.port.recycle(buffer),
            (status, _) => {
                tracing::debug!(?status, "a work request failed");
                self.outgoing.port.mark_broken();
            }
        }
    }

    #[inline]
    fn handle_message(
        &mut self,
        client: u32,
        message: &wire::Message<'_>,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) {
        let wire::Message { kind, id, body } = *message;
        if kind == Kind::Idempotent && sink.is_idempotent(body) {
            return self.handle_idempotent(client, id, body, sink);
        }
        // Gone, if the message before was its goodbye.
        let Some(session) = self.roster.get(client) else { return };
        let Some(slot) = session.slot(id.slot) else { return };
        let age = slot.age(id.generation);
        // What only its client calls idempotent is a request like any other.
        let is_request = matches!(kind, Kind::Request | Kind::Idempotent);
        if is_request && (age == Age::New || is_planted(Bug::LostDuplicateCheck)) {
            if let Some(body) = session.begin(id, Phase::Busy) {
                body.receive(id.mark, self.outgoing.turn);
            }
            let token = session.token(id.slot, id.generation);
            return sink.request(token, Message::Borrowed(body), self);
        }
        self.handle_uncommon(client, message, age, now, sink);
    }

    /// A request that may run more than once, as both ends say. Its slot knows of it only while its handler takes longer.
    #[inline]
    fn handle_idempotent(&mut self, client: u32, id: Id, body: &[u8], sink: &mut dyn RequestSink) {
        let Some(session) = self.roster.get(client) else { return };
        if id.slot >= session.bounds.window {
            return;
        }
        if let Some(slot) = session.slots.get(id.slot as usize) {
            match (slot.age(id.generation), slot.phase) {
                (Age::New, _) if slot.is_long_ago(id.generation) => {
                    session.begin(id, Phase::Ended);
                }
                (Age::New, _) | (Age::Same, Phase::Ended | Phase::Forgotten) => {}
                (Age::Same, _) => return self.queue_status(client, id.slot),
                (Age::Stale, _) => return,
            }
        }
        let token = || session.token(id.slot, id.generation);
        let (call, copy) = (token(), token());
        self.outgoing.in_place.begin(copy, id.mark);
        sink.request(call, Message::Borrowed(body), self);
        if let Some(id) = self.outgoing.in_place.end() {
            self.track_idempotent(client, id);
        }
    }

    /// The call is not answered in place: from now on its slot says that it runs.
    #[cold]
    pub(super) fn track_idempotent(&mut self, client: u32, id: Id) {
        let Some(session) = self.roster.get(client) else { return };
        if session.slot(id.slot).is_none() {
            return;
        }
        session.begin(id, Phase::Busy);
        session.slots[id.slot as usize].idempotent = true;
    }

    /// Everything but a new request.
    #[cold]
    fn handle_uncommon(
        &mut self,
        client: u32,
        message: &wire::Message<'_>,
        age: Age,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) {
        let Some(session) = self.roster.get(client) else { return };
        let id @ Id { slot: index, generation, .. } = message.id;
        // The first announcement in a slot is not timed: its round trip would be far too short for parts.
        if age != Age::Stale
            && let Some(body) = session.bodies.get_mut(index as usize)
        {
            body.receive(id.mark, self.outgoing.turn);
        }
        let client_generation = session.id.generation;
        let Some(slot) = session.slot(index) else { return };
        match (message.kind, age, slot.phase) {
            (Kind::Goodbye, ..) => self.remove(client, Disconnect::Goodbye, sink),
            (Kind::Announce, Age::New, _) => {
                let Some(len) = message.len() else { return };
                self.handle_announcement(client, id, len, now);
            }
            // It has overtaken its request, which will not run.
            (Kind::Cancel, Age::New, _) => {
                session.begin(id, Phase::Ended);
                self.queue_status(client, index);
            }
            (_, Age::New, _) => {}
            (Kind::Part, Age::Same, Phase::Landing) => self.handle_part(client, message, now, sink),
            (Kind::Ask, Age::Same, Phase::Answered) if !message.body.is_empty() => {
                let Some(range) = message.range() else { return };
                self.handle_ask(client, index, range, now);
            }
            (Kind::Cancel, Age::Same, Phase::Landing) => self.drop_announced(client, index, now),
            (Kind::Cancel, Age::Same, Phase::Busy) => {
                let id = ClientId { number: client, generation: client_generation };
                sink.client(id, ClientEvent::Cancelled { slot: index, generation });
                self.queue_status(client, index);
            }
            (Kind::Release, Age::Same, Phase::Answered | Phase::Forgotten | Phase::Ended) => {
                self.handle_release(client, id, now);
            }
            (Kind::Release, Age::Stale, _) => self.queue_released(client, id),
            (_, Age::Same, _) => self.queue_status(client, index),
            (_, Age::Stale, _) => {}
        }
    }

    /// The client is to be told how this slot stands.
    #[inline]
    pub(super) fn queue_status(&mut self, client: u32, index: u32) {
        let Some(session) = self.roster.get(client) else { return };
        session.queue_status(index);
        if !session.in_line {
            self.roster.enter_line(client);
        }
    }

    /// The client is to be told that a large response is freed.
    #[cold]
    pub(super) fn queue_released(&mut self, client: u32, id: Id) {
        let Some(session) = self.roster.get(client) else { return };
        session.queue_released(id.slot, id.generation);
        self.roster.enter_line(client);
    }

    /// Something waits to be sent.
    #[inline]
    pub(crate) fn has_posts(&self) -> bool {
        self.has_replies() || self.outgoing.has_posts()
    }

    /// Replies wait to be sent.
    #[inline]
    pub(crate) fn has_replies(&self) -> bool {
        self.roster.has_line() || self.outgoing.in_place.has_posts()
    }

    /// There is more to do at once than completions say.
    pub(crate) fn has_work(&self) -> bool {
        let can_send = self.has_posts() && self.outgoing.port.has_room();
        can_send || self.roster.has_news() || !self.broken.is_empty()
    }

    /// One doorbell for all that waits, and for some parts; answers how many.
    #[inline]
    pub(crate) fn ring(&mut self) -> usize {
        self.outgoing.ring(&mut self.roster)
    }

    /// Says goodbye to all clients, after what they are told now. One that has not shown that it receives where it said is
    /// told nothing: its liveness socket is closed.
    pub(crate) fn say_goodbye(&mut self) {
        let heard = self.roster.iter().filter(|session| session.heard_at > Instant::ZERO);
        self.outgoing.say_goodbye(heard.map(|session| session.id.number));
        self.ring();
    }
}
