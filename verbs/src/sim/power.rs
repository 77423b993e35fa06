//! Persistent memory of a node: writes of the NIC, flushes, and power failures.

use super::delivery::Outcome;
use super::event::{Answer, QpId};
use super::media::Span;
use super::world::World;
use crate::{Access, RemoteSlice};

impl World {
    /// Records a write of the NIC, if it is to persistent memory.
    #[inline]
    pub(super) fn record_landing(&mut self, node: u16, span: Option<Span>) {
        let Some(span) = span else { return };
        let World { nodes, dice, config, now_ns, .. } = self;
        nodes[usize::from(node)].media.record_nic_write(span, &config.durability, *now_ns, dice);
    }

    /// Records a write to memory of the NIC's own program.
    pub(super) fn record_local_write(&mut self, node: u16, rkey: u32, start: u64, len: u64) {
        let state = &self.nodes[usize::from(node)];
        if !state.media.is_empty() {
            self.record_landing(node, state.regions.span(rkey, start, len));
        }
    }

    /// Handles a read of memory by the NIC: earlier writes become durable before the response leaves.
    #[inline]
    pub(super) fn push_queue(&mut self, node: u16) {
        let World { nodes, dice, config, .. } = self;
        nodes[usize::from(node)].media.push_queue(&config.durability, dice);
    }

    /// Executes a flush. It is answered when the earlier writes of its connection have left the PCIe queue, and, if flushes go
    /// through caches, are durable.
    pub(super) fn flush_memory(&mut self, index: u32, remote: RemoteSlice) -> Outcome {
        let to = self.messages[index].to;
        let Some(pd) = self.pair(to).map(|pair| pair.pd) else { return Outcome::Answered };
        let World { nodes, dice, config, .. } = self;
        let node = &mut nodes[usize::from(to.node)];
        // Persistence is the only permission needed: in Linux, too, only persistent memory may be flushed.
        let found = node.regions.find(remote, Access::empty(), pd, to.number);
        let Some(found) = found.filter(|found| remote.is_empty() || found.is_persistent()) else {
            return Outcome::Refused(Answer::AccessError);
        };
        node.media.push_queue(&config.durability, dice);
        let lines = found
            .span(0, remote.len as usize)
            .filter(|_| config.durability.flush_through_caches)
            .map_or(0, |span| node.media.persist(span, &config.durability, dice));
        let done_ns = self.now_ns + lines * config.durability.write_back_ns;
        self.respond_with(index, done_ns, |_| {});
        Outcome::Answered
    }

    /// Drops the bytes of persistent memory that are not durable.
    pub(super) fn lose_power(&mut self, node: u16) {
        if self.config.durability.battery {
            // What the NIC has acknowledged lands first.
            for number in self.node(node).pairs.numbers() {
                self.land_rest(QpId { node, number });
            }
        }
        let World { nodes, dice, config, now_ns, .. } = self;
        let media = &mut nodes[usize::from(node)].media;
        let at_stake = media.lose_power(&config.durability, *now_ns, dice);
        self.trace.mix(at_stake);
        self.note_node(node, || format!("loses its power, with {at_stake} lines not durable"));
    }
}
