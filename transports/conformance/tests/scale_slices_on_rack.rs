//! The slices of `scale` on a simulated rack, in exact time: who is served how much, and who waits how long.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    rc::Rc,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use farcall_core::{ChannelOptions, DrivenServer, Server};
use farcall_rack::{Host, Rack};
use farcall_verbs::sim::{Node, NodeId, SimConfig};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;

/// Nodes of clients.
const NODES: usize = 10;

#[farcall::service]
trait Timed {
    /// Uses the core of the server's thread for this long.
    fn work(&self, nanos: u64) -> u64;
}

struct Handler(Node);

impl Timed for Handler {
    fn work(&self, nanos: u64) -> u64 {
        if nanos > 0 {
            self.0.busy(nanos);
        }
        nanos
    }
}

/// What clients of a kind do: a call, then nothing for a while, and again.
#[derive(Clone, Copy)]
struct Kind {
    clients: usize,
    /// In the address, besides those of all.
    options: &'static str,
    /// How long its handler takes.
    work: u64,
    pause: u64,
    /// Calls outstanding.
    window: usize,
}

/// How long those calls of one kind of clients took that ended while it was measured, or after, in nanoseconds, in order.
struct Latencies(Vec<u64>);

impl Latencies {
    fn calls(&self) -> usize {
        self.0.len()
    }

    fn at(&self, percent: usize) -> u64 {
        self.0[(self.0.len() - 1) * percent / 100]
    }
}

struct Place {
    rack: Rack,
    _server: DrivenServer,
    nodes: Vec<NodeId>,
    address: String,
    /// All calls that were made.
    calls: Rc<Cell<u64>>,
}

impl Place {
    fn new(options: &str) -> Place {
        let mut rack = Rack::with_config(7, SimConfig::default().cores(24));
        let node = rack.add_node();
        let address = format!("sim://{node}/timed?backend=scale&{options}");
        let service = TimedServer::from(Arc::new(Handler(rack.node(node))));
        let server = rack.serve(&address, Server::builder().service(service).threads(1));
        let nodes = (0..NODES).map(|_| rack.add_node()).collect();
        let calls = Rc::default();
        Place { rack, _server: server.expect("serve"), nodes, address, calls }
    }

    /// Messages that arrived at the nodes of clients.
    fn messages_to_clients(&self) -> u64 {
        self.nodes.iter().map(|node| self.rack.node(*node).nic_counters().messages_in).sum()
    }

    /// Runs clients of these kinds, and gives what each kind measured in so much time, after as much for them to settle.
    fn run<const KINDS: usize>(&mut self, kinds: [Kind; KINDS], nanos: u64) -> [Latencies; KINDS] {
        let until = Duration::from_nanos(self.rack.now_ns() + 2 * nanos);
        let from = until - Duration::from_nanos(nanos);
        let measured = kinds.map(|kind| {
            let latencies = Rc::new(RefCell::new(Vec::new()));
            for client in 0..kind.clients {
                let (address, latencies) = (self.address.clone() + kind.options, latencies.clone());
                let made = self.calls.clone();
                let node = self.nodes[client % NODES];
                self.rack.spawn_program(node, async move |host: Host| {
                    let options = ChannelOptions::default().timeout(Duration::from_secs(5));
                    let calls: TimedClient =
                        host.connect_with(&address, &options).await.expect("connect");
                    let calls = (0..kind.window).map(|_| async {
                        while host.now() < until {
                            let began = host.now();
                            calls.work(kind.work).await.expect("work");
                            made.set(made.get() + 1);
                            if host.now() >= from {
                                let nanos = (host.now() - began).as_nanos() as u64;
                                latencies.borrow_mut().push(nanos);
                            }
                            if kind.pause > 0 {
                                host.sleep(Duration::from_nanos(kind.pause)).await;
                            }
                        }
                    });
                    all(calls.collect()).await;
                });
            }
            latencies
        });
        self.rack.run_for(2 * nanos + 10 * MILLISECOND);
        measured.map(|latencies| {
            let mut latencies = latencies.take();
            latencies.sort_unstable();
            assert!(!latencies.is_empty(), "no call was made");
            Latencies(latencies)
        })
    }
}

