//! Doorbells of a node's opened devices: threads that share one wait for each other.

use std::collections::VecDeque;

use super::Costs;

/// The doorbell locks of a node, one for each time its device was opened: an opened device has one page of doorbells.
#[derive(Debug, Default)]
pub(in crate::sim) struct Doorbells {
    locks: Vec<Lock>,
}

#[derive(Debug, Default)]
struct Lock {
    free_ns: u64,
    /// When those that wait will have it.
    waiting: VecDeque<u64>,
}

impl Doorbells {
    /// One more opened device: its number.
    pub(in crate::sim) fn open(&mut self) -> u32 {
        self.locks.push(Lock::default());
        self.locks.len() as u32 - 1
    }

    /// A CPU rings now; how long it waits for the lock first. A spin lock is handed over the slower, the more wait for it:
    /// each of them reads the line that it lies in (Boyd-Wickizer et al., "Non-scalable locks are dangerous", 2012).
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
    fn a_lock_costs_nothing_alone_and_more_with_each_that_waits() {
        let (costs, mut doorbells) = (Costs::default(), Doorbells::default());
        let (one, other) = (doorbells.open(), doorbells.open());
        assert_eq!(doorbells.ring(&costs, one, 100), 0);
        assert_eq!(doorbells.ring(&costs, other, 100), 0, "a doorbell page of its own");
        let second = doorbells.ring(&costs, one, 100);
        let third = doorbells.ring(&costs, one, 100);
        assert_eq!(second, costs.doorbell_ns + costs.lock_ns);
        assert_eq!(third - second, costs.doorbell_ns + costs.lock_ns + costs.lock_waiter_ns);
        assert_eq!(doorbells.ring(&costs, one, 1_000_000), 0);
    }
}
