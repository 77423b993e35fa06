//! The run of one seed: clients of `hybrid` that call all the time, so that their connections move among the backends.
//!
//! On half of the racks nothing goes wrong, and no call may take longer than a lane takes to open: to move costs calls nothing. On the others
//! happens what reliable connections repair. Meanwhile every call ends by its deadline, runs at most once, and is answered with its own bytes; and
//! no connection ends. Then a whole window of calls begins at once, and all are answered.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farcall_core::metrics::MoveEvent;
use farcall_core::server::{DrivenServer, Server};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::DialOptions;
use farcall_core::{Connection, ConnectionOptions, PendingCall, PollClient, RpcError};
use farcall_rack::{Host, Rack};
use farcall_transports::planted::plant;
use farcall_verbs::sim::{NodeId, SimConfig};

use crate::dice::Dice;
use crate::mutation::Mutation;
use crate::outcome::{Outcome, text};
use crate::plan::{Plan, Severity, rack_config};
use crate::records::Counts;
use crate::trace::Trace;
use crate::value;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// How long clients call on a rack without faults: some trials of each backend.
const CALM_NS: u64 = 30 * MS;

/// Where nothing goes wrong, a call takes no longer, at any time. To open a lane takes four legs of a network and more: 100 us.
const LONGEST_CALM_CALL_NS: u64 = 90 * US;

/// The longest pause between two bursts of calls.
const LONGEST_PAUSE_NS: u64 = 200 * US;

/// Without faults, calls take less.
const HEALED_CALL_NS: u64 = 20 * MS;

/// How long a client waits after the faults: late packets, and lanes that are being opened, have come to their end.
const SETTLING_NS: u64 = 12_000 * MS;

/// Allowance for a turn beyond the deadlines, not counting pauses.
const SLACK_NS: u64 = MS;

/// A client that has left is forgotten after this time.
const CLEANUP_NS: u64 = 100 * MS;

#[farcall::service]
pub(crate) trait Echo {
    /// Gives back the bytes, which tell which call it is.
    fn echo(&self, bytes: &[u8]) -> Vec<u8>;
}

/// The service: it knows which calls have run.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<SeenState>>);

#[derive(Default)]
struct SeenState {
    calls: BTreeSet<u64>,
    failure: Option<String>,
}

impl Echo for Seen {
    fn echo(&self, bytes: &[u8]) -> Vec<u8> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match value::check(bytes) {
            Some(call) if state.calls.insert(call) => {}
            Some(call) => {
                state.failure.get_or_insert_with(|| format!("call {call} ran more than once"));
            }
            None => {
                state.failure.get_or_insert_with(|| "a call with bytes of none".to_owned());
            }
        }
        bytes.to_vec()
    }
}

/// What the clients of a run share.
#[derive(Default)]
struct World {
    calls: u64,
    counts: Counts,
    /// Trials of backends.
    tried: u64,
    failure: Option<String>,
}

#[derive(Clone)]
struct Setup {
    address: String,
    window: u32,
    at_once: usize,
    is_calm: bool,
    until_ns: u64,
    pauses_ns: u64,
}

struct Waiting {
    pending: PendingCall<Result<Vec<u8>, RpcError>>,
    call: u64,
    began_ns: u64,
    ends_by_ns: u64,
}

/// A client of the run.
struct Client {
    host: Host,
    setup: Setup,
    dice: Dice,
    world: Rc<RefCell<World>>,
    echo: EchoPollClient,
    waiting: Vec<Waiting>,
    next_ns: u64,
}

/// Runs a seed, with or without a planted bug.
pub(crate) fn run(seed: u64, mutation: Option<Mutation>, trace: &Trace) -> Outcome {
    run_counting(seed, mutation, trace).0
}

/// Runs a seed, and counts its clients' trials of backends.
fn run_counting(seed: u64, mutation: Option<Mutation>, trace: &Trace) -> (Outcome, u64) {
    let mut dice = Dice::new(seed, 9);
    let is_calm = dice.once_in(2);
    let config = if is_calm { SimConfig::default() } else { rack_config(seed) };
    let mut rack = Rack::with_config(seed, config);
    trace.begin(&mut rack);
    let server = rack.add_node();
    let clients: Vec<_> = (0..dice.between(1, 3)).map(|_| rack.add_node()).collect();
    let mut plan = Plan::draw(seed, Severity::Masked, server, &clients);
    if is_calm {
        plan = Plan { steps: Vec::new(), healed_ns: CALM_NS };
    }
    let window = dice.pick(&[2, 8, 32]);
    let exclude = dice.pick(&["", "&exclude=write_imm", "&exclude=datagram,scale", "&exclude=rfp"]);
    let address = format!("sim://{server}/moves?backend=hybrid&window={window}{exclude}");
    let setup = Setup {
        address,
        window,
        at_once: dice.between(1, u64::from(window)) as usize,
        is_calm,
        until_ns: plan.healed_ns,
        pauses_ns: 0,
    };
    let (seen, world) = (Seen::default(), Rc::<RefCell<World>>::default());
    // Of this thread, which runs the whole rack.
    plant(mutation.and_then(Mutation::bug));
    let played = catch_unwind(AssertUnwindSafe(|| {
        play(&mut rack, (&seen, &world), (&plan, &clients), &setup, &mut dice)
    }));
    plant(None);
    let failure = match played {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(failure),
        Err(panic) => Some(format!("a panic: {}", text(&*panic))),
    };
    let (counts, tried) = (world.borrow().counts, world.borrow().tried);
    let outcome = Outcome {
        seed,
        what: "connections that move".to_owned(),
        failure: failed(&seen, &world).or(failure),
        plan: plan.to_string(),
        hash: rack.trace_hash(),
        now_ns: rack.now_ns(),
        counts,
        trace: rack.trace(),
    };
    (outcome, tried)
}

