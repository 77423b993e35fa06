//! One session, as its server thread keeps it: which generation of each slot it has seen, and what became of it.

use farcall_core::time::Instant;
use farcall_core::transport::{CallToken, ClientId};
use farcall_verbs::Buffer;

use super::port::Peer;
use super::wire::Id;
use crate::contract::{Calls, DropGuard};
use crate::kit::lending::Loan;
use crate::kit::roster::Member;
use crate::planted::{Bug, is_planted};
use crate::repair::parts::{Incoming, Parts};
use crate::repair::window::{LAST_COPY, LATE};

/// What became of the request of a slot's generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No request has ever arrived.
    Unused,
    /// It was announced, and waits for memory, or arrives in parts.
    Landing,
    /// A handler has it.
    Busy,
    /// It was answered; the response is kept.
    Answered,
    /// It was answered so long ago that the response is not kept any more.
    Forgotten,
    /// It ended before a handler saw it, or its large response has been fetched.
    Ended,
}

/// A large message of a slot.
#[derive(Debug)]
pub(crate) enum Large {
    /// A request that waits for memory.
    Waiting,
    /// A request whose parts arrive.
    Landing { incoming: Incoming, whole: Buffer },
    /// A response that a handler fills.
    Draft(Buffer),
    /// A response that the client fetches, and the parts that it asks for now.
    Lent { whole: Buffer, parts: Parts, base: u32, wanted: u64 },
    /// A request that is refused, with its length.
    OverLimit { len: u64 },
}

/// Which generation of a slot was seen last, and what became of it. An idle session keeps no more than this.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) phase: Phase,
    /// The client is to be told how it stands: it is in the outbox.
    pub(crate) is_queued: bool,
    /// It is in the queue of those whose parts are wanted.
    pub(crate) is_sending: bool,
    /// It may run again: its response is not kept once it has left.
    pub(crate) idempotent: bool,
}

impl Default for Slot {
    fn default() -> Slot {
        let phase = Phase::Unused;
        Slot { generation: 0, phase, is_queued: false, is_sending: false, idempotent: false }
    }
}

/// The messages of a slot.
#[derive(Debug, Default)]
pub(crate) struct Body {
    /// A small response.
    pub(crate) reply: Vec<u8>,
    pub(crate) large: Option<Box<Large>>,
    /// Which copy of the client's latest message arrived, and in which turn.
    pub(crate) mark: u8,
    turn: u32,
}

impl Body {
    /// This copy of a message arrived in this turn.
    #[inline]
    pub(crate) fn receive(&mut self, mark: u8, turn: u32) {
        (self.mark, self.turn) = (mark, turn);
    }

    /// The mark of what is sent in this turn.
    #[inline]
    pub(crate) fn mark(&self, turn: u32) -> u8 {
        if self.turn == turn { self.mark & LAST_COPY } else { self.mark | LATE }
    }
}

/// What the generation of a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// Never seen, and the slot is free for it.
    New,
    /// The slot's own.
    Same,
    /// Seen before; or too early, which our clients never are.
    Stale,
}

impl Slot {
    #[inline]
    pub(crate) fn age(&self, generation: u32) -> Age {
        let ahead = generation.wrapping_sub(self.generation) as i32;
        match self.phase {
            Phase::Unused => Age::New,
            _ if ahead == 0 => Age::Same,
            Phase::Answered | Phase::Forgotten | Phase::Ended if ahead > 0 => Age::New,
            _ => Age::Stale,
        }
    }

    /// Whether so many calls have passed since the slot's own that its generation will soon seem to be ahead of theirs.
    #[inline]
    pub(crate) fn is_long_ago(&self, generation: u32) -> bool {
        generation.wrapping_sub(self.generation) >= LONG_AGO && self.phase != Phase::Unused
    }
}

/// Generations after which a slot takes over a later one: half of those that can be told from earlier ones.
const LONG_AGO: u32 = 1 << 30;

