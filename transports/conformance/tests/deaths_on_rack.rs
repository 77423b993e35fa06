//! Nodes of a simulated rack are killed, paused and cut off at any moment of small and large calls, from a few seeds, or from
//! `FARCALL_CONFORMANCE_SEEDS=100..200`.

use std::{cell::Cell, rc::Rc, sync::Arc, time::Duration};

use farcall_core::{ChannelOptions, DrivenServer, RpcError, Server};
use farcall_rack::{Host, Rack, Task};
use farcall_transports_conformance::{
    backends,
    cases::swarm::seeds,
    dice::Dice,
    pattern,
    service::{Handlers, SuiteClient, SuiteServer},
};
use farcall_verbs::sim::{Fault, Landing, NodeId, SimConfig};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const NO_PAUSE: Duration = Duration::ZERO;

/// A server of the suite's service, on a node of its own.
struct Place {
    rack: Rack,
    dice: Dice,
    server: NodeId,
    address: String,
    handlers: Arc<Handlers>,
    running: DrivenServer,
}

/// Each backend, with each seed.
fn each() -> impl Iterator<Item = (&'static str, u64)> {
    let backends = backends::ALL.iter().map(|backend| backend.name);
    backends.flat_map(|backend| seeds().map(move |seed| (backend, seed)))
}

fn place((backend, seed): (&str, u64), options: &str) -> Place {
    // On every other rack WRITEs land in pieces, in any order, and late.
    let config = match seed % 2 {
        0 => SimConfig::default(),
        _ => {
            SimConfig::default().landing(Landing::AnyOrder).delivered_late(Duration::from_micros(2))
        }
    };
    let mut rack = Rack::with_config(seed, config);
    let server = rack.add_node();
    let address = format!("sim://{server}/suite?backend={backend}&{options}");
    let handlers = Arc::new(Handlers::default());
    let running = serve(&mut rack, &address, &handlers);
    Place { rack, dice: Dice::new(seed), server, address, handlers, running }
}

fn serve(rack: &mut Rack, address: &str, handlers: &Arc<Handlers>) -> DrivenServer {
    let suite = SuiteServer::from(handlers.clone());
    rack.serve(address, Server::builder().service(suite).threads(2)).expect("serve")
}

async fn connect(host: &Host, address: &str) -> SuiteClient {
    let options = ChannelOptions::default().timeout(60 * SECOND);
    host.connect_with(address, &options).await.expect("connect")
}

/// Echoes of many sizes, with a pause after each, until one fails; gives how many succeeded.
async fn stream(
    host: Host,
    address: String,
    (longest, pause): (usize, Duration),
    echoed: Rc<Cell<u64>>,
) -> RpcError {
    let suite = connect(&host, &address).await;
    for seed in echoed.get().. {
        let len = (seed as usize * 7919) % longest;
        match suite.echo(&pattern::make(seed, len)).await {
            Ok(bytes) => pattern::assert_is(seed, len, &bytes),
            Err(error) => return error,
        }
        echoed.set(seed + 1);
        host.sleep(pause).await;
    }
    unreachable!("a number that high")
}

impl Place {
    /// A new node with programs that stream.
    fn streaming(
        &mut self,
        programs: usize,
        longest: usize,
        pause: Duration,
    ) -> (NodeId, Vec<Stream>) {
        let node = self.rack.add_node();
        let streams = (0..programs).map(|_| {
            let echoed = Rc::new(Cell::new(0));
            let (address, counter) = (self.address.clone(), echoed.clone());
            let task = self
                .rack
                .spawn_program(node, |host| stream(host, address, (longest, pause), counter));
            Stream { task, echoed }
        });
        (node, streams.collect())
    }

    fn run_for(&mut self, time: Duration) {
        self.rack.run_for(time.as_nanos() as u64);
    }

    /// Runs for a random time up to `longest`.
    fn run_some(&mut self, longest: Duration) {
        let ns = self.dice.below(longest.as_nanos() as u64);
        self.rack.run_for(ns);
    }

    /// One echo of a program of its own, and how long it took once connected.
    fn echo(&mut self, node: NodeId, len: usize) -> Duration {
        let address = self.address.clone();
        let took = self.rack.run(node, async move |host| {
            let suite = connect(&host, &address).await;
            let begin = host.now();
            let echoed = suite.echo(&pattern::make(5, len)).await.expect("echo");
            pattern::assert_is(5, len, &echoed);
            host.now() - begin
        });
        took.expect("its node runs")
    }
}

struct Stream {
    task: Task<RpcError>,
    echoed: Rc<Cell<u64>>,
}

