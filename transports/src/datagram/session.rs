//! One session, as its server thread keeps it: which generation of each slot it has seen, and what became of it.

use farcall_core::time::Instant;
use farcall_core::transport::CallToken;
use farcall_verbs::Buffer;

use super::parts::{Cut, Incoming};
use super::port::Way;
use crate::backend::Custody;
use crate::door::Seat;

/// What became of the request of a slot's generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// No request has ever come.
    Unused,
    /// It was announced, and waits for memory, or comes in parts.
    Coming,
    /// A handler has it.
    Running,
    /// It was answered; the answer is kept.
    Answered,
    /// It was answered, so long ago that the answer is not kept any more.
    Forgotten,
    /// It ended before a handler saw it, or its long answer has been taken.
    Over,
}

/// A long message of a slot.
#[derive(Debug)]
pub(crate) enum Large {
    /// A request that waits for memory.
    Waiting,
    /// A request whose parts come.
    Landing { incoming: Incoming, whole: Buffer },
    /// An answer that is written.
    Draft(Buffer),
    /// An answer whose parts are asked for: those that are wanted now.
    Offer { whole: Buffer, cut: Cut, base: u32, wanted: u64 },
    /// A request that is refused, with its length.
    OverLimit { len: u64 },
}

/// Which generation of a slot was seen last, and what became of it. Of a session that is idle for long no more is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) state: State,
    /// The client is to be told how it stands: the answer if there is one.
    pub(crate) unsaid: bool,
    /// In the line of those whose parts are wanted.
    pub(crate) sending: bool,
    /// It may run again: its answer is not kept once it has left.
    pub(crate) idempotent: bool,
}

impl Default for Slot {
    fn default() -> Slot {
        let state = State::Unused;
        Slot { generation: 0, state, unsaid: false, sending: false, idempotent: false }
    }
}

/// The messages of a slot.
#[derive(Debug, Default)]
pub(crate) struct Body {
    /// An answer that goes whole.
    pub(crate) reply: Vec<u8>,
    pub(crate) large: Option<Box<Large>>,
    /// Which copy of the client's latest message came, and in which turn.
    pub(crate) mark: u8,
    pub(crate) turn: u32,
}

/// What the generation of a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// Never seen, and the slot is free for it.
    New,
    /// The slot's own.
    Same,
    /// Seen long ago; or too early, which no client of ours is.
    Stale,
}

impl Slot {
    #[inline]
    pub(crate) fn age(&self, generation: u32) -> Age {
        let ahead = generation.wrapping_sub(self.generation) as i32;
        match self.state {
            State::Unused => Age::New,
            _ if ahead == 0 => Age::Same,
            State::Answered | State::Forgotten | State::Over if ahead > 0 => Age::New,
            _ => Age::Stale,
        }
    }
}

/// What a session may have, agreed on at its beginning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) window: u32,
    pub(crate) max_message: u64,
    /// The longest answer that goes whole.
    pub(crate) max_whole: usize,
    pub(crate) part_bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) way: Way,
    /// Our number of it, and which session under that number.
    pub(crate) number: u32,
    pub(crate) generation: u32,
    pub(crate) bounds: Bounds,
    /// As many as were used.
    slots: Vec<Slot>,
    /// Of those that were used since the session was [idle for long](Session::settle).
    bodies: Vec<Body>,
    /// Slots that have something to say, in order.
    pub(crate) outbox: Vec<u16>,
    /// Long answers of these slots and generations are gone, as the client wished and is to be told.
    pub(crate) released: Vec<(u16, u32)>,
    /// It is in the line of those that have.
    pub(crate) dirty: bool,
    /// Bytes of its long messages here.
    pub(crate) held: u64,
    /// When one of them last moved on.
    pub(crate) moved: Instant,
    /// When the client last said something.
    pub(crate) heard: Instant,
    // Last: what the client sees of its end comes after the goodbye.
    _custody: Custody,
}

impl Session {
    pub(crate) fn new(way: Way, seat: Seat, bounds: Bounds, custody: Custody) -> Session {
        Session {
            way,
            number: seat.number,
            generation: seat.generation,
            bounds,
            slots: Vec::new(),
            bodies: Vec::new(),
            outbox: Vec::new(),
            released: Vec::new(),
            dirty: false,
            held: 0,
            moved: Instant::ZERO,
            heard: Instant::ZERO,
            _custody: custody,
        }
    }

