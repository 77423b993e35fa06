//! FaSST (Kalia, Kaminsky, Andersen, OSDI 2016): ConnectX-3 at 56 Gbit/s, and Connect-IB.

use anyhow::Result;
use farcall::rack::CpuCosts;
use farcall::rack::sim::SimConfig;
use farcall_verbs::sim::Costs;

use super::figure::{Axis, Figure, Series};
use super::flows::measured_ns;
use super::rig::{Machine, Rack, Thread, Verb, Work};
use super::shared;
use crate::rack_peers::{Mesh, measure};

pub(super) fn figures() -> Vec<Figure> {
    vec![nodes(), reads(), calls(), core(), shared()]
}

/// Machines that all read from each other: each thread has `pairs` queue pairs to the same thread of each other
/// machine, and keeps 16 READs outstanding on randomly chosen ones. Returns millions of READs per second of one
/// machine.
fn symmetric(
    costs: &Costs,
    machines: usize,
    threads: usize,
    pairs: usize,
    len: usize,
) -> Result<f64> {
    let mut rack = Rack::new(costs);
    let nodes: Vec<Machine> = rack.machines(machines)?;
    let work = Work::of(Verb::Read, len).random(WINDOW);
    let mut programs = Vec::new();
    for number in 0..threads {
        let mut crew = Vec::new();
        for (machine, node) in nodes.iter().enumerate() {
            let program = rack.program(node)?;
            let thread = Thread::new(&rack, &program, work, (machine * threads + number) as u64)?;
            crew.push((thread, program));
        }
        for machine in 1..machines {
            let (before, from) = crew.split_at_mut(machine);
            for (thread, program) in before {
                for _ in 0..pairs {
                    Thread::connect_both((thread, program), (&mut from[0].0, &from[0].1))?;
                }
            }
        }
        for (thread, program) in crew {
            rack.sim.spawn(program.node, thread);
            programs.push(program);
        }
    }
    Ok(rack.rate(measured_ns(threads * WINDOW)) / machines as f64)
}

/// READs that a thread keeps outstanding.
const WINDOW: usize = 16;

/// Emulates more nodes with 11 machines and correspondingly more queue pairs to each.
fn emulated(costs: fn() -> Costs, threads: usize) -> impl Fn(f64) -> Result<f64> + Clone {
    move |nodes| symmetric(&costs(), 11, threads, nodes as usize / 11, 16)
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
        notes: "The simulation has 11 machines. Their threads have additional queue pairs to each other in place of the missing machines. Each thread keeps 16 READs outstanding, each on a random queue pair of its own. Not met: at 11 nodes the simulated rate is already falling; the knee lies within a factor of 1.3 of the published one.",
        series: vec![
            Series::new("ConnectX-3, 8 threads", &cx3, emulated(Costs::connectx3, 8))
                .missed_at(&[11.0]),
            Series::new(
                "Connect-IB, 14 threads",
                &[(11.0, 47.7), (99.0, 29.7)],
                emulated(Costs::connect_ib, 14),
            ),
        ],
    }
}

const READS: [&str; 2] = ["READ, 16 B", "READ, 384 B"];

fn read(costs: fn() -> Costs, threads: usize) -> impl Fn(f64) -> Result<f64> + Clone {
    move |row| symmetric(&costs(), 6, threads, 1, if row > 0.0 { 384 } else { 16 })
}

fn reads() -> Figure {
    Figure {
        name: "fasst-reads",
        title: "READs of each of 6 machines, all to all",
        source: "FaSST (OSDI 2016), section 3.3",
        x_label: "verb",
        y_label: "M/s",
        axis: Axis::Names(&READS),
        notes: "Each thread has one queue pair to the same thread of each other machine, and 16 READs outstanding.",
        series: vec![
            Series::new(
                "ConnectX-3, 8 threads",
                &[(0.0, 11.2), (1.0, 6.5)],
                read(Costs::connectx3, 8),
            ),
            Series::new(
                "Connect-IB, 14 threads",
                &[(0.0, 51.2), (1.0, 23.1)],
                read(Costs::connect_ib, 14),
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