fn failed(seen: &Seen, world: &RefCell<World>) -> Option<String> {
    let of_service = seen.0.lock().unwrap_or_else(PoisonError::into_inner).failure.clone();
    of_service.or_else(|| world.borrow().failure.clone())
}

fn play(
    rack: &mut Rack,
    (seen, world): (&Seen, &Rc<RefCell<World>>),
    (plan, clients): (&Plan, &[NodeId]),
    setup: &Setup,
    dice: &mut Dice,
) -> Result<(), String> {
    let builder = Server::builder().service(EchoServer::new(seen.clone()));
    let running = rack.serve(&setup.address, builder.threads(dice.between(1, 2) as usize));
    let running: DrivenServer = running.map_err(|error| format!("no server: {error}"))?;
    let live = |client: &NodeId| {
        let setup = Setup { pauses_ns: plan.pauses_ns(*client), ..setup.clone() };
        let (dice, world) = (Dice::new(dice.word(), 10), Rc::clone(world));
        rack.spawn_program(*client, |host| live(host, setup, dice, world))
    };
    let programs: Vec<_> = clients.iter().map(live).collect();
    let mut steps = plan.steps.iter();
    let mut next = steps.next();
    let limit_ns = plan.healed_ns + 2 * SETTLING_NS;
    while programs.iter().any(|program| program.is_running()) && failed(seen, world).is_none() {
        let now_ns = rack.now_ns();
        while let Some((_, step)) = next.filter(|(at_ns, _)| *at_ns <= now_ns) {
            step.take(rack);
            next = steps.next();
        }
        if now_ns > limit_ns {
            return Err("a client never finishes".to_owned());
        }
        rack.run_until(next.map_or(now_ns + MS, |(at_ns, _)| (now_ns + MS).min(*at_ns)));
    }
    rack.run_for(CLEANUP_NS);
    match running.connections() {
        left if left > 0 && failed(seen, world).is_none() => {
            Err(format!("all clients are gone, but the server still has {left}"))
        }
        _ => Ok(()),
    }
}

/// The life of a client.
async fn live(host: Host, setup: Setup, dice: Dice, world: Rc<RefCell<World>>) {
    let options = DialOptions::default();
    let dialled = host.dial(&setup.address, EchoPollClient::DESCRIPTION, &options).await;
    let connection = match dialled {
        Ok(dialled) => Connection::new(dialled, host.site(), &ConnectionOptions::default()),
        // Faults may last longer than dialling.
        Err(_) if !setup.is_calm => return,
        Err(error) => {
            world.borrow_mut().failure = Some(format!("no connection: {error}"));
            return;
        }
    };
    let echo = EchoPollClient::from_connection(connection);
    let (waiting, next_ns) = (Vec::new(), 0);
    let mut client = Client { host: host.clone(), setup, dice, world, echo, waiting, next_ns };
    host.turns(|now| client.turn_in_faults(now)).await;
    let settled_ns = host.node().now_ns() + if client.setup.is_calm { MS } else { SETTLING_NS };
    host.turns(|now| client.settle(now, settled_ns)).await;
    client.fill_window();
    host.turns(|now| client.end(now)).await;
    let tried = options.moves.of(MoveEvent::Tried);
    host.node().note(|| format!("{tried} trials"));
    client.world.borrow_mut().tried += tried;
}

impl Client {
    fn fail(&self, what: String) {
        let node = self.host.node();
        node.note(|| format!("failure: {what}"));
        let what = format!("{} ns, client {:?}: {what}", node.now_ns(), node.id());
        self.world.borrow_mut().failure.get_or_insert(what);
    }

