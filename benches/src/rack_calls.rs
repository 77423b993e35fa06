//! Calls on a simulated rack: the rate of a server by the number of its clients.
//!
//! Each client is a thread on one of several machines, with its own connection. It sends a batch of calls with
//! one doorbell, waits for all answers, and sends the next batch (ScaleRPC, EuroSys 2019, section 4.2).

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Waker;

use anyhow::{Result, bail, ensure};
use farcall::rack::sim::{Actor, Next, SimConfig, Turn};
use farcall::rack::{CpuCosts, Dialled, Dialling, Rack, site_of, turn_after};
use farcall::time::Instant;
use farcall::{
    Connection, ConnectionOptions, DialOptions, PendingCall, PollClient, RpcError, Server,
};
use farcall_core::time::PollAt;
use hdrhistogram::Histogram;

use crate::process::resident_bytes;
use crate::rack_failure::Failure;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Point {
    /// Clients, each with a connection.
    pub clients: usize,
    /// Machines of the clients.
    pub client_nodes: usize,
    /// Threads of the server.
    pub server_threads: usize,
    /// Bytes of each request and of its answer.
    pub size: usize,
    /// Answers are empty.
    pub one_way: bool,
    /// Calls that a client sends together.
    pub batch: usize,
    /// Each call is followed by another as soon as it is answered, without waiting for the rest of its batch.
    pub streams: bool,
    /// Batches in flight at once: a client whose batch is answered passes its turn to another. `None`: one batch per
    /// client.
    pub outstanding: Option<usize>,
    /// Options of the address, such as `backend=write_imm&slot=4096`.
    pub options: String,
    /// The clients of a machine are threads of one process that has opened its device once, and so are the server's.
    pub shares_devices: bool,
    /// Clients of several kinds, which those of each server thread are in turn; empty if all are alike, with `size` and `batch` and
    /// without rests.
    pub kinds: Vec<Kind>,
    /// The configuration of the rack.
    pub config: SimConfig,
    /// CPU costs of calls in addition to posting and polling.
    pub cpu: CpuCosts,
    /// How long the calls run before they are measured, after all clients are connected.
    pub warm_up_ns: u64,
    /// How long the calls are measured.
    pub measured_ns: u64,
    /// The seed.
    pub seed: u64,
}

/// One kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Bytes of each request and of its answer.
    pub size: usize,
    /// Calls that it sends together.
    pub batch: usize,
    /// How long it rests between the answers of a batch and the next batch, in the mean: from half of that to three halves.
    pub rest_ns: u64,
}

impl Default for Point {
    /// As in ScaleRPC's figure 8, with one client.
    fn default() -> Point {
        Point {
            clients: 1,
            client_nodes: 11,
            server_threads: 10,
            size: 32,
            one_way: false,
            batch: 1,
            streams: false,
            outstanding: None,
            options: "backend=write_imm".into(),
            shares_devices: false,
            kinds: Vec::new(),
            config: SimConfig::default().cores(24),
            cpu: CpuCosts::default(),
            warm_up_ns: 200_000,
            measured_ns: 1_000_000,
            seed: 1,
        }
    }
}

/// The results of a measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Calls that ended in the measured time.
    pub calls: u64,
    /// Calls per second.
    pub calls_per_second: f64,
    /// From sending a call to its answer.
    pub latency: Histogram<u64>,
    /// The same for each kind of client, of which there is at least one.
    pub kinds: Vec<Histogram<u64>>,
    /// Cache lines per second that the server's NIC read over PCIe.
    pub pcie_reads_per_second: f64,
    /// The memory of this process at the end.
    pub resident_bytes: u64,
    /// Equal for equal runs.
    pub trace_hash: u64,
}

#[farcall::service]
pub(crate) trait Echo {
    /// Returns the bytes.
    fn echo(&self, bytes: &[u8]) -> Vec<u8>;
    /// Takes the bytes, and returns none.
    fn discard(&self, bytes: &[u8]) -> Vec<u8>;
}

pub(crate) struct Same;

