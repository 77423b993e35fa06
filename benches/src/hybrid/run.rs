//! One day over one backend, or over connections that move.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Result, ensure};
use farcall::rack::sim::{Costs, FaultRates, SimConfig};
use farcall::rack::{CpuCosts, Rack, site_of};
use farcall::{DialOptions, PollClient, Server};
use hdrhistogram::Histogram;

use super::client::{Client, WorkPollClient, WorkServer, Worker};
use super::day::{Day, Kind, Phase};
use crate::rack_failure::Failure;

/// The rack, and how long the day is.
#[derive(Clone, Debug)]
pub struct Options {
    /// The model of all NICs.
    pub nic: Costs,
    /// Threads of the server.
    pub server_threads: usize,
    /// Machines of the clients.
    pub client_nodes: usize,
    /// The seed.
    pub seed: u64,
}

/// Calls are counted in slots of this length.
pub(super) const BUCKET_NS: u64 = 1_000_000;

/// The time limit of connecting, in virtual time.
const CONNECT_BOUND_NS: u64 = 10_000_000_000;

/// No call takes longer.
const LONGEST_NS: u64 = 10_000_000_000;

/// What came of a day.
#[derive(Clone, Debug)]
pub struct Run {
    /// By phase.
    pub phases: Vec<PhaseRun>,
}

/// What came of a phase.
#[derive(Clone, Debug)]
pub struct PhaseRun {
    /// Answers in each millisecond.
    pub by_ms: Vec<u64>,
    /// How long its calls took, in nanoseconds.
    pub latency: Histogram<u64>,
}

impl PhaseRun {
    /// Answers.
    pub fn calls(&self) -> u64 {
        self.by_ms.iter().sum()
    }

    /// The 99th percentile of how long its calls took, in nanoseconds.
    pub fn p99_ns(&self) -> u64 {
        self.latency.value_at_quantile(0.99)
    }

    /// Answers from that millisecond on.
    pub fn calls_after(&self, ms: usize) -> u64 {
        self.by_ms.iter().skip(ms).sum()
    }
}

/// What all clients share.
pub(super) struct Tally {
    phases: Vec<Phase>,
    /// The present one.
    pub(super) phase: usize,
    is_over: bool,
    answers: u64,
    latency: Histogram<u64>,
    pub(super) connected: usize,
    pub(super) failure: Failure,
}

impl Tally {
    /// What this client does now.
    pub(super) fn kind_of(&self, number: usize) -> Option<Kind> {
        let phase =
            self.phases.get(self.phase).filter(|phase| !self.is_over && number < phase.clients)?;
        phase.kinds.get(number % phase.kinds.len()).copied()
    }

    /// A call that was begun in that phase was answered after so long.
    pub(super) fn answer(&mut self, phase: usize, nanos: u64) {
        self.answers += 1;
        if phase == self.phase {
            self.latency.saturating_record(nanos);
        }
    }
}

/// Spends a day over that backend, or over `hybrid`.
///
/// # Errors
/// A client could not connect, or a call has failed.
pub fn run(options: &Options, day: &Day, backend: &str) -> Result<Run> {
    let config = SimConfig::default().cores(24).costs(options.nic.clone());
    let mut rack = Rack::with_config(options.seed, config);
    rack.set_cpu_costs(CpuCosts::default());
    let (clients, window) = (day.most_clients(), day.most_outstanding());
    let server = rack.add_node();
    let address = format!("sim://{server}/work?backend={backend}&window={window}");
    let worker = Worker(rack.node(server));
    let builder = Server::builder()
        .service(WorkServer::new(worker))
        .threads(options.server_threads)
        .max_clients(2 * clients);
    let serving = rack.serve(&address, builder)?;
    let nodes: Vec<_> = (0..options.client_nodes).map(|_| rack.add_node()).collect();
    let tally = Rc::new(RefCell::new(Tally {
        phases: day.phases.clone(),
        phase: 0,
        is_over: true,
        answers: 0,
        latency: Histogram::new_with_bounds(1, LONGEST_NS, 3)?,
        connected: 0,
        failure: Failure::default(),
    }));
    let kinds = day.phases.iter().flat_map(|phase| &phase.kinds);
    let longest = kinds.map(|kind| kind.bytes).max().unwrap_or(0);
    let message: Rc<[u8]> = vec![0x5a; longest].into();
    let mut wakers = Vec::new();
    for number in 0..clients {
        let node = nodes[number % nodes.len()];
        let site = site_of(&rack.node(node));
        let description = WorkPollClient::DESCRIPTION;
        let dialling = rack.dial(node, &address, description, &site, &DialOptions::default())?;
        let actor = rack.spawn(node, Client::new(number, dialling, &message, &tally));
        wakers.push(rack.waker(actor));
    }
    while tally.borrow().connected < clients && rack.now_ns() < CONNECT_BOUND_NS {
        rack.run_for(BUCKET_NS);
        check(&tally)?;
    }
    let connected = tally.borrow().connected;
    ensure!(connected == clients, "only {connected} of {clients} are connected");
    let mut phases = Vec::new();
    for (number, phase) in day.phases.iter().enumerate() {
        let losses = FaultRates::default().datagram_loss(phase.loss).reliable_loss(phase.loss);
        rack.set_fault_rates(losses);
        {
            let mut tally = tally.borrow_mut();
            (tally.phase, tally.is_over, tally.answers) = (number, false, 0);
            tally.latency.reset();
        }
        wakers[..phase.clients].iter().for_each(|waker| waker.wake_by_ref());
        let mut by_ms = Vec::new();
        for _ in 0..day.phase_ns.div_ceil(BUCKET_NS) {
            rack.run_for(BUCKET_NS);
            by_ms.push(std::mem::take(&mut tally.borrow_mut().answers));
            check(&tally)?;
        }
        phases.push(PhaseRun { by_ms, latency: tally.borrow().latency.clone() });
    }
    drop(serving);
    Ok(Run { phases })
}

fn check(tally: &RefCell<Tally>) -> Result<()> {
    tally.borrow().failure.check("a client")
}
