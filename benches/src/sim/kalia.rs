//! Kalia, Kaminsky, Andersen, "Design Guidelines for High Performance RDMA Systems", USENIX ATC 2016: ConnectX-3 and Connect-IB.

use anyhow::Result;
use farcall_verbs::QpType;
use farcall_verbs::sim::Costs;

use super::bursts::{Bursts, Measured};
use super::echo::{Echo, EchoVerb};
use super::figure::{Axis, Figure, Series};
use super::flows::{Inbound, Outbound, received};
use super::rig::{Verb, Work};

pub(super) fn figures() -> Vec<Figure> {
    vec![rates(), doorbells(), outstanding(), outstanding_reads(), atomics(), sequencer()]
}

const RATES: [&str; 6] =
    ["RECV, 0 B", "RECV, 16 B", "SEND, 0 B", "SEND, 16 B", "READ in", "WRITE in, UC"];

/// The rates of a NIC for small messages; x is the index of the message kind above.
fn rate(costs: fn() -> Costs) -> impl Fn(f64) -> Result<f64> + Clone {
    move |row| {
        // Connect-IB has two ports.
        let ports = if costs() == Costs::connect_ib() { 2 } else { 1 };
        let costs = costs();
        let len = if (row as usize).is_multiple_of(2) { 0 } else { 16 };
        let inbound =
            |ty, work, costs| Inbound { costs, ty, work, machines: 16, threads: 4 }.rate();
        match row as usize {
            0 | 1 => received(&costs, len),
            2 | 3 => sent(costs, len, 16, ports),
            4 => inbound(QpType::Rc, Work::of(Verb::Read, 16), costs),
            _ => inbound(QpType::Uc, Work::of(Verb::Write, 16), costs),
        }
    }
}

/// SENDs of 14 threads with a queue pair per port and batches of this size.
fn sent(costs: Costs, len: usize, batch: usize, ports: usize) -> Result<f64> {
    let work = Work::of(Verb::Send, len).window(32).batch(batch);
    Outbound { costs, ty: QpType::Ud, work, threads: 14, pairs: ports, machines: 16 }.rate()
}

fn rates() -> Figure {
    let cx3 = [(0.0, 34.0), (1.0, 21.8), (2.0, 32.1), (3.0, 26.0), (4.0, 25.8), (5.0, 35.0)];
    let cib = [(0.0, 122.0), (1.0, 82.0), (2.0, 157.0), (3.0, 101.6), (4.0, 121.6), (5.0, 121.0)];
    Figure {
        name: "kalia-1",
        title: "Rates of small messages",
        source: "Kalia et al. (USENIX ATC 2016), Table 1",
        x_label: "verb",
        y_label: "M/s",
        axis: Axis::Names(&RATES),
        notes: "SENDs go out of the server in batches of 16, from 14 threads with one UD queue pair per port each. Inbound traffic comes from 64 threads on 16 machines.",
        series: vec![
            Series::new("ConnectX-3", &cx3, rate(Costs::connectx3)),
            Series::new("Connect-IB", &cib, rate(Costs::connect_ib)),
        ],
    }
}

fn doorbells() -> Figure {
    let batch = |batch: f64| sent(Costs::connect_ib(), 16, batch as usize, 2);
    Figure {
        name: "kalia-batch",
        title: "SENDs by the work requests with one doorbell, Connect-IB",
        source: "Kalia et al. (USENIX ATC 2016), section 5",
        x_label: "batch",
        y_label: "M/s",
        axis: Axis::Logarithmic,
        notes: "Without batches, the CPUs push every work request over MMIO: 175 M cache lines per second.",
        series: vec![
            Series::new("SEND, UD", &[(1.0, 80.0), (16.0, 101.6)], batch).held_out_at(&[1.0]),
        ],
    }
}

/// 14 threads with a queue pair each.
fn bursts(costs: fn() -> Costs, verb: Verb) -> impl Fn(f64) -> Result<Measured> + Clone {
    move |burst| {
        let costs = costs();
        Bursts { costs, verb, len: 16, threads: 14, machines: 7, burst: burst as usize }.run()
    }
}

fn operations(costs: fn() -> Costs, verb: Verb) -> impl Fn(f64) -> Result<f64> + Clone {
    let run = bursts(costs, verb);
    move |burst| Ok(run(burst)?.operations)
}

fn pcie_reads(costs: fn() -> Costs, verb: Verb) -> impl Fn(f64) -> Result<f64> + Clone {
    let run = bursts(costs, verb);
    move |burst| Ok(run(burst)?.pcie_reads)
}