impl Echo for Same {
    fn echo(&self, bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    fn discard(&self, _bytes: &[u8]) -> Vec<u8> {
        Vec::new()
    }
}

pub(crate) type Pending = PendingCall<Result<Vec<u8>, RpcError>>;

/// The random number after this one (xorshift).
fn next_random(mut random: u64) -> u64 {
    random ^= random << 13;
    random ^= random >> 7;
    random ^ random << 17
}

/// The state that all clients share.
struct Tally {
    /// The numbers of clients that may send a batch; empty if all may.
    turns: Vec<u32>,
    /// Wakes each client.
    wakers: Vec<Waker>,
    random: u64,
    connected: usize,
    counted_from_ns: u64,
    /// Of each kind of client.
    kinds: Vec<Histogram<u64>>,
    failure: Failure,
}

impl Tally {
    /// Whether all clients may send, or it is this one's turn.
    fn may_send(&mut self, number: usize) -> bool {
        self.turns.is_empty() || self.turns[number] > 0
    }

    /// Passes the turn of an answered client to another.
    fn pass_turn(&mut self, number: usize) {
        if self.turns.is_empty() {
            return;
        }
        self.turns[number] -= 1;
        self.random = next_random(self.random);
        let next = (self.random >> 33) as usize % self.turns.len();
        self.turns[next] += 1;
        self.wakers[next].wake_by_ref();
    }
}

/// One client.
struct Client {
    number: usize,
    dialling: Option<Dialling>,
    echo: Option<EchoPollClient>,
    /// With the times at which they were sent.
    pending: Vec<(Pending, u64)>,
    message: Rc<[u8]>,
    /// The index of its kind, and what that is.
    kind: (usize, Kind),
    /// It sends nothing until then.
    rests_until: Instant,
    random: u64,
    streams: bool,
    one_way: bool,
    tally: Rc<RefCell<Tally>>,
}

impl Client {
    /// Makes progress; `None` if there is more to do immediately.
    fn advance(&mut self, now: Instant) -> Result<Turn> {
        if let Some(dialling) = &mut self.dialling {
            let transport = match dialling.turn(now) {
                Dialled::NotYet(at) => return Ok(Turn::then(Next::At(at.as_nanos()))),
                Dialled::Done(transport) => transport?,
            };
            let connection =
                Connection::new(transport, dialling.site(), &ConnectionOptions::default());
            self.echo = Some(EchoPollClient::from_connection(connection));
            self.dialling = None;
            self.tally.borrow_mut().connected += 1;
        }
        let Some(echo) = &mut self.echo else { bail!("not connected") };
        let mut progress = echo.connection().turn(now);
        let mut ended = Ok(());
        let expected = if self.one_way { 0 } else { self.message.len() };
        let had_sent = !self.pending.is_empty();
        self.pending.retain_mut(|(pending, sent_ns)| match echo.take(pending) {
            None => true,
            Some(answer) => {
                match answer {
                    Ok(bytes) if bytes.len() == expected => {}
                    Ok(_) => ended = Err("an answer of another length".to_owned()),
                    Err(error) => ended = Err(error.to_string()),
                }
                let mut tally = self.tally.borrow_mut();
                if now.as_nanos() >= tally.counted_from_ns {
                    tally.kinds[self.kind.0].saturating_record(now.as_nanos() - *sent_ns);
                }
                false
            }
        });
        ended.map_err(anyhow::Error::msg)?;
        let (_, Kind { batch, rest_ns, .. }) = self.kind;
        if had_sent && self.pending.is_empty() {
            self.tally.borrow_mut().pass_turn(self.number);
            self.random = next_random(self.random);
            let rest_ns = rest_ns / 2 + (self.random >> 11) % (rest_ns + 1);
            self.rests_until = now.saturating_add_nanos(rest_ns);
        }
        if now < self.rests_until {
            progress.next = progress.next.earlier(PollAt::At(self.rests_until));
            return Ok(turn_after(progress));
        }
        let is_next = self.pending.is_empty() && self.tally.borrow_mut().may_send(self.number);
        if is_next || self.streams && self.pending.len() < batch {
            for _ in self.pending.len()..batch {
                let pending = match self.one_way {
                    true => echo.start_discard(&self.message)?,
                    false => echo.start_echo(&self.message)?,
                };
                self.pending.push((pending, now.as_nanos()));
            }
            progress = echo.connection().turn(now);
        }
        Ok(turn_after(progress))
    }
}

impl Actor for Client {
    fn turn(&mut self, now_ns: u64) -> Turn {
        let turn = self.advance(Instant::from_nanos(now_ns));
        self.tally.borrow_mut().failure.turn(turn)
    }
}

/// The time limit of connecting, in virtual time.
const CONNECT_BOUND_NS: u64 = 5_000_000_000;

/// Measures one point.
pub fn measure(point: &Point) -> Result<Measured> {
    let alike = [Kind { size: point.size, batch: point.batch, rest_ns: 0 }];
    let kinds = if point.kinds.is_empty() { &alike[..] } else { &point.kinds };
    let window = kinds.iter().map(|kind| kind.batch).max().unwrap_or_default();
    ensure!(
        kinds.iter().all(|kind| kind.batch > 0) && point.client_nodes > 0,
        "clients that send something, somewhere"
    );
    let mut rack = Rack::with_config(point.seed, point.config.clone());
    rack.set_cpu_costs(point.cpu);
    if point.shares_devices {
        rack.share_devices();
    }
    let server = rack.add_node();
    let address = format!("sim://{server}/echo?window={window}&{}", point.options);
    let builder = Server::builder()
        .service(EchoServer::new(Same))
        .threads(point.server_threads)
        .max_clients(point.clients);
    let serving = rack.serve(&address, builder)?;
    let nodes: Vec<_> = (0..point.client_nodes).map(|_| rack.add_node()).collect();
    let turns = match point.outstanding {
        Some(_) => vec![0; point.clients],
        None => Vec::new(),
    };
    let histogram = || Histogram::new_with_bounds(1, CONNECT_BOUND_NS, 3);
    let tally = Rc::new(RefCell::new(Tally {
        turns,
        wakers: Vec::new(),
        random: 0x9e37_79b9_7f4a_7c15 ^ point.seed,
        connected: 0,
        counted_from_ns: u64::MAX,
        kinds: kinds.iter().map(|_| histogram()).collect::<Result<_, _>>()?,
        failure: Failure::default(),
    }));
    let messages: Vec<Rc<[u8]>> = kinds.iter().map(|kind| vec![0x5a; kind.size].into()).collect();
    for number in 0..point.clients {
        let node = nodes[number % nodes.len()];
        let description = <EchoPollClient as PollClient>::DESCRIPTION;
        let site = site_of(&rack.node(node));
        let dialling = rack.dial(node, &address, description, &site, &DialOptions::default())?;
        // Connections are given to the server's threads in turn.
        let kind = number / point.server_threads % kinds.len();
        let client = Client {
            number,
            dialling: Some(dialling),
            echo: None,
            pending: Vec::with_capacity(kinds[kind].batch),
            message: Rc::clone(&messages[kind]),
            kind: (kind, kinds[kind]),
            rests_until: Instant::ZERO,
            random: next_random(number as u64 + 1),
            streams: point.streams,
            one_way: point.one_way,
            tally: Rc::clone(&tally),
        };
        let actor = rack.spawn(node, client);
        tally.borrow_mut().wakers.push(rack.waker(actor));
    }
    while tally.borrow().connected < point.clients && rack.now_ns() < CONNECT_BOUND_NS {
        rack.run_for(100_000);
        check(&tally)?;
    }
    let connected = tally.borrow().connected;
    ensure!(connected == point.clients, "only {connected} of {} are connected", point.clients);
    for first in 0..point.outstanding.unwrap_or(0) {
        let mut tally = tally.borrow_mut();
        let number = first % point.clients;
        tally.turns[number] += 1;
        tally.wakers[number].wake_by_ref();
    }
    rack.run_for(point.warm_up_ns);
    tally.borrow_mut().counted_from_ns = rack.now_ns();
    let reads_before = rack.node(server).nic_counters().pcie_reads;
    rack.run_for(point.measured_ns);
    let reads = rack.node(server).nic_counters().pcie_reads - reads_before;
    check(&tally)?;
    let kinds = tally.borrow().kinds.clone();
    let mut latency = histogram()?;
    kinds.iter().try_for_each(|kind| latency.add(kind))?;
    ensure!(serving.connections() <= point.clients, "more connections than clients");
    Ok(Measured {
        calls: latency.len(),
        calls_per_second: latency.len() as f64 * 1e9 / point.measured_ns as f64,
        latency,
        kinds,
        pcie_reads_per_second: reads as f64 * 1e9 / point.measured_ns as f64,
        resident_bytes: resident_bytes()?,
        trace_hash: rack.trace_hash(),
    })
}

fn check(tally: &RefCell<Tally>) -> Result<()> {
    tally.borrow().failure.check("a client")
}
