//! Measures how fast the simulated rack is, and how much memory its queue pairs take: the figures in its
//! documentation. `cargo run --release -p farcall-verbs --features sim --example sim_speed`

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;

use rustix::time::{ClockId, clock_gettime};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use farcall_verbs::sim::{Actor, Next, Sim, Turn};
use farcall_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, ProtectionDomain, QpType, QueuePair,
    QueuePairConfig, RemoteSlice, SharedRegion, WorkCompletion, WorkRequest,
};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

const WINDOW: usize = 16;

#[derive(Clone, Copy, Debug)]
enum Verb {
    Write,
    Read,
    Send,
}

/// A client that keeps its window full of one verb.
struct Client {
    qp: QueuePair,
    cq: CompletionQueue,
    verb: Verb,
    there: RemoteSlice,
    into: SharedRegion,
    done: Rc<Cell<u64>>,
    batch: [WorkCompletion; WINDOW],
    posted: usize,
}

impl Client {
    fn post(&mut self) {
        let mut doorbell = self.qp.doorbell();
        while self.posted < WINDOW {
            let request: WorkRequest<'_> = match self.verb {
                Verb::Write => WorkRequest::write(&[7; 32], self.there).signaled(1),
                Verb::Read => WorkRequest::read(self.into.slice(0, 32), self.there).signaled(1),
                Verb::Send => WorkRequest::send(&[7; 32]).signaled(1),
            };
            if doorbell.post(request).is_err() {
                return;
            }
            self.posted += 1;
        }
    }
}

impl Actor for Client {
    fn turn(&mut self, _now_ns: u64) -> Turn {
        let count = self.cq.poll(&mut self.batch).unwrap_or(0);
        self.posted -= count;
        self.done.set(self.done.get() + count as u64);
        self.post();
        Turn::then(Next::OnEvent)
    }
}

/// A server that reposts the receives that it polls.
struct Server {
    qps: Vec<QueuePair>,
    cq: CompletionQueue,
    batch: Vec<WorkCompletion>,
}

impl Actor for Server {
    fn turn(&mut self, _now_ns: u64) -> Turn {
        let count = self.cq.poll(&mut self.batch).unwrap_or(0);
        for completion in &mut self.batch[..count] {
            // Its id is the index of the queue pair.
            let qp = completion.id as usize;
            if let Some(mut buffer) = completion.buffer.take() {
                buffer.set_len(32);
                let _ = self.qps[qp].post_recv(completion.id, Some(buffer));
            }
        }
        let more = count == self.batch.len();
        Turn::then(if more { Next::Now } else { Next::OnEvent })
    }
}

fn pair(
    device: &Device,
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
) -> Result<QueuePair, Box<dyn Error>> {
    debug_assert!(device.caps().srq);
    Ok(pd.create_qp(QueuePairConfig::new(QpType::Rc, cq, cq).max_recv_wr(WINDOW))?)
}

fn run(verb: Verb, clients: usize, verbs: u64) -> Result<(), Box<dyn Error>> {
    let mut sim = Sim::new(1);
    let server_node = sim.add_node();
    let server = sim.node(server_node).device();
    let pd = server.alloc_pd()?;
    let cq = server.create_cq(2 * clients * WINDOW, None)?;
    let memory = pd.alloc_shared(4096, Access::all())?;
    let done = Rc::new(Cell::new(0));
    let mut qps = Vec::new();
    for number in 0..clients {
        let node = sim.add_node();
        let device = sim.node(node).device();
        let client_pd = device.alloc_pd()?;
        let client_cq = device.create_cq(WINDOW, None)?;
        let mut here = pair(&server, &pd, &cq)?;
        let mut there = pair(&device, &client_pd, &client_cq)?;
        there.connect(&here.endpoint(), &ConnectOptions::default())?;
        here.connect(&there.endpoint(), &ConnectOptions::default())?;
        let pool = pd.alloc_private(32 * WINDOW)?.into_pool(32);
        while let (Verb::Send, Some(buffer)) = (verb, pool.take()) {
            here.post_recv(number as u64, Some(buffer))?;
        }
        qps.push(here);
        let into = client_pd.alloc_shared(32, Access::empty())?;
        let client = Client {
            qp: there,
            cq: client_cq,
            verb,
            there: memory.remote().slice(0, 32)?,
            into,
            done: Rc::clone(&done),
            batch: Default::default(),
            posted: 0,
        };
        sim.spawn(node, client);
    }
    let batch = (0..64).map(|_| WorkCompletion::default()).collect();
    sim.spawn(server_node, Server { qps, cq, batch });
    let begin = cpu_seconds();
    while done.get() < verbs {
        sim.run_for(100_000);
    }
    let took = cpu_seconds() - begin;
    let (done, simulated) = (done.get() as f64, sim.now_ns() as f64);
    println!(
        "{verb:?}, {clients} clients: {:.2} million verbs per second of one core; {:.1} per simulated microsecond",
        done / took / 1e6,
        done * 1e3 / simulated,
    );
    Ok(())
}

/// CPU time of this thread, so that other programs do not count.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn memory(pairs: usize) -> Result<(), Box<dyn Error>> {
    let mut sim = Sim::new(1);
    let nodes = [sim.add_node(), sim.add_node()];
    let (a, b) = (sim.node(nodes[0]).device(), sim.node(nodes[1]).device());
    let (a_pd, b_pd) = (a.alloc_pd()?, b.alloc_pd()?);
    let (mut a_cq, b_cq) = (a.create_cq(4 * pairs, None)?, b.create_cq(4 * pairs, None)?);
    let region = b_pd.alloc_shared(64, Access::all())?;
    let heap = Region::new(ALLOCATOR);
    let mut qps = Vec::new();
    for _ in 0..pairs {
        let (mut here, mut there) = (pair(&a, &a_pd, &a_cq)?, pair(&b, &b_pd, &b_cq)?);
        there.connect(&here.endpoint(), &ConnectOptions::default())?;
        here.connect(&there.endpoint(), &ConnectOptions::default())?;
        there.post_recvs(0..WINDOW as u64)?;
        qps.push((here, there));
    }
    let connected = heap.change();
    // Each sends something, which allocates its queues.
    for (here, _) in &mut qps {
        let write = WorkRequest::write(&[1; 8], region.remote().slice(0, 8)?).imm(1).signaled(1);
        here.post_send_one(write).map_err(|(error, _)| error)?;
    }
    sim.run_until_idle(1_000_000_000);
    let used = heap.change();
    let mut batch: [WorkCompletion; 32] = Default::default();
    while a_cq.poll(&mut batch)? > 0 {}
    let each =
        |heap: stats_alloc::Stats| (heap.bytes_allocated - heap.bytes_deallocated) / (2 * pairs);
    println!(
        "{pairs} connections: {} bytes for each queue pair, {} after its first message",
        each(connected),
        each(used)
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let verbs = if cfg!(debug_assertions) { 100_000 } else { 3_000_000 };
    for verb in [Verb::Write, Verb::Read, Verb::Send] {
        for clients in [1, 16, 1000] {
            run(verb, clients, verbs)?;
        }
    }
    memory(10_000)
}
