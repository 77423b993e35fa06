//! Calls of published systems by their verbs: what the programs share, and what is measured of them.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use hdrhistogram::Histogram;

use super::rig::{Machine, Rack};

/// The experiment: clients that send batches, and a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct VerbsCalls {
    /// Machines of the clients.
    pub(super) machines: usize,
    pub(super) server_threads: usize,
    pub(super) clients: usize,
    /// Calls that a client sends together. It waits for all of them.
    pub(super) batch: usize,
    /// How long a request keeps its server thread busy, besides polling and posting.
    pub(super) dispatch_ns: u64,
    /// How long it is measured, after a warm-up of the same length.
    pub(super) measured_ns: u64,
}

/// What calls did in the measured time.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    /// Calls per microsecond, i.e. millions per second.
    pub(super) rate: f64,
    /// Millions of cache lines per second that the server's NIC read over PCIe.
    pub(super) pcie_reads: f64,
    /// From the beginning of a batch to each of its answers.
    pub(super) latency: Histogram<u64>,
}

/// 32 bytes, and a word with length and valid flag.
pub(super) const MESSAGE_BYTES: usize = 40;

/// The answers to all clients.
#[derive(Clone)]
pub(super) struct Tally(Rc<RefCell<Tallied>>);

struct Tallied {
    counted_from_ns: u64,
    latency: Histogram<u64>,
}

impl Tally {
    pub(super) fn new() -> Result<Tally> {
        let latency = Histogram::new_with_bounds(1, 1_000_000_000, 3)?;
        Ok(Tally(Rc::new(RefCell::new(Tallied { counted_from_ns: u64::MAX, latency }))))
    }

    /// A call of a batch that began then is answered.
    pub(super) fn record(&self, began_ns: u64, now_ns: u64) {
        let mut tallied = self.0.borrow_mut();
        if now_ns >= tallied.counted_from_ns {
            tallied.latency.saturating_record(now_ns - began_ns);
        }
    }

    /// Runs the rack, and measures after the warm-up.
    pub(super) fn measure(&self, rack: &mut Rack, server: &Machine, measured_ns: u64) -> Calls {
        rack.sim.run_for(measured_ns);
        self.0.borrow_mut().counted_from_ns = rack.sim.now_ns();
        let reads = rack.counters(server).pcie_reads;
        rack.sim.run_for(measured_ns);
        let reads = rack.counters(server).pcie_reads - reads;
        let per_us = |count: u64| count as f64 * 1e3 / measured_ns as f64;
        let latency = self.0.borrow().latency.clone();
        Calls { rate: per_us(latency.len()), pcie_reads: per_us(reads), latency }
    }
}
