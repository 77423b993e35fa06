//! Send work requests that the device holds, and the memory they use.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::address_handle::AddressHandle;
use crate::{Buffer, CompletionOpcode, SharedSlice};

/// What the poller needs to know about each send work request, and the owner about retired ones. Work
/// requests are numbered from 0 in posting order.
#[derive(Debug)]
pub(super) struct SendSlots {
    slots: Box<[SendSlot]>,
    /// Posted so far; written by the owner after filling the slots.
    posted: AtomicU64,
    /// Retired so far; written by the poller.
    retired: AtomicU64,
}

#[derive(Debug, Default)]
struct SendSlot {
    id: AtomicU64,
    /// Its length in the low bits, its opcode above them.
    what: AtomicU64,
}

/// The part of a send work request that its completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) id: u64,
    pub(super) opcode: CompletionOpcode,
    pub(super) len: u32,
}

const OPCODES: [CompletionOpcode; 7] = [
    CompletionOpcode::Send,
    CompletionOpcode::Write,
    CompletionOpcode::Read,
    CompletionOpcode::CompareAndSwap,
    CompletionOpcode::FetchAdd,
    CompletionOpcode::BindWindow,
    CompletionOpcode::InvalidateWindow,
];

impl SendSlots {
    pub(super) fn new(count: usize) -> SendSlots {
        SendSlots {
            slots: (0..count.next_power_of_two()).map(|_| SendSlot::default()).collect(),
            posted: AtomicU64::new(0),
            retired: AtomicU64::new(0),
        }
    }

    #[inline]
    fn slot(&self, number: u64) -> &SendSlot {
        &self.slots[number as usize & (self.slots.len() - 1)]
    }

    /// Stores the next work request, before the owner posts it.
    #[inline]
    pub(super) fn post(&self, number: u64, sent: Sent) {
        let slot = self.slot(number);
        slot.id.store(sent.id, Ordering::Relaxed);
        let opcode = sent.opcode as u64;
        slot.what.store(opcode << 32 | u64::from(sent.len), Ordering::Relaxed);
        self.posted.store(number + 1, Ordering::Release);
    }

    /// Replaces the id of a work request that the device does not have yet.
    #[inline]
    pub(super) fn identify(&self, number: u64, id: u64) {
        self.slot(number).id.store(id, Ordering::Relaxed);
    }

    /// Handles the completion of the request whose number ends with `low`: retires it and all before it. `None`
    /// if there is no such request, because the device reported a wrong one.
    #[inline]
    pub(super) fn retire(&self, low: u32) -> Option<Sent> {
        let (retired, posted) = (self.retired(), self.posted.load(Ordering::Acquire));
        let number = retired + u64::from(low.wrapping_sub(retired as u32));
        if number >= posted {
            return None;
        }
        let slot = self.slot(number);
        let (id, what) = (slot.id.load(Ordering::Relaxed), slot.what.load(Ordering::Relaxed));
        // Release: the owner may use the slot again once it sees this.
        self.retired.store(number + 1, Ordering::Release);
        let opcode = *OPCODES.get((what >> 32) as usize)?;
        Some(Sent { id, opcode, len: what as u32 })
    }

    #[inline]
    pub(super) fn retired(&self) -> u64 {
        self.retired.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }
}

/// What a work request uses until it is retired.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) memory: Option<Memory>,
    /// Some providers look it up when the datagram is sent.
    #[allow(dead_code)] // Only held for its drop.
    pub(super) address: Option<Arc<AddressHandle>>,
}

/// Memory that the device may touch.
#[derive(Debug)]
pub(super) enum Memory {
    Buffer(Buffer),
    Shared(#[allow(dead_code)] SharedSlice),
}

/// What work requests use, in posting order. Owned by the queue pair's owner.
#[derive(Debug)]
pub(super) struct InFlight {
    held: VecDeque<(u64, Held)>,
}

impl InFlight {
    pub(super) fn new(count: usize) -> InFlight {
        InFlight { held: VecDeque::with_capacity(count) }
    }

    #[inline]
    pub(super) fn push(&mut self, number: u64, held: Held, retired: u64) {
        // Limit the growth when the owner does not reclaim.
        while let Some((front, first)) = self.held.front()
            && *front < retired
            && !matches!(first.memory, Some(Memory::Buffer(_)))
        {
            self.held.pop_front();
        }
        self.held.push_back((number, held));
    }

    /// Returns the buffers of requests before `retired`.
    #[inline]
    pub(super) fn reclaim(&mut self, retired: u64, into: &mut dyn FnMut(Buffer)) {
        while let Some((_, held)) = self.held.pop_front_if(|(number, _)| *number < retired) {
            if let Some(Memory::Buffer(buffer)) = held.memory {
                into(buffer);
            }
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(id: u64) -> Sent {
        Sent { id, opcode: OPCODES[id as usize % OPCODES.len()], len: id as u32 }
    }

    #[test]
    fn a_completion_finds_its_request_and_retires_all_before_it() {
        let slots = SendSlots::new(5);
        for number in 0..5 {
            slots.post(number, sent(number));
        }
        assert_eq!(slots.retire(2), Some(sent(2)));
        assert_eq!(slots.retired(), 3);
        assert_eq!(slots.retire(1), None, "retired already");
        assert_eq!(slots.retire(5), None, "not posted");
        assert_eq!(slots.retire(4), Some(sent(4)));
    }

    #[test]
    fn numbers_continue_beyond_32_bits() {
        let start = u64::from(u32::MAX) - 1;
        let slots = SendSlots::new(8);
        slots.retired.store(start, Ordering::Relaxed);
        for number in start..start + 4 {
            slots.post(number, sent(number));
        }
        for number in start..start + 4 {
            assert_eq!(slots.retire(number as u32), Some(sent(number)));
        }
        assert_eq!(slots.retired(), start + 4);
    }
}