fn outstanding() -> Figure {
    let cx3_read = [(1.0, 6.5), (8.0, 19.0), (16.0, 21.0), (32.0, 13.0), (512.0, 11.0)];
    let cx3_write = [(8.0, 32.7), (16.0, 23.0)];
    let cib_read = [(64.0, 45.0), (512.0, 62.0)];
    Figure {
        name: "kalia-13",
        title: "Outbound throughput by the work outstanding per thread",
        source: "Kalia et al. (USENIX ATC 2016), Fig. 13",
        x_label: "outstanding",
        y_label: "M/s",
        axis: Axis::Logarithmic,
        notes: "14 threads with one queue pair each. A thread posts that many operations one by one, polls for all of their completions, and begins again. The CPU pushes work requests to the NIC, whose buffer keeps the last ones. It reads older ones from memory again, and READs that had to wait because 16 of their queue pair were outstanding. Not met: 16 WRITEs on ConnectX-3. In the model, what a WRITE costs depends on the number of queue pairs, and not on the number of outstanding WRITEs: otherwise rates have two states.",
        series: vec![
            Series::new("READ, ConnectX-3", &cx3_read, operations(Costs::connectx3, Verb::Read))
                .held_out_at(&[1.0]),
            Series::new("WRITE, ConnectX-3", &cx3_write, operations(Costs::connectx3, Verb::Write))
                .missed_at(&[16.0]),
            Series::new("READ, Connect-IB", &cib_read, operations(Costs::connect_ib, Verb::Read))
                .held_out_at(&[64.0]),
            Series::new(
                "WRITE, Connect-IB",
                &[(512.0, 105.0)],
                operations(Costs::connect_ib, Verb::Write),
            ),
        ],
    }
}

fn outstanding_reads() -> Figure {
    Figure {
        name: "kalia-13-pcie",
        title: "PCIe reads by the work outstanding per thread",
        source: "Kalia et al. (USENIX ATC 2016), Fig. 13",
        x_label: "outstanding",
        y_label: "M/s",
        axis: Axis::Logarithmic,
        notes: "The READs of the figure above. The points with few PCIe reads are left out: 0, 3.5 and 1.5 M/s on ConnectX-3 with 1, 8 and 16 outstanding, where the model has none. Not met: 64 outstanding on Connect-IB, where that NIC reads few requests again; the model does not know why it keeps more there than among FaSST's machines.",
        series: vec![
            Series::new(
                "ConnectX-3",
                &[(32.0, 58.0), (512.0, 82.0)],
                pcie_reads(Costs::connectx3, Verb::Read),
            ),
            Series::new(
                "Connect-IB",
                &[(64.0, 15.0), (512.0, 82.0)],
                pcie_reads(Costs::connect_ib, Verb::Read),
            )
            .missed_at(&[64.0]),
        ],
    }
}

const ADDRESSES: [&str; 2] = ["one address", "many addresses"];

fn atomic(costs: fn() -> Costs) -> impl Fn(f64) -> Result<f64> + Clone {
    move |row| {
        let work = Work { spread: row > 0.0, ..Work::of(Verb::FetchAdd, 8) };
        Inbound { costs: costs(), ty: QpType::Rc, work, machines: 14, threads: 4 }.rate()
    }
}

fn atomics() -> Figure {
    Figure {
        name: "kalia-atomics",
        title: "Fetch-and-adds into one server",
        source: "Kalia et al. (USENIX ATC 2016), Table 1",
        x_label: "at",
        y_label: "M/s",
        axis: Axis::Names(&ADDRESSES),
        notes: "56 client threads on 14 machines.",
        series: vec![
            Series::new("ConnectX-3", &[(0.0, 2.7), (1.0, 2.7)], atomic(Costs::connectx3)),
            Series::new("Connect-IB", &[(0.0, 2.24), (1.0, 52.0)], atomic(Costs::connect_ib)),
        ],
    }
}

const SEQUENCERS: [&str; 3] = ["a doorbell each", "batched", "batched, 3 queue pairs per port"];

/// Answers of one thread to datagrams.
fn sequencer_rate(row: f64) -> Result<f64> {
    let server_pairs = if row < 2.0 { 2 } else { 6 };
    let echo = Echo::of(EchoVerb::Send, EchoVerb::Send);
    let sequencer = Echo { datagrams: true, len: 16, server_threads: 1, server_pairs, ..echo };
    Echo { batched: row > 0.0, clients: 24, ..sequencer }.rate(&Costs::connect_ib())
}

fn sequencer() -> Figure {
    Figure {
        name: "kalia-sequencer",
        title: "A sequencer of one core, Connect-IB",
        source: "Kalia et al. (USENIX ATC 2016), section 4",
        x_label: "answers",
        y_label: "M/s",
        axis: Axis::Names(&SEQUENCERS),
        notes: "24 clients, two ports. Not met: without batches, the published sequencer is slower than a thread that posts READs on the same machines (10.9 M/s, FaSST). The model's CPU costs come from that thread.",
        series: vec![
            Series::new("SEND, UD", &[(0.0, 7.0), (1.0, 16.6), (2.0, 27.4)], sequencer_rate)
                .missed_at(&[0.0]),
        ],
    }
}
