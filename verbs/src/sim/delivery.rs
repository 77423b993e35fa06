//! The receiving side of a NIC: arriving messages are checked and executed in order.

use super::dynamic::Dynamic;
use super::event::{Answer, Event, QpId};
use super::message::Kind;
use super::nic::Inbound;
use super::node::gid;
use super::queue::{Completion, Ended};
use super::receives::Receive;
use super::world::World;
use crate::route_header::RouteHeader;
use crate::{CompletionOpcode, GRH_BYTES, QpState, QpType, Status};

/// The result of executing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Executed; it must be acknowledged.
    Done,
    /// Its answer, if any, is in flight or will follow.
    Answered,
    /// There is no receive for it.
    NotReady,
    /// The access is not allowed.
    Refused(Answer),
    /// It was longer than its receive.
    TooLong,
}

impl World {
    /// Handles an arrived message: the NIC processes it.
    pub(super) fn arrive(&mut self, index: u32) {
        let message = &self.messages[index];
        let (to, len) = (message.to, message.wire_len());
        let landing_ns = self.landing_ns(index);
        let node = &mut self.nodes[usize::from(to.node)];
        if !node.alive {
            self.end_transit(index);
            return self.messages.release(index);
        }
        let costs = &self.config.costs;
        let what = match message.kind {
            Kind::Write(_) if message.imm.is_none() => Inbound::Write,
            Kind::Write(_) | Kind::Send | Kind::Datagram { .. } => Inbound::Receive,
            Kind::Read(remote) => Inbound::ReadRequest(remote.len),
            Kind::Flush(_) => Inbound::ReadRequest(0),
            Kind::CompareAndSwap { remote, .. } | Kind::FetchAdd { remote, .. } => {
                Inbound::Atomic(remote.addr)
            }
            Kind::Response => Inbound::Response(len),
            Kind::Connect { .. } | Kind::Disconnect => Inbound::ReadRequest(0),
            Kind::Bind(_) | Kind::Invalidate(_) => return self.messages.release(index), // Never sent.
        };
        let to_itself = message.from.node == to.node;
        let mut at_ns = node.nic.deliver(costs, self.now_ns, len, what, to_itself);
        if let Some(pair) = node.pairs.get_mut(to.number) {
            let found_ns = match what {
                Inbound::Write | Inbound::Receive => self.now_ns,
                Inbound::ReadRequest(_) | Inbound::Atomic(_) => {
                    node.nic.find_to_respond(costs, self.now_ns, to.number, &mut pair.context)
                }
                Inbound::Response(_) => {
                    let number = pair.number_of(message.psn);
                    let request = number.and_then(|number| pair.wqe(number)).map(|wqe| wqe.arrival);
                    request.map_or(self.now_ns, |request| {
                        let (qp, context) = (to.number, &mut pair.context);
                        node.nic.find_for_response(costs, self.now_ns, qp, context, request)
                    })
                }
            };
            at_ns = at_ns.max(found_ns);
            at_ns = at_ns.max(pair.landed_ns);
            pair.landed_ns = at_ns + landing_ns;
        }
        self.events.push(at_ns, Event::Deliver(index));
    }

    /// Executes a message.
    pub(super) fn deliver(&mut self, index: u32) {
        self.end_transit(index);
        let message = &self.messages[index];
        let (kind, class, from, to) = (message.kind, message.class, message.from, message.to);
        let psn = message.psn;
        self.trace.mix(self.now_ns ^ u64::from(message.psn) << 40 ^ u64::from(to.number));
        self.trace.mix(edges(&message.payload));
        self.nodes[usize::from(to.node)].nic.count_message();
        if let Kind::Connect { .. } | Kind::Disconnect = kind {
            match kind {
                Kind::Connect { key } => self.accept_initiator(index, key),
                _ => self.forget_initiator(from, to),
            }
            return self.messages.release(index);
        }
        let known = self.pair(to).filter(|pair| {
            let bound = matches!(kind, Kind::Datagram { .. }) || pair.peer == Some(from);
            pair.ty == class && bound && pair.accepts_messages()
        });
        let is_known = known.is_some();
        self.note(to, || {
            let what = if is_known { "delivers" } else { "does not take" };
            let (kind, node, qp) = (kind.name(), from.node, from.number);
            format!("{what} message {psn}, {kind}, of node {node} qp {qp:#x}")
        });
        if !is_known {
            return self.messages.release(index);
        }
        match (kind, class) {
            _ if self.messages[index].is_cut => self.deliver_part(index),
            (Kind::Response, _) => self.deliver_response(index),
            (Kind::Datagram { qkey }, _) => self.deliver_datagram(index, qkey),
            (_, QpType::Rc) => self.deliver_reliable(index),
            (_, _) => self.deliver_unreliable(index),
        }
        self.messages.release(index);
    }

