//! Published figures of ConnectX-5 other than latencies.

use anyhow::Result;
use farcall::rack::sim::SimConfig;
use farcall_verbs::QpType;
use farcall_verbs::sim::Costs;

use super::figure::{Axis, Figure, Series};
use super::flows::Outbound;
use super::rig::{Verb, Work};
use crate::rack_peers::{Mesh, measure};

pub(super) fn figures() -> Vec<Figure> {
    vec![pairs(), sessions()]
}

/// The rate of READs on that many randomly chosen queue pairs.
fn reads(pairs: f64) -> Result<f64> {
    let (threads, machines) = (10, 10);
    let work = Work::of(Verb::Read, 16).random(16);
    let (costs, ty) = (Costs::connectx5(), QpType::Rc);
    Outbound { costs, ty, work, threads, pairs: pairs as usize / threads, machines }.rate()
}

fn pairs() -> Figure {
    let points = [(113.0, 43.0), (1120.0, 30.8), (4480.0, 23.0)];
    Figure {
        name: "erpc-1",
        title: "READs out of a machine by the number of its queue pairs, ConnectX-5",
        source: "eRPC (NSDI 2019), Fig. 1",
        x_label: "queue pairs",
        y_label: "M/s",
        axis: Axis::Logarithmic,
        notes: "10 threads read 16 B from 10 machines. Each keeps 16 READs outstanding, each on a random queue pair of its own. Few published points determine the constants of this NIC.",
        series: vec![Series::new("READ, RC", &points, reads)],
    }
}

/// ConnectX-5 with a link of 25 Gbit/s Ethernet: 320 ps per byte. The headers are preamble and gap (20 bytes),
/// Ethernet (18), IPv4 (20), UDP (8), BTH (12), DETH (8) and ICRC (4).
fn ethernet_25() -> Costs {
    let mut costs = Costs::connectx5();
    (costs.link_byte_ps, costs.header_bytes) = (320, 90);
    costs
}

/// Millions of calls per second of each of 3 machines with 10 threads and that many sessions each.
fn calls(sessions: f64) -> Result<f64> {
    let (machines, threads) = (3, 10);
    let mesh = Mesh {
        machines,
        threads,
        // Half of a machine's sessions are those that it serves.
        connections: sessions as usize / 2 / threads / (machines - 1),
        workers: 30,
        batch: 2,
        options: "backend=datagram&slot=128&max_message=4096&without=coalescing".into(),
        config: SimConfig::default().costs(ethernet_25()),
        ..Mesh::default()
    };
    Ok(measure(&mesh)? / 1e6)
}

fn sessions() -> Figure {
    Figure {
        name: "erpc-sessions",
        title: "Calls of 32 B of each machine with 20,000 sessions, 25 Gbit/s Ethernet",
        source: "eRPC (NSDI 2019), section 6.3",
        x_label: "sessions",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "The backend `datagram`, with one call per datagram. eRPC ran 10 threads on each of 100 machines with ConnectX-4 Lx. The simulation has 3 machines, 500 sessions between any two threads in each direction, and 60 calls outstanding per thread. It uses the constants of ConnectX-5, because the model has none for ConnectX-4, on a link of 25 Gbit/s. The link limits both systems; a RoCE datagram has longer headers than eRPC's. With 40 sessions the rate is the same.",
        series: vec![Series::new("calls, UD", &[(20_000.0, 12.3)], calls).held_out()],
    }
}
