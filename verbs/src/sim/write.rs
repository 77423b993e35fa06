//! WRITEs: how their bytes land.

use super::config::{Landing as How, nanos};
use super::delivery::Outcome;
use super::event::{Answer, Event};
use super::memory::FIRST_ADDRESS;
use super::message::Landing;
use super::world::World;
use crate::{Access, CompletionOpcode, QpType, RemoteSlice, Status, Visibility};

/// The most pieces in which a WRITE lands; more would only slow the simulation down.
const MAX_CHUNKS: usize = 64;

/// The smallest piece of a landing WRITE: a cache line.
const LINE_BYTES: usize = 64;

/// The size of the pieces in which `len` bytes land.
fn chunk_bytes(len: usize) -> usize {
    len.div_ceil(MAX_CHUNKS).next_multiple_of(LINE_BYTES)
}

impl World {
    /// Whether WRITEs land later than they are delivered.
    fn lands_slowly(&self) -> bool {
        self.config.landing != How::AtOnce || self.is_late()
    }

    /// Whether WRITEs are acknowledged before they have landed.
    fn is_late(&self) -> bool {
        self.config.visibility == Visibility::CompletionMeansDelivered
    }

    /// How long after its delivery a WRITE may take to land. The next message may be delivered after that: not at
    /// the very time of the last piece, as its event may have been inserted earlier.
    pub(super) fn landing_ns(&self, len: u64) -> u64 {
        if len == 0 || !self.lands_slowly() {
            return 0;
        }
        let chunks = len.div_ceil(chunk_bytes(len as usize) as u64);
        let late_ns = if self.is_late() { nanos(self.config.late) } else { 0 };
        self.config.costs.landing(chunks) + late_ns + 1
    }

    /// Executes a WRITE, or begins to.
    pub(super) fn write(&mut self, index: u32, remote: RemoteSlice) -> Outcome {
        let (to, imm) = (self.messages[index].to, self.messages[index].imm);
        let Some(pd) = self.pair(to).map(|pair| pair.pd) else { return Outcome::Answered };
        let regions = &self.nodes[usize::from(to.node)].regions;
        let Some(into) = regions.find(remote, Access::REMOTE_WRITE, pd, to.number) else {
            return Outcome::Refused(Answer::AccessError);
        };
        let offset = remote.addr.wrapping_sub(FIRST_ADDRESS);
        let costs = &self.config.costs;
        self.nodes[usize::from(to.node)].nic.record_write(costs, self.now_ns, offset, remote.len);
        let receive = match imm {
            Some(_) => match self.take_receive(to) {
                Some(receive) => Some(receive),
                None => return Outcome::NotReady,
            },
            None => None,
        };
        if remote.len > 0 && self.lands_slowly() {
            let srq = self.pair(to).and_then(|pair| pair.srq);
            let chunk_bytes = chunk_bytes(remote.len as usize);
            let rkey = into.rkey;
            let landing = Landing { into, chunk_bytes, receive, rkey, srq };
            return self.begin_landing(index, landing);
        }
        into.write(0, &self.messages[index].payload);
        self.record_landing(to.node, into.span(0, remote.len as usize));
        if into.watched {
            self.wake_watchers(to.node, into.rkey);
        }
        if let Some(receive) = receive {
            let opcode = CompletionOpcode::RecvWriteWithImm;
            self.complete_receive(to, receive, Status::Success, opcode, remote.len as u32, imm);
        }
        Outcome::Done
    }

    fn begin_landing(&mut self, index: u32, landing: Landing) -> Outcome {
        let chunks = self.messages[index].payload.len().div_ceil(landing.chunk_bytes);
        let mut order: Vec<u32> = (0..chunks as u32).collect();
        let relaxed = landing.into.access.contains(Access::RELAXED_ORDERING);
        match self.config.landing {
            How::AnyOrder => self.dice.shuffle(&mut order),
            How::LeftToRight if relaxed => self.dice.shuffle(&mut order),
            How::LeftToRight | How::AtOnce => {}
        }
        let late_ns = match self.is_late() {
            true => self.dice.below(nanos(self.config.late).saturating_add(1)),
            false => 0,
        };
        let begin_ns = self.now_ns + late_ns;
        let end_ns = begin_ns + self.config.costs.landing(chunks as u64);
        for (place, chunk) in order.into_iter().enumerate() {
            let at_ns = match self.config.landing {
                How::AtOnce => end_ns,
                _ => begin_ns + self.config.costs.landing(place as u64),
            };
            self.events.push(at_ns, Event::Chunk { message: index, chunk });
        }
        self.messages[index].landing = Some(Box::new(landing));
        self.messages.hold(index);
        self.events.push(end_ns, Event::Landed(index));
        if self.is_late() { Outcome::Done } else { Outcome::Answered }
    }

    /// Lets one piece of a WRITE land, unless its queue pair is gone: then it never does.
    pub(super) fn land_chunk(&mut self, index: u32, chunk: u32) {
        let (to, psn) = (self.messages[index].to, self.messages[index].psn);
        if self.pair(to).is_none() {
            return;
        }
        let message = &self.messages[index];
        let Some(landing) = &message.landing else { return };
        let start = chunk as usize * landing.chunk_bytes;
        let end = (start + landing.chunk_bytes).min(message.payload.len());
        landing.into.write(start, &message.payload[start..end]);
        let len = end - start;
        let span = landing.into.span(start, len);
        let rkey = landing.rkey;
        self.trace.mix(self.now_ns << 16 ^ u64::from(chunk));
        self.note(to, || format!("has piece {chunk} of message {psn}: {len} bytes from {start}"));
        self.record_landing(to.node, span);
        // Also those who watch only since the message was delivered.
        self.wake_watchers(to.node, rkey);
    }

    /// Handles a WRITE whose pieces have all landed.
    pub(super) fn finish_landing(&mut self, index: u32) {
        let message = &mut self.messages[index];
        let (from, to, psn, imm, class) =
            (message.from, message.to, message.psn, message.imm, message.class);
        let len = message.payload.len() as u32;
        let landing = message.landing.take();
        let accepts = self.pair(to).map(|pair| pair.accepts_messages());
        if let Some(Landing { receive: Some(receive), srq, .. }) = landing.map(|landing| *landing) {
            let opcode = CompletionOpcode::RecvWriteWithImm;
            match accepts {
                Some(true) => {
                    self.complete_receive(to, receive, Status::Success, opcode, len, imm);
                }
                // It broke meanwhile: the receive is flushed like the others.
                Some(false) => {
                    self.complete_receive(
                        to,
                        receive,
                        Status::Flushed,
                        CompletionOpcode::Recv,
                        0,
                        None,
                    );
                }
                None => {
                    let srqs = &mut self.node(to.node).srqs;
                    if let Some(shared) = srq.and_then(|srq| srqs.get_mut(srq)) {
                        shared.polled();
                    }
                }
            }
        }
        if accepts == Some(true) && class == QpType::Rc && !self.is_late() {
            self.answer(to, from, psn, Answer::Done);
        }
        self.messages.release(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_lines_and_not_too_many() {
        for len in [1, 63, 64, 65, 4096, 4097, 100_000, 128 << 20] {
            let size = chunk_bytes(len);
            assert!(
                size.is_multiple_of(LINE_BYTES) && len.div_ceil(size) <= MAX_CHUNKS,
                "{len}: {size}"
            );
        }
        assert_eq!(chunk_bytes(4096), 64);
    }
}
