//! RFP (Su et al., EuroSys 2017): ConnectX-3 at 40 Gbit/s, one request outstanding per thread.

use anyhow::Result;
use farcall_verbs::QpType;
use farcall_verbs::sim::Costs;

use super::figure::{Axis, Figure, Series};
use super::flows::MEASURED_NS;
use super::rig::{Rack, Thread, Verb, Work};

pub(super) fn figures() -> Vec<Figure> {
    vec![outbound(), inbound(), sizes()]
}

/// Client machines of the paper.
const CLIENTS: usize = 7;

/// `threads` of each of some machines access the others in rotation. The threads of a machine belong to one
/// process, so they share its opened device and the lock of its doorbells.
fn rate(from: usize, to: usize, threads: usize, work: Work) -> Result<f64> {
    let mut rack = Rack::new(&Costs::connectx3_qdr());
    let (sources, targets) = (rack.machines(from)?, rack.machines(to)?);
    let mut kept = Vec::new();
    for source in &sources {
        for number in 0..threads {
            let mut thread = Thread::new(&rack, source, work, number as u64)?;
            let target = &targets[number % to];
            kept.push(thread.connect(QpType::Rc, target, &[(0, work.len as u64)])?);
            rack.spawn(source.node, thread);
        }
    }
    Ok(rack.rate(2 * MEASURED_NS))
}

fn one(verb: Verb, len: usize) -> Work {
    // Inline up to the size at which HERD found it faster.
    let work = Work::of(verb, len).window(1);
    Work { inline: work.inline && len <= 144, ..work }
}

fn out_threads(threads: f64) -> Result<f64> {
    rate(1, CLIENTS, threads as usize, one(Verb::Write, 32))
}

fn in_threads(threads: f64) -> Result<f64> {
    rate(CLIENTS, 1, threads as usize / CLIENTS, one(Verb::Read, 32))
}

fn outbound() -> Figure {
    let points = [
        (1.0, 0.64),
        (2.0, 1.13),
        (4.0, 2.11),
        (6.0, 1.73),
        (8.0, 1.51),
        (10.0, 1.33),
        (12.0, 1.25),
        (14.0, 1.15),
        (16.0, 1.09),
    ];
    Figure {
        name: "rfp-3",
        title: "WRITEs of 32 B out of the server against its threads, ConnectX-3 at 40 Gbit/s",
        source: "RFP (EuroSys 2017), Fig. 3",
        x_label: "server threads",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "One WRITE outstanding per thread, inline up to 144 B. All threads belong to one process and share its device context, and therefore contend for the lock of its doorbells.",
        series: vec![Series::new("WRITE, RC", &points, out_threads).held_out_at(&[2.0])],
    }
}

fn inbound() -> Figure {
    let points = [
        (7.0, 3.3),
        (14.0, 5.8),
        (21.0, 8.8),
        (28.0, 11.26),
        (35.0, 9.7),
        (42.0, 9.0),
        (70.0, 8.9),
    ];
    Figure {
        name: "rfp-4",
        title: "READs of 32 B into the server against the client threads, ConnectX-3 at 40 Gbit/s",
        source: "RFP (EuroSys 2017), Fig. 4",
        x_label: "client threads",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "7 machines with one process each. The drop beyond 28 threads is due to the client machines, not to the server.",
        series: vec![Series::new("READ, RC", &points, in_threads).held_out_at(&[7.0, 14.0, 21.0])],
    }
}

fn sizes() -> Figure {
    let inbound = [
        (32.0, 11.3),
        (64.0, 11.2),
        (128.0, 11.05),
        (256.0, 10.6),
        (512.0, 7.3),
        (1024.0, 3.75),
        (2048.0, 1.88),
        (4096.0, 0.92),
    ];
    let outbound = [
        (32.0, 2.11),
        (64.0, 1.95),
        (128.0, 1.87),
        (256.0, 1.60),
        (512.0, 1.48),
        (1024.0, 1.29),
        (2048.0, 1.03),
        (4096.0, 0.90),
    ];
    let into = |len: f64| rate(CLIENTS, 1, 4, one(Verb::Read, len as usize));
    let out = |len: f64| rate(1, CLIENTS, 4, one(Verb::Write, len as usize));
    Figure {
        name: "rfp-5",
        title: "Throughput by payload, ConnectX-3 at 40 Gbit/s",
        source: "RFP (EuroSys 2017), Fig. 5",
        x_label: "payload, B",
        y_label: "M/s",
        axis: Axis::Logarithmic,
        notes: "Into the server: 28 client threads on 7 machines. Out of the server: 4 threads. One operation outstanding per thread; WRITEs are inline up to 144 B. Not met: 64 B out of the server. How long the four threads wait for the lock of their doorbells depends on how they fall into step.",
        series: vec![
            Series::new("READ, into the server", &inbound, into).held_out(),
            Series::new("WRITE, out of the server", &outbound, out)
                .held_out_at(&[32.0, 64.0, 128.0, 512.0, 1024.0, 2048.0, 4096.0])
                .missed_at(&[64.0]),
        ],
    }
}
