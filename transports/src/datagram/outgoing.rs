//! What a server thread sends: replies and statuses of slots, parts of large responses, goodbyes.

use std::collections::VecDeque;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::in_place::InPlaceReplies;
use super::port::Port;
use super::session::{Large, Phase, Session};
use super::wire::{Id, Kind, OverLimit, Range};
use crate::kit::roster::Roster;
use crate::planted::{Bug, is_planted};
use crate::repair::window::LATE;

/// Parts that one turn sends: some 20 us of copying, which is what a small call may have to wait for.
pub(crate) const STEPS_PER_POLL: usize = 16;

#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) port: Port,
    pub(crate) in_place: InPlaceReplies,
    /// Clients and slots whose responses' parts are wanted, in turn.
    sending: VecDeque<(u32, u32)>,
    /// Clients that are told goodbye.
    leaving: VecDeque<u32>,
    /// Counts polls: a reply in the turn of its request tells the client how long the network takes.
    pub(crate) turn: u32,
}

impl Outgoing {
    pub(crate) fn new(port: Port) -> Outgoing {
        Outgoing {
            port,
            in_place: InPlaceReplies::default(),
            sending: VecDeque::new(),
            leaving: VecDeque::new(),
            turn: 0,
        }
    }

    /// Something waits to be sent besides the sessions in line.
    #[inline]
    pub(crate) fn has_posts(&self) -> bool {
        self.in_place.has_posts() || !self.sending.is_empty() || !self.leaving.is_empty()
    }

    /// The client asks for parts of a large response.
    pub(crate) fn send_parts_of(&mut self, client: u32, slot: u32) {
        self.sending.push_back((client, slot));
    }

    /// Says goodbye to these clients, after what waits now.
    pub(crate) fn say_goodbye(&mut self, clients: impl Iterator<Item = u32>) {
        self.leaving = clients.collect();
    }

    /// Posts the datagram with replies of calls that were answered in place.
    #[inline]
    pub(crate) fn post_in_place(&mut self, roster: &mut Roster<Session>) {
        self.in_place.post_datagram(roster, &mut self.port);
    }

    /// Tells a client what its datagrams must carry, at once. Without room in the send queue that is lost: the client asks
    /// again.
    #[cold]
    pub(crate) fn challenge(&mut self, roster: &mut Roster<Session>, client: u32) {
        self.post_in_place(roster);
        let Some(Session { peer, .. }) = roster.get(client) else { return };
        let epoch = U64::from(peer.their_epoch);
        self.port.put(peer, Kind::Challenge, Id::NONE, (epoch.as_bytes(), &[]));
        self.port.post(peer);
        self.port.ring();
    }

    /// One doorbell for all that waits, and for some parts. What the send queue has no room for waits on. Answers how
    /// many parts left.
    #[inline]
    pub(crate) fn ring(&mut self, roster: &mut Roster<Session>) -> usize {
        self.post_in_place(roster);
        let Outgoing { port, turn, .. } = self;
        roster.serve_line(|session| send_statuses(port, session, *turn));
        let mut parts = 0;
        if !self.sending.is_empty() {
            parts = self.send_parts(roster);
        }
        // If a session is still in line, the send queue is full: then no goodbye leaves before what was to be sent.
        if !self.leaving.is_empty() {
            self.send_goodbyes(roster);
        }
        self.port.ring();
        parts
    }

    #[cold]
    fn send_parts(&mut self, roster: &mut Roster<Session>) -> usize {
        let mut sent = 0;
        while sent < STEPS_PER_POLL && self.port.has_room() {
            let Some((client, index)) = self.sending.pop_front() else { break };
            let Some(Session { peer, slots, bodies, .. }) = roster.get(client) else { continue };
            let Some(slot) = slots.get_mut(index as usize) else { continue };
            // Unless it is another session's, under the same number.
            if !slot.is_sending {
                continue;
            }
            slot.is_sending = false;
            let Some(body) = bodies.get_mut(index as usize) else { continue };
            let mark = body.mark | LATE;
            let Some(Large::Lent { whole, parts, base, wanted }) = body.large.as_deref_mut() else {
                continue;
            };
            if *wanted == 0 {
                continue;
            }
            let part = base.saturating_add(wanted.trailing_zeros());
            *wanted &= *wanted - 1;
            if *wanted != 0 {
                slot.is_sending = true;
                self.sending.push_back((client, index));
            }
            if let Some(range) = parts.range(part) {
                let id = Id { slot: index, generation: slot.generation, mark };
                let number = U32::from(part);
                self.port.put(peer, Kind::Part, id, (number.as_bytes(), &whole[range]));
                self.port.post(peer);
                sent += 1;
            }
        }
        sent
    }

