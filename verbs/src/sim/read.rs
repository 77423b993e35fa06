//! READs: requests that are answered with bytes of memory.

use super::config::{Landing as How, SimConfig};
use super::delivery::Outcome;
use super::event::{Answer, Event};
use super::memory::Found;
use super::message::{Kind, Landing};
use super::pieces::Pieces;
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
        let pieces = self.pieces_of_read(remote);
        if self.reads_slowly(&pieces) {
            self.read_slowly(index, found, pieces);
        } else {
            self.respond_with(index, self.now_ns, |payload| found.read(payload));
        }
        Outcome::Answered
    }

    fn pieces_of_read(&self, remote: RemoteSlice) -> Pieces {
        match self.config.reads_words_in_any_order {
            true => Pieces::words_of(remote.addr, remote.len),
            false => Pieces::of(remote.addr, remote.len),
        }
    }

    /// Whether the pieces of a READ are read one after the other.
    fn reads_slowly(&self, pieces: &Pieces) -> bool {
        let SimConfig { landing, reads_words_in_any_order, .. } = self.config;
        (landing == How::AnyOrder || reads_words_in_any_order) && pieces.count() > 1
    }

    /// How long a READ may take, from its delivery on, until its last piece is read.
    pub(super) fn reading_ns(&self, remote: RemoteSlice) -> u64 {
        let pieces = self.pieces_of_read(remote);
        if self.reads_slowly(&pieces) {
            self.config.costs.landing(pieces.count() as u64) + 1
        } else {
            0
        }
    }

    /// Reads the pieces in any order: what stores and WRITEs change meanwhile is seen in some of them.
    fn read_slowly(&mut self, index: u32, found: Found, pieces: Pieces) {
        let order = pieces.order(How::AnyOrder, self.config.costs.mtu_bytes, &mut self.dice);
        let read_ns = self.now_ns + self.config.costs.landing(order.len() as u64);
        let len = found.len() as usize;
        let response = self.respond_with(index, read_ns, |payload| payload.resize(len, 0));
        self.messages[response].landing = Some(Box::new(Landing::new(found, pieces)));
        for (place, chunk) in order.into_iter().enumerate() {
            let at_ns = self.now_ns + self.config.costs.landing(place as u64);
            self.events.push(at_ns, Event::Chunk { message: response, chunk });
        }
    }

    /// Reads one piece for a response. If its queue pair is gone, the response is never sent.
    pub(super) fn read_chunk(&mut self, index: u32, chunk: u32) {
        let (of, psn) = (self.messages[index].from, self.messages[index].psn);
        let message = &mut self.messages[index];
        let Some(landing) = &message.landing else { return };
        let range = landing.pieces.range(chunk);
        landing.at.read_part(range.start, &mut message.payload[range]);
        self.trace.mix(self.now_ns << 16 ^ u64::from(chunk));
        self.note(of, || format!("reads piece {chunk} for message {psn}"));
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

    /// Creates the response to a request, and sends it when its bytes, requested at `from_ns`, are in the NIC. Returns its message.
    pub(super) fn respond_with(
        &mut self,
        request: u32,
        from_ns: u64,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> u32 {
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
        index
    }

    /// Handles the arrival of a response's bytes in the NIC.
    pub(super) fn reply(&mut self, index: u32) {
        let from = self.messages[index].from;
        self.messages[index].landing = None;
        if self.pair(from).is_some() {
            self.transmit(index, self.now_ns);
        }
        self.messages.release(index);
    }
}
