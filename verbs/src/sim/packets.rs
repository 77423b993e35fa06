//! WRITEs that fail on their way: a prefix of whole packets lands, and nothing else.
//!
//! A WRITE that is longer than the path MTU travels as several packets. Each is executed when it arrives, and none is undone. So a WRITE
//! fails in the midst if a packet is lost, if its sender stops, if its responder's queue pair is destroyed or in error, or if the range
//! leaves the memory that its key names. Measured so on ConnectX-5 and ConnectX-6: a failed WRITE leaves the first packets whole, never half
//! of one, and after the death of a peer its sender cannot know how many. Messages of one packet need none of this.

use super::event::{Event, QpId};
use super::message::Kind;
use super::nic::Sent;
use super::world::World;
use crate::{Access, QpType, RemoteSlice};

/// A WRITE of several packets on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transit {
    message: u32,
    gone_ns: u64,
    arrives_ns: u64,
}

impl World {
    fn mtu(&self) -> u64 {
        self.config.costs.mtu_bytes.max(1)
    }

    /// Whether a message is a WRITE of several packets.
    fn has_packets(&self, index: u32) -> bool {
        let message = &self.messages[index];
        matches!(message.kind, Kind::Write(_)) && message.payload.len() as u64 > self.mtu()
    }

    /// The bytes of a message in the packets that have passed a point by now, which the last one passes at `last_ns`.
    fn passed(&self, index: u32, last_ns: u64) -> usize {
        let (len, mtu) = (self.messages[index].payload.len() as u64, self.mtu());
        let packet_ns = (self.config.costs.link_ps(mtu) / 1000).max(1);
        let missing = last_ns.saturating_sub(self.now_ns).div_ceil(packet_ns);
        let packets = len.div_ceil(mtu).saturating_sub(missing);
        (packets * mtu).min(len) as usize
    }

    /// Remembers a WRITE of several packets until it is delivered.
    #[inline]
    pub(super) fn note_transit(&mut self, index: u32, sent: Sent, arrives_ns: u64) {
        if self.has_packets(index) && arrives_ns > self.now_ns {
            self.transits.push(Transit { message: index, gone_ns: sent.gone_ns, arrives_ns });
        }
    }

    /// Forgets it: it is delivered.
    #[inline]
    pub(super) fn end_transit(&mut self, index: u32) {
        if let Some(at) = self.transits.iter().position(|transit| transit.message == index) {
            self.transits.swap_remove(at);
        }
    }

    /// A message is lost. If it has several packets, those before the lost one arrive.
    pub(super) fn lose_in_part(&mut self, index: u32, arrives_ns: u64) {
        if !self.has_packets(index) {
            return;
        }
        let packets = (self.messages[index].payload.len() as u64).div_ceil(self.mtu());
        let kept = (self.dice.below(packets) * self.mtu()) as usize;
        if kept == 0 {
            return;
        }
        let whole = &self.messages[index];
        let (class, kind, from, to) = (whole.class, whole.kind, whole.from, whole.to);
        let (psn, skipped, front) = (whole.psn, whole.skipped, whole.payload[..kept].to_vec());
        let part = self.messages.insert(class, kind, from, to);
        let part_of = &mut self.messages[part];
        part_of.payload.extend_from_slice(&front);
        (part_of.psn, part_of.skipped, part_of.is_cut) = (psn, skipped, true);
        self.events.push(arrives_ns, Event::Arrive(part));
    }

    /// Delivers the first packets of a WRITE whose rest never comes. Nothing is acknowledged: the next message shows what is missing.
    pub(super) fn deliver_part(&mut self, index: u32) {
        let (to, len) = (self.messages[index].to, self.messages[index].payload.len());
        if !self.is_next(index) {
            return;
        }
        self.land_front(index, len);
        if let Some(pair) = self.pair(to) {
            // These packets came in order, so what is missing behind them is reported again.
            pair.nak_sent = false;
        }
    }

    /// Whether a message is the next one that its queue pair executes.
    fn is_next(&mut self, index: u32) -> bool {
        let message = &self.messages[index];
        let (class, to, psn, skipped) = (message.class, message.to, message.psn, message.skipped);
        let Some(pair) = self.pair(to).filter(|pair| pair.accepts_messages()) else { return false };
        class != QpType::Rc || psn.wrapping_sub(pair.expected) == skipped
    }

    /// Lets the first bytes of a WRITE land: whole packets, as many of them as its key allows.
    pub(super) fn land_front(&mut self, index: u32, len: usize) {
        let message = &self.messages[index];
        let (Kind::Write(remote), to) = (message.kind, message.to) else { return };
        let Some(pd) = self.pair(to).map(|pair| pair.pd) else { return };
        let mtu = self.mtu();
        let regions = &self.nodes[usize::from(to.node)].regions;
        let front = |bytes: u64| {
            let front = RemoteSlice { len: bytes.min(len as u64), ..remote };
            regions.find(front, Access::REMOTE_WRITE, pd, to.number).filter(|_| front.len > 0)
        };
        let (mut landed, mut beyond) = (0, (len as u64).div_ceil(mtu) + 1);
        while beyond - landed > 1 {
            let middle = landed + (beyond - landed) / 2;
            if front(middle * mtu).is_some() { landed = middle } else { beyond = middle }
        }
        let Some(into) = front(landed * mtu) else { return };
        let bytes = ((landed * mtu) as usize).min(len);
        into.write(0, &self.messages[index].payload[..bytes]);
        let (span, rkey, psn) = (into.span(0, bytes), into.rkey, self.messages[index].psn);
        self.note(to, || format!("has the first {bytes} bytes of message {psn}, which fails"));
        self.trace.mix(self.now_ns ^ bytes as u64);
        self.record_landing(to.node, span);
        self.wake_watchers(to.node, rkey);
    }

    /// A queue pair stops: packets that have not left stay, those that have arrived land, and the others are dropped.
    pub(super) fn stop_packets(&mut self, qp: QpId) {
        self.finish_packets(qp);
        for at in 0..self.transits.len() {
            let Transit { message: index, gone_ns, arrives_ns } = self.transits[at];
            let message = &self.messages[index];
            if message.from == qp && gone_ns > self.now_ns {
                let left = self.passed(index, gone_ns);
                let message = &mut self.messages[index];
                message.payload.truncate(left);
                message.is_cut = true;
            } else if message.to == qp && self.is_next(index) {
                let arrived = self.passed(index, arrives_ns);
                self.land_front(index, arrived);
            }
        }
    }

    /// Forgets the packets on their way to a node that is no more.
    pub(super) fn drop_packets_to(&mut self, node: u16) {
        let messages = &self.messages;
        self.transits.retain(|transit| messages[transit.message].to.node != node);
    }
}
