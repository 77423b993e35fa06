//! Threads that post a burst of operations and then wait for all of them, as the program of Kalia et al. (USENIX ATC
//! 2016), Fig. 13.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow};
use farcall_verbs::sim::{Actor, Costs, Next, Turn};
use farcall_verbs::{
    Access, CompletionQueue, QpType, QueuePair, QueuePairConfig, RemoteSlice, SharedRegion, Status,
    WorkCompletion, WorkRequest,
};

use super::flows::measured_ns;
use super::rig::{INLINE, Rack, Verb, join};

/// Threads of one machine that each have one queue pair, to one of several machines.
pub(super) struct Bursts {
    pub(super) costs: Costs,
    pub(super) verb: Verb,
    pub(super) len: usize,
    pub(super) threads: usize,
    pub(super) machines: usize,
    /// Operations that a thread posts one by one, all signaled, before it polls for all of their completions.
    pub(super) burst: usize,
}

/// What was measured, in millions per second.
pub(super) struct Measured {
    pub(super) operations: f64,
    pub(super) pcie_reads: f64,
}

struct Thread {
    verb: Verb,
    len: usize,
    burst: usize,
    posted: usize,
    completed: usize,
    qp: QueuePair,
    cq: CompletionQueue,
    there: RemoteSlice,
    into: SharedRegion,
    done: Rc<Cell<u64>>,
}

/// The posts of one turn of the actor. In between, other actors run.
const POSTS_PER_TURN: usize = 4;

impl Bursts {
    pub(super) fn run(&self) -> Result<Measured> {
        let Bursts { ref costs, verb, len, threads, machines, burst } = *self;
        let mut rack = Rack::new(costs);
        let here = rack.machine()?;
        let targets = rack.machines(machines)?;
        let mut kept = Vec::new();
        for number in 0..threads {
            let (program, target) = (rack.program(&here)?, &targets[number % machines]);
            let cq = program.device.create_cq(burst.max(16), None)?;
            let config = QueuePairConfig::new(QpType::Rc, &cq, &cq).max_send_wr(burst.max(16));
            let mut qp = program.pd.create_qp(config)?;
            let there_cq = target.device.create_cq(16, None)?;
            let config = QueuePairConfig::new(QpType::Rc, &there_cq, &there_cq);
            let mut there = target.pd.create_qp(config)?;
            join(&mut qp, &mut there)?;
            kept.push((there, there_cq));
            let thread = Thread {
                verb,
                len,
                burst,
                posted: 0,
                completed: 0,
                qp,
                cq,
                there: target.memory.remote().slice(64 * number as u64, len as u64)?,
                into: program.pd.alloc_shared(len, Access::empty())?,
                done: Rc::clone(&rack.done),
            };
            rack.spawn(here.node, thread);
        }
        let measured_ns = measured_ns(threads * burst);
        rack.sim.run_for(measured_ns);
        let reads = rack.counters(&here).pcie_reads;
        rack.done.set(0);
        rack.sim.run_for(measured_ns);
        let per_us = |count: u64| count as f64 * 1e3 / measured_ns as f64;
        let pcie_reads = per_us(rack.counters(&here).pcie_reads - reads);
        Ok(Measured { operations: per_us(rack.done.get()), pcie_reads })
    }
}

impl Thread {
    fn step(&mut self) -> Result<Next> {
        for _ in 0..POSTS_PER_TURN {
            if self.posted == self.burst {
                return self.collect();
            }
            let request: WorkRequest<'_> = match self.verb {
                Verb::Read => WorkRequest::read(self.into.slice(0, self.len), self.there),
                _ => WorkRequest::write(&INLINE[..self.len], self.there).unsignaled(),
            };
            let posted = self.qp.post_send_one(request.signaled(0));
            posted.map_err(|(error, _)| error).context("an operation")?;
            self.posted += 1;
        }
        Ok(Next::Now)
    }

    /// Polls for completions of the burst.
    fn collect(&mut self) -> Result<Next> {
        let mut batch: [WorkCompletion; 16] = Default::default();
        let count = self.cq.poll(&mut batch)?;
        if let Some(failed) = batch[..count].iter().find(|one| one.status != Status::Success) {
            return Err(anyhow!("an operation failed: {:?}", failed.status));
        }
        self.completed += count;
        self.done.set(self.done.get() + count as u64);
        if self.completed == self.burst {
            (self.posted, self.completed) = (0, 0);
            return Ok(Next::Now);
        }
        Ok(if count > 0 { Next::Now } else { Next::OnEvent })
    }
}

impl Actor for Thread {
    fn turn(&mut self, _now_ns: u64) -> Turn {
        match self.step() {
            Ok(next) => Turn::then(next),
            Err(error) => panic!("an experiment went wrong: {error:#}"),
        }
    }
}
