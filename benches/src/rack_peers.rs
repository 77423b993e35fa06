//! Machines of a simulated rack that all call each other, as in FaSST (OSDI 2016): each thread of a machine
//! serves, and calls the others' threads, on one core.
//!
//! A thread has several workers (FaSST's coroutines). Each sends a batch of calls to as many machines, and the
//! next batch when all have been answered.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Result, bail, ensure};
use farcall::rack::sim::{Actor, Next, NodeId, SimConfig, Turn};
use farcall::rack::{CpuCosts, Dialled, Dialling, Rack, site_of, turn_after};
use farcall::time::Instant;
use farcall::{Connection, ConnectionOptions, DialOptions, PollClient, Progress, Server, Site};

use crate::rack_calls::{EchoPollClient, EchoServer, Pending, Same};
use crate::rack_failure::Failure;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Mesh {
    /// Machines.
    pub machines: usize,
    /// Threads of each machine, on as many cores.
    pub threads: usize,
    /// Bytes of each request and of its answer.
    pub size: usize,
    /// Connections of each thread to each other machine.
    pub connections: usize,
    /// Workers of each thread.
    pub workers: usize,
    /// Calls that a worker sends together, at most one to each other machine.
    pub batch: usize,
    /// Options of the addresses at which machines listen.
    pub options: String,
    /// Options of the addresses that they dial, if they differ.
    pub dialled: Option<String>,
    /// The configuration of the rack, except its cores: one per thread.
    pub config: SimConfig,
    /// CPU costs of calls in addition to posting and polling.
    pub cpu: CpuCosts,
    /// How long the calls run before they are measured.
    pub warm_up_ns: u64,
    /// How long the calls are measured.
    pub measured_ns: u64,
}

impl Default for Mesh {
    fn default() -> Mesh {
        Mesh {
            machines: 6,
            threads: 1,
            size: 32,
            connections: 1,
            // "Up to 20" (section 4.1).
            workers: 20,
            batch: 1,
            options: "backend=datagram".into(),
            dialled: None,
            config: SimConfig::default(),
            cpu: CpuCosts::default(),
            warm_up_ns: 100_000,
            measured_ns: 400_000,
        }
    }
}

/// The state that all threads share.
#[derive(Default)]
struct Tally {
    connected: usize,
    counted_from_ns: Option<u64>,
    calls: u64,
    failure: Failure,
}

/// The calling half of a thread.
struct Caller {
    site: Site,
    dialling: Vec<Dialling>,
    peers: Vec<EchoPollClient>,
    /// The calls of each worker, and the connections they use.
    workers: Vec<Vec<(usize, Pending)>>,
    /// The connections with unanswered calls.
    busy: Vec<usize>,
    batch: usize,
    message: Rc<[u8]>,
    random: u64,
    tally: Rc<RefCell<Tally>>,
}

impl Caller {
    fn advance(&mut self, now: Instant) -> Result<Turn> {
        while let Some(dialling) = self.dialling.last_mut() {
            let transport = match dialling.turn(now) {
                Dialled::NotYet(at) => return Ok(Turn::then(Next::At(at.as_nanos()))),
                Dialled::Done(transport) => transport?,
            };
            let connection = Connection::new(transport, &self.site, &ConnectionOptions::default());
            self.peers.push(EchoPollClient::from_connection(connection));
            self.dialling.pop();
            if self.dialling.is_empty() {
                self.tally.borrow_mut().connected += 1;
            }
        }
        let mut progress = self.turn_busy(now);
        let mut called = false;
        for worker in 0..self.workers.len() {
            if self.answers(worker, now)? {
                self.call(worker)?;
                called = true;
            }
        }
        if called {
            progress = self.turn_busy(now);
        }
        Ok(turn_after(progress))
    }

    /// Polls each connection with unanswered calls, and sends the started calls with one doorbell.
    fn turn_busy(&mut self, now: Instant) -> Progress {
        let mut all = Progress::IDLE;
        let called = self.workers.iter().flatten().map(|(peer, _)| *peer);
        self.busy.clear();
        self.busy.extend(called);
        self.busy.sort_unstable();
        self.busy.dedup();
        let Caller { site, peers, busy, .. } = self;
        site.together(|| {
            for peer in busy {
                let progress = peers[*peer].connection().turn(now);
                all.worked += progress.worked;
                all.scanned += progress.scanned;
                all.next = all.next.earlier(progress.next);
            }
        });
        all
    }

