//! The faults of a run and their times, drawn from the seed before it begins.

use std::fmt;
use std::time::Duration;

use farcall_rack::Rack;
use farcall_verbs::sim::{Durability, Fault, FaultRates, Landing, NodeId, SimConfig};

use crate::dice::Dice;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// The most incidents of a run.
const MAX_INCIDENTS: u64 = 6;

/// Incidents happen within this time from the beginning.
const LONGEST_FAULTY_NS: u64 = 300 * MS;

/// A datagram may be so late that its connection is closed and another uses its slot.
const LONGEST_STRAGGLE_NS: u64 = 1_000 * MS;

/// How severe the faults of a run may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// Only faults that reliable connections repair: no connection may break.
    Masked,
    /// Any fault: connections break, and nodes die.
    Any,
}

/// The rack of a seed: the behaviour of its NICs and caches, and the rates of lost and delayed messages.
pub(crate) fn rack_config(seed: u64) -> SimConfig {
    let dice = &mut Dice::new(seed, 1);
    let mut config = SimConfig::default().landing(dice.pick(&[
        Landing::AtOnce,
        Landing::LeftToRight,
        Landing::AnyOrder,
    ]));
    if dice.once_in(3) {
        config = config.delivered_late(Duration::from_nanos(dice.magnitude(100, 20 * US)));
    }
    let durability = Durability::default()
        .ddio(dice.once_in(2))
        .eadr(dice.once_in(4))
        .dirty_lines(dice.magnitude(4, 1 << 12) as usize);
    // Of other generators, so that they change no other draw.
    let gap_ns = Dice::new(seed, 16).magnitude(50, 2 * US);
    let config = config.atomic_gap(Duration::from_nanos(gap_ns));
    let reads_words_in_any_order = Dice::new(seed, 17).once_in(2);
    let config = config.reads_words_in_any_order(reads_words_in_any_order);
    config.durability(durability).faults(rates(dice))
}

fn rates(dice: &mut Dice) -> FaultRates {
    // Each fault is disabled in some seeds, so that the others also occur alone.
    let mut chance = |most_ppm: u64| match dice.once_in(2) {
        true => 0.0,
        false => dice.magnitude(10, most_ppm) as f64 / 1e6,
    };
    let (loss, delay) = (chance(20_000), chance(100_000));
    let (datagram_loss, datagram_copy) = (chance(200_000), chance(200_000));
    let (datagram_delay, straggle) = (chance(300_000), chance(50_000));
    FaultRates::default()
        .reliable_loss(loss)
        .connected_delay(delay)
        .datagram_loss(datagram_loss)
        .datagram_copy(datagram_copy)
        .datagram_delay(datagram_delay)
        .datagram_straggle(straggle, Duration::from_nanos(dice.magnitude(MS, LONGEST_STRAGGLE_NS)))
        .delay(Duration::from_nanos(dice.magnitude(US, 200 * US)))
}

/// A planned action.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// A fault.
    Fault(Fault),
    /// A killed node restarts, and then its server or client.
    Start(NodeId),
}

impl Step {
    /// Does it on that rack. Gives a node that has restarted: its server or client is to start again.
    pub(crate) fn take(&self, rack: &mut Rack) -> Option<NodeId> {
        match *self {
            Step::Fault(ref fault) => rack.inject(fault.clone()),
            Step::Start(node) if rack.node(node).is_alive() => {}
            Step::Start(node) => {
                rack.node(node).restart();
                return Some(node);
            }
        }
        None
    }
}

/// The planned faults of one run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// The steps in order of time, in nanoseconds from the beginning.
    pub(crate) steps: Vec<(u64, Step)>,
    /// After this time there are no more faults.
    pub(crate) healed_ns: u64,
}

impl Plan {
    /// Draws the faults of a server and its clients.
    pub(crate) fn draw(seed: u64, severity: Severity, server: NodeId, clients: &[NodeId]) -> Plan {
        let mut draft = Draft { dice: Dice::new(seed, 2), server, clients, steps: Vec::new() };
        let faulty_ns = draft.dice.magnitude(200 * US, LONGEST_FAULTY_NS);
        for _ in 0..draft.dice.below(MAX_INCIDENTS + 1) {
            let at_ns = draft.dice.below(faulty_ns);
            match severity {
                Severity::Masked => draft.masked(at_ns),
                Severity::Any => draft.any(at_ns),
            }
        }
        let mut steps = draft.steps;
        steps.sort_by_key(|(at_ns, _)| *at_ns);
        let last_ns = steps.last().map_or(0, |(at_ns, _)| *at_ns);
        let healed_ns = last_ns.max(faulty_ns) + 1;
        steps.push((healed_ns, Step::Fault(Fault::Rates(FaultRates::default()))));
        Plan { steps, healed_ns }
    }

    /// The total time for which a node is paused.
    pub(crate) fn pauses_ns(&self, of: NodeId) -> u64 {
        let pauses = self.steps.iter().map(|(_, step)| match step {
            Step::Fault(Fault::PauseNode { node, for_ns }) if *node == of => *for_ns,
            _ => 0,
        });
        pauses.sum()
    }
}

struct Draft<'a> {
    dice: Dice,
    server: NodeId,
    clients: &'a [NodeId],
    steps: Vec<(u64, Step)>,
}