#[test]
fn a_killed_server_ends_its_calls_and_comes_back() {
    for (backend, seed) in each() {
        let mut place = place((backend, seed), "window=8");
        for round in 0..3 {
            let (node, streams) = place.streaming(3, 600_000, NO_PAUSE);
            let address = place.address.clone();
            let held = place.rack.spawn_program(node, async move |host| {
                connect(&host, &address).await.hold(1, 0).await
            });
            place.run_for(MILLISECOND / 2);
            place.run_some(4 * MILLISECOND);
            place.rack.inject(Fault::KillNode(place.server));
            assert!(place.running.is_down());
            // A dead node sends nothing: a sender notices missing acknowledgements, an idle client its liveness socket.
            place.run_for(6 * SECOND);
            for Stream { task, echoed } in streams {
                let error = task.take().expect("it has noticed");
                let gone = matches!(error, RpcError::PeerGone { .. });
                assert!(
                    gone,
                    "{backend}, seed {seed}, round {round}, after {} echoes: {error:?}",
                    echoed.get()
                );
            }
            let ended = held.take();
            assert!(
                matches!(ended, Some(Err(RpcError::PeerGone { may_have_run: true, .. }))),
                "{ended:?}"
            );
            place.rack.inject(Fault::RestartNode(place.server));
            place.running = serve(&mut place.rack, &place.address, &place.handlers);
            place.echo(node, 300_000);
        }
    }
}

/// When the path between both ends is cut, each notices after the time that the address sets: a client with a call in flight,
/// an idle client, and the server.
#[test]
fn the_address_says_how_long_a_peer_may_be_silent() {
    for (backend, seed) in each() {
        for silence in [2 * SECOND, 9 * SECOND] {
            let options = format!("silence={}s", silence.as_secs());
            let mut place = place((backend, seed), &options);
            let node = place.rack.add_node();
            let address = place.address.clone();
            let waiting = place.rack.spawn_program(node, async move |host| {
                let suite = connect(&host, &address).await;
                let error = suite.hold(1, 0).await.expect_err("the way is cut");
                (error, host.now())
            });
            let address = place.address.clone();
            let idle = place.rack.spawn_program(node, async move |host| {
                let suite = connect(&host, &address).await;
                host.sleep(20 * SECOND).await;
                suite.tally(1).await.expect_err("the way is cut")
            });
            place.run_for(MILLISECOND);
            assert_eq!(place.running.connections(), 2);
            for (from, to) in [(node, place.server), (place.server, node)] {
                place.rack.inject(Fault::Cut { from, to });
            }
            let cut = Duration::from_nanos(place.rack.now_ns());
            place.run_for(silence - 10 * MILLISECOND);
            assert_eq!(place.running.connections(), 2, "{backend}, seed {seed}: too early");
            place.run_for(silence / 2);
            assert_eq!(place.running.connections(), 0, "{backend}, seed {seed}: too late");
            let (error, noticed) = waiting.take().expect("it has noticed");
            assert!(matches!(error, RpcError::PeerGone { may_have_run: true, .. }), "{error:?}");
            assert!(
                noticed - cut < silence + SECOND,
                "{backend}, {silence:?}: {:?}",
                noticed - cut
            );
            place.run_for(30 * SECOND);
            let idle = idle.take();
            assert!(
                matches!(idle, Some(RpcError::PeerGone { may_have_run: false, .. })),
                "{idle:?}"
            );
        }
    }
}

#[test]
fn killed_clients_leave_nothing_and_do_not_affect_others() {
    const LEN: usize = 1_000_000;
    for (backend, seed) in each() {
        // Memory for a few messages at a time: leases of killed clients would exhaust it.
        let mut place = place((backend, seed), "window=4&max_message=1m&memory=24m");
        let (_, lives) = place.streaming(2, 100_000, 20 * MILLISECOND);
        for round in 0..5 {
            let (node, _) = place.streaming(3, 50_000 << round, NO_PAUSE);
            place.run_for(MILLISECOND / 2);
            place.run_some(2 * MILLISECOND);
            place.rack.inject(Fault::KillNode(node));
            let before: Vec<_> = lives.iter().map(|life| life.echoed.get()).collect();
            place.run_for(100 * MILLISECOND);
            for (life, before) in lives.iter().zip(before) {
                assert!(life.task.is_running(), "{backend}, seed {seed}: {:?}", life.task.take());
                assert!(
                    life.echoed.get() > before + 2,
                    "{backend}, seed {seed}, round {round}: it is stalled"
                );
            }
        }
        place.run_for(6 * SECOND);
        // All of their memory has been released.
        let node = place.rack.add_node();
        for _ in 0..8 {
            assert!(place.echo(node, LEN) < SECOND);
        }
        place.run_for(MILLISECOND);
        assert_eq!(place.running.connections(), lives.len(), "{backend}, seed {seed}");
    }
}

#[test]
fn a_paused_client_stalls_no_other_and_goes_on() {
    for (backend, seed) in each() {
        let mut place = place((backend, seed), "window=4&max_message=1m&memory=24m");
        let (_, lives) = place.streaming(1, 100_000, MILLISECOND / 10);
        let (paused, streams) = place.streaming(2, 500_000, NO_PAUSE);
        for round in 0..5 {
            place.run_some(MILLISECOND);
            place.rack.node(paused).pause(5_000_000);
            let before = lives[0].echoed.get();
            place.run_for(4 * MILLISECOND);
            assert!(lives[0].echoed.get() > before + 10, "{backend}, seed {seed}, round {round}");
            place.run_for(2 * MILLISECOND);
        }
        for Stream { task, echoed } in streams {
            assert!(
                task.is_running() && echoed.get() > 10,
                "{backend}, seed {seed}: {}",
                echoed.get()
            );
        }
    }
}

