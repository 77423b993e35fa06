//! ScaleRPC (Chen, Lu, Shu, EuroSys 2019): ConnectX-3 at 56 Gbit/s.

use anyhow::Result;
use farcall_verbs::QpType;
use farcall_verbs::sim::Costs;

use super::figure::{Axis, Figure, Series};
use super::flows::{Inbound, MEASURED_NS, Outbound, received};
use super::rig::{Rack, Thread, Verb, Work};

pub(super) fn figures() -> Vec<Figure> {
    vec![clients(), datagrams(), blocks()]
}

/// Client machines of the paper.
const MACHINES: usize = 11;
/// Outstanding operations of each client, or of the server for each client. It explains the rate of one thread
/// with one client.
const WINDOW: usize = 14;
/// Threads of the paper's server.
const THREADS: usize = 10;

fn out(clients: f64) -> Result<f64> {
    let clients = clients as usize;
    let threads = clients.min(THREADS);
    let work = Work::of(Verb::Write, 32).fetched().window(WINDOW).all_signaled();
    let pairs = clients / threads;
    // The vendor's driver only pushes inline work requests.
    let mut costs = Costs::connectx3();
    costs.pushes_any = false;
    let (rate, _) =
        Outbound { costs, ty: QpType::Rc, work, threads, pairs, machines: MACHINES }.run()?;
    Ok(rate)
}

fn in_(clients: f64) -> Result<f64> {
    let clients = clients as usize;
    let machines = clients.min(MACHINES);
    let work = Work::of(Verb::Write, 32).window(WINDOW);
    let threads = clients.div_ceil(machines);
    Inbound { costs: Costs::connectx3(), ty: QpType::Rc, work, machines, threads }.rate()
}

fn clients() -> Figure {
    let outbound = [
        (1.0, 6.1),
        (5.0, 15.5),
        (10.0, 19.8),
        (20.0, 12.7),
        (40.0, 7.9),
        (80.0, 3.2),
        (100.0, 2.5),
        (200.0, 2.0),
        (800.0, 2.4),
    ];
    let inbound = [
        (1.0, 4.8),
        (5.0, 23.9),
        (11.0, 35.9),
        (22.0, 35.6),
        (44.0, 35.4),
        (88.0, 35.8),
        (198.0, 34.4),
        (792.0, 36.8),
    ];
    Figure {
        name: "scalerpc-3a",
        title: "RC WRITEs of 32 B against the number of clients, ConnectX-3",
        source: "ScaleRPC (EuroSys 2019), Fig. 3a; the points at 800 clients from Fig. 1b",
        x_label: "clients",
        y_label: "M/s",
        axis: Axis::Logarithmic,
        notes: "10 server threads and 11 client machines. WRITEs out of the server are not inline (the vendor's driver does not push them over MMIO), with 14 outstanding per client; WRITEs into the server are inline. Not met: 5 clients, where the paper's NIC was not yet saturated; 20 clients, whose send queues the model still keeps, as it must those of ten queue pairs; and 800 clients. The points at 800 come from the paper's Fig. 1b, whose points at 10 and 100 clients (28 and 5.7 M/s) contradict Fig. 3a.",
        series: vec![
            Series::new("out of the server", &outbound, out).missed_at(&[5.0, 20.0, 800.0]),
            Series::new("into the server", &inbound, in_)
                .held_out_at(&[22.0, 44.0, 88.0, 198.0, 792.0]),
        ],
    }
}

/// 400 clients, each of which writes to its 20 blocks of this size in rotation.
fn block(kib: f64) -> Result<f64> {
    let (clients, blocks, size) = (400, 20, (kib * 1024.0) as u64 / 64 * 64);
    let mut rack = Rack::new(&Costs::connectx3());
    let server = rack.machine_with((clients * blocks * size) as usize)?;
    let machines = rack.machines(MACHINES)?;
    let work = Work::of(Verb::Write, 32).window(WINDOW);
    let mut kept = Vec::new();
    for number in 0..clients {
        let client = &machines[number as usize % MACHINES];
        let program = rack.program(client)?;
        let mut thread = Thread::new(&rack, &program, work, number)?;
        // A message is at the end of its block (section 3.2).
        let ends = (1..=blocks).map(|block| ((number * blocks + block) * size - 32, 32));
        kept.push(thread.connect(QpType::Rc, &server, &ends.collect::<Vec<_>>())?);
        rack.spawn(client.node, thread);
    }
    Ok(rack.rate(5 * MEASURED_NS))
}

fn blocks() -> Figure {
    let points = [(2.0, 34.9), (2.13, 33.8), (2.38, 22.3), (3.0, 11.4), (4.0, 8.0), (8.0, 5.6)];
    Figure {
        name: "scalerpc-3b",
        title: "RC WRITEs of 32 B into 8,000 blocks of a growing size, ConnectX-3",
        source: "ScaleRPC (EuroSys 2019), Fig. 3b",
        x_label: "block, KiB",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "Each of 400 clients writes to the ends of its 20 blocks in turn. The model counts pages. The 8,000 cache lines alone would fit into the last-level cache at any block size; what else filled it is not known. Not met: blocks of 8 KiB, which touch as many pages and lines as blocks of 4 KiB; the model does not know why they are slower.",
        series: vec![
            Series::new("into the server", &points, block).held_out_at(&[3.0]).missed_at(&[8.0]),
        ],
    }
}

/// Datagrams from a server whose threads have one queue pair each for all clients.
fn datagrams_out(clients: f64) -> Result<f64> {
    let work = Work::of(Verb::Send, 32).window(8);
    let machines = (clients as usize).min(MACHINES);
    let (costs, ty) = (Costs::connectx3(), QpType::Ud);
    Outbound { costs, ty, work, threads: THREADS, pairs: 1, machines }.rate()
}

fn datagrams_in(_clients: f64) -> Result<f64> {
    received(&Costs::connectx3(), 32)
}

fn datagrams() -> Figure {
    Figure {
        name: "scalerpc-1b",
        title: "Datagrams of 32 B with 400 clients, ConnectX-3",
        source: "ScaleRPC (EuroSys 2019), Fig. 1b",
        x_label: "clients",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "10 server threads with one UD queue pair each. The published rate into the server is 1.4 times the rate that Kalia et al. report for the same NIC; the model's constant lies between the two.",
        series: vec![
            Series::new("SEND, UD, out of the server", &[(400.0, 26.2)], datagrams_out).held_out(),
            Series::new("SEND, UD, into the server", &[(400.0, 30.4)], datagrams_in),
        ],
    }
}
