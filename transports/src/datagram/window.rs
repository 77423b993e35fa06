//! The slots of one session, at the client: which are free, and how far the requests of the others have come.

use std::collections::VecDeque;

use farcall_core::time::Instant;
use farcall_core::transport::SlotId;

use super::flight::Datagram;
use super::wire::LAST_COPY;
use crate::planted::{Bug, is_planted};

/// How far a slot's request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
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
pub(crate) enum Say {
    Nothing,
    /// The request, or its announcement.
    Request,
    /// What has become of it?
    Ask,
    Cancel,
    /// What is missing of the response.
    Missing,
}

/// A length that says: the request goes in parts.
const LONG: usize = usize::MAX;

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) phase: Phase,
    pub(crate) say: Say,
    /// Nobody waits for the reply; the slot is kept until it has come.
    pub(crate) abandoned: bool,
    /// It may run more than once.
    pub(crate) idempotent: bool,
    /// Some of it has left.
    pub(crate) sent: bool,
    /// How often it was sent again since the last progress, and ever.
    pub(crate) tries: u32,
    pub(crate) copy: u8,
    /// Nothing was heard yet of what left in this datagram.
    pub(crate) datagram: Option<Datagram>,
    /// When it was sent at first and at last, and when it is sent again: known from the poll after it has left.
    pub(crate) first_at: Instant,
    pub(crate) sent_at: Instant,
    pub(crate) due: Instant,
    /// Bytes of a request that goes whole.
    len: usize,
    bytes: Vec<u8>,
}

impl Slot {
    fn new() -> Slot {
        Slot {
            generation: 0,
            phase: Phase::Free,
            say: Say::Nothing,
            abandoned: false,
            idempotent: false,
            sent: false,
            tries: 0,
            copy: 0,
            datagram: None,
            first_at: Instant::ZERO,
            sent_at: Instant::ZERO,
            due: Instant::FAR_FUTURE,
            len: 0,
            bytes: Vec::new(),
        }
    }

    /// It was posted, and its response is not known.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        matches!(self.phase, Phase::Posted | Phase::Announced | Phase::Sending | Phase::Known)
    }

    /// Nothing was heard of its request or announcement.
    #[inline]
    pub(crate) fn is_unheard(&self) -> bool {
        matches!(self.phase, Phase::Posted | Phase::Announced)
    }

    /// Which copy leaves next.
    #[inline]
    pub(crate) fn next_copy(&self) -> u8 {
        if self.sent { (self.copy + 1).min(LAST_COPY) } else { 0 }
    }

    /// When the copy was sent that this mark says was answered at once.
    #[inline]
    pub(crate) fn answered_copy(&self, mark: u8) -> Option<Instant> {
        if self.due == Instant::FAR_FUTURE || mark == LAST_COPY {
            None
        } else if mark == self.copy {
            Some(self.sent_at)
        } else if mark == 0 {
            Some(self.first_at)
        } else {
            None
        }
    }

    /// Its request goes in parts.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.len == LONG
    }

    /// A request that goes whole.
    #[inline]
    pub(crate) fn request(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The slots, and which have something to say.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Slots from this one on were never taken.
    used: u32,
    /// Slots that have something to say, in order.
    pub(crate) outbox: VecDeque<u32>,
}

impl Window {
    pub(crate) fn new(window: u32) -> Window {
        Window {
            slots: (0..window).map(|_| Slot::new()).collect(),
            // The lowest slot is taken first: the server keeps state for those that were ever used.
            free: (0..window).rev().collect(),
            used: 0,
            outbox: VecDeque::with_capacity(window as usize),
        }
    }

    /// Slots from this one on were never taken.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// The slot that the next request takes.
    #[inline]
    pub(crate) fn next_free(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Takes that slot for a request of `len` bytes.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Option<(SlotId, &mut [u8])> {
        let (index, slot) = self.begin()?;
        slot.len = len;
        if slot.bytes.len() < len {
            slot.bytes.resize(len, 0);
        }
        Some((SlotId { index, generation: slot.generation }, &mut slot.bytes[..len]))
    }

    /// Takes it for a request that goes in parts, whose bytes are elsewhere.
    #[cold]
    pub(crate) fn take_long(&mut self) -> Option<SlotId> {
        let (index, slot) = self.begin()?;
        slot.len = LONG;
        Some(SlotId { index, generation: slot.generation })
    }

    #[inline]
    fn begin(&mut self) -> Option<(u32, &mut Slot)> {
        let index = self.free.pop()?;
        self.used = self.used.max(index + 1);
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.phase = Phase::Reserved;
        Some((index, slot))
    }

    #[inline]
    pub(crate) fn is(&self, id: SlotId, phase: Phase) -> bool {
        self.slots
            .get(id.index as usize)
            .is_some_and(|slot| slot.generation == id.generation && slot.phase == phase)
    }

    #[inline]
    pub(crate) fn say(&mut self, index: u32, what: Say) {
        let slot = &mut self.slots[index as usize];
        if slot.say == Say::Nothing {
            match what {
                Say::Request => self.outbox.push_back(index),
                // Requests may have to wait for others.
                _ => self.outbox.push_front(index),
            }
        }
        slot.say = what;
    }

    /// The slot is free again.
    #[inline]
    pub(crate) fn end(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.say != Say::Nothing {
            self.outbox.retain(|waiting| *waiting != index);
            slot.say = Say::Nothing;
        }
        if slot.abandoned && is_planted(Bug::DoubleCredit) {
            self.free.push(index);
        }
        slot.phase = Phase::Free;
        (slot.abandoned, slot.sent, slot.copy, slot.tries) = (false, false, 0, 0);
        slot.due = Instant::FAR_FUTURE;
        self.free.push(index);
    }
}
