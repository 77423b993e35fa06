//! The program that FaSST's authors measured one-sided operations with.
//!
//! All machines send and serve at once. A thread has a queue pair to the thread of the same number on each other
//! machine, once per emulated node on it. For each operation it picks one of them at random, and a random remote
//! address, and rings a doorbell for it alone. Before it uses a place of its window again, it waits for the operation
//! that used it last, which is the oldest.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow};
use farcall_verbs::sim::{Actor, Costs, Next, Turn};
use farcall_verbs::{
    Access, CompletionQueue, QpType, QueuePair, QueuePairConfig, RemoteSlice, SharedRegion, Status,
    WorkCompletion, WorkRequest,
};

use super::configuration::{Configuration, Operation};
use crate::sim::rig::{INLINE, Machine, Rack, join};

/// Remote addresses are multiples of this.
const STRIDE_BYTES: u64 = 64;

/// The memory of each thread that others access.
const REGION_BYTES: usize = 1 << 16;

/// The posts of one turn of the actor. In between, other actors run.
const POSTS_PER_TURN: usize = 4;

/// The step of virtual time in which a run looks whether it has completed enough operations.
const STEP_NS: u64 = 10_000;

/// The shortest warm-up, and the shortest measurement.
const LEAST_NS: u64 = 40_000;

/// How often all operations that may be outstanding have completed when the warm-up ends, and again when the
/// measurement ends.
const ROUNDS: u64 = 5;

/// Millions of operations per second of one machine, on average over the machines.
pub(super) fn rate(costs: &Costs, configuration: &Configuration) -> Result<f64> {
    rate_on(Rack::new(costs), configuration)
}

/// Millions of operations of one machine, on average over the machines per second, on a rack that has no machines yet.
pub(super) fn rate_on(mut rack: Rack, configuration: &Configuration) -> Result<f64> {
    let Configuration { machines, threads, window, .. } = *configuration;
    let nodes = rack.machines(machines)?;
    for number in 0..threads {
        spawn_threads(&mut rack, &nodes, configuration, number)?;
    }
    let outstanding = match configuration.operation {
        Operation::Read => window,
        _ if configuration.signal_every == 1 => window,
        _ => configuration.emulated_nodes * configuration.signal_every as usize,
    };
    let enough = ROUNDS * (machines * threads * outstanding) as u64;
    run_until(&mut rack, enough);
    let (before, begin_ns) = (rack.done.get(), rack.sim.now_ns());
    run_until(&mut rack, before + enough);
    let done = (rack.done.get() - before) as f64;
    Ok(done * 1e3 / (rack.sim.now_ns() - begin_ns) as f64 / machines as f64)
}

fn run_until(rack: &mut Rack, enough: u64) {
    rack.sim.run_for(LEAST_NS);
    while rack.done.get() < enough {
        rack.sim.run_for(STEP_NS);
    }
}

/// Starts the threads of one number, one on each machine, and connects each with each other.
fn spawn_threads(
    rack: &mut Rack,
    nodes: &[Machine],
    configuration: &Configuration,
    number: usize,
) -> Result<()> {
    let mut threads = Vec::new();
    for (machine, node) in nodes.iter().enumerate() {
        let program = rack.program_with(node, REGION_BYTES)?;
        program.memory.copy_in(0, &[1; REGION_BYTES]);
        let seed = (machine * configuration.threads + number) as u64;
        threads.push(Thread::new(configuration, program, seed, Rc::clone(&rack.done))?);
    }
    for there in 1..threads.len() {
        let (before, from) = threads.split_at_mut(there);
        for here in before {
            for _ in 0..configuration.emulated_nodes / configuration.machines {
                here.connect(&mut from[0])?;
            }
        }
    }
    for thread in threads {
        let (node, landing) = (thread.machine.node, thread.landing.remote());
        let actor = rack.spawn(node, thread);
        rack.sim.watch(actor, &landing);
    }
    Ok(())
}

struct Thread {
    operation: Operation,
    bytes: usize,
    /// Of the operations of a queue pair, one in this many is signaled.
    signal_every: u64,
    machine: Machine,
    pairs: Vec<Pair>,
    /// For each place of the window, the queue pair of its operation.
    places: Vec<Option<usize>>,
    /// The place of the next operation, which the oldest one uses.
    place: usize,
    /// The queue pair of the next operation.
    next: Option<usize>,
    /// Where the bytes of READs land, by place.
    landing: SharedRegion,
    random: u64,
    done: Rc<Cell<u64>>,
}

struct Pair {
    qp: QueuePair,
    cq: CompletionQueue,
    there: RemoteBlocks,
    posted: u64,
}

/// The memory that a queue pair accesses, by blocks.
struct RemoteBlocks {
    region: farcall_verbs::RemoteRegion,
    count: u64,
}

