//! What is published of ConnectX-5 beside latencies.

use anyhow::Result;
use farcall_verbs::QpType;
use farcall_verbs::sim::Costs;

use super::figure::{Axis, Figure, Series};
use super::flows::Outbound;
use super::rig::{Verb, Work};

pub(super) fn figures() -> Vec<Figure> {
    vec![pairs()]
}

/// The rate of READs with so many queue pairs, each picked at random, as a part of that with 10.
fn left(pairs: f64) -> Result<f64> {
    Ok(reads(pairs as usize)? / reads(10)?)
}

fn reads(pairs: usize) -> Result<f64> {
    let (threads, machines) = (10, 10);
    let work = Work::of(Verb::Read, 16).random(16);
    let (costs, ty) = (Costs::connectx5(), QpType::Rc);
    Outbound { costs, ty, work, threads, pairs: pairs / threads, machines }.rate()
}

fn pairs() -> Figure {
    Figure {
        name: "erpc-1",
        title: "READs out of a machine by the number of its queue pairs, ConnectX-5",
        source: "eRPC (NSDI 2019), Fig. 1",
        x_label: "queue pairs",
        y_label: "part of the rate with 10",
        axis: Axis::Logarithmic,
        notes: "10 threads to 10 machines; each keeps 16 READs outstanding, each on any of its queue pairs. The constants of this NIC rest on few points.",
        series: vec![Series::new("READ, RC", &[(5000.0, 0.5)], left)],
    }
}
