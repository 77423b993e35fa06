//! FaSST (Kalia, Kaminsky, Andersen, OSDI 2016): ConnectX-3 at 56 Gbit/s, and Connect-IB.

use anyhow::Result;
use farcall::rack::CpuCosts;
use farcall::rack::sim::SimConfig;
use farcall_verbs::sim::Costs;

use super::figure::{Axis, Figure, Series};
use super::measured::{MeasuredNic, best_rate};
use super::shared;
use crate::rack_peers::{Mesh, measure};

pub(super) fn figures() -> Vec<Figure> {
    vec![nodes(), reads(), calls(), core(), shared()]
}

/// READs of 32 B among 11 machines that emulate more nodes with more queue pairs to each other.
fn emulated(nic: MeasuredNic) -> impl Fn(f64) -> Result<f64> + Clone {
    move |nodes| best_rate(nic, 32, 11, nodes as usize)
}

fn nodes() -> Figure {
    let cx3 = [
        (11.0, 7.7),
        (22.0, 2.7),
        (33.0, 2.1),
        (44.0, 1.5),
        (55.0, 1.65),
        (66.0, 1.4),
        (77.0, 1.4),
        (88.0, 1.3),
        (99.0, 1.2),
    ];
    Figure {
        name: "fasst-2",
        title: "READs of each machine against the number of nodes, all to all",
        source: "FaSST (OSDI 2016), Fig. 2",
        x_label: "nodes",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "11 machines. Their threads have additional queue pairs to each other in place of the missing machines. Each point is the best of the windows 8, 16, 24 and 32, as in the paper; [the measured configurations](figures-measured.md) show each window. The program is the one described there.",
        series: vec![
            Series::new("ConnectX-3, 8 threads", &cx3, emulated(MeasuredNic::ConnectX3)),
            Series::new(
                "Connect-IB, 14 threads",
                &[(11.0, 47.7), (55.0, 35.1), (99.0, 29.7)],
                emulated(MeasuredNic::ConnectIb),
            ),
        ],
    }
}

const READS: [&str; 2] = ["READ, 16 B", "READ, 384 B"];

fn read(nic: MeasuredNic) -> impl Fn(f64) -> Result<f64> + Clone {
    move |row| best_rate(nic, if row > 0.0 { 384 } else { 16 }, 6, 6)
}

fn reads() -> Figure {
    Figure {
        name: "fasst-reads",
        title: "READs of each of 6 machines, all to all",
        source: "FaSST (OSDI 2016), section 3.3",
        x_label: "verb",
        y_label: "M/s",
        axis: Axis::Names(&READS),
        notes: "Each thread has one queue pair to the same thread of each other machine. The best of the windows 8, 16, 24 and 32.",
        series: vec![
            Series::new(
                "ConnectX-3, 8 threads",
                &[(0.0, 11.2), (1.0, 6.5)],
                read(MeasuredNic::ConnectX3),
            ),
            Series::new(
                "Connect-IB, 14 threads",
                &[(0.0, 51.2), (1.0, 23.1)],
                read(MeasuredNic::ConnectIb),
            ),
        ],
    }
}

/// Millions of calls per second of each of several machines that all call each other, with our own backend.
fn calls_of(costs: fn() -> Costs, threads: usize) -> impl Fn(f64) -> Result<f64> + Clone {
    move |machines| {
        let mesh = Mesh {
            machines: machines as usize,
            threads,
            workers: 4,
            batch: 5,
            options: leaving("coalescing"),
            dialled: Some(leaving("doorbells,coalescing")),
            config: SimConfig::default().costs(costs()),
            ..Mesh::default()
        };
        Ok(measure(&mesh)? / 1e6)
    }
}

/// The options of an address.
fn leaving(left: &str) -> String {
    format!("backend=datagram&slot=512&max_message=65536&without={left}")
}

fn calls() -> Figure {
    Figure {
        name: "fasst-calls",
        title: "Calls of 32 B of each machine, all to all",
        source: "FaSST (OSDI 2016), section 4.3",
        x_label: "machines",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "The backend `datagram`, with one call per datagram as in FaSST. Each thread serves calls and has 4 workers, each of which calls 5 other machines at a time, all over one queue pair. FaSST reports 11.6 to 12.3 M and 34.9 to 40.9 M, independent of the number of machines; the table shows the middles. READs between 6 such machines reach 11.2 and 51.2 M (`fasst-reads`); on ConnectX-3 they fall to 1.2 M with 99 machines (`fasst-2`), while the rate of calls over datagrams does not depend on the number of machines. Here each request has its own doorbell. With 20 requests per doorbell, the 8 threads overflow the model's cache of work requests on ConnectX-3 and the rate falls to 3.9 M; no published figure shows this.",
        series: vec![
            Series::new(
                "ConnectX-3, 8 threads",
                &[(6.0, 12.0), (11.0, 12.0)],
                calls_of(Costs::connectx3, 8),
            )
            .held_out(),
            Series::new(
                "Connect-IB, 14 threads",
                &[(6.0, 37.9), (11.0, 37.9)],
                calls_of(Costs::connect_ib, 14),
            )
            .held_out(),
        ],
    }
}

