//! What posting costs the CPU beside the NIC's part: caches and locks of the cores.

use super::event::QpId;
use super::world::World;

/// Queue pairs whose state a core finds in its own cache, each in the place that its number says: those that meet there
/// replace one another.
pub(super) type Warm = [u32; WARM_PAIRS];

/// A power of two, of which a hash of 5 bits names one. READs of one thread of FaSST become slower between 5 and 100 queue
/// pairs (section 3.3).
const WARM_PAIRS: usize = 32;

impl World {
    /// The actor that has its turn works on a queue pair: it waits for another one that does, and fetches what it does not
    /// have in its core's cache.
    pub(super) fn enter_pair(&mut self, qp: QpId) {
        let Some(actor) = self.actors.on_turn() else { return };
        let costs = &self.config.costs;
        let mut cost_ns = costs.post_ns;
        let place = qp.number.wrapping_mul(0x9e37_79b1) >> 27;
        let warm = &mut self.actors.warm(actor)[place as usize];
        if *warm != qp.number {
            *warm = qp.number;
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

    /// Rings the doorbell of an opened device; when the NIC hears of it.
    pub(super) fn ring_doorbell(&mut self, node: u16, device: u32, lines: u64) -> u64 {
        let costs = &self.config.costs;
        let state = &mut self.nodes[usize::from(node)];
        let mut rung_ns = self.now_ns;
        if self.actors.on_turn().is_some() {
            rung_ns += self.actors.charged_ns();
            let wait_ns = state.doorbells.ring(costs, device, rung_ns);
            rung_ns += wait_ns + costs.doorbell_ns;
            let at_ns = state.nic.ring(costs, rung_ns, lines);
            self.charge(wait_ns + self.config.costs.doorbell_ns);
            return at_ns;
        }
        state.nic.ring(costs, rung_ns, lines)
    }
}
