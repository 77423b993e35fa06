//! Atomics of peers: atomic with each other, and with the owner's CPU only if the configuration says so.
//!
//! A NIC without `IBV_ATOMIC_GLOB` loads the word over PCIe, changes it, and stores it, under a lock of its own that no CPU knows. What the
//! owner's CPU, or a WRITE, does to the word between the load and the store is lost (checked with the vendor's engineers in
//! arXiv 2601.14642).

use super::config::nanos;
use super::delivery::Outcome;
use super::event::{Answer, Event, QpId};
use super::memory::Found;
use super::node::MAX_RD_ATOMIC;
use super::world::World;
use crate::{Access, RemoteSlice};

/// An atomic that has loaded its word and not stored it.
#[derive(Debug)]
pub(super) struct PendingAtomic {
    /// Its message.
    request: u32,
    at: Found,
    old: u64,
    new: u64,
}

impl World {
    pub(super) fn atomic(
        &mut self,
        index: u32,
        remote: RemoteSlice,
        change: impl FnOnce(u64) -> u64,
    ) -> Outcome {
        let (to, psn) = (self.messages[index].to, self.messages[index].psn);
        let Some(pd) = self.pair(to).map(|pair| pair.pd) else { return Outcome::Answered };
        let regions = &self.nodes[usize::from(to.node)].regions;
        let Some(at) = regions.find(remote, Access::REMOTE_ATOMIC, pd, to.number) else {
            return Outcome::Refused(Answer::AccessError);
        };
        if !remote.addr.is_multiple_of(8) {
            return Outcome::Refused(Answer::InvalidRequest);
        }
        self.push_queue(to.node);
        // Atomics of peers are atomic with each other: one that is under way is over first.
        self.finish_atomics(|pending, _| pending.at.is_same_place(&at));
        let old = at.word();
        let new = change(old);
        if let Some(pair) = self.pair(to) {
            if pair.atomics.len() == MAX_RD_ATOMIC {
                pair.atomics.pop_front();
            }
            pair.atomics.push_back((psn, old));
        }
        let pending = PendingAtomic { request: index, at, old, new };
        match nanos(self.config.atomic_gap) {
            0 => self.store_atomic(&pending),
            gap_ns => {
                self.atomics.push(pending);
                self.messages.hold(index);
                self.events.push(self.now_ns + gap_ns, Event::Swap(index));
            }
        }
        Outcome::Answered
    }

    /// Stores the new word, and answers.
    fn store_atomic(&mut self, pending: &PendingAtomic) {
        let PendingAtomic { request, at, old, new } = pending;
        let to = self.messages[*request].to;
        // One that changes nothing, such as a compare-and-swap that fails, stores nothing.
        if new != old {
            at.write(0, &new.to_ne_bytes());
            self.record_landing(to.node, at.span(0, 8));
            if at.watched {
                self.wake_watchers(to.node, at.rkey);
            }
        }
        self.respond_with(*request, self.now_ns, |payload| {
            payload.extend_from_slice(&old.to_ne_bytes());
        });
    }

    /// Ends an atomic, unless it is over.
    pub(super) fn finish_atomic(&mut self, index: u32) {
        self.finish_atomics(|pending, _| pending.request == index);
        self.messages.release(index);
    }

    /// Ends the atomics of a queue pair that is being destroyed.
    pub(super) fn finish_atomics_of(&mut self, qp: QpId) {
        self.finish_atomics(|_, to| to == qp);
    }

    /// Ends these atomics now.
    fn finish_atomics(&mut self, is_over: impl Fn(&PendingAtomic, QpId) -> bool) {
        let messages = &self.messages;
        let over = |pending: &mut PendingAtomic| is_over(pending, messages[pending.request].to);
        let ended: Vec<_> = self.atomics.extract_if(.., over).collect();
        ended.iter().for_each(|pending| self.store_atomic(pending));
    }

    /// A node is no more: nothing lands in its memory.
    pub(super) fn drop_memory_work_of(&mut self, node: u16) {
        self.drop_packets_to(node);
        let messages = &self.messages;
        self.atomics.retain(|pending| messages[pending.request].to.node != node);
        for number in self.node(node).pairs.numbers() {
            if let Some(pair) = self.pair(QpId { node, number }) {
                pair.landing = None;
            }
        }
    }
}