    /// Handles a message of a reliable connection: each is executed in order, and once.
    fn deliver_reliable(&mut self, index: u32) {
        let message = &self.messages[index];
        let (from, to, psn, skipped) = (message.from, message.to, message.psn, message.skipped);
        let Some(pair) = self.pair(to) else { return };
        let expected = pair.expected;
        match psn.wrapping_sub(expected) as i32 {
            ahead if ahead == skipped as i32 => {}
            ahead if ahead > 0 => {
                if !std::mem::replace(&mut pair.nak_sent, true) {
                    self.answer(to, from, expected, Answer::OutOfSequence);
                }
                return;
            }
            _ => return self.repeat(index),
        }
        let outcome = self.execute(index);
        if let Some(pair) = self.pair(to) {
            match outcome {
                Outcome::Done | Outcome::Answered => {
                    pair.expected = psn.wrapping_add(1);
                    pair.nak_sent = false;
                }
                // Later messages are dropped silently until this one is sent again.
                _ => pair.nak_sent = true,
            }
        }
        match outcome {
            Outcome::Done => self.answer(to, from, psn, Answer::Done),
            Outcome::Answered => {}
            Outcome::NotReady => self.answer(to, from, psn, Answer::NotReady),
            Outcome::Refused(answer) => {
                self.land_front(index, self.messages[index].payload.len());
                self.answer(to, from, psn, answer);
                self.break_pair(to);
            }
            Outcome::TooLong => {
                self.answer(to, from, psn, Answer::InvalidRequest);
                self.break_pair(to);
            }
        }
    }

    /// Handles a message of an unreliable connection: one that does not fit is lost.
    fn deliver_unreliable(&mut self, index: u32) {
        let to = self.messages[index].to;
        match self.execute(index) {
            Outcome::TooLong => self.break_pair(to),
            Outcome::Refused(_) => self.land_front(index, self.messages[index].payload.len()),
            Outcome::Done | Outcome::Answered | Outcome::NotReady => {}
        }
    }

    /// Executes a request that arrived in order.
    fn execute(&mut self, index: u32) -> Outcome {
        match self.messages[index].kind {
            Kind::Send => self.deliver_send(index),
            Kind::Write(remote) => self.write(index, remote),
            Kind::Read(remote) => self.read(index, remote),
            Kind::CompareAndSwap { remote, expected, new } => {
                let swap = move |old| if old == expected { new } else { old };
                self.atomic(index, remote, swap)
            }
            Kind::FetchAdd { remote, add } => {
                self.atomic(index, remote, move |old| old.wrapping_add(add))
            }
            Kind::Flush(remote) => self.flush_memory(index, remote),
            Kind::Datagram { .. }
            | Kind::Response
            | Kind::Bind(_)
            | Kind::Invalidate(_)
            | Kind::Connect { .. }
            | Kind::Disconnect => Outcome::Answered,
        }
    }

    /// Takes the receive for the next message.
    pub(super) fn take_receive(&mut self, qp: QpId) -> Option<Receive> {
        let node = self.nodes.get_mut(usize::from(qp.node))?;
        let pair = node.pairs.get_mut(qp.number)?;
        match pair.srq {
            Some(srq) => node.srqs.get_mut(srq)?.receives.take(),
            None => pair.receives.take(),
        }
    }

    fn deliver_send(&mut self, index: u32) -> Outcome {
        let to = self.messages[index].to;
        let Some(mut receive) = self.take_receive(to) else { return Outcome::NotReady };
        let message = &self.messages[index];
        let (len, imm) = (message.payload.len(), message.imm);
        let room = receive.buffer.as_ref().map_or(0, |buffer| buffer.len());
        if len > room {
            self.complete_receive(
                to,
                receive,
                Status::LocalLength,
                CompletionOpcode::Recv,
                0,
                None,
            );
            return Outcome::TooLong;
        }
        if let Some(buffer) = &mut receive.buffer {
            buffer[..len].copy_from_slice(&message.payload);
            buffer.set_len(len);
        }
        self.complete_receive(
            to,
            receive,
            Status::Success,
            CompletionOpcode::Recv,
            len as u32,
            imm,
        );
        Outcome::Done
    }