    /// Drives the connection, and takes what has come.
    fn drive(&mut self, now: Instant, may_fail: bool) -> Progress {
        let mut progress = self.echo.connection().turn(now);
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain_mut(|it| match self.echo.take(&mut it.pending) {
            Some(result) => {
                self.take(it, result, now.as_nanos(), may_fail);
                false
            }
            None if now.as_nanos() > it.ends_by_ns => {
                self.fail(format!("call {} did not end in time", it.call));
                false
            }
            None => true,
        });
        self.waiting = waiting;
        if self.echo.connection().is_closed() {
            self.fail("the connection has ended, and no fault ends one".to_owned());
        }
        if let Some(first) = self.waiting.iter().map(|it| it.ends_by_ns).min() {
            progress.next = progress.next.earlier(PollAt::At(Instant::from_nanos(first + 1)));
        }
        progress
    }

    fn take(&self, it: &Waiting, result: Result<Vec<u8>, RpcError>, now_ns: u64, may_fail: bool) {
        let (call, took_ns) = (it.call, now_ns - it.began_ns);
        match result {
            Ok(bytes) => {
                self.world.borrow_mut().counts.answered += 1;
                if value::check(&bytes) != Some(call) {
                    self.fail(format!("call {call} was answered with what is not its own"));
                }
                if self.setup.is_calm && took_ns > LONGEST_CALM_CALL_NS {
                    self.fail(format!("call {call} took {took_ns} ns, and nothing goes wrong"));
                }
            }
            Err(RpcError::DeadlineExceeded { .. }) if may_fail => {
                self.world.borrow_mut().counts.unknown += 1;
            }
            Err(error) => self.fail(format!("call {call} has failed: {error}")),
        }
    }

    /// Begins a call. `false`: there is no room.
    fn begin(&mut self, now_ns: u64, timeout_ns: u64) -> bool {
        let call = self.world.borrow().calls;
        let len = match self.dice.below(40) {
            0 if !self.setup.is_calm => self.dice.magnitude(4_000, 60_000),
            _ => self.dice.magnitude(8, 1_000),
        };
        self.echo.connection().set_timeout(Duration::from_nanos(timeout_ns));
        match self.echo.start_echo(&value::bytes(call, len as usize)) {
            Ok(pending) => {
                self.world.borrow_mut().calls += 1;
                let ends_by_ns = now_ns + timeout_ns + SLACK_NS + self.setup.pauses_ns;
                self.waiting.push(Waiting { pending, call, began_ns: now_ns, ends_by_ns });
                true
            }
            Err(RpcError::Overloaded(_)) => false,
            Err(error) => {
                self.fail(format!("a call did not start: {error}"));
                false
            }
        }
    }

    /// Calls in bursts, while faults happen if any do.
    fn turn_in_faults(&mut self, now: Instant) -> Result<(), Progress> {
        let (now_ns, is_calm) = (now.as_nanos(), self.setup.is_calm);
        let mut progress = self.drive(now, !is_calm);
        if now_ns >= self.setup.until_ns {
            return if self.waiting.is_empty() { Ok(()) } else { Err(progress) };
        }
        if self.dice.once_in(40) && !self.waiting.is_empty() {
            let at = self.dice.below(self.waiting.len() as u64) as usize;
            let given_up = self.waiting.swap_remove(at);
            self.echo.connection().cancel(given_up.pending);
        }
        if now_ns >= self.next_ns {
            let timeout_ns =
                if is_calm { HEALED_CALL_NS } else { self.dice.magnitude(50 * US, 100 * MS) };
            while self.waiting.len() < self.setup.at_once && self.begin(now_ns, timeout_ns) {
                progress.worked += 1;
            }
            self.next_ns = now_ns + self.dice.magnitude(US, LONGEST_PAUSE_NS);
        }
        progress.next = progress.next.earlier(PollAt::At(Instant::from_nanos(self.next_ns)));
        Err(progress)
    }

    fn settle(&mut self, now: Instant, until_ns: u64) -> Result<(), Progress> {
        let mut progress = self.drive(now, false);
        if now.as_nanos() >= until_ns {
            return Ok(());
        }
        progress.next = progress.next.earlier(PollAt::At(Instant::from_nanos(until_ns)));
        Err(progress)
    }

    /// A whole window of calls, at once.
    fn fill_window(&mut self) {
        let now_ns = self.host.node().now_ns();
        for begun in 0..self.setup.window {
            if !self.begin(now_ns, HEALED_CALL_NS) {
                let window = self.setup.window;
                return self.fail(format!("{begun} calls at once, and the window is {window}"));
            }
        }
    }

    fn end(&mut self, now: Instant) -> Result<(), Progress> {
        let progress = self.drive(now, false);
        if self.waiting.is_empty() { Ok(()) } else { Err(progress) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_move_in_most_seeds() {
        let tried = (1..=16).map(|seed| {
            let (outcome, tried) = run_counting(seed, None, &Trace::Off);
            assert_eq!(outcome.failure, None, "{outcome}");
            tried
        });
        let tried: Vec<_> = tried.collect();
        let moving = tried.iter().filter(|tried| **tried >= 4).count();
        assert!(moving >= 10, "{tried:?}");
    }
}