    #[cold]
    fn send_goodbyes(&mut self, roster: &mut Roster<Session>) {
        while let Some(&client) = self.leaving.front() {
            if let Some(session) = roster.get(client) {
                if !self.port.put(&session.peer, Kind::Goodbye, Id::NONE, (&[], &[])) {
                    return;
                }
                self.port.post_last(&session.peer);
            }
            self.leaving.pop_front();
        }
    }
}

/// Puts all that the client is to be told into datagrams. `false`: there was not room for all of it.
#[inline]
fn send_statuses(port: &mut Port, session: &mut Session, turn: u32) -> bool {
    let mut sent = 0;
    while let Some(&index) = session.outbox.get(sent)
        && send_status(port, session, index.into(), turn)
    {
        sent += 1;
    }
    let all = sent == session.outbox.len();
    session.outbox.drain(..sent);
    let all = all && send_released(port, session);
    port.post(&session.peer);
    all
}

/// Tells which large responses are freed. `false`: there was not room for all of it.
#[inline]
fn send_released(port: &mut Port, session: &mut Session) -> bool {
    while let Some(&(slot, generation)) = session.released.last() {
        let id = Id { slot: slot.into(), generation, mark: LATE };
        if !port.put(&session.peer, Kind::Released, id, (&[], &[])) {
            return false;
        }
        session.released.pop();
    }
    true
}

/// Tells how the slot stands: with its response, if there is one. `false`: there is no room.
#[inline]
fn send_status(port: &mut Port, session: &mut Session, index: u32, turn: u32) -> bool {
    let Session { peer, bounds, slots, bodies, .. } = session;
    let Some(slot) = slots.get_mut(index as usize) else { return true };
    if !slot.is_queued {
        return true;
    }
    let body = bodies.get_mut(index as usize);
    let mark = body.as_ref().map_or(LATE, |body| body.mark(turn));
    let id = Id { slot: index, generation: slot.generation, mark };
    let large = body.as_ref().and_then(|body| body.large.as_deref());
    let has_room = match (slot.phase, large) {
        (Phase::Answered, None) => {
            let reply = body.as_ref().map_or(&[][..], |body| &body.reply);
            let has_room = port.put(peer, Kind::Response, id, (reply, &[]));
            // A client that misses the response lets its call run again.
            if has_room && slot.idempotent {
                slot.phase = Phase::Ended;
            }
            has_room
        }
        (Phase::Answered, Some(Large::Lent { whole, .. })) => {
            let len = U64::from(whole.len() as u64);
            port.put(peer, Kind::Lent, id, (len.as_bytes(), &[]))
        }
        (Phase::Answered, Some(Large::OverLimit { len })) => {
            let limit = OverLimit { len: (*len).into(), max: bounds.max_message.into() };
            port.put(peer, Kind::OverLimit, id, (limit.as_bytes(), &[]))
        }
        (Phase::Landing, Some(Large::Landing { incoming, .. })) => {
            let (base, arrived) = incoming.arrived();
            let range = Range::new(base, arrived);
            port.put(peer, Kind::Progress, id, (range.as_bytes(), &[]))
        }
        (Phase::Landing, _) => port.put(peer, Kind::Wait, id, (&[], &[])),
        (Phase::Busy, _) => port.put(peer, Kind::Running, id, (&[], &[])),
        (Phase::Ended, _) => port.put(peer, Kind::Dropped, id, (&[], &[])),
        (Phase::Forgotten, _) => port.put(peer, Kind::Forgotten, id, (&[], &[])),
        (Phase::Unused, _) | (Phase::Answered, Some(_)) => true,
    };
    if has_room {
        slot.is_queued = false;
        if is_planted(Bug::ForgottenResponse)
            && let Some(body) = body
        {
            body.reply.clear();
        }
    }
    has_room
}
