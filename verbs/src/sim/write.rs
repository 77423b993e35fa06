//! WRITEs: how their bytes land.

use super::config::{Landing as How, nanos};
use super::delivery::Outcome;
use super::event::{Answer, Event, QpId};
use super::memory::FIRST_ADDRESS;
use super::message::{Kind, Landing};
use super::pieces::Pieces;
use super::world::World;
use crate::{Access, CompletionOpcode, QpType, RemoteSlice, Status, Visibility};

impl World {
    /// Whether WRITEs land later than they are delivered.
    fn lands_slowly(&self) -> bool {
        self.config.landing != How::AtOnce || self.is_late()
    }

    /// Whether WRITEs are acknowledged before they have landed.
    fn is_late(&self) -> bool {
        self.config.visibility == Visibility::CompletionMeansDelivered
    }

    /// How long after its delivery a request may take until its last byte has met memory. The next message may be delivered after that: not
    /// at the very time of the last piece, as its event may have been inserted earlier.
    pub(super) fn landing_ns(&self, index: u32) -> u64 {
        let message = &self.messages[index];
        match message.kind {
            Kind::Write(remote) if remote.len > 0 && !message.is_cut && self.lands_slowly() => {
                let pieces = Pieces::of(remote.addr, remote.len).count();
                let late_ns = if self.is_late() { nanos(self.config.late) } else { 0 };
                self.config.costs.landing(pieces as u64) + late_ns + 1
            }
            Kind::Read(remote) => self.reading_ns(remote),
            Kind::CompareAndSwap { .. } | Kind::FetchAdd { .. } => {
                let gap_ns = nanos(self.config.atomic_gap);
                gap_ns + u64::from(gap_ns > 0)
            }
            _ => 0,
        }
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
            let pieces = Pieces::of(remote.addr, remote.len);
            let landing = Landing { receive, srq, ..Landing::new(into, pieces) };
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
        let relaxed = landing.at.access.contains(Access::RELAXED_ORDERING);
        let how = match self.config.landing {
            How::LeftToRight if relaxed => How::AnyOrder,
            how => how,
        };
        let order = landing.pieces.order(how, self.config.costs.mtu_bytes, &mut self.dice);
        let late_ns = match self.is_late() {
            true => self.dice.below(nanos(self.config.late).saturating_add(1)),
            false => 0,
        };
        let begin_ns = self.now_ns + late_ns;
        let end_ns = begin_ns + self.config.costs.landing(order.len() as u64);
        for (place, chunk) in order.into_iter().enumerate() {
            let at_ns = match self.config.landing {
                How::AtOnce => end_ns,
                _ => begin_ns + self.config.costs.landing(place as u64),
            };
            self.events.push(at_ns, Event::Chunk { message: index, chunk });
        }
        let to = self.messages[index].to;
        if let Some(pair) = self.pair(to) {
            pair.landing = Some(index);
        }
        self.messages[index].landing = Some(Box::new(landing));
        self.messages.hold(index);
        self.events.push(end_ns, Event::Landed(index));
        if self.is_late() { Outcome::Done } else { Outcome::Answered }
    }

    /// Lets one piece of a WRITE land, unless its queue pair has stopped: see [`finish_packets`](World::finish_packets).
    pub(super) fn land_chunk(&mut self, index: u32, chunk: u32) {
        if matches!(self.messages[index].kind, Kind::Response) {
            return self.read_chunk(index, chunk);
        }
        let to = self.messages[index].to;
        if self.pair(to).is_some_and(|pair| pair.landing == Some(index)) {
            self.land_piece(index, chunk);
        }
    }

    fn land_piece(&mut self, index: u32, chunk: u32) {
        let message = &mut self.messages[index];
        let (to, psn) = (message.to, message.psn);
        let Some(landing) = &mut message.landing else { return };
        let range = landing.pieces.range(chunk);
        landing.done |= 1 << chunk;
        landing.at.write(range.start, &message.payload[range.clone()]);
        let span = landing.at.span(range.start, range.len());
        let rkey = landing.at.rkey;
        self.trace.mix(self.now_ns << 16 ^ u64::from(chunk));
        self.note(to, || {
            format!(
                "has piece {chunk} of message {psn}: {} bytes from {}",
                range.len(),
                range.start
            )
        });
        self.record_landing(to.node, span);
        // Also those who watch only since the message was delivered.
        self.wake_watchers(to.node, rkey);
    }

    /// A queue pair stops: of the WRITE that is landing, the packets land of which there is something already, and those before them.
    /// One that is acknowledged is not failed, and lands whole.
    pub(super) fn finish_packets(&mut self, qp: QpId) {
        if self.is_late() {
            return;
        }
        let Some(index) = self.pair(qp).and_then(|pair| pair.landing) else { return };
        let Some(landing) = &self.messages[index].landing else { return };
        let begun =
            (0..landing.pieces.count() as u32).filter(|piece| landing.done >> piece & 1 == 1);
        let end = begun.map(|piece| landing.pieces.range(piece).end).max().unwrap_or(0);
        let mtu = self.config.costs.mtu_bytes.max(1) as usize;
        self.land_missing(index, end.next_multiple_of(mtu));
        if let Some(pair) = self.pair(qp) {
            pair.landing = None;
        }
    }

    /// A queue pair is being destroyed: what it has acknowledged lands now.
    pub(super) fn land_rest(&mut self, qp: QpId) {
        if let Some(index) = self.pair(qp).and_then(|pair| pair.landing.take()) {
            self.land_missing(index, usize::MAX);
        }
    }

    /// Lets the pieces before `end` land that have not.
    fn land_missing(&mut self, index: u32, end: usize) {
        let Some(landing) = &self.messages[index].landing else { return };
        let (pieces, done) = (landing.pieces, landing.done);
        let missing = (0..pieces.count() as u32).filter(|piece| done >> piece & 1 == 0);
        let missing: Vec<u32> = missing.filter(|piece| pieces.range(*piece).end <= end).collect();
        for piece in missing {
            self.land_piece(index, piece);
        }
    }

    /// Handles a WRITE whose pieces have all landed.
    pub(super) fn finish_landing(&mut self, index: u32) {
        let message = &mut self.messages[index];
        let (from, to, psn, imm, class) =
            (message.from, message.to, message.psn, message.imm, message.class);
        let len = message.payload.len() as u32;
        let landing = message.landing.take();
        if let Some(pair) = self.pair(to) {
            pair.landing.take_if(|landing| *landing == index);
        }
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