impl Thread {
    fn new(
        configuration: &Configuration,
        machine: Machine,
        seed: u64,
        done: Rc<Cell<u64>>,
    ) -> Result<Thread> {
        let Configuration { operation, bytes, window, signal_every, .. } = *configuration;
        let landing = machine.pd.alloc_shared(window * slot_bytes(bytes), Access::empty())?;
        Ok(Thread {
            operation,
            bytes,
            signal_every,
            machine,
            pairs: Vec::new(),
            places: vec![None; window],
            place: 0,
            next: None,
            landing,
            random: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            done,
        })
    }

    fn connect(&mut self, there: &mut Thread) -> Result<()> {
        let (mut a, a_cq) = self.create_pair()?;
        let (mut b, b_cq) = there.create_pair()?;
        join(&mut a, &mut b)?;
        self.add_pair(a, a_cq, there);
        there.add_pair(b, b_cq, self);
        Ok(())
    }

    fn create_pair(&self) -> Result<(QueuePair, CompletionQueue)> {
        let depth = self.places.len() + 2 * self.signal_every as usize;
        let cq = self.machine.device.create_cq(depth, None)?;
        let ty = match self.operation {
            Operation::WriteUnreliable => QpType::Uc,
            Operation::Read | Operation::Write => QpType::Rc,
        };
        let config = QueuePairConfig::new(ty, &cq, &cq).max_send_wr(depth);
        Ok((self.machine.pd.create_qp(config)?, cq))
    }

    fn add_pair(&mut self, qp: QueuePair, cq: CompletionQueue, there: &Thread) {
        let count = (REGION_BYTES - self.bytes) as u64 / STRIDE_BYTES;
        let there = RemoteBlocks { region: there.machine.memory.remote(), count };
        self.pairs.push(Pair { qp, cq, there, posted: 0 });
    }

    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 20
    }

    /// Whether the operation in the next place is done, so that the place is free.
    fn free_place(&mut self) -> Result<bool> {
        let Some(pair) = self.places[self.place] else { return Ok(true) };
        if self.operation == Operation::Read {
            let slot = self.place * slot_bytes(self.bytes);
            // The last bytes land last.
            if self.landing.load_u32(slot + self.bytes - 4) == 0 {
                return Ok(false);
            }
        }
        if self.signal_every == 1 && !self.pairs[pair].take_completion()? {
            return Ok(false);
        }
        // An unsignaled WRITE leaves no sign of its end, and occupies no place.
        self.places[self.place] = None;
        self.done.set(self.done.get() + 1);
        Ok(true)
    }

    /// Posts the next operation. Returns whether its queue pair accepted it now.
    fn post(&mut self) -> Result<bool> {
        let at = match self.next {
            Some(at) => at,
            None => self.draw() as usize % self.pairs.len(),
        };
        self.next = Some(at);
        let block = self.draw() % self.pairs[at].there.count;
        let pair = &mut self.pairs[at];
        let turn = pair.posted % self.signal_every;
        let (signaled, is_last) = (turn == 0, turn == self.signal_every - 1);
        if self.signal_every > 1 && is_last && !pair.take_completion()? {
            return Ok(false);
        }
        self.next = None;
        let there = pair.there.slice(block, self.bytes)?;
        let request: WorkRequest<'_> = match self.operation {
            Operation::Read => {
                let slot = self.place * slot_bytes(self.bytes);
                self.landing.store_release_u32(slot + self.bytes - 4, 0);
                WorkRequest::read(self.landing.slice(slot, self.bytes), there)
            }
            _ => WorkRequest::write(&INLINE[..self.bytes], there).unsignaled(),
        };
        let request = if signaled { request.signaled(0) } else { request };
        let posted = pair.qp.post_send_one(request);
        posted.map_err(|(error, _)| error).context("an operation")?;
        pair.posted += 1;
        if self.operation == Operation::Read || self.signal_every == 1 {
            self.places[self.place] = Some(at);
        } else {
            self.done.set(self.done.get() + 1);
        }
        self.place = (self.place + 1) % self.places.len();
        Ok(true)
    }

    fn step(&mut self) -> Result<Next> {
        for _ in 0..POSTS_PER_TURN {
            if !self.free_place()? || !self.post()? {
                return Ok(Next::OnEvent);
            }
        }
        Ok(Next::Now)
    }
}

impl Pair {
    /// Polls for one completion of this queue pair. Returns whether there was one.
    fn take_completion(&mut self) -> Result<bool> {
        let mut completion: [WorkCompletion; 1] = Default::default();
        let count = self.cq.poll(&mut completion)?;
        match completion[0].status {
            Status::Success => Ok(count > 0),
            status => Err(anyhow!("an operation failed: {status:?}")),
        }
    }
}

impl RemoteBlocks {
    fn slice(&self, block: u64, len: usize) -> Result<RemoteSlice> {
        Ok(self.region.slice(block * STRIDE_BYTES, len as u64)?)
    }
}

/// The room for the bytes of one READ, in whole cache lines.
fn slot_bytes(len: usize) -> usize {
    len.next_multiple_of(64)
}

impl Actor for Thread {
    fn turn(&mut self, _now_ns: u64) -> Turn {
        match self.step() {
            Ok(next) => Turn::then(next).scanned(1),
            Err(error) => panic!("an experiment went wrong: {error:#}"),
        }
    }
}
