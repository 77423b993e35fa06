//! The sending side of a NIC: from the doorbell to the wire.

use super::event::{Answer, Event, QpId};
use super::message::Kind;
use super::nic::Work;
use super::node::MAX_RD_ATOMIC;
use super::pair::Wqe;
use super::world::World;
use crate::{QpState, QpType};

impl World {
    /// Handles a doorbell of so many cache lines.
    pub(super) fn handle_doorbell(&mut self, qp: QpId, rung: u32, lines: u8) {
        let Some(node) = self.nodes.get_mut(usize::from(qp.node)) else { return };
        if lines > 0 {
            let at_ns = node.nic.take_doorbell(&self.config.costs, self.now_ns, lines);
            if at_ns > self.now_ns {
                return self.events.push(at_ns, Event::Doorbell { qp, rung, lines: 0 });
            }
        }
        let (nic, Some(pair)) = (&mut node.nic, node.pairs.get_mut(qp.number)) else { return };
        match pair.state {
            QpState::ReadyToSend => {
                pair.notified = pair.notified.max(pair.number_of(rung).unwrap_or(0));
                let last = pair.notified.saturating_sub(1);
                let ahead = last.saturating_sub(pair.base);
                // The NIC drops a pushed READ that has to wait for answers, and reads it from memory later.
                if ahead < MAX_RD_ATOMIC as u64
                    && let Some(wqe) = pair.wqe(last).filter(|wqe| wqe.pushed && wqe.asks)
                {
                    nic.keep(&mut wqe.arrival);
                }
                self.fetch(qp);
            }
            QpState::Error => self.flush(qp),
            _ => {}
        }
    }

    /// Fetches the work requests of one doorbell, if allowed. Then the other queue pairs have their turn.
    pub(super) fn fetch(&mut self, qp: QpId) {
        self.fetch_with(qp, false);
    }

    /// Resumes a queue pair that has waited for others, or for its context.
    pub(super) fn resume(&mut self, qp: QpId, context_read: bool) {
        let Some(pair) = self.pair(qp) else { return };
        pair.has_turn = false;
        if pair.state == QpState::ReadyToSend {
            self.fetch_with(qp, context_read);
        }
    }

    fn fetch_with(&mut self, qp: QpId, context_read: bool) {
        let (costs, now_ns) = (&self.config.costs, self.now_ns);
        let Some(node) = self.nodes.get_mut(usize::from(qp.node)) else { return };
        let (nic, Some(pair)) = (&mut node.nic, node.pairs.get_mut(qp.number)) else { return };
        let (mut is_there, mut sent) = (context_read, 0);
        while !pair.rnr_wait && !pair.has_turn && pair.next < pair.notified {
            let Some(wqe) = pair.sends.get_mut((pair.next - pair.base) as usize) else { return };
            if wqe.asks && pair.asking >= MAX_RD_ATOMIC as u32 {
                return; // An answer will make room.
            }
            if let Some(dynamic) = &pair.dynamic {
                let target = wqe.to;
                if !dynamic.reaches(target) {
                    return self.approach(qp, target);
                }
                let responder = pair.peer.unwrap_or(target);
                self.messages[wqe.message].to = responder;
            }
            let context = (!context_read).then_some(&mut pair.context);
            let pushed = wqe.pushed;
            let read = (pushed && wqe.asks).then_some(&mut wqe.arrival);
            if !is_there
                && let Some(at_ns) =
                    nic.find_to_send(costs, now_ns, qp.number, context, pushed, read)
                && sent == 0
            {
                pair.has_turn = true;
                return self.events.push(at_ns, Event::Resume { qp, context_read: true });
            }
            // The NIC reads a queue's requests ahead: those after the first cost reads, and no further wait.
            is_there = true;
            pair.asking += u32::from(wqe.asks);
            if wqe.asks && !wqe.pushed {
                nic.keep(&mut wqe.arrival);
            }
            let work = Work {
                lines: wqe.lines.into(),
                pushed: wqe.pushed,
                last: wqe.last,
                fetched: self.messages[wqe.message].source.map_or(0, |(_, len)| len as u64),
                datagram: pair.ty == QpType::Ud,
            };
            let at_ns = nic.send(costs, now_ns, work);
            let is_local = pair.has_skipped && self.messages[wqe.message].kind.is_local();
            let window_ns = if is_local { costs.window_ns } else { 0 };
            // Work leaves in posting order, although inline bytes are available sooner, and each request occupies the
            // queue pair's processing unit.
            let at_ns = at_ns.max(pair.last_launch_ns + costs.queue_pair_ns) + window_ns;
            pair.last_launch_ns = at_ns;
            let launch = Event::Launch { qp, epoch: pair.epoch, psn: pair.next as u32 };
            self.events.push(at_ns, launch);
            pair.next += 1;
            sent += 1;
            if wqe.last && pair.next < pair.notified {
                // Otherwise a queue pair with more waiting would need its context more often, and some rates would have two
                // states: with few waiting, and with so many that they never become few.
                let goes_on = |wqe: &mut Wqe| wqe.pushed && (!wqe.asks || sent < costs.turn_reads);
                if context_read && pair.wqe(pair.next).is_some_and(goes_on) {
                    is_there = false;
                    continue;
                }
                pair.has_turn = true;
                let turn_ns = nic.next_turn(now_ns, context_read);
                let turn_ns = turn_ns.max(now_ns + costs.queue_pair_ns);
                self.events.push(turn_ns, Event::Resume { qp, context_read: false });
            }
        }
    }

