//! What `datagram` makes of a rack under load: how much of its rate is left where datagrams are lost, and how long the
//! queues become where many clients send to one server. In virtual time.

use std::cell::RefCell;
use std::rc::Rc;

use farcall::time::Instant;
use farcall::{Connection, ConnectionOptions, DialOptions, PendingCall, PollClient, RpcError};
use farcall_core::Server;
use farcall_rack::{Dialled, Dialling, Rack, site_of, turn_after};
use farcall_verbs::sim::{Actor, Costs, FaultRates, Next, SimConfig, Turn};

#[farcall::service]
trait Load {
    /// Takes the bytes, and gives so many.
    fn swap(&self, bytes: &[u8], len: u32) -> Vec<u8>;
}

struct Bytes;

impl Load for Bytes {
    fn swap(&self, _: &[u8], len: u32) -> Vec<u8> {
        vec![0x5a; len as usize]
    }
}

/// Clients, each on a node of its own, that keep some calls outstanding at one server.
#[derive(Clone, Copy, Debug)]
struct Scene {
    clients: usize,
    outstanding: usize,
    request: usize,
    response: u32,
    loss: f64,
    /// One more client, with one small call at a time: its calls wait in the queues that the others make.
    bystander: bool,
    without: &'static str,
    measured_us: u64,
}

/// What became of it.
struct Seen {
    /// Calls of each client while they were counted.
    calls: Vec<u64>,
    /// Nanoseconds of each call, sorted.
    times: Vec<u64>,
    /// The same of the bystander's.
    bystander: Vec<u64>,
}

impl Seen {
    fn total(&self) -> u64 {
        self.calls.iter().sum()
    }

    /// Jain's index: 1 if all clients got as much.
    fn fairness(&self) -> f64 {
        let squares: u64 = self.calls.iter().map(|calls| calls * calls).sum();
        (self.total() as f64).powi(2) / (squares as f64 * self.calls.len() as f64)
    }
}

/// The time that so many of 1,000 calls did not exceed.
fn per_mille(times: &[u64], share: usize) -> u64 {
    times[(times.len() * share / 1000).min(times.len() - 1)]
}

struct Tally {
    connected: usize,
    from_ns: u64,
    seen: Seen,
}

type Call = PendingCall<Result<Vec<u8>, RpcError>>;

struct Client {
    /// None is the bystander.
    number: Option<usize>,
    outstanding: usize,
    response: u32,
    dialling: Option<Dialling>,
    load: Option<LoadPollClient>,
    pending: Vec<(u64, Call)>,
    message: Rc<[u8]>,
    tally: Rc<RefCell<Tally>>,
}

impl Actor for Client {
    fn turn(&mut self, now_ns: u64) -> Turn {
        let now = Instant::from_nanos(now_ns);
        if let Some(dialling) = &mut self.dialling {
            let transport = match dialling.turn(now) {
                Dialled::NotYet(at) => return Turn::then(Next::At(at.as_nanos())),
                Dialled::Done(transport) => transport.expect("connected"),
            };
            let connection =
                Connection::new(transport, dialling.site(), &ConnectionOptions::default());
            self.load = Some(LoadPollClient::from_connection(connection));
            self.dialling = None;
            self.tally.borrow_mut().connected += 1;
        }
        let Some(load) = &mut self.load else { return Turn::then(Next::Never) };
        let mut progress = load.connection().turn(now);
        self.pending.retain_mut(|(sent_ns, pending)| match load.take(pending) {
            None => true,
            Some(answer) => {
                assert_eq!(answer.expect("an answer").len(), self.response as usize);
                let mut tally = self.tally.borrow_mut();
                if now_ns >= tally.from_ns {
                    match self.number {
                        Some(number) => {
                            tally.seen.calls[number] += 1;
                            tally.seen.times.push(now_ns - *sent_ns);
                        }
                        None => tally.seen.bystander.push(now_ns - *sent_ns),
                    }
                }
                false
            }
        });
        if self.pending.len() < self.outstanding {
            while self.pending.len() < self.outstanding {
                let call = load.start_swap(&self.message, self.response).expect("a slot");
                self.pending.push((now_ns, call));
            }
            progress = load.connection().turn(now);
        }
        turn_after(progress)
    }
}