    /// Completes a receive.
    pub(super) fn complete_receive(
        &mut self,
        at: QpId,
        receive: Receive,
        status: Status,
        opcode: CompletionOpcode,
        byte_len: u32,
        imm: Option<u32>,
    ) {
        let Receive { id, buffer } = receive;
        let Some(pair) = self.pair(at) else { return };
        let ended = pair.srq.map_or(Ended::Receive, Ended::Shared);
        // Of a responder the owner knows the target.
        let target = pair.dynamic.as_deref().and_then(Dynamic::target_number);
        let (cq, qp, source) = (pair.recv_cq, target.unwrap_or(at.number), None);
        let completion =
            Completion { id, qp, status, opcode, byte_len, imm, source, buffer, ended };
        self.complete(at, cq, completion);
    }

    /// Handles a datagram, and drops it silently on any obstacle.
    fn deliver_datagram(&mut self, index: u32, qkey: u32) {
        let message = &self.messages[index];
        let (from, to, imm) = (message.from, message.to, message.imm);
        if self.pair(to).is_none_or(|pair| pair.qkey != qkey) {
            return;
        }
        let Some(mut receive) = self.take_receive(to) else { return };
        let payload = &self.messages[index].payload;
        let len = GRH_BYTES + payload.len();
        let fits = receive.buffer.as_mut().filter(|buffer| buffer.len() >= len);
        let (status, byte_len) = match fits {
            Some(buffer) => {
                buffer.set_len(len);
                if let Some((route, into)) = buffer.split_first_chunk_mut() {
                    RouteHeader::new(&gid(from.node), &gid(to.node)).fill(route, payload.len());
                    into.copy_from_slice(payload);
                }
                (Status::Success, len as u32)
            }
            None => (Status::LocalLength, 0),
        };
        let Receive { id, buffer } = receive;
        let Some(pair) = self.pair(to) else { return };
        let completion = Completion {
            id,
            qp: to.number,
            status,
            opcode: CompletionOpcode::Recv,
            byte_len,
            imm,
            source: Some(from),
            buffer,
            ended: pair.srq.map_or(Ended::Receive, Ended::Shared),
        };
        let cq = pair.recv_cq;
        self.complete(to, cq, completion);
    }

    /// Handles the response to a READ or an atomic.
    fn deliver_response(&mut self, index: u32) {
        let message = &self.messages[index];
        let to = message.to;
        let Some(pair) =
            self.nodes.get_mut(usize::from(to.node)).and_then(|node| node.pairs.get_mut(to.number))
        else {
            return;
        };
        let Some(number) = pair.number_of(message.psn) else { return };
        if pair.state != QpState::ReadyToSend || number >= pair.next {
            return;
        }
        let before = (number - pair.base) as usize;
        if let Some(ahead) = pair.sends.iter().take(before).position(|wqe| wqe.asks && !wqe.done) {
            // Responses arrive in order, so an earlier one is lost: request it again, and all behind it.
            let missing = pair.base + ahead as u64;
            if pair.missed.replace(missing) != Some(missing) {
                pair.go_back(missing);
                self.fetch(to);
            }
            return;
        }
        let Some(wqe) = pair.wqe(number).filter(|wqe| wqe.asks && !wqe.done) else { return };
        if let Some(place) = wqe.into.filter(|_| wqe.len as usize == message.payload.len()) {
            // SAFETY: its work request is posted, and what it names has this length (`World::post`).
            unsafe { place.write(&message.payload) };
        }
        let filled = wqe.held.as_ref().map(|slice| slice.range());
        wqe.done = true;
        pair.asking -= 1;
        pair.done_before(number);
        if let Some((rkey, start, len)) = filled {
            self.record_local_write(to.node, rkey, start, len);
            // A program may poll the memory that its READ fills instead of a completion queue.
            self.wake_watchers(to.node, rkey);
        }
        self.retire(to);
        self.fetch(to);
    }
}

/// The first and last bytes of a payload, for the trace: enough to notice when two runs send different data.
fn edges(payload: &[u8]) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let front = payload.first_chunk::<8>().map_or_else(|| word(payload), |bytes| word(bytes));
    let back = payload.last_chunk::<8>().map_or(0, |bytes| word(bytes));
    front ^ back.rotate_left(32) ^ payload.len() as u64
}
