//! The run of one seed: connections of several lanes and services, under faults.
//!
//! Each client has one connection at a time, with a lane over each of several backends. It opens lanes while others are used,
//! drops them with calls under way, and tries what must be refused: a lane of another's connection, of a guessed one, or with
//! another identity; a service that it may not use. The server is killed and restarted, or ends by itself. Meanwhile:
//!
//! - every call ends by its deadline, and runs at most once, whichever lane it took;
//! - what runs of a connection's calls is within one quota;
//! - no client gets what must be refused;
//! - without faults that break connections, only its client ends a lane.
//!
//! After the faults, lanes are let in at once, and what one loses the others go on with. When the clients are gone, so are
//! their connections.

mod client;
mod ends;
mod service;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use farcall_core::metrics::RefusalReason;
use farcall_core::server::{DrivenServer, Server};
use farcall_core::{Authentication, ClientQuota, Key, PollClient};
use farcall_rack::Rack;
use farcall_transports::planted::plant;
use farcall_transports::registry;
use farcall_verbs::sim::NodeId;

use self::client::{Client, Setup, World};
use self::service::{
    CALLS_PER_SECOND, EchoServer, Seen, Services, TallyServer, VaultPollClient, VaultServer,
};
use crate::client::SETTLING_NS;
use crate::dice::Dice;
use crate::mutation::Mutation;
use crate::outcome::{Outcome, text};
use crate::plan::{Plan, Severity, rack_config};
use crate::trace::Trace;
use crate::watch::{self, CHECK_EVERY_NS};

const MS: u64 = 1_000_000;

/// The time limit of all clients.
const LONGEST_NS: u64 = 60_000 * MS;

/// After this time the server has forgotten clients that have left.
const CLEANUP_NS: u64 = 100 * MS;

/// How long a server that ends by itself goes on with the calls in flight.
const SHUTDOWN: Duration = Duration::from_millis(20);

/// Those who may use the vault have names that begin so.
const TRUSTED: &str = "trusted";

/// How many backends the server offers, beside the one of the seed.
const FURTHER: usize = 2;

struct Run {
    rack: Rack,
    server: NodeId,
    address: String,
    threads: usize,
    max_clients: usize,
    keys: Vec<Key>,
    seen: Seen,
    world: Rc<RefCell<World>>,
    running: Option<DrivenServer>,
    /// Clients of unknown connections that servers before that one have refused.
    refused_before: u64,
}

impl Run {
    fn start(&mut self) -> Result<(), String> {
        self.refused_before = self.refused();
        let services = Services { seen: self.seen.clone(), node: self.rack.node(self.server) };
        let mut builder = Server::builder()
            .service(TallyServer::new(services.clone()))
            .service(EchoServer::new(services.clone()))
            .service(VaultServer::new(services))
            .threads(self.threads)
            .max_clients(self.max_clients)
            .client_quota(ClientQuota::new().calls_per_second(CALLS_PER_SECOND));
        if !self.keys.is_empty() {
            let keys = self.keys.iter().cloned().fold(Authentication::new(), Authentication::key);
            builder = builder.authenticate(keys.permit(|identity, service| {
                service != VaultPollClient::DESCRIPTION.name || identity.name().starts_with(TRUSTED)
            }));
        }
        let running = self.rack.serve(&self.address, builder);
        self.running = Some(running.map_err(|error| format!("no server: {error}"))?);
        Ok(())
    }

    /// Clients of unknown connections that have been refused.
    fn refused(&self) -> u64 {
        let of_this = |server: &DrivenServer| {
            server.metrics().snapshot().refused(RefusalReason::UnknownConnection)
        };
        self.refused_before + self.running.as_ref().map_or(0, of_this)
    }

    fn failure(&self) -> Option<String> {
        self.seen.failure().or_else(|| self.world.borrow().failure.clone())
    }

    /// Runs the rack to that moment, or to the first failure. Returns whether there is one.
    fn run_until(&mut self, at_ns: u64) -> bool {
        let Run { rack, seen, world, .. } = self;
        watch::run_until(rack, at_ns, || {
            seen.failure().is_some() || world.borrow().failure.is_some()
        })
    }
}

