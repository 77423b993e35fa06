//! A connection that moves, on a simulated rack: where it ends up, and what it has on the way.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{cell::Cell, pin::Pin, rc::Rc, sync::Arc, task::Poll};

use farcall_core::metrics::MoveEvent;
use farcall_core::{ChannelOptions, DrivenServer, Server};
use farcall_rack::{CpuCosts, Host, Rack};
use farcall_transports_conformance::service::{Handlers, SuiteClient, SuiteServer};
use farcall_verbs::sim::{Costs, Node, SimConfig};

const MILLISECOND: u64 = 1_000_000;

struct Place {
    rack: Rack,
    address: String,
    _running: DrivenServer,
}

/// Calls that have been answered.
type Answered = Rc<Cell<u64>>;

impl Place {
    fn new(options: &str) -> Place {
        let config = SimConfig::default().costs(Costs::connectx3());
        let mut rack = Rack::with_config(11, config);
        rack.set_cpu_costs(CpuCosts::default());
        let server = rack.add_node();
        let address = format!("sim://{server}/suite?{options}");
        let suite = SuiteServer::from(Arc::new(Handlers::default()));
        let running = rack.serve(&address, Server::builder().service(suite).threads(1));
        Place { _running: running.expect("serve"), rack, address }
    }

    /// A client on a node of its own, with so many calls under way at a time, each with so many bytes in both directions.
    fn calling(&mut self, calls: usize, bytes: usize) -> Answered {
        let (node, address) = (self.rack.add_node(), self.address.clone());
        let answered = Answered::default();
        let counted = Rc::clone(&answered);
        let program = self.rack.spawn_program(node, async move |host: Host| {
            let options = ChannelOptions::default();
            let client: SuiteClient = host.connect_with(&address, &options).await.expect("connect");
            let bytes = vec![7; bytes];
            let mut under_way: Vec<_> = (0..calls).map(|_| client.echo(&bytes)).collect();
            std::future::poll_fn(|context| {
                for call in &mut under_way {
                    while let Poll::Ready(answer) = Pin::new(&mut *call).poll(context) {
                        answer.expect("an answer");
                        counted.set(counted.get() + 1);
                        *call = client.echo(&bytes);
                    }
                }
                Poll::<()>::Pending
            })
            .await;
        });
        drop(program);
        answered
    }

    /// Answers within so many milliseconds.
    fn rate(&mut self, answered: &[Answered], millis: u64) -> u64 {
        let sum = |answered: &[Answered]| answered.iter().map(|it| it.get()).sum::<u64>();
        let before = sum(answered);
        self.rack.run_for(millis * MILLISECOND);
        sum(answered) - before
    }
}

const WAYS: [&str; 5] = ["write_imm", "datagram", "send_recv", "rfp", "scale"];

/// The answers of a steady load in 10 ms, after so many.
fn steady(options: &str, calls: usize, bytes: usize, after_millis: u64) -> u64 {
    let mut place = Place::new(options);
    let answered = [place.calling(calls, bytes)];
    place.rack.run_for(after_millis * MILLISECOND);
    place.rate(&answered, 10)
}

/// Wherever it begins: on `datagram`, and on `rfp`.
#[test]
fn a_connection_ends_up_where_calls_take_least() {
    for (calls, bytes) in [(1, 32), (32, 32), (4, 4000)] {
        let fixed = WAYS.map(|way| (way, steady(&format!("backend={way}"), calls, bytes, 1)));
        for excluded in [&["write_imm"][..], &["write_imm", "datagram", "send_recv"]] {
            let options = format!("backend=hybrid&exclude={}", excluded.join(","));
            let moving = steady(&options, calls, bytes, 60);
            let left = fixed.iter().filter(|(way, _)| !excluded.contains(way)).map(|way| way.1);
            let best = left.max().expect("a backend");
            println!("{calls} calls of {bytes} B, {fixed:?}: {options}: {moving}");
            assert!(moving * 10 >= best * 9, "{calls} calls of {bytes} B: {moving} of {best}");
        }
    }
}

/// Keeps the server's core for as long as the test says.
#[farcall::service]
trait Work {
    fn work(&self, bytes: &[u8]) -> u64;
}

#[derive(Clone)]
struct Busy {
    node: Node,
    nanos: Arc<AtomicU64>,
}

impl Work for Busy {
    fn work(&self, bytes: &[u8]) -> u64 {
        self.node.busy(self.nanos.load(Relaxed));
        bytes.len() as u64
    }
}

/// Calls answered, and trials, while handlers take little and much time alternately, for that long each.
fn square_wave(options: &str, half: u64, halves: u64) -> (u64, u64) {
    let mut rack = Rack::with_config(11, SimConfig::default().costs(Costs::connectx3()));
    rack.set_cpu_costs(CpuCosts::default());
    let server = rack.add_node();
    let nanos = Arc::new(AtomicU64::new(0));
    let busy = Busy { node: rack.node(server), nanos: Arc::clone(&nanos) };
    let address = format!("sim://{server}/work?{options}");
    let builder = Server::builder().service(WorkServer::new(busy)).threads(1);
    let _running = rack.serve(&address, builder).expect("serve");
    let (answered, tried) = (Answered::default(), Rc::new(Cell::new(0)));
    for _ in 0..2 {
        let (node, address) = (rack.add_node(), address.clone());
        let (counted, tries) = (Rc::clone(&answered), Rc::clone(&tried));
        drop(rack.spawn_program(node, async move |host: Host| {
            let options = ChannelOptions::default();
            let client: WorkClient = host.connect_with(&address, &options).await.expect("connect");
            let mut under_way: Vec<_> = (0..4).map(|_| client.work(&[7; 32])).collect();
            let (metrics, mut before) = (client.channel().metrics(), 0);
            std::future::poll_fn(|context| {
                for call in &mut under_way {
                    while let Poll::Ready(answer) = Pin::new(&mut *call).poll(context) {
                        answer.expect("an answer");
                        counted.set(counted.get() + 1);
                        *call = client.work(&[7; 32]);
                    }
                }
                let now = metrics.moves(MoveEvent::Tried);
                tries.set(tries.get() + now - before);
                before = now;
                Poll::<()>::Pending
            })
            .await;
        }));
    }
    for phase in 0..halves {
        nanos.store(if phase % 2 == 0 { 100 } else { 20_000 }, Relaxed);
        rack.run_for(half);
    }
    (answered.get(), tried.get())
}

#[test]
fn handlers_that_take_little_and_much_time_alternately_are_not_worth_trials_without_end() {
    for half in [MILLISECOND, 10 * MILLISECOND] {
        let halves = 120 * MILLISECOND / half;
        let fixed = WAYS.map(|way| square_wave(&format!("backend={way}"), half, halves).0);
        let (moving, tried) = square_wave("backend=hybrid", half, halves);
        let best = fixed.into_iter().max().expect("a backend");
        println!("{half} ns: {fixed:?}, hybrid {moving}, {tried} tried");
        assert!(moving * 10 >= best * 8, "{half} ns: {moving} of {best}");
        assert!(tried <= 60, "{half} ns: {tried} tried");
    }
}
