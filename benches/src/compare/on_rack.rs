//! Backends on simulated racks of the same kind, in virtual time.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use farcall::rack::sim::SimConfig;
use farcall_verbs::sim::Costs;

use super::report::{Cell, Limit, Run};
use super::{Contender, Options, RackOptions, Workload};
use crate::rack_calls::{self, Point};
use crate::sim::read_ns;

/// The NICs with known constants.
const NICS: [&str; 3] = ["connectx5", "connectx3", "connect_ib"];

/// The model of the NIC of that name, which is one of the known ones.
pub fn costs(nic: &str) -> Option<Costs> {
    match nic {
        "connectx5" => Some(Costs::connectx5()),
        "connectx3" => Some(Costs::connectx3()),
        "connect_ib" => Some(Costs::connect_ib()),
        _ => None,
    }
}

/// Machines of the clients, as in ScaleRPC (EuroSys 2019).
const MACHINES: usize = 11;

/// Bytes per nanosecond and direction that the slowest of these NICs moves at least.
const BYTES_PER_NS: u64 = 4;

/// What a call takes of one server thread at most, if it is short: one over `tcp`.
const CALL_NS: u64 = 2_000;

/// The fewest rounds of all calls that are measured if they are long.
const ROUNDS: u64 = 4;

/// Racks, and measurements that they share.
pub(super) struct OnRack {
    costs: Costs,
    server_threads: usize,
    /// The latency of a READ by size.
    reads_ns: BTreeMap<usize, u64>,
}

impl OnRack {
    pub(super) fn new(options: &RackOptions) -> Result<OnRack> {
        let nic = options.nic.as_deref().unwrap_or(NICS[0]);
        let Some(costs) = costs(nic) else {
            bail!("no NIC is called `{nic}`; known are: {}", NICS.join(", "));
        };
        let server_threads = options.server_threads.unwrap_or(1);
        Ok(OnRack { costs, server_threads, reads_ns: BTreeMap::new() })
    }

    pub(super) fn measure(&mut self, options: &Options, workload: Workload) -> Cell {
        let size = workload.size;
        let read_ns = match self.reads_ns.get(&size) {
            Some(ns) => Ok(*ns),
            None => read_ns(&self.costs, size),
        };
        let ns = match read_ns {
            Ok(ns) => ns,
            Err(why) => {
                return Cell::refused(workload, &options.contenders, &format!("{why:#}"));
            }
        };
        self.reads_ns.insert(size, ns);
        let limit = Limit { what: "a READ alone", ns, line_rate: None, copy_bandwidth: None };
        let run = |contender: &Contender| {
            let point = self.point(workload);
            let how = contender.address_options(size);
            let how = format!("backend={}&{how}", contender.backend);
            let measured = rack_calls::measure(&Point { options: how, ..point });
            let run = measured.map(|measured| Run {
                calls: measured.calls,
                rate: measured.calls_per_second,
                p50_ns: measured.latency.value_at_quantile(0.5),
                p99_ns: measured.latency.value_at_quantile(0.99),
                ..Run::default()
            });
            Run::of(contender, run)
        };
        Cell::new(workload, limit, options.contenders.iter().map(run).collect())
    }

    fn point(&self, workload: Workload) -> Point {
        let Workload { clients, size, window } = workload;
        let client_nodes = MACHINES.min(clients);
        let cores = self.server_threads.max(clients.div_ceil(client_nodes));
        let calls = (clients * window) as u64;
        let round_ns = calls * size as u64 / BYTES_PER_NS;
        let round_ns = round_ns.max(calls * CALL_NS / self.server_threads as u64);
        Point {
            clients,
            client_nodes,
            server_threads: self.server_threads,
            size,
            batch: window,
            config: SimConfig::default().cores(cores).costs(self.costs.clone()),
            warm_up_ns: 200_000 + round_ns,
            measured_ns: 1_000_000 + ROUNDS * round_ns,
            ..Point::default()
        }
    }
}