/// Runs a seed, with or without a planted bug.
pub(crate) fn run(seed: u64, backend: &str, mutation: Option<Mutation>, trace: &Trace) -> Outcome {
    let mut rack = Rack::with_config(seed, rack_config(seed));
    trace.begin(&mut rack);
    let mut dice = Dice::new(seed, 7);
    let server = rack.add_node();
    let clients: Vec<_> = (0..dice.between(2, 4)).map(|_| rack.add_node()).collect();
    let severity = if dice.once_in(3) { Severity::Masked } else { Severity::Any };
    let plan = Plan::draw(seed, severity, server, &clients);
    let ends_ns = dice.once_in(4).then(|| dice.below(plan.healed_ns));
    // One that moves would open lanes of its own.
    let own = registry::find(backend).unwrap_or_else(|| dice.pick(registry::ALL));
    let mut offered = vec![own.name()];
    while offered.len() <= FURTHER {
        let another = dice.pick(registry::ALL).name();
        if !offered.contains(&another) {
            offered.push(another);
        }
    }
    // With keys, the quota is that of a client's connections together.
    let keys = match dice.once_in(2) {
        true => Vec::new(),
        false => ["trusted-1", "2", "trusted-3", "4"]
            .map(|name| Key::new(name, [seed as u8; 16]).expect("a sound key"))
            .to_vec(),
    };
    let name = format!("sim://{server}/lanes");
    let what = format!("connections of several lanes over {}", offered.join(", "));
    let mut run = Run {
        rack,
        server,
        address: format!("{name}?backend={}", offered.join(",")),
        threads: dice.between(1, 3) as usize,
        max_clients: 3 * clients.len(),
        keys,
        seen: Seen::default(),
        world: Rc::default(),
        running: None,
        refused_before: 0,
    };
    let setup = Setup {
        addresses: offered.iter().map(|backend| format!("{name}?backend={backend}")).collect(),
        healed_ns: plan.healed_ns,
        pauses_ns: 0,
        is_masked: severity == Severity::Masked && ends_ns.is_none(),
        keys: Vec::new(),
        may_use_vault: true,
    };
    // Of this thread, which runs the whole rack.
    plant(mutation.and_then(Mutation::bug));
    let played = catch_unwind(AssertUnwindSafe(|| {
        play(&mut run, (&plan, ends_ns), &clients, &setup, &mut dice)
    }));
    plant(None);
    let failure = match played {
        Ok(Ok(())) => run.failure(),
        Ok(Err(failure)) => Some(run.failure().unwrap_or(failure)),
        Err(panic) => Some(format!("a panic: {}", text(&*panic))),
    };
    let end =
        ends_ns.map_or_else(String::new, |at_ns| format!("  {at_ns:>12} ns  the server ends\n"));
    let counts = run.world.borrow().counts;
    Outcome {
        seed,
        what,
        failure,
        plan: format!("{plan}{end}"),
        hash: run.rack.trace_hash(),
        now_ns: run.rack.now_ns(),
        counts,
        trace: run.rack.trace(),
    }
}

fn play(
    run: &mut Run,
    (plan, ends_ns): (&Plan, Option<u64>),
    clients: &[NodeId],
    setup: &Setup,
    dice: &mut Dice,
) -> Result<(), String> {
    run.start()?;
    let (keys, world) = (run.keys.clone(), Rc::clone(&run.world));
    let mut live = |rack: &mut Rack, client: NodeId| {
        let mut keys = keys.clone();
        let place = clients.iter().position(|it| *it == client).unwrap_or(0);
        let len = keys.len();
        keys.rotate_left(place.min(len));
        let may_use_vault = keys.first().is_none_or(|key| key.name().starts_with(TRUSTED));
        let pauses_ns = plan.pauses_ns(client);
        let setup = Setup { pauses_ns, keys, may_use_vault, ..setup.clone() };
        let (dice, world) = (Dice::new(dice.word(), 8), Rc::clone(&world));
        rack.spawn_program(client, |host| Client::new(host, setup, dice, world).run())
    };
    let mut programs: Vec<_> = clients.iter().map(|it| live(&mut run.rack, *it)).collect();
    let mut ends_ns = ends_ns;
    for (at_ns, step) in &plan.steps {
        if let Some(end_ns) = ends_ns.take_if(|end_ns| *end_ns <= *at_ns) {
            if run.run_until(end_ns) {
                return Ok(());
            }
            end_server(run)?;
        }
        if run.run_until(*at_ns) {
            return Ok(());
        }
        match step.take(&mut run.rack) {
            None => {}
            Some(node) if node == run.server => run.start()?,
            Some(node) => programs.push(live(&mut run.rack, node)),
        }
    }
    let limit_ns = plan.healed_ns + LONGEST_NS;
    while programs.iter().any(|program| program.is_running()) {
        if run.rack.now_ns() > limit_ns {
            return Err("a client never finishes".to_owned());
        }
        if run.run_until(run.rack.now_ns() + 10 * CHECK_EVERY_NS) {
            return Ok(());
        }
    }
    let settled_ns = run.rack.now_ns().max(plan.healed_ns + SETTLING_NS) + CLEANUP_NS;
    if run.run_until(settled_ns) {
        return Ok(());
    }
    let Some(running) = &run.running else { return Ok(()) };
    if running.connections() > 0 {
        let left = running.connections();
        return Err(format!("all clients are gone, but the server still has {left}"));
    }
    let counted = run.refused();
    let seen = run.world.borrow().unknown_connections;
    if counted < seen {
        return Err(format!(
            "{seen} clients of unknown connections were refused, {counted} counted"
        ));
    }
    Ok(())
}

/// The server ends by itself, and another begins, if its node is alive.
fn end_server(run: &mut Run) -> Result<(), String> {
    if !run.rack.node(run.server).is_alive() {
        return Ok(());
    }
    if let Some(running) = &mut run.running {
        running.shut_down(SHUTDOWN);
    }
    let limit_ns = run.rack.now_ns() + LONGEST_NS;
    while run.running.as_ref().is_some_and(|running| !running.is_down()) {
        if run.rack.now_ns() > limit_ns {
            return Err("the server does not end".to_owned());
        }
        if run.run_until(run.rack.now_ns() + CHECK_EVERY_NS) {
            return Ok(());
        }
    }
    run.start()
}
