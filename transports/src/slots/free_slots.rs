//! The free slots of a window, and which of them a request takes.

use farcall_verbs::Capabilities;

/// Requests of at least this length are spread over several slots, in memory of one machine. Shorter ones gain nothing.
const SPREAD_FROM_BYTES: usize = 3 << 10;

/// So many bytes are written before a slot is used again. Its lines have left the first cache of the server's core by then, which gives
/// them up more slowly than its second: calls of 8 to 64 KiB take a fifth to a third less time (measured on Emerald Rapids). More bytes
/// gain nothing more.
const SPREAD_BYTES: usize = 128 << 10;

/// Spread requests for each further slot: a client that makes few touches the memory of few slots.
const REQUESTS_PER_SLOT: u32 = 64;

/// The free slots of a window.
#[derive(Debug)]
pub(super) struct FreeSlots {
    /// In the order in which they became free.
    slots: Vec<u32>,
    spread_from: usize,
    /// Requests that were spread, so far.
    spread: u32,
}

impl FreeSlots {
    /// All slots of a window, on a device that can do this.
    pub(super) fn new(window: u32, caps: &Capabilities) -> FreeSlots {
        // A NIC writes to memory, or to a cache that all cores share.
        let spread_from = if caps.network { usize::MAX } else { SPREAD_FROM_BYTES };
        // The lowest is taken first.
        FreeSlots { slots: (0..window).rev().collect(), spread_from, spread: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slot for a message of that many bytes.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Option<u32> {
        if len < self.spread_from {
            // The latest used: its lines are warm.
            return self.slots.pop();
        }
        self.take_spread(len)
    }

    #[inline(never)]
    fn take_spread(&mut self, len: usize) -> Option<u32> {
        self.spread = self.spread.saturating_add(1);
        let used = (self.spread / REQUESTS_PER_SLOT + 1) as usize;
        let back = used.min(SPREAD_BYTES.div_ceil(len)).min(self.slots.len());
        (back > 0).then(|| self.slots.remove(self.slots.len() - back))
    }

    /// The slot is free again.
    #[inline]
    pub(super) fn put(&mut self, slot: u32) {
        self.slots.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use farcall_verbs::Device;

    use super::*;

    /// The slots that so many requests take, one after the other.
    fn used(free: &mut FreeSlots, requests: usize, len: usize) -> HashSet<u32> {
        let mut take = || {
            let slot = free.take(len).expect("a slot");
            free.put(slot);
            slot
        };
        (0..requests).map(|_| take()).collect()
    }

    fn in_memory(window: u32) -> FreeSlots {
        FreeSlots::new(window, Device::open("shm").expect("a device").caps())
    }

    #[test]
    fn many_long_requests_go_round_and_few_or_short_ones_stay() {
        let mut free = in_memory(64);
        assert_eq!(used(&mut free, 1000, 64), HashSet::from([0]));
        assert_eq!(used(&mut free, REQUESTS_PER_SLOT as usize - 1, 8 << 10).len(), 1);
        used(&mut free, 2000, 8 << 10);
        assert_eq!(used(&mut free, 2000, 8 << 10).len(), 16);
        assert_eq!(used(&mut free, 2000, (64 << 10) + 4).len(), 2);
        assert_eq!(used(&mut free, 2000, SPREAD_BYTES + 1).len(), 1);
    }

    #[test]
    fn each_slot_is_taken_once_and_none_beyond() {
        let mut free = in_memory(8);
        used(&mut free, 2000, 8 << 10);
        let taken: HashSet<_> = (0..8).map(|_| free.take(8 << 10).expect("a slot")).collect();
        assert_eq!((taken.len(), free.take(8 << 10), free.take(8)), (8, None, None));
    }

    #[test]
    fn a_network_has_no_use_for_it() {
        let mut caps = Device::open("shm").expect("a device").caps().clone();
        caps.network = true;
        let mut free = FreeSlots::new(8, &caps);
        assert_eq!(used(&mut free, 2000, 8 << 10), HashSet::from([0]));
    }
}
