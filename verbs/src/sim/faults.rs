//! What goes wrong, by chance or on a schedule.

use super::config::{FaultRates, nanos};
use super::event::{Event, QpId};
use super::node::NodeState;
use super::rack::NodeId;
use super::world::World;
use crate::{QpNumber, QpType};

/// A fault, to happen at a moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// The node's system stops: its actors never run again, peers hear nothing, and its memory is gone, except
    /// that persistent memory keeps all that could be seen there.
    KillNode(NodeId),
    /// The same by a loss of power: persistent memory keeps what was [durable](crate::PersistentRegion), and
    /// of what was not as much as chance will have it.
    PowerLoss(NodeId),
    /// The node starts again, if it was killed or lost its power: with nothing but its persistent memory,
    /// until somebody opens its device anew.
    RestartNode(NodeId),
    /// No actor of the node runs for this long (a stolen core, a long garbage collection); its NIC does.
    PauseNode {
        /// The node.
        node: NodeId,
        /// For how long.
        for_ns: u64,
    },
    /// A queue pair goes into error.
    BreakQueuePair {
        /// Its node.
        node: NodeId,
        /// Its number.
        qp: QpNumber,
    },
    /// One of the node's queue pairs that are connected, or ready for datagrams, whichever chance will have, goes into
    /// error. It draws no number where there is none.
    BreakSomeQueuePair(NodeId),
    /// Nothing comes through any more from one node to another; the way back is another one.
    Cut {
        /// Whose messages are lost.
        from: NodeId,
        /// Who does not get them.
        to: NodeId,
    },
    /// That way carries messages again.
    Heal {
        /// Whose messages come through.
        from: NodeId,
        /// Who gets them.
        to: NodeId,
    },
    /// Other probabilities from now on.
    Rates(FaultRates),
}

impl World {
    /// How late a message comes through; `None`: it is lost.
    #[inline]
    pub(super) fn wire(&mut self, from: QpId, to: QpId, class: QpType) -> Option<u64> {
        if !self.cut.is_empty() && self.cut.contains(&(from.node, to.node)) {
            self.note(from, || format!("is cut off from node {}: what it sends is lost", to.node));
            return None;
        }
        let rates = &self.config.faults;
        let loss = match class {
            QpType::Ud => rates.datagram_loss,
            QpType::Uc => rates.unreliable_loss,
            QpType::Rc => rates.reliable_loss,
        };
        if self.dice.chance(loss) {
            self.note(from, || format!("loses what it sends to node {}", to.node));
            return None;
        }
        Some(self.holds_up(from, to, class))
    }

    /// How late the copy of a datagram comes through; `None`: there is none.
    #[inline]
    pub(super) fn copies(&mut self, from: QpId, to: QpId) -> Option<u64> {
        if !self.dice.chance(self.config.faults.datagram_copy) {
            return None;
        }
        self.note(from, || format!("what it sends to node {} goes twice", to.node));
        Some(self.holds_up(from, to, QpType::Ud))
    }

    /// For how long the wire keeps a message.
    #[inline]
    fn holds_up(&mut self, from: QpId, to: QpId, class: QpType) -> u64 {
        let rates = &self.config.faults;
        let (held_up, straggles) = match class {
            QpType::Ud => (rates.datagram_delay, rates.datagram_straggle),
            QpType::Uc | QpType::Rc => (rates.connected_delay, 0.0),
        };
        let (longest_ns, straggle_ns) = (nanos(rates.delay), nanos(rates.straggle));
        let mut delay_ns = 0;
        for (chance, longest_ns) in [(held_up, longest_ns), (straggles, straggle_ns)] {
            if self.dice.chance(chance) {
                delay_ns += self.dice.below(longest_ns.saturating_add(1));
                self.note(from, || format!("waits {delay_ns} ns for the wire to node {}", to.node));
            }
        }
        delay_ns
    }

    /// Lets a fault happen at `at_ns`.
    pub(super) fn schedule(&mut self, at_ns: u64, fault: Fault) {
        self.faults.push(fault);
        let index = self.faults.len() as u32 - 1;
        self.events.push(at_ns.max(self.now_ns), Event::Fault(index));
    }

    pub(super) fn scheduled_fault(&mut self, index: u32) {
        if let Some(fault) = self.faults.get(index as usize).cloned() {
            self.inject(fault);
        }
    }

    /// Lets a fault happen now.
    pub(super) fn inject(&mut self, fault: Fault) {
        self.trace.mix(self.now_ns);
        if self.trace.is_read() {
            let line = format!("{:>12} ns  {fault:?}", self.now_ns);
            self.trace.line(line);
        }
        match fault {
            Fault::KillNode(node) => {
                self.node(node.0).media.stop();
                self.kill(node.0);
            }
            Fault::PowerLoss(node) => {
                self.lose_power(node.0);
                self.kill(node.0);
            }
            Fault::RestartNode(node) => self.restart(node.0),
            Fault::PauseNode { node, for_ns } => {
                let until_ns = self.now_ns.saturating_add(for_ns);
                let node = self.node(node.0);
                node.paused_until_ns = node.paused_until_ns.max(until_ns);
            }
            Fault::BreakQueuePair { node, qp } => {
                self.break_pair(QpId { node: node.0, number: qp.0 });
            }
            Fault::BreakSomeQueuePair(node) => self.break_some_pair(node.0),
            Fault::Cut { from, to } => {
                self.cut.insert((from.0, to.0));
            }
            Fault::Heal { from, to } => {
                self.cut.remove(&(from.0, to.0));
            }
            Fault::Rates(rates) => self.config.faults = rates,
        }
        self.faults_so_far += 1;
        self.wake_for_fault();
    }

    fn kill(&mut self, node: u16) {
        for number in self.node(node).pairs.numbers() {
            self.destroy(QpId { node, number });
        }
        let cores = self.config.cores;
        let state = self.node(node);
        state.alive = false;
        for actor in std::mem::take(&mut state.actors) {
            self.actors.end(actor);
        }
        let state = &mut self.nodes[usize::from(node)];
        for number in state.queues.numbers() {
            state.queues.remove(number);
        }
        for number in state.srqs.numbers() {
            state.srqs.remove(number);
        }
        // Numbers go on where they were: nothing of the old life may name something of the new one. Keys
        // are drawn, and addresses go on too.
        let fresh = NodeState::new(cores, self.seed ^ u64::from(node) << 32);
        state.nic = fresh.nic;
        state.cores = fresh.cores;
        state.paused_until_ns = 0;
        state.regions.forget_all();
    }

    fn break_some_pair(&mut self, node: u16) {
        let mut numbers = self.node(node).pairs.numbers();
        numbers.retain(|number| {
            let pair = self.pair(QpId { node, number: *number });
            pair.is_some_and(|pair| pair.hears() && (pair.peer.is_some() || pair.ty == QpType::Ud))
        });
        if !numbers.is_empty() {
            let number = numbers[self.dice.below(numbers.len() as u64) as usize];
            self.break_pair(QpId { node, number });
        }
    }

    fn restart(&mut self, node: u16) {
        let node = self.node(node);
        if !node.alive {
            node.alive = true;
            node.incarnation += 1;
        }
    }
}
