//! The run of one seed: a client of `hybrid` whose server is hostile. It advises what its client should not take, and serves one backend far
//! more slowly than the others.
//!
//! No advice may cost the client more than a part of its calls: it moves seldom, and leaves a backend where its calls take far longer. Every call
//! runs once and is answered with its own bytes.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farcall_core::metrics::MoveEvent;
use farcall_core::server::Server;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{
    Adviser, Bound, CallToken, DialOptions, Message, Replies, RequestLayer, RequestSink,
    ServerLayer, ServerTransport, ThreadLoad,
};
use farcall_core::{Connection, ConnectionOptions, PendingCall, PollClient, RpcError};
use farcall_rack::{Host, Rack, RackAddress};
use farcall_transports::planted::plant;
use farcall_verbs::sim::Node;

use crate::dice::Dice;
use crate::moves::{EchoPollClient, EchoServer, Seen};
use crate::mutation::Mutation;
use crate::outcome::{Outcome, text};
use crate::records::Counts;
use crate::trace::Trace;
use crate::value;

const MS: u64 = 1_000_000;

/// How long the client calls.
const RUN_NS: u64 = 200 * MS;

/// From then on, the client must have made up its mind about its server.
const JUDGED_FROM_NS: u64 = 100 * MS;

/// What a call takes the server over the backend that it serves slowly. Over others it takes some 3 us with all that there is to it.
const SLOW_NS: u64 = 30_000;

/// Most of the time, in per cent, that the client may spend with calls over that.
const SLOW_PERCENT: u64 = 50;

/// Most moves of the client: 16 in sequence and one in 20 ms, as many back, and those of its own.
const MOST_MOVES: u64 = 64;

const TIMEOUT: Duration = Duration::from_millis(100);

/// What a hostile server advises.
#[derive(Clone, Copy, Debug)]
enum Advice {
    /// The slow backend, from some moment on.
    Slow { from_ns: u64 },
    /// The slow one and none, alternately, each for about so long.
    Flips { every_ns: u64 },
    /// A backend that it does not offer, and none, alternately.
    NotOffered,
    /// Any number, each time.
    Any,
}

/// Advises so.
struct Hostile {
    advice: Advice,
    slow: u8,
    not_offered: u8,
    seed: u64,
}

impl Adviser for Hostile {
    fn advise(&self, _: usize, _: &ThreadLoad<'_>, now: Instant) -> u8 {
        let now_ns = now.as_nanos();
        let is_even = |every_ns: u64| (now_ns / every_ns).is_multiple_of(2);
        let at_times = |every_ns, number| if is_even(every_ns) { number } else { 0 };
        match self.advice {
            Advice::Slow { from_ns } if now_ns < from_ns => 0,
            Advice::Slow { .. } => self.slow,
            Advice::Flips { every_ns } => at_times(every_ns, self.slow),
            Advice::NotOffered => at_times(2 * MS, self.not_offered),
            Advice::Any => Dice::new(self.seed ^ now_ns, 13).below(8) as u8,
        }
    }
}

/// A transport whose calls take the server long.
struct Slow {
    inner: Box<dyn ServerTransport>,
    node: Node,
    /// The time that these calls have taken since [`JUDGED_FROM_NS`].
    spent_ns: Arc<AtomicU64>,
}

impl ServerLayer for Slow {
    fn inner(&self) -> &dyn ServerTransport {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn ServerTransport {
        &mut *self.inner
    }

    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress {
        let Slow { inner, node, spent_ns } = self;
        inner.poll(now, &mut SlowRequests { sink, node, spent_ns })
    }
}

struct SlowRequests<'a> {
    sink: &'a mut dyn RequestSink,
    node: &'a Node,
    spent_ns: &'a AtomicU64,
}

impl RequestLayer for SlowRequests<'_> {
    fn inner(&self) -> &dyn RequestSink {
        self.sink
    }

    fn inner_mut(&mut self) -> &mut dyn RequestSink {
        self.sink
    }

    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        if self.node.now_ns() >= JUDGED_FROM_NS {
            self.spent_ns.fetch_add(SLOW_NS, Ordering::Relaxed);
        }
        self.node.busy(SLOW_NS);
        self.sink.request(call, message, replies);
    }
}

#[derive(Default)]
struct World {
    counts: Counts,
    failure: Option<String>,
}

/// Runs a seed, with or without a planted bug.
pub(crate) fn run(seed: u64, mutation: Option<Mutation>, trace: &Trace) -> Outcome {
    let mut dice = Dice::new(seed, 12);
    let mut rack = Rack::new(seed);
    trace.begin(&mut rack);
    let advice = match dice.below(4) {
        0 => Advice::Slow { from_ns: dice.below(50 * MS) },
        1 => Advice::Flips { every_ns: dice.magnitude(MS / 2, 30 * MS) },
        2 => Advice::NotOffered,
        _ => Advice::Any,
    };
    let world = Rc::<RefCell<World>>::default();
    // Of this thread, which runs the whole rack.
    plant(mutation.and_then(Mutation::bug));
    let played =
        catch_unwind(AssertUnwindSafe(|| play(&mut rack, &world, (seed, advice), &mut dice)));
    plant(None);
    let failure = match played {
        Ok(Ok(())) => world.borrow().failure.clone(),
        Ok(Err(failure)) => Some(failure),
        Err(panic) => Some(format!("a panic: {}", text(&*panic))),
    };
    let counts = world.borrow().counts;
    Outcome {
        seed,
        what: "a connection that moves, with a hostile server".to_owned(),
        failure,
        plan: format!("advice: {advice:?}"),
        hash: rack.trace_hash(),
        now_ns: rack.now_ns(),
        counts,
        trace: rack.trace(),
    }
}