impl Draft<'_> {
    fn fault(&mut self, at_ns: u64, fault: Fault) {
        self.steps.push((at_ns, Step::Fault(fault)));
    }

    /// Restarts a killed node later.
    fn start(&mut self, killed_ns: u64, node: NodeId) {
        let at_ns = killed_ns + self.dice.magnitude(10 * US, 100 * MS);
        self.steps.push((at_ns, Step::Start(node)));
    }

    fn some_node(&mut self) -> NodeId {
        match self.dice.once_in(2) {
            true => self.server,
            false => self.dice.pick(self.clients),
        }
    }

    fn pause(&mut self, at_ns: u64) {
        let (node, for_ns) = (self.some_node(), self.dice.magnitude(US, 20 * MS));
        self.fault(at_ns, Fault::PauseNode { node, for_ns });
    }

    /// Cuts the connection between the server and a client, in one or both directions, for at most `most_ns`.
    fn cut(&mut self, at_ns: u64, most_ns: u64) {
        let client = self.dice.pick(self.clients);
        let heal_ns = at_ns + self.dice.magnitude(10 * US, most_ns);
        let ways = [(self.server, client), (client, self.server)];
        let which = self.dice.below(3) as usize;
        for (number, (from, to)) in ways.into_iter().enumerate() {
            if which == number || which == 2 {
                self.fault(at_ns, Fault::Cut { from, to });
                self.fault(heal_ns, Fault::Heal { from, to });
            }
        }
    }

    fn masked(&mut self, at_ns: u64) {
        match self.dice.below(2) {
            0 => self.pause(at_ns),
            // A tenth of the time after which a silent peer counts as dead.
            _ => self.cut(at_ns, 100 * MS),
        }
    }

    fn any(&mut self, at_ns: u64) {
        match self.dice.below(8) {
            0 => self.pause(at_ns),
            1 => self.cut(at_ns, 100 * MS),
            2 => self.cut(at_ns, 3_000 * MS),
            3 => {
                let node = self.some_node();
                self.fault(at_ns, Fault::BreakSomeQueuePair(node));
            }
            4 => {
                let client = self.dice.pick(self.clients);
                self.fault(at_ns, Fault::KillNode(client));
                if self.dice.once_in(2) {
                    self.start(at_ns, client);
                }
            }
            // Most often the server's node: the most important property is that it loses nothing.
            number => {
                let server = self.server;
                let fault = match number {
                    5 => Fault::KillNode(server),
                    _ => Fault::PowerLoss(server),
                };
                self.fault(at_ns, fault);
                self.start(at_ns, server);
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at_ns, step) in &self.steps {
            match step {
                Step::Fault(fault) => writeln!(f, "  {at_ns:>12} ns  {fault:?}")?,
                Step::Start(node) => writeln!(f, "  {at_ns:>12} ns  node {node} starts again")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use farcall_verbs::sim::Sim;

    use super::*;

    /// Plans for a server and three clients.
    fn plans(severity: Severity) -> impl Iterator<Item = (NodeId, Plan)> {
        let mut sim = Sim::new(1);
        let server = sim.add_node();
        let clients = [sim.add_node(), sim.add_node(), sim.add_node()];
        (0..500).map(move |seed| (server, Plan::draw(seed, severity, server, &clients)))
    }

    #[test]
    fn cuts_are_healed_and_killed_nodes_restart_before_the_end_of_the_plan() {
        let mut starts = [0, 0];
        for (server, Plan { steps, healed_ns }) in plans(Severity::Any) {
            assert!(steps.is_sorted_by_key(|(at_ns, _)| *at_ns));
            assert_eq!(steps.last().map(|(at_ns, _)| *at_ns), Some(healed_ns));
            for (place, (_, step)) in steps.iter().enumerate() {
                let later = &steps[place..];
                let follows = |wanted: &Step| later.iter().any(|(_, step)| step == wanted);
                match step {
                    Step::Fault(Fault::Cut { from, to }) => {
                        assert!(follows(&Step::Fault(Fault::Heal { from: *from, to: *to })));
                    }
                    Step::Fault(Fault::KillNode(node) | Fault::PowerLoss(node)) => {
                        let starts_again = follows(&Step::Start(*node));
                        assert!(*node != server || starts_again);
                        starts[usize::from(*node == server)] += u32::from(starts_again);
                    }
                    _ => {}
                }
            }
        }
        assert!(starts[0] > 20 && starts[1] > 200, "{starts:?}");
    }

    #[test]
    fn masked_faults_break_nothing() {
        let mut faults = 0;
        for (_, Plan { steps, .. }) in plans(Severity::Masked) {
            for (_, step) in steps {
                let Step::Fault(fault) = step else { panic!("{step:?}") };
                faults += 1;
                let masked = matches!(
                    fault,
                    Fault::PauseNode { .. }
                        | Fault::Cut { .. }
                        | Fault::Heal { .. }
                        | Fault::Rates(_)
                );
                assert!(masked, "{fault:?}");
            }
        }
        assert!(faults > 1_000, "{faults}");
    }

    #[test]
    fn a_seed_always_gives_the_same_plan() {
        let (plans, again) = (plans(Severity::Any), plans(Severity::Any));
        assert!(plans.eq(again));
    }
}