    /// Sends a work request to the wire.
    pub(super) fn launch(&mut self, qp: QpId, epoch: u16, psn: u32) {
        let Some(pair) = self.pair(qp) else { return };
        if pair.epoch != epoch || pair.state != QpState::ReadyToSend {
            return;
        }
        let Some(number) = pair.number_of(psn) else { return };
        if pair.has_skipped {
            let index = pair.wqe(number).map(|wqe| wqe.message);
            let kind = index.map(|index| self.messages[index].kind);
            if let Some(kind) = kind.filter(Kind::is_local) {
                return self.execute_locally(qp, number, kind);
            }
        }
        let Some(pair) = self.pair(qp) else { return };
        let (ty, first) = (pair.ty, number == pair.base);
        let Some(wqe) = pair.wqe(number) else { return };
        let (index, asked) = (wqe.message, if wqe.asks { u64::from(wqe.len) } else { 0 });
        let message = &mut self.messages[index];
        if let Some((place, len)) = message.source.take() {
            // SAFETY: its work request is posted, and what it names has `len` bytes (`World::post`).
            unsafe { place.read(len, &mut message.payload) };
        }
        self.trace.mix(u64::from(qp.number) << 32 | u64::from(psn));
        self.trace.mix(self.now_ns);
        if self.trace.is_read() {
            let (kind, to) = (self.messages[index].kind.name(), self.messages[index].to);
            let len = self.messages[index].wire_len();
            let to = format!("node {} qp {:#x}", to.node, to.number);
            self.say(qp, format!("message {psn}, {kind}, leaves with {len} bytes for {to}"));
        }
        let gone_ns = self.transmit(index, self.now_ns);
        if ty != QpType::Rc {
            let at_ns = gone_ns + self.config.costs.pcie_write_ns;
            let sent = Event::Answer { to: qp, psn, answer: Answer::Sent, processed: true };
            return self.events.push(at_ns, sent);
        }
        // The timeout includes the link time of the answer.
        let answer_ns = self.config.costs.link_ps(asked) / 1000;
        let Some(pair) = self.pair(qp) else { return };
        if first || !pair.timer_set {
            pair.deadline_ns = gone_ns.saturating_add(pair.retry_policy.timeout_ns) + answer_ns;
        }
        self.start_timer(qp);
    }

    /// Puts a message on the link. Returns when it has left; faults decide whether it arrives.
    pub(super) fn transmit(&mut self, index: u32, at_ns: u64) -> u64 {
        let message = &self.messages[index];
        let (from, to, len) = (message.from, message.to, message.wire_len());
        let (class, datagram) = (message.class, matches!(message.kind, Kind::Datagram { .. }));
        let to_itself = from.node == to.node;
        let nic = &mut self.nodes[usize::from(from.node)].nic;
        let sent = nic.transmit(&self.config.costs, at_ns, len, to_itself);
        let Some(delay_ns) = self.draw_wire_delay(from, to, class) else {
            self.lose_in_part(index, sent.arrives_ns);
            return sent.gone_ns;
        };
        let mut arrives_ns = sent.arrives_ns.saturating_add(delay_ns);
        if datagram {
            if let Some(delay_ns) = self.draw_copy_delay(from, to) {
                self.messages.hold(index);
                self.events.push(sent.arrives_ns.saturating_add(delay_ns), Event::Arrive(index));
            }
        } else if let Some(pair) = self.pair(from) {
            arrives_ns = arrives_ns.max(pair.last_arrival_ns);
            pair.last_arrival_ns = arrives_ns;
            self.note_transit(index, sent, arrives_ns);
        }
        self.messages.hold(index);
        self.events.push(arrives_ns, Event::Arrive(index));
        sent.gone_ns
    }
}