fn play(
    rack: &mut Rack,
    world: &Rc<RefCell<World>>,
    (seed, advice): (u64, Advice),
    dice: &mut Dice,
) -> Result<(), String> {
    let (server, client) = (rack.add_node(), rack.add_node());
    let address = format!("sim://{server}/advice?backend=hybrid&window=8");
    let offered: RackAddress = format!("{address}&exclude=send_recv")
        .parse()
        .map_err(|error| format!("no address: {error}"))?;
    let numbers: Vec<u8> = offered.offered().map(|(backend, _)| backend.number()).collect();
    let all: RackAddress = address.parse().map_err(|error| format!("no address: {error}"))?;
    let mut all = all.offered().map(|(backend, _)| backend.number());
    let not_offered = all.find(|number| !numbers.contains(number)).unwrap_or(u8::MAX);
    // The first backend is where clients begin.
    let at = dice.between(1, numbers.len() as u64 - 1) as usize;
    let (spent_ns, node) = (Arc::<AtomicU64>::default(), rack.node(server));
    let alter = |bound: Bound| {
        let Bound { mut halves, .. } = bound;
        let slow = |inner| -> Box<dyn ServerTransport> {
            Box::new(Slow { inner, node: node.clone(), spent_ns: Arc::clone(&spent_ns) })
        };
        let transports = std::mem::take(&mut halves[at].transports);
        halves[at].transports = transports.into_iter().map(slow).collect();
        let adviser = Arc::new(Hostile { advice, slow: numbers[at], not_offered, seed });
        Bound { halves, adviser: Some(adviser), ..bound }
    };
    let builder = Server::builder().service(EchoServer::new(Seen::default())).threads(1);
    let running = rack.serve_altered(&offered.to_string(), builder, &alter);
    let running = running.map_err(|error| format!("no server: {error}"))?;
    let (at_once, of_client) = (dice.between(1, 3) as usize, Rc::clone(world));
    let program =
        rack.spawn_program(client, |host| live(host, address.clone(), at_once, of_client));
    while program.is_running() {
        if rack.now_ns() > 2 * RUN_NS {
            return Err("the client never finishes".to_owned());
        }
        rack.run_for(MS);
    }
    drop(running);
    let percent = spent_ns.load(Ordering::Relaxed) * 100 / (RUN_NS - JUDGED_FROM_NS);
    match percent {
        0..=SLOW_PERCENT => Ok(()),
        _ => Err(format!("{percent} % of the time was spent where the server leads its client")),
    }
}

/// The life of the client.
async fn live(host: Host, address: String, at_once: usize, world: Rc<RefCell<World>>) {
    let options = DialOptions::default();
    let dialled = host.dial(&address, EchoPollClient::DESCRIPTION, &options).await;
    let connection = match dialled {
        Ok(dialled) => Connection::new(dialled, host.site(), &ConnectionOptions::default()),
        Err(error) => {
            world.borrow_mut().failure = Some(format!("no connection: {error}"));
            return;
        }
    };
    let echo = EchoPollClient::from_connection(connection);
    let mut client = Client { at_once, world, echo, waiting: Vec::new(), calls: 0 };
    client.echo.connection().set_timeout(TIMEOUT);
    host.turns(|now| client.turn(now)).await;
    let moves = options.moves.of(MoveEvent::Moved);
    host.node().note(|| format!("{moves} moves"));
    if moves > MOST_MOVES {
        client.fail(format!("{moves} moves, as the server advises"));
    }
    let not_opened = options.moves.of(MoveEvent::NotOpened);
    if not_opened > MOST_MOVES {
        client.fail(format!("{not_opened} lanes that could not be opened, as the server advises"));
    }
}

type PendingEcho = PendingCall<Result<Vec<u8>, RpcError>>;

/// The client, which has some calls under way all the time.
struct Client {
    at_once: usize,
    world: Rc<RefCell<World>>,
    echo: EchoPollClient,
    waiting: Vec<(PendingEcho, u64)>,
    calls: u64,
}

impl Client {
    fn fail(&self, what: String) {
        self.world.borrow_mut().failure.get_or_insert(what);
    }

    fn turn(&mut self, now: Instant) -> Result<(), Progress> {
        let mut progress = self.echo.connection().turn(now);
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain_mut(|(pending, call)| match self.echo.take(pending) {
            Some(Ok(bytes)) if value::check(&bytes) == Some(*call) => {
                self.world.borrow_mut().counts.answered += 1;
                false
            }
            Some(Ok(_)) => {
                self.fail(format!("call {call} was answered with what is not its own"));
                false
            }
            Some(Err(error)) => {
                self.fail(format!("call {call} has failed: {error}"));
                false
            }
            None => true,
        });
        self.waiting = waiting;
        if now.as_nanos() >= RUN_NS {
            return if self.waiting.is_empty() { Ok(()) } else { Err(progress) };
        }
        while self.waiting.len() < self.at_once {
            match self.echo.start_echo(&value::bytes(self.calls, 32)) {
                Ok(pending) => self.waiting.push((pending, self.calls)),
                Err(RpcError::Overloaded(_)) => break,
                Err(error) => {
                    self.fail(format!("a call did not start: {error}"));
                    return Ok(());
                }
            }
            (self.calls, progress.worked) = (self.calls + 1, progress.worked + 1);
        }
        progress.next = progress.next.earlier(PollAt::At(Instant::from_nanos(RUN_NS)));
        Err(progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_server_costs_its_client_a_bounded_part_of_its_calls() {
        for seed in 1..=6 {
            let outcome = run(seed, None, &Trace::Off);
            assert_eq!(outcome.failure, None, "{outcome}");
            assert!(outcome.counts.answered > 1_000, "{outcome}");
        }
    }
}