    /// Whether all calls of this worker have been answered.
    fn answers(&mut self, worker: usize, now: Instant) -> Result<bool> {
        let Caller { peers, workers, message, tally, .. } = self;
        let mut failed = None;
        workers[worker].retain_mut(|(peer, pending)| match peers[*peer].take(pending) {
            None => true,
            Some(answer) => {
                match answer {
                    Ok(bytes) if bytes.len() == message.len() => {}
                    Ok(_) => failed = Some("an answer of another length".to_owned()),
                    Err(error) => failed = Some(error.to_string()),
                }
                let mut tally = tally.borrow_mut();
                if tally.counted_from_ns.is_some_and(|from_ns| now.as_nanos() >= from_ns) {
                    tally.calls += 1;
                }
                false
            }
        });
        match failed {
            Some(why) => bail!(why),
            None => Ok(workers[worker].is_empty()),
        }
    }

    /// Calls as many machines as a batch has, beginning with a random one.
    fn call(&mut self, worker: usize) -> Result<()> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let first = (self.random >> 33) as usize;
        for step in 0..self.batch {
            let peer = (first + step) % self.peers.len();
            let pending = self.peers[peer].start_echo(&self.message)?;
            self.workers[worker].push((peer, pending));
        }
        Ok(())
    }
}

impl Actor for Caller {
    fn turn(&mut self, now_ns: u64) -> Turn {
        let turn = self.advance(Instant::from_nanos(now_ns));
        self.tally.borrow_mut().failure.turn(turn)
    }
}

/// The time limit of connecting, in virtual time.
const CONNECT_BOUND_NS: u64 = 5_000_000_000;

/// Measures the calls per second of each machine.
pub fn measure(mesh: &Mesh) -> Result<f64> {
    let Mesh { machines, threads, batch, workers, .. } = *mesh;
    ensure!(machines > 1 && threads > 0, "machines with others to call");
    ensure!((1..machines).contains(&batch), "a batch is of one call at least, one to each other");
    let mut rack = Rack::with_config(1, mesh.config.clone().cores(threads));
    rack.set_cpu_costs(mesh.cpu);
    let nodes: Vec<NodeId> = (0..machines).map(|_| rack.add_node()).collect();
    let address = |node: NodeId, how: &str| format!("sim://{node}/echo?window={workers}&{how}");
    let dialled = mesh.dialled.as_deref().unwrap_or(&mesh.options);
    let mut serving = Vec::new();
    for node in &nodes {
        let builder = Server::builder()
            .service(EchoServer::new(Same))
            .threads(threads)
            .max_clients(threads * machines * mesh.connections);
        serving.push(rack.serve(&address(*node, &mesh.options), builder)?);
    }
    let tally = Rc::new(RefCell::new(Tally::default()));
    let message: Rc<[u8]> = vec![0x5a; mesh.size].into();
    for node in &nodes {
        for thread in 0..threads {
            let description = <EchoPollClient as PollClient>::DESCRIPTION;
            // One queue pair for all connections of the thread, if the backend supports it.
            let site = site_of(&rack.node(*node));
            let options = DialOptions { share: true, ..DialOptions::default() };
            let dial = |to| rack.dial(*node, &address(to, dialled), description, &site, &options);
            // Neighbours in this order are different machines.
            let others = nodes.iter().copied().filter(|other| other != node);
            let others = others.collect::<Vec<_>>().repeat(mesh.connections);
            let caller = Caller {
                dialling: others.into_iter().map(dial).collect::<Result<_, _>>()?,
                site: site.clone(),
                peers: Vec::new(),
                busy: Vec::with_capacity(workers * batch),
                workers: (0..workers).map(|_| Vec::with_capacity(batch)).collect(),
                batch,
                message: Rc::clone(&message),
                random: 0x9e37_79b9_7f4a_7c15
                    + (usize::from(node.number()) * threads + thread) as u64,
                tally: Rc::clone(&tally),
            };
            rack.spawn_pinned(*node, thread, caller);
        }
    }
    let check = || tally.borrow().failure.check("a thread");
    while tally.borrow().connected < machines * threads && rack.now_ns() < CONNECT_BOUND_NS {
        rack.run_for(100_000);
        check()?;
    }
    ensure!(tally.borrow().connected == machines * threads, "not all are connected");
    rack.run_for(mesh.warm_up_ns);
    tally.borrow_mut().counted_from_ns = Some(rack.now_ns());
    rack.run_for(mesh.measured_ns);
    check()?;
    drop(serving);
    let calls = tally.borrow().calls;
    Ok(calls as f64 * 1e9 / mesh.measured_ns as f64 / machines as f64)
}