const STEPS: [&str; 6] =
    ["nothing", "requests by 3", "cheap receives", "responses", "by 5", "by 11"];

/// For each step, what is disabled at the calling end and at the serving end, and the calls that a worker sends
/// together.
const LEAVES: [(&str, &str, usize); 6] = [
    ("doorbells,bulk,coalescing", "doorbells,bulk,coalescing", 1),
    ("bulk,coalescing", "doorbells,bulk,coalescing", 3),
    ("coalescing", "doorbells,coalescing", 3),
    ("coalescing", "coalescing", 3),
    ("coalescing", "coalescing", 5),
    ("coalescing", "coalescing", 11),
];

/// Calls that a thread has outstanding. With half as many, large batches wait for their answers; with half more,
/// the last step is 5.2 M.
const OUTSTANDING: usize = 40;

/// FaSST's CPU costs of a call in addition to posting and polling: a switch between coroutines, 13 to 20 ns
/// (section 4.1). Its messages are not encoded, and its handlers are in a table.
fn coroutines() -> CpuCosts {
    CpuCosts::FREE.answer_ns(20)
}

/// Millions of calls per second of each of 12 machines with one core that calls and serves.
fn step(cpu: CpuCosts) -> impl Fn(f64) -> Result<f64> + Clone {
    move |row| {
        let (calling, serving, batch) = LEAVES[row as usize];
        let mesh = Mesh {
            machines: 12,
            workers: OUTSTANDING.div_ceil(batch),
            batch,
            cpu,
            options: leaving(serving),
            dialled: Some(leaving(calling)),
            config: SimConfig::default().costs(Costs::connectx3()),
            ..Mesh::default()
        };
        Ok(measure(&mesh)? / 1e6)
    }
}

fn core() -> Figure {
    let points = [2.0, 2.8, 2.9, 3.9, 4.4, 4.8];
    let points: Vec<_> = points.iter().enumerate().map(|(row, rate)| (row as f64, *rate)).collect();
    Figure {
        name: "fasst-core",
        title: "Calls of 32 B of one core that calls and serves, ConnectX-3",
        source: "FaSST (OSDI 2016), section 4.3",
        x_label: "one after the other",
        y_label: "M/s",
        axis: Axis::Names(&STEPS),
        notes: "The backend `datagram`, with one call per datagram. 12 machines call each other; each keeps 40 calls outstanding. From the named step on, the requests or the responses of a thread's turn share one doorbell. One series adds FaSST's CPU cost per call, a switch of coroutines; the other adds that of farcall's stubs, 120 ns for encoding and dispatch. Not met: with coroutines, sharing a doorbell between responses gains more than in FaSST; with stubs, batches of 5 and 11 gain less, because the cost of the stubs dominates.",
        series: vec![
            Series::new("as FaSST's calls", &points, step(coroutines()))
                .held_out()
                .missed_at(&[3.0]),
            Series::new("with stubs", &points, step(CpuCosts::default()))
                .held_out()
                .missed_at(&[4.0, 5.0]),
        ],
    }
}

fn sharing(threads: usize) -> impl Fn(f64) -> Result<f64> + Clone {
    move |pairs| shared::rate(&Costs::connect_ib(), threads, pairs as usize)
}

fn shared() -> Figure {
    let alone = [(5.0, 10.9), (20.0, 9.9), (50.0, 8.6), (100.0, 7.3)];
    let by_two = [(5.0, 1.9), (20.0, 2.3), (50.0, 2.4), (100.0, 2.5)];
    let by_three = [(5.0, 1.4), (20.0, 1.9), (50.0, 2.0), (100.0, 2.1)];
    Figure {
        name: "fasst-shared",
        title: "READs of one thread against the queue pairs that it works on, Connect-IB",
        source: "FaSST (OSDI 2016), section 3.3",
        x_label: "queue pairs",
        y_label: "M/s per thread",
        axis: Axis::Logarithmic,
        notes: "Threads of one process, 32 READs outstanding per thread, each on a random queue pair.",
        series: vec![
            Series::new("alone", &alone, sharing(1)),
            Series::new("shared by 2", &by_two, sharing(2)).held_out_at(&[20.0, 50.0]),
            Series::new("shared by 3", &by_three, sharing(3)).held_out_at(&[5.0, 20.0, 50.0]),
        ],
    }
}