/// What both ends of a session agreed on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) window: u32,
    pub(crate) max_message: u64,
    /// The longest response that goes in one datagram.
    pub(crate) max_small: usize,
    pub(crate) part_bytes: u32,
}

/// A slot whose call waits for its answer.
pub(crate) struct Unanswered<'a> {
    pub(crate) slot: &'a mut Slot,
    pub(crate) body: &'a mut Body,
    pub(crate) loan: &'a mut Loan,
    pub(crate) bounds: &'a Bounds,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) peer: Peer,
    pub(crate) id: ClientId,
    pub(crate) bounds: Bounds,
    /// Up to the highest that was used.
    pub(crate) slots: Vec<Slot>,
    /// Of the slots that were used since the session was [idle](Session::forget_replies).
    pub(crate) bodies: Vec<Body>,
    /// Slots whose status the client is to be told, in order.
    pub(crate) outbox: Vec<u16>,
    /// Slots and generations whose large response is freed, as the client is to be told.
    pub(crate) released: Vec<(u16, u32)>,
    pub(crate) in_line: bool,
    /// Memory of its large messages.
    pub(crate) loan: Loan,
    /// When the client last sent something. 0: it has not shown yet that it receives where it said.
    pub(crate) heard_at: Instant,
    // Last: the client sees the end of the liveness socket after the goodbye.
    _drop_guard: DropGuard,
}

impl Session {
    pub(crate) fn new(peer: Peer, id: ClientId, bounds: Bounds, drop_guard: DropGuard) -> Session {
        Session {
            peer,
            id,
            bounds,
            slots: Vec::new(),
            bodies: Vec::new(),
            outbox: Vec::new(),
            released: Vec::new(),
            in_line: false,
            loan: Loan::default(),
            heard_at: Instant::ZERO,
            _drop_guard: drop_guard,
        }
    }

    /// The slot of this number; `None` outside the window.
    #[inline]
    pub(crate) fn slot(&mut self, index: u32) -> Option<&mut Slot> {
        if index as usize >= self.slots.len() {
            if index >= self.bounds.window && !is_planted(Bug::UncheckedWindow) {
                return None;
            }
            self.slots.resize_with(index as usize + 1, Slot::default);
        }
        self.slots.get_mut(index as usize)
    }

    /// The messages of a slot that was used.
    #[inline]
    pub(crate) fn body(&mut self, index: u32) -> &mut Body {
        let index = index as usize;
        if index >= self.bodies.len() {
            self.bodies.resize_with(index + 1, Body::default);
        }
        &mut self.bodies[index]
    }

