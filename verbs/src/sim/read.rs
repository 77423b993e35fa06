//! READs and atomics: requests that are answered with bytes of memory.

use super::delivery::Outcome;
use super::event::{Answer, Event};
use super::message::Kind;
use super::node::MAX_RD_ATOMIC;
use super::world::World;
use crate::{Access, QpType, RemoteSlice};

impl World {
    pub(super) fn read(&mut self, index: u32, remote: RemoteSlice) -> Outcome {
        let to = self.messages[index].to;
        let Some(pd) = self.pair(to).map(|pair| pair.pd) else { return Outcome::Answered };
        let regions = &self.nodes[usize::from(to.node)].regions;
        let Some(found) = regions.find(remote, Access::REMOTE_READ, pd, to.number) else {
            return Outcome::Refused(Answer::AccessError);
        };
        self.push_queue(to.node);
        self.respond_with(index, self.now_ns, |payload| found.read(payload));
        Outcome::Answered
    }

    pub(super) fn atomic(
        &mut self,
        index: u32,
        remote: RemoteSlice,
        change: impl FnOnce(u64) -> u64,
    ) -> Outcome {
        let (to, psn) = (self.messages[index].to, self.messages[index].psn);
        let Some(pd) = self.pair(to).map(|pair| pair.pd) else { return Outcome::Answered };
        let regions = &self.nodes[usize::from(to.node)].regions;
        let Some(found) = regions.find(remote, Access::REMOTE_ATOMIC, pd, to.number) else {
            return Outcome::Refused(Answer::AccessError);
        };
        if !remote.addr.is_multiple_of(8) {
            return Outcome::Refused(Answer::InvalidRequest);
        }
        self.push_queue(to.node);
        let old = found.change(change);
        self.record_landing(to.node, found.span(0, 8));
        if found.watched {
            self.wake_watchers(to.node, found.rkey);
        }
        if let Some(pair) = self.pair(to) {
            if pair.atomics.len() == MAX_RD_ATOMIC {
                pair.atomics.pop_front();
            }
            pair.atomics.push_back((psn, old));
        }
        self.respond_with(index, self.now_ns, |payload| {
            payload.extend_from_slice(&old.to_ne_bytes());
        });
        Outcome::Answered
    }

    /// Handles a request that was already executed: its answer was lost. A READ reads again; an atomic is
    /// answered from its recorded result, as it must not be executed twice.
    pub(super) fn repeat(&mut self, index: u32) {
        let message = &self.messages[index];
        let (kind, from, to, psn) = (message.kind, message.from, message.to, message.psn);
        match kind {
            Kind::Read(remote) => {
                self.read(index, remote);
            }
            Kind::Flush(remote) => {
                self.flush_memory(index, remote);
            }
            Kind::CompareAndSwap { .. } | Kind::FetchAdd { .. } => {
                let known = self.pair(to).and_then(|pair| {
                    pair.atomics.iter().find(|(number, _)| *number == psn).map(|(_, old)| *old)
                });
                if let Some(old) = known {
                    self.respond_with(index, self.now_ns, |payload| {
                        payload.extend_from_slice(&old.to_ne_bytes());
                    });
                }
            }
            _ => {
                let last = self.pair(to).map_or(psn, |pair| pair.expected.wrapping_sub(1));
                self.answer(to, from, last, Answer::Done);
            }
        }
    }

    /// Creates the response to a request, and sends it when its bytes, requested at `from_ns`, are in the NIC.
    pub(super) fn respond_with(
        &mut self,
        request: u32,
        from_ns: u64,
        fill: impl FnOnce(&mut Vec<u8>),
    ) {
        let message = &self.messages[request];
        let (from, to, psn) = (message.from, message.to, message.psn);
        let index = self.messages.insert(QpType::Rc, Kind::Response, to, from);
        let response = &mut self.messages[index];
        response.psn = psn;
        fill(&mut response.payload);
        let node = &mut self.nodes[usize::from(to.node)];
        let mut at_ns = node.nic.read_memory(&self.config.costs, from_ns);
        if let Some(pair) = node.pairs.get_mut(to.number) {
            // Responses leave in the order of the requests.
            at_ns = at_ns.max(pair.last_reply_ns);
            pair.last_reply_ns = at_ns;
        }
        self.events.push(at_ns, Event::Reply(index));
    }

    /// Handles the arrival of a response's bytes in the NIC.
    pub(super) fn reply(&mut self, index: u32) {
        let from = self.messages[index].from;
        if self.pair(from).is_some() {
            self.transmit(index, self.now_ns);
        }
        self.messages.release(index);
    }
}
