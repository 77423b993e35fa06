//! Persistent memory in the life of a node: what the NIC writes there, flushes, and a loss of power.

use super::delivery::Outcome;
use super::event::Answer;
use super::media::Span;
use super::world::World;
use crate::{Access, RemoteSlice};

impl World {
    /// The NIC has written memory, of which this is persistent.
    #[inline]
    pub(super) fn landed_in(&mut self, node: u16, span: Option<Span>) {
        let Some(span) = span else { return };
        let World { nodes, dice, config, now_ns, .. } = self;
        nodes[usize::from(node)].media.arrived(span, &config.durability, *now_ns, dice);
    }

    /// The same, for memory of its own program.
    pub(super) fn came_in(&mut self, node: u16, rkey: u32, start: u64, len: u64) {
        let state = &self.nodes[usize::from(node)];
        if !state.media.is_empty() {
            self.landed_in(node, state.regions.span(rkey, start, len));
        }
    }

    /// The NIC reads memory. What it has written before goes ahead, before the answer leaves.
    #[inline]
    pub(super) fn push_queue(&mut self, node: u16) {
        let World { nodes, dice, config, .. } = self;
        nodes[usize::from(node)].media.push_queue(&config.durability, dice);
    }

    /// A flush has come: it is answered when what its connection has written there is durable.
    pub(super) fn flush_memory(&mut self, index: u32, remote: RemoteSlice) -> Outcome {
        let to = self.messages[index].to;
        let Some(pd) = self.pair(to).map(|pair| pair.pd) else { return Outcome::Answered };
        let World { nodes, dice, config, .. } = self;
        let node = &mut nodes[usize::from(to.node)];
        // Being persistent is what allows it: for Linux, too, only persistent memory may be flushed so.
        let found = node.regions.find(remote, Access::empty(), pd);
        let Some(found) = found.filter(|found| remote.is_empty() || found.is_persistent()) else {
            return Outcome::Refused(Answer::AccessError);
        };
        node.media.push_queue(&config.durability, dice);
        let lines = found
            .span(0, remote.len as usize)
            .map_or(0, |span| node.media.persist(span, &config.durability, dice));
        let done_ns = self.now_ns + lines * config.durability.write_back_ns;
        self.respond_with(index, done_ns, |_| {});
        Outcome::Answered
    }

    /// Persistent memory loses what is not durable.
    pub(super) fn lose_power(&mut self, node: u16) {
        let World { nodes, dice, config, now_ns, .. } = self;
        let media = &mut nodes[usize::from(node)].media;
        let at_stake = media.lose_power(&config.durability, *now_ns, dice);
        self.trace.mix(at_stake);
        self.note_node(node, || format!("loses its power, with {at_stake} lines not durable"));
    }
}