    /// The slot of this number; `None` outside the window.
    #[inline]
    pub(crate) fn slot(&mut self, index: u32) -> Option<&mut Slot> {
        if index as usize >= self.slots.len() {
            if index >= self.bounds.window {
                return None;
            }
            self.slots.resize_with(index as usize + 1, Slot::default);
        }
        self.slots.get_mut(index as usize)
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub(crate) fn bodies(&self) -> &[Body] {
        &self.bodies
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

    /// This copy of a message of the slot's came in this turn.
    #[inline]
    pub(crate) fn came(&mut self, index: u32, mark: u8, turn: u32) {
        if let Some(body) = self.bodies.get_mut(index as usize) {
            (body.mark, body.turn) = (mark, turn);
        }
    }

    /// The slot's long message.
    #[inline]
    pub(crate) fn large(&mut self, index: u32) -> Option<&mut Large> {
        self.bodies.get_mut(index as usize)?.large.as_deref_mut()
    }

    /// A request of this generation has come: what the slot had before is acknowledged by it.
    #[inline]
    pub(crate) fn begin(&mut self, index: u32, generation: u32, state: State) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        (slot.generation, slot.state, slot.idempotent) = (generation, state, false);
        if self.body(index).large.is_some() {
            self.free_large(index);
        }
    }

    /// Frees the slot's long message.
    #[cold]
    pub(crate) fn free_large(&mut self, index: u32) {
        let Some(body) = self.bodies.get_mut(index as usize) else { return };
        match body.large.take().map(|large| *large) {
            Some(Large::Landing { whole, .. } | Large::Offer { whole, .. }) => {
                self.held -= whole.len() as u64;
            }
            Some(Large::Waiting | Large::Draft(_) | Large::OverLimit { .. }) | None => {}
        }
    }

    /// It keeps answers.
    pub(crate) fn keeps(&self) -> bool {
        !self.bodies.is_empty()
    }

    /// The client has been silent for so long that it has all answers, or does not look for them: what is kept is which
    /// generation was seen. Not while there is something under way.
    pub(crate) fn settle(&mut self) {
        let rests = |slot: &Slot| !matches!(slot.state, State::Coming | State::Running);
        if self.dirty || self.held > 0 || !self.slots.iter().all(rests) {
            return;
        }
        for slot in &mut self.slots {
            if slot.state == State::Answered {
                slot.state = State::Forgotten;
            }
        }
        self.slots.shrink_to_fit();
        (self.bodies, self.outbox, self.released) = Default::default();
    }

    /// The right to answer what is in this slot now.
    #[inline]
    pub(crate) fn token(&self, index: u32) -> CallToken {
        let generation = self.slots.get(index as usize).map_or(0, |slot| slot.generation);
        CallToken::new(self.number, self.generation, index, generation)
    }

    /// The slot has something to tell. Answers whether the session has to get in line.
    #[inline]
    pub(crate) fn say(&mut self, index: u32) -> bool {
        let Some(slot) = self.slots.get_mut(index as usize) else { return false };
        if !std::mem::replace(&mut slot.unsaid, true) {
            self.outbox.push(index as u16);
        }
        !std::mem::replace(&mut self.dirty, true)
    }

    /// The client is to hear that a long answer is gone. Answers whether the session has to get in line.
    pub(crate) fn say_released(&mut self, index: u32, generation: u32) -> bool {
        if self.released.len() >= self.slots.len() {
            return false; // It asks again.
        }
        self.released.push((index as u16, generation));
        !std::mem::replace(&mut self.dirty, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(generation: u32, state: State) -> Slot {
        Slot { generation, state, ..Slot::default() }
    }

    #[test]
    fn a_generation_runs_once() {
        assert_eq!(Slot::default().age(1), Age::New);
        for state in [State::Coming, State::Running, State::Answered, State::Forgotten, State::Over]
        {
            assert_eq!(slot(7, state).age(7), Age::Same);
            assert_eq!(slot(7, state).age(6), Age::Stale);
        }
    }

    #[test]
    fn the_next_generation_waits_for_the_end_of_this() {
        for state in [State::Coming, State::Running] {
            assert_eq!(slot(7, state).age(8), Age::Stale);
        }
        for state in [State::Answered, State::Forgotten, State::Over] {
            assert_eq!(slot(7, state).age(8), Age::New);
        }
    }

    #[test]
    fn generations_go_round() {
        assert_eq!(slot(u32::MAX, State::Answered).age(0), Age::New);
        assert_eq!(slot(0, State::Answered).age(u32::MAX), Age::Stale);
    }

    #[test]
    fn a_slot_is_small() {
        assert_eq!(size_of::<Slot>(), 8);
        assert!(size_of::<Session>() <= 256, "{}", size_of::<Session>());
    }
}
