//! Queue pairs shared by several threads.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use farcall_verbs::sim::{Actor, Costs, Next, Turn};
use farcall_verbs::{
    Access, CompletionQueue, QpType, QueuePair, QueuePairConfig, RemoteSlice, SharedRegion, Status,
    WorkCompletion, WorkRequest,
};

use super::flows::MEASURED_NS;
use super::rig::{Machine, Rack, join};

/// What threads share: queue pairs, with the memory that each reads, and their completion queue.
pub(super) struct Group {
    machine: Machine,
    cq: CompletionQueue,
    pairs: Vec<(QueuePair, RemoteSlice)>,
}

impl Group {
    pub(super) fn new(machine: Machine) -> Result<Group> {
        let cq = machine.device.create_cq(1 << 12, None)?;
        Ok(Group { machine, cq, pairs: Vec::new() })
    }

    fn pair(&self) -> Result<QueuePair> {
        Ok(self.machine.pd.create_qp(QueuePairConfig::new(QpType::Rc, &self.cq, &self.cq))?)
    }

    /// A queue pair to another group, which both use.
    pub(super) fn connect(&mut self, there: &mut Group) -> Result<()> {
        let (mut a, mut b) = (self.pair()?, there.pair()?);
        join(&mut a, &mut b)?;
        self.pairs.push((a, there.machine.memory.remote().slice(0, 32)?));
        there.pairs.push((b, self.machine.memory.remote().slice(0, 32)?));
        Ok(())
    }

    /// Starts so many threads, each of which keeps `window` READs outstanding.
    pub(super) fn spawn(
        self,
        rack: &mut Rack,
        threads: usize,
        window: usize,
        seed: u64,
    ) -> Result<()> {
        let Group { machine, cq, pairs } = self;
        let (pairs, cq) = (Rc::new(RefCell::new(pairs)), Rc::new(RefCell::new(cq)));
        let credits = Rc::new(vec![Cell::new(window); threads]);
        for number in 0..threads {
            let sharer = Sharer {
                number,
                pairs: Rc::clone(&pairs),
                cq: Rc::clone(&cq),
                credits: Rc::clone(&credits),
                into: machine.pd.alloc_shared(32, Access::empty())?,
                _read_by_others: Rc::clone(&machine.memory),
                random: 0x9e37_79b9_7f4a_7c15 + seed + number as u64,
                done: Rc::clone(&rack.done),
            };
            rack.sim.spawn(machine.node, sharer);
        }
        Ok(())
    }
}

/// A thread that posts READs to randomly chosen queue pairs, each protected by a lock.
struct Sharer {
    number: usize,
    pairs: Rc<RefCell<Vec<(QueuePair, RemoteSlice)>>>,
    cq: Rc<RefCell<CompletionQueue>>,
    /// How many READs each thread may still post: any thread may poll its completions.
    credits: Rc<Vec<Cell<usize>>>,
    into: SharedRegion,
    _read_by_others: Rc<SharedRegion>,
    random: u64,
    done: Rc<Cell<u64>>,
}

/// READs that each thread keeps outstanding.
const WINDOW: usize = 32;

impl Sharer {
    fn step(&mut self, now_ns: u64) -> Result<Next> {
        let mut batch: [WorkCompletion; 16] = Default::default();
        let count = self.cq.borrow_mut().poll(&mut batch)?;
        for completion in &batch[..count] {
            ensure!(completion.status == Status::Success, "a READ failed: {:?}", completion.status);
            let credits = &self.credits[completion.id as usize];
            credits.set(credits.get() + 1);
            self.done.set(self.done.get() + 1);
        }
        let mine = &self.credits[self.number];
        if mine.get() == 0 {
            // Another thread may poll the completions of this one's READs.
            return Ok(Next::At(now_ns + 100));
        }
        mine.set(mine.get() - 1);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let mut pairs = self.pairs.borrow_mut();
        let at = (self.random >> 33) as usize % pairs.len();
        let (pair, there) = &mut pairs[at];
        let read = WorkRequest::read(self.into.slice(0, 32), *there);
        let posted = pair.post_send_one(read.signaled(self.number as u64));
        posted.map_err(|(error, _)| error).context("a READ")?;
        Ok(Next::Now)
    }
}

impl Actor for Sharer {
    fn turn(&mut self, now_ns: u64) -> Turn {
        match self.step(now_ns) {
            Ok(next) => Turn::then(next),
            Err(error) => panic!("an experiment went wrong: {error:#}"),
        }
    }
}

/// Millions of READs per second of each of `threads` that share all of `pairs`.
pub(super) fn rate(costs: &Costs, threads: usize, pairs: usize) -> Result<f64> {
    let mut rack = Rack::new(costs);
    let (client, server) = (rack.machine()?, rack.machine()?);
    let (mut here, mut there) = (Group::new(client)?, Group::new(server)?);
    for _ in 0..pairs {
        here.connect(&mut there)?;
    }
    here.spawn(&mut rack, threads, WINDOW, 0)?;
    Ok(rack.rate(2 * MEASURED_NS) / threads as f64)
}