/// Waits for all of them at the same time.
async fn all<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut futures: Vec<_> = futures.into_iter().map(|it| Some(Box::pin(it))).collect();
    poll_fn(|context| {
        for future in &mut futures {
            if future.as_mut().is_some_and(|it| it.as_mut().poll(context).is_ready()) {
                *future = None;
            }
        }
        if futures.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

const USUAL: Kind = Kind { clients: 1, options: "", work: 0, pause: 0, window: 1 };

#[test]
fn busy_clients_get_most_of_the_time_and_others_wait_for_bounded_time() {
    let mut place = Place::new("group=10&slice=100us");
    let busy = Kind { clients: 10, ..USUAL };
    let [alone] = Place::new("group=10&slice=100us").run([busy], 10 * MILLISECOND);
    // As many as four groups, that call every half millisecond.
    let seldom = Kind { clients: 40, pause: 500 * MICROSECOND, ..USUAL };
    let [busy, seldom] = place.run([busy, seldom], 10 * MILLISECOND);
    // In turn with four other groups in slices of the same length they would have a fifth.
    let part = 100 * busy.calls() / alone.calls();
    assert!(part > 50, "{part} % of the calls that they make alone");
    let longest = seldom.at(100);
    assert!(longest < 5 * 200 * MICROSECOND, "{longest} ns");
}

#[test]
fn a_response_tells_a_busy_client_that_its_slice_is_over() {
    let mut place = Place::new("group=10&slice=100us");
    place.run([Kind { clients: 20, ..USUAL }], 10 * MILLISECOND);
    // Besides the responses: the READ of its log each time that a client comes in. A message that tells it to stop would be as many.
    let others = place.messages_to_clients() - place.calls.get();
    let stays = 10 * 20 * MILLISECOND / (100 * MICROSECOND);
    println!("{others} messages that are no responses, {stays} stays");
    assert!((stays / 2..stays * 5 / 4).contains(&others), "{others} messages in {stays} stays");
}

#[test]
fn a_pinned_client_does_not_wait_for_a_slice() {
    let mut place = Place::new("group=10&slice=100us&pins=1");
    let others = Kind { clients: 40, ..USUAL };
    let pinned = Kind { options: "&pinned=yes", pause: 100 * MICROSECOND, ..USUAL };
    let unpinned = Kind { options: "&pinned=no", ..pinned };
    let [_, pinned, unpinned] = place.run([others, pinned, unpinned], 10 * MILLISECOND);
    let (longest, median) = (pinned.at(100), unpinned.at(50));
    assert!(longest < 20 * MICROSECOND, "{longest} ns");
    assert!(median > 100 * MICROSECOND, "{median} ns: others wait for their slices");
}

#[test]
fn long_calls_do_not_take_the_time_of_short_ones() {
    let short = Kind { clients: 40, ..USUAL };
    let [alone] = Place::new("group=10&slice=100us").run([short], 20 * MILLISECOND);
    // A fifth of the usual slice, and five times as long; each a fifth of all clients. Were they not bounded, short calls would make 9 % and
    // 0.2 % of the calls that they make alone.
    for (work, window, least) in [(20 * MICROSECOND, 8, 75), (500 * MICROSECOND, 1, 18)] {
        let mut place = Place::new("group=10&slice=100us");
        let long = Kind { clients: 10, work, window, ..USUAL };
        let [short, long] = place.run([short, long], 20 * MILLISECOND);
        let part = 100 * short.calls() / alone.calls();
        assert!(part > least, "{part} % of the calls that they make alone, beside {work} ns");
        println!("beside calls of {work} ns: {part} % of the calls that they make alone");
        let longest = long.at(100);
        assert!(longest < 25 * MILLISECOND, "{longest} ns: one that takes {work}");
    }
}

/// The table of the book's page on `scale`: calls of 40 clients with short calls in 40 ms, beside 10 with long ones.
#[test]
#[ignore = "a measurement: cargo test -p farcall-transports-conformance --features sim --test scale_slices_on_rack -- --ignored --nocapture"]
fn calls_beside_long_ones() {
    let short = Kind { clients: 40, ..USUAL };
    let [alone] = Place::new("group=10&slice=100us").run([short], 40 * MILLISECOND);
    println!("alone: {} short calls", alone.calls());
    for work in [20, 100, 500] {
        for window in [1, 8] {
            let long = Kind { clients: 10, work: work * MICROSECOND, window, ..USUAL };
            let [short, long] =
                Place::new("group=10&slice=100us").run([short, long], 40 * MILLISECOND);
            let (median, longest) = (long.at(50) / MICROSECOND, long.at(100) / MICROSECOND);
            println!(
                "{work} us, {window} outstanding: {} short calls; {} long ones, in {median} us, at most {longest}",
                short.calls(),
                long.calls()
            );
        }
    }
}
