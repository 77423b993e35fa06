//! The slots of one session, at the client: which are free, how far the requests of the others have come, and what is to
//! be sent of them.

use std::collections::VecDeque;

use farcall_core::time::Instant;
use farcall_core::transport::{Delivery, SlotId};

use super::flight::Datagram;

/// In a server's mark: the answer left in a later turn than the one in which the message arrived, so the time between them
/// is not the network's.
pub(crate) const LATE: u8 = 1 << 7;

/// The number of the last copy that has its own; all later ones have it too.
pub(crate) const LAST_COPY: u8 = LATE - 1;

/// How far a slot's request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Free,
    /// The caller fills it.
    Reserved,
    /// Posted, small. The server has not mentioned it.
    Posted,
    /// The server was asked for room for it.
    Announced,
    /// Its parts are under way.
    Sending,
    /// The server has it.
    Known,
    /// Its large response is fetched, or waits for memory.
    Fetching,
}

/// What is to be sent of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToSend {
    Nothing,
    /// The request, or its announcement.
    Request,
    /// A question how it stands.
    Ask,
    Cancel,
    /// A question for the missing parts of the response.
    Missing,
}

/// The `len` of a large request.
const LARGE: usize = usize::MAX;

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) phase: Phase,
    pub(crate) to_send: ToSend,
    /// Nobody waits for the reply; the slot is kept until it has arrived.
    pub(crate) abandoned: bool,
    pub(crate) delivery: Delivery,
    /// Some of it has left.
    pub(crate) sent: bool,
    /// How often it was repeated since the last progress.
    pub(crate) repeats: u32,
    /// How often it was sent after the first time.
    pub(crate) copy: u8,
    /// The datagram that it left in, until the server mentions it.
    pub(crate) datagram: Option<Datagram>,
    /// When it was sent first and last, and when it is repeated: known from the poll after it has left.
    pub(crate) first_at: Instant,
    pub(crate) sent_at: Instant,
    pub(crate) due: Instant,
    /// Bytes of a small request.
    len: usize,
    bytes: Vec<u8>,
}

impl Slot {
    fn new() -> Slot {
        Slot {
            generation: 0,
            phase: Phase::Free,
            to_send: ToSend::Nothing,
            abandoned: false,
            delivery: Delivery::AtMostOnce,
            sent: false,
            repeats: 0,
            copy: 0,
            datagram: None,
            first_at: Instant::ZERO,
            sent_at: Instant::ZERO,
            due: Instant::FAR_FUTURE,
            len: 0,
            bytes: Vec::new(),
        }
    }

    /// It was posted, and its call is not over.
    #[inline]
    pub(crate) fn is_posted(&self) -> bool {
        !matches!(self.phase, Phase::Free | Phase::Reserved)
    }

    /// It was posted, and the server has not said what the response is.
    #[inline]
    pub(crate) fn awaits_response(&self) -> bool {
        matches!(self.phase, Phase::Posted | Phase::Announced | Phase::Sending | Phase::Known)
    }

    /// The server has not mentioned its request or announcement.
    #[inline]
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.phase, Phase::Posted | Phase::Announced)
    }

    /// Which copy leaves next.
    #[inline]
    pub(crate) fn next_copy(&self) -> u8 {
        if self.sent { (self.copy + 1).min(LAST_COPY) } else { 0 }
    }

    /// When the copy was sent that the server answered at once with this mark.
    #[inline]
    pub(crate) fn sent_at(&self, mark: u8) -> Option<Instant> {
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
    pub(crate) fn is_large(&self) -> bool {
        self.len == LARGE
    }

    /// A small request.
    #[inline]
    pub(crate) fn request(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The slots, and which have something to send.
#[derive(Debug)]
pub(crate) struct Window {
    /// Those that were ever used.
    pub(crate) slots: Vec<Slot>,
    size: u32,
    free: Vec<u32>,
    /// Slots that have something to send, in order.
    pub(crate) outbox: VecDeque<u32>,
}

impl Window {
    pub(crate) fn new(window: u32) -> Window {
        Window {
            slots: Vec::new(),
            size: window,
            // The lowest slot is taken first: the server keeps state for those that were ever used.
            free: (0..window).rev().collect(),
            outbox: VecDeque::with_capacity(window as usize),
        }
    }

    /// Slots from this one on were never used.
    pub(crate) fn used(&self) -> u32 {
        self.slots.len() as u32
    }

    /// How many slots there are.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// All slots are free.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.size as usize
    }

    /// The slot that the next request gets.
    #[inline]
    pub(crate) fn next_free(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Takes that slot for a small request of `len` bytes.
    #[inline]
    pub(crate) fn reserve(&mut self, len: usize) -> Option<(SlotId, &mut [u8])> {
        let (index, slot) = self.take()?;
        slot.len = len;
        if slot.bytes.len() < len {
            slot.bytes.resize(len, 0);
        }
        Some((SlotId { index, generation: slot.generation }, &mut slot.bytes[..len]))
    }

    /// Takes it for a large request, whose bytes are elsewhere.
    #[cold]
    pub(crate) fn reserve_large(&mut self) -> Option<SlotId> {
        let (index, slot) = self.take()?;
        slot.len = LARGE;
        Some(SlotId { index, generation: slot.generation })
    }

    #[inline]
    fn take(&mut self) -> Option<(u32, &mut Slot)> {
        let index = self.free.pop()?;
        if index as usize >= self.slots.len() {
            self.slots.resize_with(index as usize + 1, Slot::new);
        }
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.phase = Phase::Reserved;
        Some((index, slot))
    }

    /// The slot, if it is in this use.
    #[inline]
    pub(crate) fn get(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)
    }

    /// The filled request leaves with the next flush.
    #[inline]
    pub(crate) fn post(&mut self, id: SlotId, delivery: Delivery) {
        let Some(slot) = self.get(id).filter(|slot| slot.phase == Phase::Reserved) else {
            panic!("posted slot {id:?} was not reserved");
        };
        slot.delivery = delivery;
        slot.phase = if slot.is_large() { Phase::Announced } else { Phase::Posted };
        slot.to_send = ToSend::Request;
        self.outbox.push_back(id.index);
    }

    /// Something else is to be sent of the slot.
    #[inline]
    pub(crate) fn queue(&mut self, index: u32, what: ToSend) {
        let slot = &mut self.slots[index as usize];
        if slot.to_send == ToSend::Nothing {
            match what {
                ToSend::Request => self.outbox.push_back(index),
                // Requests may have to wait for others.
                _ => self.outbox.push_front(index),
            }
        }
        slot.to_send = what;
    }

    /// Nothing is to be sent of the slot any more.
    #[cold]
    pub(crate) fn unqueue(&mut self, index: u32) {
        self.outbox.retain(|queued| *queued != index);
        self.slots[index as usize].to_send = ToSend::Nothing;
    }

    /// The slot is free again.
    #[inline]
    pub(crate) fn free(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.to_send != ToSend::Nothing {
            self.unqueue(index);
        }
        let slot = &mut self.slots[index as usize];
        slot.phase = Phase::Free;
        (slot.abandoned, slot.sent, slot.copy, slot.repeats) = (false, false, 0, 0);
        slot.due = Instant::FAR_FUTURE;
        self.free.push(index);
    }
}
