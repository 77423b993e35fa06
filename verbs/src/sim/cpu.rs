//! The CPU's costs of posting: the caches and locks of the cores.

use super::event::QpId;
use super::world::World;

/// The queue pairs whose state is in a core's own cache. It is direct-mapped: queue pairs with the same index
/// replace one another.
pub(super) type PairCache = [u32; WARM_PAIRS];

/// A power of two, indexed by a hash of 5 bits. READs of one thread of FaSST slow down between 5 and 100
/// queue pairs (section 3.3).
const WARM_PAIRS: usize = 32;

impl World {
    /// Lets the running actor use a queue pair. It waits for another actor that uses it, and fetches state that
    /// is not in its core's cache.
    pub(super) fn enter_pair(&mut self, qp: QpId) {
        let Some(actor) = self.actors.on_turn() else { return };
        let costs = &self.config.costs;
        let mut cost_ns = costs.post_ns;
        let index = qp.number.wrapping_mul(0x9e37_79b1) >> 27;
        let cached = &mut self.actors.pair_cache(actor)[index as usize];
        if *cached != qp.number {
            *cached = qp.number;
            cost_ns += costs.cold_pair_ns;
        }
        let begin_ns = self.now_ns + self.actors.charged_ns();
        let Some(pair) = self.nodes[usize::from(qp.node)].pairs.get_mut(qp.number) else { return };
        if pair.user.replace(actor).is_some_and(|user| user != actor) {
            cost_ns += costs.shared_pair_ns;
            let wait_ns = pair.used_until_ns.saturating_sub(begin_ns);
            if wait_ns > 0 {
                cost_ns += wait_ns + costs.lock_ns;
            }
        }
        pair.used_until_ns = begin_ns + cost_ns;
        self.charge(cost_ns);
    }

    /// Rings the doorbell of an opened device. Returns when the NIC is notified, if no other doorbell delays this one.
    pub(super) fn ring_doorbell(&mut self, node: u16, device: u32, lines: u8) -> u64 {
        let costs = &self.config.costs;
        let way_ns = costs.doorbell_way_ns(lines);
        let mut rung_ns = self.now_ns;
        if self.actors.on_turn().is_some() {
            rung_ns += self.actors.charged_ns();
            let doorbells = &mut self.nodes[usize::from(node)].doorbells;
            let cost_ns = doorbells.ring(costs, device, rung_ns) + costs.doorbell_ns;
            rung_ns += cost_ns;
            self.charge(cost_ns);
        }
        rung_ns + way_ns
    }
}
