//! Queue pairs shared by several threads.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use anyhow::{Context, Result};
use farcall_verbs::sim::{Actor, Costs, Next, Turn};
use farcall_verbs::{
    Access, CompletionQueue, QpType, QueuePair, QueuePairConfig, RemoteSlice, SharedRegion,
    WorkCompletion, WorkRequest,
};

use super::flows::MEASURED_NS;
use super::rig::{Rack, join};

/// A thread that posts READs to randomly chosen queue pairs, each protected by a lock.
struct Sharer {
    number: usize,
    pairs: Rc<RefCell<Vec<QueuePair>>>,
    cq: Rc<RefCell<CompletionQueue>>,
    /// How many READs each thread may still post: any thread may poll its completions.
    credits: Rc<Vec<Cell<usize>>>,
    there: RemoteSlice,
    into: SharedRegion,
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
        let read = WorkRequest::read(self.into.slice(0, 32), self.there);
        let posted = pairs[at].post_send_one(read.signaled(self.number as u64));
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
    let cq = client.device.create_cq(1 << 12, None)?;
    let (mut qps, mut kept) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        let there_cq = server.device.create_cq(16, None)?;
        let config = QueuePairConfig::new(QpType::Rc, &cq, &cq);
        let mut here = client.pd.create_qp(config)?;
        let config = QueuePairConfig::new(QpType::Rc, &there_cq, &there_cq);
        let mut there = server.pd.create_qp(config)?;
        join(&mut here, &mut there)?;
        qps.push(here);
        kept.push((there, there_cq));
    }
    let (pairs, cq) = (Rc::new(RefCell::new(qps)), Rc::new(RefCell::new(cq)));
    let credits = Rc::new(vec![Cell::new(WINDOW); threads]);
    for number in 0..threads {
        let sharer = Sharer {
            number,
            pairs: Rc::clone(&pairs),
            cq: Rc::clone(&cq),
            credits: Rc::clone(&credits),
            there: server.memory.remote().slice(0, 32)?,
            into: client.pd.alloc_shared(32, Access::empty())?,
            random: 0x9e37_79b9_7f4a_7c15 + number as u64,
            done: Rc::clone(&rack.done),
        };
        rack.spawn(client.node, sharer);
    }
    Ok(rack.rate(2 * MEASURED_NS) / threads as f64)
}