#[test]
fn a_paused_server_only_delays_calls() {
    for (backend, seed) in each() {
        let mut place = place((backend, seed), "window=8");
        let (client, streams) = place.streaming(1, 50_000, MILLISECOND);
        for id in 0..10 {
            place.run_some(MILLISECOND);
            let pause = Fault::PauseNode { node: place.server, for_ns: 30_000_000 };
            let soon_ns = place.rack.now_ns() + 5_000_000;
            place.rack.schedule(soon_ns, pause);
            let address = place.address.clone();
            let (late, executed) = place
                .rack
                .run(client, async move |host| {
                    let suite = connect(&host, &address).await;
                    host.sleep(6 * MILLISECOND).await;
                    let late = suite.tally(id).timeout(10 * MILLISECOND).await;
                    host.sleep(40 * MILLISECOND).await;
                    (late, suite.tallied(id).await.expect("tallied"))
                })
                .expect("its node runs");
            assert!(matches!(late, Err(RpcError::DeadlineExceeded { .. })), "{late:?}");
            assert!(executed <= 1, "{backend}, seed {seed}: a late call ran {executed} times");
        }
        assert!(streams[0].task.is_running(), "{:?}", streams[0].task.take());
    }
}

#[test]
fn a_path_that_is_cut_for_a_moment_only_delays_calls() {
    for (backend, seed) in each() {
        let mut place = place((backend, seed), "window=8");
        let (client, streams) = place.streaming(3, 30_000, 5 * MILLISECOND);
        for round in 0..4 {
            place.run_some(2 * MILLISECOND);
            let (from, to) = match round % 2 {
                0 => (client, place.server),
                _ => (place.server, client),
            };
            place.rack.inject(Fault::Cut { from, to });
            place.run_some(100 * MILLISECOND);
            place.rack.inject(Fault::Heal { from, to });
            let before: Vec<_> = streams.iter().map(|stream| stream.echoed.get()).collect();
            place.run_for(SECOND);
            for (Stream { task, echoed }, before) in streams.iter().zip(before) {
                assert!(task.is_running(), "{backend}, seed {seed}: {:?}", task.take());
                assert!(
                    echoed.get() > before,
                    "{backend}, seed {seed}, round {round}: it does not go on"
                );
            }
        }
    }
}

#[test]
fn programs_of_a_node_share_a_client() {
    for (backend, seed) in each() {
        let mut place = place((backend, seed), "window=4");
        let node = place.rack.add_node();
        let address = place.address.clone();
        // The program that connected drives the calls of all, so it stays.
        let shared: Rc<Cell<Option<SuiteClient>>> = Rc::default();
        let given = shared.clone();
        let carrier = place.rack.spawn_program(node, async move |host| {
            given.set(Some(connect(&host, &address).await));
            host.sleep(SECOND).await;
        });
        place.run_for(MILLISECOND);
        let suite = shared.take().expect("connected");
        let tasks: Vec<_> = (0..20_u64)
            .map(|task| {
                let suite = suite.clone();
                place.rack.spawn_program(node, async move |_| {
                    for call in 0..20 {
                        let (seed, len) = (task * 100 + call, (call * 997) as usize);
                        let echoed = suite.echo(&pattern::make(seed, len)).await.expect("echo");
                        pattern::assert_is(seed, len, &echoed);
                    }
                })
            })
            .collect();
        place.run_for(100 * MILLISECOND);
        assert!(tasks.iter().all(|task| task.take().is_some()), "{backend}, seed {seed}");
        assert!(carrier.is_running());
    }
}

#[test]
fn the_same_deaths_give_the_same_run() {
    let run = |backend, seed| {
        let mut place = place((backend, seed), "window=4");
        let (node, streams) = place.streaming(3, 200_000, NO_PAUSE);
        place.run_for(2 * MILLISECOND);
        place.rack.inject(Fault::KillNode(node));
        let (_, others) = place.streaming(2, 200_000, NO_PAUSE);
        place.run_for(2 * MILLISECOND);
        place.rack.inject(Fault::KillNode(place.server));
        place.run_for(6 * SECOND);
        let echoed: Vec<_> =
            streams.iter().chain(&others).map(|stream| stream.echoed.get()).collect();
        (place.rack.trace_hash(), echoed)
    };
    for backend in backends::ALL.iter().map(|backend| backend.name) {
        for seed in [1, 2] {
            assert_eq!(run(backend, seed), run(backend, seed));
        }
        assert_ne!(run(backend, 1).0, run(backend, 2).0);
    }
}
