//! The way out: from the doorbell to the wire.

use super::event::{Event, QpId};
use super::message::Kind;
use super::node::MAX_RD_ATOMIC;
use super::world::World;
use crate::{QpState, QpType};

impl World {
    /// The NIC hears of work.
    pub(super) fn doorbell(&mut self, qp: QpId) {
        match self.pair(qp).map(|pair| pair.state) {
            Some(QpState::ReadyToSend) => self.fetch(qp),
            Some(QpState::Error) => self.flush(qp),
            _ => {}
        }
    }

    /// Fetches the work that the NIC knows of, as far as it may.
    pub(super) fn fetch(&mut self, qp: QpId) {
        let Some(node) = self.nodes.get_mut(usize::from(qp.node)) else { return };
        let Some(pair) = node.pairs.get_mut(qp.number) else { return };
        while !pair.holds_back && pair.next < pair.rung {
            let Some(wqe) = pair.sends.get((pair.next - pair.base) as usize) else { return };
            let asks = wqe.asks;
            if asks && pair.asking >= MAX_RD_ATOMIC as u32 {
                return; // An answer makes room.
            }
            pair.asking += u32::from(asks);
            let fetched = self.messages[wqe.message].source.map_or(0, |(_, len)| len as u64);
            let at_ns = self.config.costs.fetch(&mut node.nic, self.now_ns, fetched);
            // Work leaves in the order of posting, though inline bytes are there sooner.
            let at_ns = at_ns.max(pair.last_launch_ns);
            pair.last_launch_ns = at_ns;
            let launch = Event::Launch { qp, epoch: pair.epoch, psn: pair.next as u32 };
            self.events.push(at_ns, launch);
            pair.next += 1;
        }
    }

    /// A work request goes to the wire.
    pub(super) fn launch(&mut self, qp: QpId, epoch: u16, psn: u32) {
        let Some(pair) = self.pair(qp) else { return };
        if pair.epoch != epoch || pair.state != QpState::ReadyToSend {
            return;
        }
        let Some(number) = pair.number_of(psn) else { return };
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
            let at_ns = self.config.costs.completion(gone_ns);
            self.events
                .push(at_ns, Event::Answer { to: qp, psn, answer: super::event::Answer::Sent });
            return;
        }
        // The answer may take as long as the link takes for it.
        let answer_ns = self.config.costs.link_ns(asked);
        let Some(pair) = self.pair(qp) else { return };
        if first || !pair.timer_set {
            pair.deadline_ns = gone_ns.saturating_add(pair.patience.timeout_ns) + answer_ns;
        }
        self.start_timer(qp);
    }

    /// Puts a message onto the link; when it has left. Whether it comes is up to the wire.
    pub(super) fn transmit(&mut self, index: u32, at_ns: u64) -> u64 {
        let message = &self.messages[index];
        let (from, to, len) = (message.from, message.to, message.wire_len());
        let (class, datagram) = (message.class, matches!(message.kind, Kind::Datagram { .. }));
        let to_itself = from.node == to.node;
        let nic = &mut self.nodes[usize::from(from.node)].nic;
        let sent = self.config.costs.transmit(nic, at_ns, len, to_itself);
        let Some(delay_ns) = self.wire(from, to, class) else { return sent.gone_ns };
        let mut arrives_ns = sent.arrives_ns + delay_ns;
        if !datagram && let Some(pair) = self.pair(from) {
            arrives_ns = arrives_ns.max(pair.last_arrival_ns);
            pair.last_arrival_ns = arrives_ns;
        }
        self.messages.hold(index);
        self.events.push(arrives_ns, Event::Arrive(index));
        sent.gone_ns
    }
}