    /// The slot of a call, if it still waits for its answer.
    #[inline]
    pub(crate) fn slot_of(&mut self, call: &CallToken) -> Option<Unanswered<'_>> {
        let index = call.slot() as usize;
        let slot = self.slots.get_mut(index)?;
        let is_same = self.id.generation == call.client_generation()
            && slot.generation == call.generation()
            && slot.phase == Phase::Busy;
        if !is_same {
            return None;
        }
        let body = self.bodies.get_mut(index)?;
        Some(Unanswered { slot, body, loan: &mut self.loan, bounds: &self.bounds })
    }

    /// The right to answer the request of this slot and generation.
    #[inline]
    pub(crate) fn token(&self, index: u32, generation: u32) -> CallToken {
        CallToken::new(self.id.number, self.id.generation, index, generation)
    }

    /// A new request has arrived in the slot, or its cancellation. It acknowledges the response before. Gives the slot's
    /// messages.
    #[inline]
    pub(crate) fn begin(&mut self, id: Id, phase: Phase) -> Option<&mut Body> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        (slot.generation, slot.phase, slot.idempotent) = (id.generation, phase, false);
        if self.body(id.slot).large.is_some() {
            self.free_large(id.slot);
        }
        self.bodies.get_mut(id.slot as usize)
    }

    /// The slot's large message.
    #[inline]
    pub(crate) fn large(&mut self, index: u32) -> Option<&mut Large> {
        self.bodies.get_mut(index as usize)?.large.as_deref_mut()
    }

    /// Frees the slot's large message.
    #[cold]
    pub(crate) fn free_large(&mut self, index: u32) {
        let Some(body) = self.bodies.get_mut(index as usize) else { return };
        body.large = None;
        self.loan.give_back(index);
    }

    /// A large response waits for its client to fetch it.
    pub(crate) fn has_lent(&self) -> bool {
        self.bodies.iter().any(|body| matches!(body.large.as_deref(), Some(Large::Lent { .. })))
    }

    /// It keeps responses.
    pub(crate) fn keeps_replies(&self) -> bool {
        !self.bodies.is_empty()
    }

    /// Frees all responses, and all but the slots' generations; not while there is something under way.
    pub(crate) fn forget_replies(&mut self) {
        let is_idle = |slot: &Slot| !matches!(slot.phase, Phase::Landing | Phase::Busy);
        if self.in_line || !self.loan.is_empty() || !self.slots.iter().all(is_idle) {
            return;
        }
        for slot in &mut self.slots {
            if slot.phase == Phase::Answered {
                slot.phase = Phase::Forgotten;
            }
        }
        self.slots.shrink_to_fit();
        (self.bodies, self.outbox, self.released) = Default::default();
    }

    /// Queues the slot's status for the client: the response if there is one.
    #[inline]
    pub(crate) fn queue_status(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        if !std::mem::replace(&mut slot.is_queued, true) {
            self.outbox.push(index as u16);
        }
    }

    /// Queues a message that a large response is freed.
    pub(crate) fn queue_released(&mut self, index: u32, generation: u32) {
        // Beyond this the client asks again.
        if self.released.len() < self.slots.len() {
            self.released.push((index as u16, generation));
        }
    }
}

impl Member for Session {
    fn id(&self) -> ClientId {
        self.id
    }

    fn calls(&self) -> Calls {
        let is_under_way = |slot: &Slot| matches!(slot.phase, Phase::Landing | Phase::Busy);
        if self.has_lent() || self.slots.iter().any(is_under_way) {
            return Calls::UnderWay;
        }
        // A slot is made with its first call.
        match self.slots.is_empty() {
            true => Calls::None,
            false => Calls::Ended(self.slots.iter().map(|slot| u64::from(slot.generation)).sum()),
        }
    }

    #[inline]
    fn in_line(&mut self) -> &mut bool {
        &mut self.in_line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(generation: u32, phase: Phase) -> Slot {
        Slot { generation, phase, ..Slot::default() }
    }

    #[test]
    fn a_generation_runs_once() {
        assert_eq!(Slot::default().age(1), Age::New);
        for phase in [Phase::Landing, Phase::Busy, Phase::Answered, Phase::Forgotten, Phase::Ended]
        {
            assert_eq!(slot(7, phase).age(7), Age::Same);
            assert_eq!(slot(7, phase).age(6), Age::Stale);
        }
    }

    #[test]
    fn the_next_generation_waits_for_the_end_of_this() {
        for phase in [Phase::Landing, Phase::Busy] {
            assert_eq!(slot(7, phase).age(8), Age::Stale);
        }
        for phase in [Phase::Answered, Phase::Forgotten, Phase::Ended] {
            assert_eq!(slot(7, phase).age(8), Age::New);
        }
    }

    #[test]
    fn generations_wrap() {
        assert_eq!(slot(u32::MAX, Phase::Answered).age(0), Age::New);
        assert_eq!(slot(0, Phase::Answered).age(u32::MAX), Age::Stale);
    }

    #[test]
    fn a_slot_is_small() {
        assert_eq!(size_of::<Slot>(), 8);
        // Built for the simulated rack too, whose address handles are longer.
        assert!(size_of::<Session>() <= 264, "{}", size_of::<Session>());
    }
}
