//! Who waits for memory, and whose turn is next.
//!
//! One queue of requests would let a client with many of them keep all others waiting (brpc 3431,
//! openlake 36). So the queue is one of clients, each with requests of its own in order, and each
//! client gives way after each grant.

use std::collections::VecDeque;

/// What trying to serve the front of the queue came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Served, or not wanted any more.
    Done,
    /// This client holds its share already; the next one may go first.
    ClientFull,
    /// There is none for anybody.
    Exhausted,
}

/// Waiting requests, as `(slot, bytes)`, of many clients.
#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    turns: VecDeque<u32>,
    /// By client; empty where a client waits for nothing.
    waiting: Vec<VecDeque<(u32, u64)>>,
}

impl FairQueue {
    /// Nobody waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// A request joins the end of its client's line.
    pub(crate) fn push(&mut self, client: u32, slot: u32, bytes: u64) {
        let index = client as usize;
        if self.waiting.len() <= index {
            self.waiting.resize_with(index + 1, VecDeque::new);
        }
        if self.waiting[index].is_empty() {
            self.turns.push_back(client);
        }
        self.waiting[index].push_back((slot, bytes));
    }

    /// A request that does not wait any more; `false` if it did not.
    pub(crate) fn remove(&mut self, client: u32, slot: u32) -> bool {
        let Some(line) = self.waiting.get_mut(client as usize) else { return false };
        let before = line.len();
        line.retain(|(waiting, _)| *waiting != slot);
        let removed = line.len() < before;
        if removed && line.is_empty() {
            self.turns.retain(|turn| *turn != client);
        }
        removed
    }

    /// A client that is gone.
    pub(crate) fn remove_client(&mut self, client: u32) {
        if let Some(line) = self.waiting.get_mut(client as usize) {
            line.clear();
            self.turns.retain(|turn| *turn != client);
        }
    }

    /// Serves those whose turn it is, until there is no more to give. Each client is tried at most
    /// once after its last success.
    pub(crate) fn serve(&mut self, mut attempt: impl FnMut(u32, u32, u64) -> Verdict) {
        let mut passed_over = 0;
        while passed_over < self.turns.len() {
            let Some(client) = self.turns.pop_front() else { return };
            let line = &mut self.waiting[client as usize];
            let Some(&(slot, bytes)) = line.front() else { continue };
            match attempt(client, slot, bytes) {
                Verdict::Done => {
                    line.pop_front();
                    if !line.is_empty() {
                        self.turns.push_back(client);
                    }
                    passed_over = 0;
                }
                Verdict::ClientFull => {
                    self.turns.push_back(client);
                    passed_over += 1;
                }
                Verdict::Exhausted => {
                    self.turns.push_front(client);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_turns_whatever_they_queue() {
        let mut queue = FairQueue::default();
        for slot in 0..5 {
            queue.push(1, slot, 10);
        }
        queue.push(2, 0, 10);
        queue.push(3, 0, 10);
        let mut order = Vec::new();
        queue.serve(|client, slot, _| {
            order.push((client, slot));
            Verdict::Done
        });
        assert_eq!(order, [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3), (1, 4)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_stalled_client_does_not_stall_others() {
        let mut queue = FairQueue::default();
        queue.push(1, 0, 10);
        queue.push(2, 0, 10);
        let mut served = Vec::new();
        queue.serve(|client, _, _| {
            if client == 1 {
                return Verdict::ClientFull;
            }
            served.push(client);
            Verdict::Done
        });
        assert_eq!(served, [2]);
        assert!(!queue.is_empty());
    }

    #[test]
    fn an_exhausted_pool_keeps_the_order() {
        let mut queue = FairQueue::default();
        queue.push(1, 0, 1000);
        queue.push(2, 0, 1);
        queue.serve(|_, _, _| Verdict::Exhausted);
        let mut first = None;
        queue.serve(|client, _, _| {
            first.get_or_insert(client);
            Verdict::Done
        });
        assert_eq!(first, Some(1), "the large request is not overtaken for ever");
    }

    #[test]
    fn those_that_leave_are_forgotten() {
        let mut queue = FairQueue::default();
        queue.push(1, 0, 1);
        queue.push(2, 4, 1);
        queue.push(2, 5, 1);
        assert!(queue.remove(1, 0));
        assert!(!queue.remove(1, 0));
        assert!(queue.remove(2, 4));
        assert!(!queue.remove(9, 0));
        let mut served = Vec::new();
        queue.serve(|client, slot, _| {
            served.push((client, slot));
            Verdict::Done
        });
        assert_eq!(served, [(2, 5)]);
        queue.push(3, 0, 1);
        queue.remove_client(3);
        assert!(queue.is_empty());
    }
}
