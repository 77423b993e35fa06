//! Faults, random or scheduled.

use super::config::{FaultRates, nanos};
use super::event::{Event, QpId};
use super::node::NodeState;
use super::rack::NodeId;
use super::world::World;
use crate::{QpNumber, QpType};

/// A fault that happens at one point in time.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// The node's system stops. Its actors never run again, it sends nothing, and its memory is lost, except that
    /// persistent memory keeps all its visible bytes.
    KillNode(NodeId),
    /// As [`KillNode`](Fault::KillNode), by a power failure: persistent memory keeps the
    /// [durable](crate::PersistentRegion) bytes, and a random part of the others.
    PowerLoss(NodeId),
    /// The node starts again, if it was killed or lost its power. It has only its persistent memory until its
    /// device is opened again.
    RestartNode(NodeId),
    /// No actor of the node runs for this long (a stolen core, a long garbage collection); its NIC does.
    PauseNode {
        /// The node.
        node: NodeId,
        /// For how long.
        for_ns: u64,
    },
    /// A queue pair enters the error state.
    BreakQueuePair {
        /// Its node.
        node: NodeId,
        /// Its number.
        qp: QpNumber,
    },
    /// A random queue pair of the node that is connected, or ready for datagrams, enters the error state. Draws
    /// no number if there is none.
    BreakSomeQueuePair(NodeId),
    /// All messages from one node to another are lost. The opposite direction is not affected.
    Cut {
        /// The sender of the lost messages.
        from: NodeId,
        /// The receiver of the lost messages.
        to: NodeId,
    },
    /// Messages from one node to another get through again.
    Heal {
        /// The sender.
        from: NodeId,
        /// The receiver.
        to: NodeId,
    },
    /// Changes the probabilities of random faults.
    Rates(FaultRates),
}

impl World {
    /// The delay of a message on the wire; `None` if it is lost.
    #[inline]
    pub(super) fn draw_wire_delay(&mut self, from: QpId, to: QpId, class: QpType) -> Option<u64> {
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
        Some(self.draw_delay(from, to, class))
    }

    /// The delay of a datagram's copy; `None` if there is no copy.
    #[inline]
    pub(super) fn draw_copy_delay(&mut self, from: QpId, to: QpId) -> Option<u64> {
        if !self.dice.chance(self.config.faults.datagram_copy) {
            return None;
        }
        self.note(from, || format!("duplicates what it sends to node {}", to.node));
        Some(self.draw_delay(from, to, QpType::Ud))
    }

    /// The delay of a message, drawn at random.
    #[inline]
    fn draw_delay(&mut self, from: QpId, to: QpId, class: QpType) -> u64 {
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

    /// Schedules a fault at `at_ns`.
    pub(super) fn schedule(&mut self, at_ns: u64, fault: Fault) {
        self.faults.push(fault);
        let index = self.faults.len() as u32 - 1;
        self.events.push(at_ns.max(self.now_ns), Event::Fault(index));
    }

    pub(super) fn apply_scheduled_fault(&mut self, index: u32) {
        if let Some(fault) = self.faults.get(index as usize).cloned() {
            self.inject(fault);
        }
    }

    /// Applies a fault immediately.
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
        self.drop_memory_work_of(node);
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
        // Numbers continue, so that none of the old start is valid for the new one. Keys are drawn, and addresses
        // continue too.
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
            pair.is_some_and(|pair| {
                pair.accepts_messages() && (pair.peer.is_some() || pair.ty == QpType::Ud)
            })
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
