//! How full a send queue is, and which of its work requests is signaled.

/// Work requests between two signaled ones, where the queue is long enough. A completion costs
/// about what a message costs, so one in 64 costs 2 %.
const SIGNAL_EVERY: u32 = 64;

/// Counts the work requests of one send queue. Unsignaled ones are retired by the next signaled one.
#[derive(Clone, Debug)]
pub(crate) struct SendQueue {
    depth: u32,
    interval: u32,
    posted: u32,
    retired: u32,
    unsignaled: u32,
}

impl SendQueue {
    /// A queue with room for `depth` work requests, at least 2.
    pub(crate) fn new(depth: u32) -> SendQueue {
        assert!(depth >= 2, "a send queue of {depth} cannot tell when it has room");
        // With at most half the queue between two signals, a full queue always has one in flight.
        let interval = SIGNAL_EVERY.min(depth / 2);
        SendQueue { depth, interval, posted: 0, retired: 0, unsignaled: 0 }
    }

    /// The same, where each work request is signaled.
    pub(crate) fn signaling_all(self) -> SendQueue {
        SendQueue { interval: 1, ..self }
    }

    /// Work requests there is room for.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.depth - self.posted.wrapping_sub(self.retired)
    }

    /// All work requests have completed.
    pub(crate) fn is_empty(&self) -> bool {
        self.posted == self.retired
    }

    /// The number of the last work request.
    pub(crate) fn posted(&self) -> u32 {
        self.posted
    }

    /// The work request with this number has completed.
    pub(crate) fn has_retired(&self, number: u32) -> bool {
        self.posted.wrapping_sub(number) >= self.posted.wrapping_sub(self.retired)
    }

    /// Counts one more work request; `Some` says to signal it, with this as the low half of its id.
    #[inline]
    pub(crate) fn post(&mut self, must_signal: bool) -> Option<u32> {
        debug_assert!(self.room() > 0);
        self.posted = self.posted.wrapping_add(1);
        self.unsignaled += 1;
        if self.unsignaled < self.interval && !must_signal {
            return None;
        }
        self.unsignaled = 0;
        Some(self.posted)
    }

    /// The work request with this id has completed, and so have all before it.
    #[inline]
    pub(crate) fn retire(&mut self, id: u32) {
        debug_assert!(self.posted.wrapping_sub(id) <= self.depth);
        self.retired = id;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_always_has_a_signal_in_flight() {
        let queues = (2..200)
            .flat_map(|depth| [SendQueue::new(depth), SendQueue::new(depth).signaling_all()]);
        for mut queue in queues {
            let depth = queue.depth;
            let mut last = None;
            while queue.room() > 0 {
                last = queue.post(false).or(last);
            }
            queue.retire(last.expect("one of them is signaled"));
            assert!(queue.room() > 0, "depth {depth}");
        }
    }

    #[test]
    fn counts_go_round() {
        let mut queue = SendQueue::new(8);
        queue.posted = u32::MAX - 2;
        queue.retired = u32::MAX - 2;
        for _ in 0..100 {
            if let Some(id) = queue.post(true) {
                assert_eq!((queue.room(), queue.posted()), (7, id));
                assert!(queue.has_retired(id.wrapping_sub(1)) && !queue.has_retired(id));
                queue.retire(id);
                assert!(queue.has_retired(id));
            }
        }
        assert_eq!(queue.room(), 8);
    }
}
