//! The run of one seed: a durable key-value store, its clients, and faults.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use farcall_core::BindError;
use farcall_core::server::{DrivenServer, Server};
use farcall_kv::service::KvServer;
use farcall_rack::Rack;
use farcall_transports::contract::MIN_SLOT_BYTES;
use farcall_transports::datagram::{Optimization, Without};
use farcall_transports::planted::plant;
use farcall_transports::registry;
use farcall_verbs::sim::NodeId;

use crate::client::{Client, ClientSetup, SETTLING_NS};
use crate::dice::Dice;
use crate::log::Acknowledge;
use crate::mutation::Mutation;
use crate::outcome::{Outcome, text};
use crate::plan::{Plan, Severity, rack_config};
use crate::records::Records;
use crate::service::{DurableKv, Executions};
use crate::trace::Trace;
use crate::watch::{CHECK_EVERY_NS, run_until};

const MS: u64 = 1_000_000;

/// The time limit of all clients.
const LONGEST_NS: u64 = 60_000 * MS;

/// The time after the last client has left in which the server forgets all of them. It has detected dead clients
/// before.
const CLEANUP_NS: u64 = 100 * MS;

/// A run being set up.
struct Run {
    rack: Rack,
    server: NodeId,
    address: String,
    threads: usize,
    acknowledge: Acknowledge,
    executions: Executions,
    running: Option<DrivenServer>,
}

impl Run {
    /// Starts the server on its node with what is left of the store there.
    fn start(&mut self) -> Result<(), String> {
        let node = self.rack.node(self.server);
        let kv = DurableKv::recover(&node, self.acknowledge, &self.executions)
            .map_err(|error| format!("the store cannot be recovered: {error}"))?;
        let builder = Server::builder().service(KvServer::new(kv)).threads(self.threads);
        let running = self.rack.serve(&self.address, builder);
        self.running = Some(running.map_err(|error: BindError| format!("no server: {error}"))?);
        Ok(())
    }
}

/// Random options of an address that change what is sent, but not its meaning.
fn options(backend: &str, dice: &mut Dice) -> String {
    // With the smallest slots, nearly all requests and responses are split.
    let slot = dice.pick(&[MIN_SLOT_BYTES, 256, 4096]);
    let mut without = Without::default();
    let options = registry::find(backend).map_or(&[][..], |backend| backend.options());
    let has = |name| options.iter().any(|option| option.name == name);
    if has("without") && dice.once_in(2) {
        for left in Optimization::ALL {
            // Without recovery, losses would not be repaired.
            if *left != Optimization::Recovery && dice.once_in(3) {
                without = without.and(*left);
            }
        }
    }
    if has("retries") {
        // Few of them make responses come in another way all the time.
        let (retries, fetch) = (dice.pick(&[1, 5, 100]), dice.pick(&[64, 256, 1024]));
        return format!("&slot={slot}&retries={retries}&fetch={fetch}");
    }
    if has("slice") {
        // Small groups and short slices make clients change places all the time.
        let (group, slice) = (dice.pick(&[1, 2, 40]), dice.pick(&[2, 20, 100]));
        return format!("&slot={slot}&group={group}&slice={slice}us");
    }
    match without.is_empty() {
        true => format!("&slot={slot}"),
        false => format!("&slot={slot}&without={without}"),
    }
}

/// Runs a seed, with or without a planted bug.
pub(crate) fn run(seed: u64, backend: &str, mutation: Option<Mutation>, trace: &Trace) -> Outcome {
    let mut rack = Rack::with_config(seed, rack_config(seed));
    trace.begin(&mut rack);
    let mut dice = Dice::new(seed, 3);
    let server = rack.add_node();
    let clients: Vec<_> = (0..dice.between(2, 5)).map(|_| rack.add_node()).collect();
    let severity = if dice.once_in(5) { Severity::Masked } else { Severity::Any };
    let plan = Plan::draw(seed, severity, server, &clients);
    let window = dice.pick(&[2, 8, 32]);
    let threads = dice.between(1, 2) as usize;
    let options = options(backend, &mut dice);
    let mut run = Run {
        rack,
        server,
        address: format!("sim://{server}/kv?backend={backend}&window={window}{options}"),
        threads,
        acknowledge: match mutation {
            Some(Mutation::EarlyAcknowledgement) => Acknowledge::WhenStored,
            _ => Acknowledge::WhenDurable,
        },
        executions: Executions::default(),
        running: None,
    };
    let records = Rc::new(RefCell::new(Records::default()));
    // Of this thread, which runs the whole rack.
    plant(mutation.and_then(Mutation::bug));
    let played = catch_unwind(AssertUnwindSafe(|| {
        let setup = ClientSetup {
            address: run.address.clone(),
            window,
            healed_ns: plan.healed_ns,
            pauses_ns: 0,
            severity,
            mutation,
        };
        play(&mut run, &plan, &clients, &setup, &records, &mut dice)
    }));
    plant(None);
    let failure = match played {
        Ok(Ok(())) => records.borrow().check(&run.executions),
        Ok(Err(failure)) => Some(records.borrow().check(&run.executions).unwrap_or(failure)),
        Err(panic) => Some(format!("a panic: {}", text(&*panic))),
    };
    let counts = records.borrow().counts();
    let rack = &run.rack;
    Outcome {
        seed,
        what: format!("the key-value store over {backend}"),
        failure,
        plan: plan.to_string(),
        hash: rack.trace_hash(),
        now_ns: rack.now_ns(),
        counts,
        trace: rack.trace(),
    }
}

fn play(
    run: &mut Run,
    plan: &Plan,
    clients: &[NodeId],
    setup: &ClientSetup,
    records: &Rc<RefCell<Records>>,
    dice: &mut Dice,
) -> Result<(), String> {
    run.start()?;
    let mut live = |rack: &mut Rack, client| {
        let setup = ClientSetup { pauses_ns: plan.pauses_ns(client), ..setup.clone() };
        let (dice, records) = (Dice::new(dice.word(), 4), Rc::clone(records));
        rack.spawn_program(client, |host| Client::new(host, setup, dice, records).run())
    };
    let mut programs: Vec<_> = clients.iter().map(|it| live(&mut run.rack, *it)).collect();
    let has_failed = || records.borrow().has_failed();
    for (at_ns, step) in &plan.steps {
        if run_until(&mut run.rack, *at_ns, has_failed) {
            return Ok(());
        }
        match step.take(&mut run.rack) {
            None => {}
            Some(node) if node == run.server => run.start()?,
            Some(node) => programs.push(live(&mut run.rack, node)),
        }
    }
    let limit_ns = plan.healed_ns + LONGEST_NS;
    while programs.iter().any(|program| program.is_running()) && !has_failed() {
        if run.rack.now_ns() > limit_ns {
            return Err("a client never finishes".to_owned());
        }
        run.rack.run_for(CHECK_EVERY_NS);
    }
    if has_failed() {
        return Ok(());
    }
    let settled_ns = run.rack.now_ns().max(plan.healed_ns + SETTLING_NS);
    run.rack.run_until(settled_ns + CLEANUP_NS);
    match run.running.as_ref().map_or(0, DrivenServer::connections) {
        0 => Ok(()),
        left => Err(format!("all clients are gone, but the server still has {left}")),
    }
}
