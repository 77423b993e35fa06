//! Doorbells of a node's opened devices: threads that share one wait for each other.

use std::collections::VecDeque;

use super::Costs;

/// The doorbell locks of a node, one per opened device: each has one doorbell page.
#[derive(Debug, Default)]
pub(in crate::sim) struct Doorbells {
    locks: Vec<Lock>,
}

#[derive(Debug, Default)]
struct Lock {
    free_ns: u64,
    /// When each waiting thread will get the lock.
    waiting: VecDeque<u64>,
}

impl Doorbells {
    /// Adds an opened device and returns its number.
    pub(in crate::sim) fn open(&mut self) -> u32 {
        self.locks.push(Lock::default());
        self.locks.len() as u32 - 1
    }

    /// Rings a doorbell. Returns how long the CPU waits for the lock first. The more threads wait for a spin
    /// lock, the slower it is passed on, because each of them reads its cache line (Boyd-Wickizer et al.,
    /// "Non-scalable locks are dangerous", 2012).
    #[inline]
    pub(in crate::sim) fn ring(&mut self, costs: &Costs, device: u32, now_ns: u64) -> u64 {
        let Some(lock) = self.locks.get_mut(device as usize) else { return 0 };
        if lock.free_ns <= now_ns {
            lock.waiting.clear();
            lock.free_ns = now_ns + costs.doorbell_ns;
            return 0;
        }
        while lock.waiting.pop_front_if(|granted_ns| *granted_ns <= now_ns).is_some() {}
        let others = lock.waiting.len() as u64;
        let granted_ns = lock.free_ns + costs.lock_ns + others * costs.lock_waiter_ns;
        lock.waiting.push_back(granted_ns);
        lock.free_ns = granted_ns + costs.doorbell_ns;
        granted_ns - now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_costs_nothing_alone_and_more_with_each_waiting_thread() {
        let (costs, mut doorbells) = (Costs::default(), Doorbells::default());
        let (one, other) = (doorbells.open(), doorbells.open());
        assert_eq!(doorbells.ring(&costs, one, 100), 0);
        assert_eq!(doorbells.ring(&costs, other, 100), 0, "a separate doorbell page");
        let second = doorbells.ring(&costs, one, 100);
        let third = doorbells.ring(&costs, one, 100);
        assert_eq!(second, costs.doorbell_ns + costs.lock_ns);
        assert_eq!(third - second, costs.doorbell_ns + costs.lock_ns + costs.lock_waiter_ns);
        assert_eq!(doorbells.ring(&costs, one, 1_000_000), 0);
    }
}
