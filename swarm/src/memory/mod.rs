//! The run of one seed: memory that a server lends, under faults.
//!
//! The owner lends parts of a region, takes them back, and gives them to the next holder; leases end by the owner's clock, from which those
//! of the readers differ. Readers are paused between getting a lend and using it, tell each other of lends, go on across revokes, give
//! operations up, flood, and make up values. The owner's node is killed, and returns with another life. Meanwhile:
//!
//! - every byte that is read is one that the lend had, and of a part that is not lent nothing changes;
//! - no operation succeeds that began when its lend was over, by a revoke, a lease or the owner's death;
//! - an error says what is true;
//! - what was made up is refused;
//! - each addition to a counter is done once, if it succeeds.
//!
//! After the faults, what is lent can be used, and what was taken back cannot.

mod owner;
mod reader;
mod records;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use farcall::memory::MemoryServer;
use farcall_core::server::{DrivenServer, Server};
use farcall_rack::Rack;
use farcall_transports::planted::{Bug, plant};
use farcall_verbs::sim::{NodeClock, NodeId};

use self::owner::{LendingServer, Owner};
use self::reader::{Reader, Setup};
use self::records::Records;
use crate::client::SETTLING_NS;
use crate::dice::Dice;
use crate::mutation::Mutation;
use crate::outcome::{Outcome, text};
use crate::plan::{Plan, Severity, rack_config};
use crate::trace::Trace;
use crate::watch::{self, CHECK_EVERY_NS};

const MS: u64 = 1_000_000;

/// The time limit of all readers, after the faults.
const LONGEST_NS: u64 = 60_000 * MS;

/// Clocks of quartz differ by some 50 millionths; those of virtual machines that are moved by much more.
const DRIFTS_PPB: [i32; 5] = [0, 50_000, -50_000, 10_000_000, -10_000_000];

/// Which readers have lanes, and so one-sided operations.
#[derive(Clone, Copy, Debug)]
enum Lanes {
    None,
    Some,
    All,
}

struct Run {
    rack: Rack,
    server: NodeId,
    address: String,
    lanes: Lanes,
    healed_ns: u64,
    dice: Dice,
    records: Records,
    owner: Option<Owner>,
    running: Option<DrivenServer>,
}

impl Run {
    /// The owner begins, with memory of its own.
    fn start(&mut self) -> Result<(), String> {
        let dice = Dice::new(self.dice.word(), 14);
        let (node, records) = (self.rack.node(self.server), self.records.clone());
        let owner = Owner::new(node, self.healed_ns, dice, records)?;
        let builder = Server::builder()
            .service(LendingServer::new(owner.clone()))
            .service(MemoryServer::new(owner.memory.clone()));
        let running = self.rack.serve(&self.address, builder);
        self.running = Some(running.map_err(|error| format!("no server: {error}"))?);
        self.owner = Some(owner);
        Ok(())
    }

    fn failure(&self) -> Option<String> {
        self.records.lock().failure.clone()
    }

    /// Runs the rack to that moment, or to the first failure. Returns whether there is one.
    fn run_until(&mut self, at_ns: u64) -> bool {
        let Run { rack, records, .. } = self;
        watch::run_until(rack, at_ns, || records.lock().failure.is_some())
    }
}

/// Runs a seed, with or without a planted bug.
pub(crate) fn run(seed: u64, backend: &str, mutation: Option<Mutation>, trace: &Trace) -> Outcome {
    let mut rack = Rack::with_config(seed, rack_config(seed));
    trace.begin(&mut rack);
    let mut dice = Dice::new(seed, 11);
    let server = rack.add_node();
    let clients: Vec<_> = (0..dice.between(2, 4)).map(|_| rack.add_node()).collect();
    for node in clients.iter().chain([&server]) {
        let drift_ppb = dice.pick(&DRIFTS_PPB);
        rack.set_clock(*node, NodeClock { ahead_ns: dice.below(1_000 * MS), drift_ppb });
    }
    let severity = if dice.once_in(3) { Severity::Masked } else { Severity::Any };
    let plan = Plan::draw(seed, severity, server, &clients);
    let address = format!("sim://{server}/memory?backend={backend}");
    let lanes = dice.pick(&[Lanes::None, Lanes::Some, Lanes::All]);
    let records = Records::default();
    let bug = mutation.and_then(Mutation::bug);
    let setup = Setup {
        address: address.clone(),
        one_sided: false,
        late_ns: 0,
        healed_ns: plan.healed_ns,
        tries_late: bug != Some(Bug::LeaseOfReader),
        owner: rack.node(server),
        records: records.clone(),
        told: Rc::new(RefCell::default()),
    };
    let healed_ns = plan.healed_ns;
    let mut run =
        Run { rack, server, address, lanes, healed_ns, dice, records, owner: None, running: None };
    // Of this thread, which runs the whole rack.
    plant(bug);
    let played = catch_unwind(AssertUnwindSafe(|| play(&mut run, &plan, &clients, &setup)));
    plant(None);
    let failure = match played {
        Ok(Ok(())) => run.failure(),
        Ok(Err(failure)) => Some(run.failure().unwrap_or(failure)),
        Err(panic) => Some(format!("a panic: {}", text(&*panic))),
    };
    let counts = run.records.lock().counts;
    Outcome {
        seed,
        what: format!("lent memory over {backend}, one-sided: {:?}", run.lanes),
        failure,
        plan: plan.to_string(),
        hash: run.rack.trace_hash(),
        now_ns: run.rack.now_ns(),
        counts,
        trace: run.rack.trace(),
    }
}

fn play(run: &mut Run, plan: &Plan, clients: &[NodeId], setup: &Setup) -> Result<(), String> {
    run.start()?;
    let live = |run: &mut Run, client: NodeId| {
        let one_sided = match run.lanes {
            Lanes::None => false,
            Lanes::Some => run.dice.once_in(2),
            Lanes::All => true,
        };
        // By its own clock, which may be faster than the rack's.
        let late_ns = if one_sided { MS + plan.pauses_ns(run.server) * 51 / 50 } else { 0 };
        let setup = Setup { one_sided, late_ns, ..setup.clone() };
        let dice = Dice::new(run.dice.word(), 15);
        run.rack.spawn_program(client, |host| Reader::new(host, setup, dice).run())
    };
    let mut programs: Vec<_> = clients.iter().map(|client| live(run, *client)).collect();
    for (at_ns, step) in &plan.steps {
        if run.run_until(*at_ns) {
            return Ok(());
        }
        match step.take(&mut run.rack) {
            None => {}
            Some(node) if node == run.server => run.start()?,
            Some(node) => programs.push(live(run, node)),
        }
    }
    let limit_ns = plan.healed_ns + SETTLING_NS + LONGEST_NS;
    while programs.iter().any(|program| program.is_running()) {
        if run.rack.now_ns() > limit_ns {
            return Err("a reader never finishes".to_owned());
        }
        if run.run_until(run.rack.now_ns() + 10 * CHECK_EVERY_NS) {
            return Ok(());
        }
    }
    if let Some(owner) = &run.owner {
        owner.check();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_read_and_are_refused_in_most_seeds() {
        let (mut reading, mut refused) = (0, 0);
        for seed in 1..=24 {
            for backend in ["write_imm", "datagram", "rfp"] {
                let outcome = run(seed, backend, None, &Trace::Off);
                assert_eq!(outcome.failure, None, "{outcome}");
                reading += u32::from(outcome.counts.answered > 20);
                refused += u32::from(outcome.counts.never_ran > 5);
            }
        }
        assert!(reading > 40 && refused > 40, "{reading} of 72 read, {refused} were refused");
    }
}