impl Scene {
    fn play(self) -> Seen {
        let config = SimConfig::default()
            .costs(Costs::connectx5())
            .faults(FaultRates::default().datagram_loss(self.loss));
        let mut rack = Rack::with_config(1, config);
        let server = rack.add_node();
        let mut address = format!("sim://{server}/load?backend=datagram");
        if !self.without.is_empty() {
            address = format!("{address}&without={}", self.without);
        }
        let all = self.clients + usize::from(self.bystander);
        let builder = Server::builder().service(LoadServer::new(Bytes)).max_clients(all);
        let _serving = rack.serve(&address, builder).expect("serve");
        let seen = Seen { calls: vec![0; self.clients], times: Vec::new(), bystander: Vec::new() };
        let tally = Rc::new(RefCell::new(Tally { connected: 0, from_ns: u64::MAX, seen }));
        let message: Rc<[u8]> = vec![0x5a; self.request].into();
        let small: Rc<[u8]> = vec![0x5a; 32].into();
        for number in 0..all {
            let node = rack.add_node();
            let description = <LoadPollClient as PollClient>::DESCRIPTION;
            let site = site_of(&rack.node(node));
            let dialling = rack.dial(node, &address, description, &site, &DialOptions::default());
            let number = Some(number).filter(|number| *number < self.clients);
            let (message, outstanding, response) = match number {
                Some(_) => (Rc::clone(&message), self.outstanding, self.response),
                None => (Rc::clone(&small), 1, 32),
            };
            let client = Client {
                number,
                outstanding,
                response,
                dialling: Some(dialling.expect("an address")),
                load: None,
                pending: Vec::new(),
                message,
                tally: Rc::clone(&tally),
            };
            rack.spawn(node, client);
        }
        while tally.borrow().connected < all {
            assert!(rack.now_ns() < 5_000_000_000, "all connect");
            rack.run_for(100_000);
        }
        rack.run_for(WARM_UP_NS);
        tally.borrow_mut().from_ns = rack.now_ns();
        rack.run_for(self.measured_us * 1000);
        let mut tally = tally.borrow_mut();
        // Those that end with the rack do not count.
        tally.from_ns = u64::MAX;
        let empty = Seen { calls: Vec::new(), times: Vec::new(), bystander: Vec::new() };
        let mut seen = std::mem::replace(&mut tally.seen, empty);
        seen.times.sort_unstable();
        seen.bystander.sort_unstable();
        assert!(!seen.times.is_empty(), "some calls end: {self:?}");
        seen
    }
}

/// From the last connection until calls are counted: some round trips of those that are longest.
const WARM_UP_NS: u64 = 4_000_000;

/// The shortest retransmission timeout.
const TIMEOUT_NS: u64 = 20_000;

const SMALL: Scene = Scene {
    clients: 1,
    outstanding: 1,
    request: 32,
    response: 32,
    loss: 0.0,
    bystander: false,
    without: "",
    measured_us: 10_000,
};

/// At 1 % loss at least four fifths of the rate are left, and one call in 1,000 takes more than so many retransmission
/// timeouts beyond its time without loss.
fn one_percent_lost_costs_little(scene: Scene, timeouts: u64) {
    let clean = scene.play();
    let lossy = Scene { loss: 0.01, ..scene }.play();
    let share = lossy.total() as f64 / clean.total() as f64;
    let (before, after) = (per_mille(&clean.times, 999), per_mille(&lossy.times, 999));
    println!("{scene:?}: {share:.3} of the rate; p99.9 {before} ns, with loss {after} ns");
    assert!(share >= 0.8, "{share}");
    assert!(after <= before + timeouts * TIMEOUT_NS, "{after} ns after {before} ns");
}

#[test]
fn one_call_at_a_time() {
    one_percent_lost_costs_little(Scene { measured_us: 40_000, ..SMALL }, 3);
}

#[test]
fn a_window_of_small_calls() {
    one_percent_lost_costs_little(Scene { outstanding: 32, ..SMALL }, 3);
}

#[test]
fn windows_of_some_clients() {
    one_percent_lost_costs_little(Scene { clients: 4, outstanding: 32, ..SMALL }, 3);
}

/// 64 parts of which any may be lost, and what is sent for it too.
#[test]
fn large_requests() {
    let request = 256 << 10;
    one_percent_lost_costs_little(Scene { request, ..SMALL }, 6);
}

#[test]
fn large_responses() {
    let response = 256 << 10;
    one_percent_lost_costs_little(Scene { response, ..SMALL }, 6);
}

/// 100 clients that all send 256 KiB at a time: with congestion control the queue is short, which a bystander feels, and
/// nothing of the rate is lost.
#[test]
fn an_incast_of_100() {
    let request = 256 << 10;
    let scene = Scene { clients: 100, request, bystander: true, measured_us: 12_000, ..SMALL };
    let with = scene.play();
    let without = Scene { without: "congestion", ..scene }.play();
    let waits = [&with, &without].map(|seen| per_mille(&seen.bystander, 500));
    println!(
        "{} calls and {}; the bystander waits {waits:?} ns; fairness {:.3} and {:.3}",
        with.total(),
        without.total(),
        with.fairness(),
        without.fairness()
    );
    assert!(waits[0] * 3 <= waits[1], "{waits:?}");
    assert!(with.total() * 10 >= without.total() * 9, "{} and {}", with.total(), without.total());
    assert!(with.fairness() >= 0.9, "{}", with.fairness());
}
