//! Complete calls of ScaleRPC's evaluation (Chen, Lu, Shu, EuroSys 2019, section 4.2): our `scale` and `datagram`, RawWrite and HERD.

use anyhow::Result;
use farcall::rack::CpuCosts;
use farcall::rack::sim::SimConfig;
use farcall_verbs::sim::Costs;

use super::figure::{Axis, Figure, Series};
use super::rig::Rack;
use super::verbs_calls::{Calls, VerbsCalls};
use super::{herd_calls, raw_write};
use crate::rack_calls::{Point, measure};

pub(super) fn figures() -> Vec<Figure> {
    vec![throughput(), latency(), latency_rates(), contention(), contention_reads()]
}

/// Machines of the paper's clients.
const MACHINES: usize = 11;

/// Threads of the paper's server.
const THREADS: usize = 10;

/// CPU time at the server of a batch, beside that of its calls. With [`CALL_NS`] fitted to the rates of ScaleRPC, HERD and FaSST with 160
/// clients (figure 8), in batches of 1 and of 8.
const BATCH_NS: u64 = 740;

/// CPU time at the server of a call.
const CALL_NS: u64 = 265;

/// CPU time at the server of a call that comes in such a batch, which has an equal part of the batch's.
fn dispatch_ns(batch: usize) -> u64 {
    CALL_NS + BATCH_NS / batch as u64
}

/// How long calls are measured, after a warm-up of the same length: at least a round of all groups, as 400 clients are ten groups
/// of 100 us, and longer than the slowest calls take with many clients.
fn measured_ns(clients: usize) -> u64 {
    1_000_000.max(500 * clients as u64)
}

/// The options of `scale` in these figures: the paper's blocks; group and slice are the paper's by default.
pub(super) const SCALE: &str = "backend=scale&slot=4096&doorbells=response";

/// The paper's programs, with another backend.
pub(super) fn program(options: &str, clients: usize, batch: usize) -> Point {
    Point {
        clients,
        client_nodes: MACHINES,
        server_threads: THREADS,
        batch,
        options: options.to_owned(),
        config: SimConfig::default().cores(64).costs(Costs::connectx3()),
        cpu: CpuCosts::default().dispatch_ns(dispatch_ns(batch)),
        warm_up_ns: measured_ns(clients),
        measured_ns: measured_ns(clients),
        ..Point::default()
    }
}

/// Calls of 32 bytes by `scale`.
pub(super) fn scale(clients: usize, batch: usize) -> Result<Calls> {
    by_backend(&program(SCALE, clients, batch))
}

/// Calls by a backend.
pub(super) fn by_backend(point: &Point) -> Result<Calls> {
    let measured = measure(point)?;
    Ok(Calls {
        rate: measured.calls_per_second / 1e6,
        pcie_reads: measured.pcie_reads_per_second / 1e6,
        latency: measured.latency,
    })
}

/// The paper's programs by their verbs.
fn verbs_calls(clients: usize, batch: usize) -> VerbsCalls {
    VerbsCalls {
        machines: MACHINES,
        server_threads: THREADS,
        clients,
        batch,
        dispatch_ns: dispatch_ns(batch),
        measured_ns: measured_ns(clients),
    }
}

/// Calls of 32 bytes by RawWrite.
pub(super) fn raw_write(clients: usize, batch: usize) -> Result<Calls> {
    raw_write::run(&verbs_calls(clients, batch), Rack::new(&Costs::connectx3()))
}

/// Calls of 32 bytes by HERD.
fn herd(clients: usize, batch: usize) -> Result<Calls> {
    herd_calls::run(&verbs_calls(clients, batch), Rack::new(&Costs::connectx3()))
}

/// Calls of 32 bytes by `datagram`, with one call per datagram as in FaSST.
fn fasst(clients: usize, batch: usize) -> Result<Calls> {
    by_backend(&program("backend=datagram&without=coalescing", clients, batch))
}

/// Clients of figure 8 to whose rates no constant was fitted.
const NOT_FITTED: [f64; 4] = [80.0, 240.0, 320.0, 400.0];

/// Clients whose contexts do not fit into the cache of ConnectX-3.
const MANY: [f64; 4] = [160.0, 240.0, 320.0, 400.0];

type System = fn(usize, usize) -> Result<Calls>;

fn rate(system: System, batch: usize) -> impl Fn(f64) -> Result<f64> + Clone {
    move |clients| Ok(system(clients as usize, batch)?.rate)
}

fn throughput() -> Figure {
    let raw_one = [(80.0, 8.2), (160.0, 2.15), (240.0, 1.26), (320.0, 1.12), (400.0, 1.05)];
    let raw_eight = [(80.0, 21.7), (160.0, 14.6), (240.0, 11.4), (320.0, 10.3), (400.0, 9.1)];
    let herd_one = [(80.0, 7.9), (160.0, 7.6), (240.0, 8.3), (320.0, 7.95), (400.0, 5.3)];
    let herd_eight = [(80.0, 20.4), (160.0, 21.4), (240.0, 22.1), (320.0, 21.7), (400.0, 21.0)];
    let fasst_one = [(80.0, 7.9), (160.0, 7.6), (240.0, 8.1), (320.0, 8.7), (400.0, 9.0)];
    let fasst_eight = [(80.0, 17.5), (160.0, 18.2), (240.0, 18.4), (320.0, 18.6), (400.0, 18.5)];
    let scale_one = [(80.0, 8.8), (160.0, 8.55), (240.0, 8.3), (320.0, 8.1), (400.0, 7.8)];
    let scale_eight = [(80.0, 20.7), (160.0, 20.1), (240.0, 19.7), (320.0, 19.6), (400.0, 19.5)];
    Figure {
        name: "scalerpc-8",
        title: "Calls of 32 B by the number of clients, ConnectX-3",
        source: "ScaleRPC (EuroSys 2019), Fig. 8",
        x_label: "clients",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "`scale` is our own backend, with the paper's group of 40 and slice of 100 us, and a doorbell for each response. FaSST is our own backend `datagram`, with one call per datagram. RawWrite and HERD are programs over verbs. RawWrite is as the paper describes it: requests by RC WRITE into a message pool in which each client has blocks of its own, responses by RC WRITE, and both ends poll their memory. In a pass over the pool, a thread takes at most one request of each client; the paper does not say. HERD is as its authors' program: requests by UC WRITE, each to a random thread of the server, which has slots for each client, and responses by UD SEND, with one doorbell for those of a pass over the slots. Two constants stand for the CPU time of the paper's programs at the server: 740 ns for each batch and 265 ns for each of its calls. With 80 to 320 clients, HERD, FaSST and ScaleRPC all have some 8 M single calls/s and some 20 M in batches of 8, as ten threads have that need 1.2 us for a single call and 0.5 us for a call in a batch of 8, posting and polling included. Both constants were fitted to these three systems with 160 clients. When `scale` reads the next group's requests, at which times its threads switch and how often it rings a doorbell was chosen by the rates in such runs. Not met: RawWrite from 160 clients on. With a batch of 1 it is too fast: a missing context costs the model 24 reads over PCIe, as Fig. 3a demands, and these reads are its limit; the paper counted a seventh of them (Fig. 10), so something else limits RawWrite, which the model does not contain. The published rates are of some 1.05 M batches/s with 400 clients, whatever the size of the batch, so a batch needs its context once, as in the model; but it costs the paper's NIC 0.95 us there, and the model 0.34 us. Fig. 3a and the READs of FaSST have that cost, and no set of constants meets both. Why HERD falls with 400 clients and a batch of 1 is not known.",
        series: vec![
            Series::new("RawWrite, batch of 1", &raw_one, rate(raw_write, 1))
                .held_out()
                .missed_at(&MANY),
            Series::new("RawWrite, batch of 8", &raw_eight, rate(raw_write, 8))
                .held_out()
                .missed_at(&MANY),
            Series::new("HERD, batch of 1", &herd_one, rate(herd, 1))
                .held_out_at(&NOT_FITTED)
                .missed_at(&[400.0]),
            Series::new("HERD, batch of 8", &herd_eight, rate(herd, 8)).held_out_at(&NOT_FITTED),
            Series::new("FaSST, batch of 1", &fasst_one, rate(fasst, 1)).held_out_at(&NOT_FITTED),
            Series::new("FaSST, batch of 8", &fasst_eight, rate(fasst, 8)).held_out_at(&NOT_FITTED),
            Series::new("scale, batch of 1", &scale_one, rate(scale, 1)).held_out_at(&NOT_FITTED),
            Series::new("scale, batch of 8", &scale_eight, rate(scale, 8)).held_out_at(&NOT_FITTED),
        ],
    }
}

/// Clients of the paper's figure 9.
const FEW_CLIENTS: usize = 120;

const PARTS: [&str; 3] = ["median", "mean", "maximum"];

fn of_latency(system: System) -> impl Fn(f64) -> Result<f64> + Clone {
    move |part| {
        let Calls { latency, .. } = system(FEW_CLIENTS, 1)?;
        Ok(match part as usize {
            0 => latency.value_at_quantile(0.5) as f64 / 1e3,
            1 => latency.mean() / 1e3,
            _ => latency.max() as f64 / 1e3,
        })
    }
}

fn latency() -> Figure {
    let of = |us: [f64; 3]| [(0.0, us[0]), (1.0, us[1]), (2.0, us[2])];
    let (raw, scaled) = (of([19.0, 19.7, 25.0]), of([4.0, 13.5, 217.0]));
    let (herd_us, fasst_us) = (of([10.0, 15.8, 16.0]), of([11.0, 15.8, 19.0]));
    Figure {
        name: "scalerpc-9",
        title: "Latency of calls of 32 B with 120 clients, ConnectX-3",
        source: "ScaleRPC (EuroSys 2019), Fig. 9",
        x_label: "",
        y_label: "us",
        axis: Axis::Names(&PARTS),
        notes: "The programs of the figure above, with a batch of 1. The maximum of `scale` is the time in which two other groups are served. Not met: the median of RawWrite, with the rate 10 % below the published one; the maximum of FaSST, whose calls wait alike in the model; and the median and maximum of HERD, whose clients pick threads at random, so that some threads have many calls waiting and others few: its maximum is above RawWrite's. With 120 clients and 7.7 M calls/s, a call takes 15.6 us in the mean whatever the system.",
        series: vec![
            Series::new("RawWrite", &raw, of_latency(raw_write)).held_out().missed_at(&[0.0]),
            Series::new("HERD", &herd_us, of_latency(herd)).held_out().missed_at(&[0.0, 2.0]),
            Series::new("FaSST", &fasst_us, of_latency(fasst)).held_out().missed_at(&[2.0]),
            Series::new("scale", &scaled, of_latency(scale)).held_out(),
        ],
    }
}

fn latency_rates() -> Figure {
    let at = |rate: f64| [(FEW_CLIENTS as f64, rate)];
    Figure {
        name: "scalerpc-9-rate",
        title: "Calls of 32 B with 120 clients, ConnectX-3",
        source: "ScaleRPC (EuroSys 2019), Fig. 9",
        x_label: "clients",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "The rates of the runs above.",
        series: vec![
            Series::new("RawWrite", &at(6.1), rate(raw_write, 1)).held_out(),
            Series::new("HERD", &at(7.7), rate(herd, 1)).held_out(),
            Series::new("FaSST", &at(7.7), rate(fasst, 1)).held_out(),
            Series::new("scale", &at(8.9), rate(scale, 1)).held_out(),
        ],
    }
}

fn contention() -> Figure {
    let raw = [(40.0, 8.9), (80.0, 8.2), (120.0, 6.2), (160.0, 2.1)];
    let scaled = [(40.0, 8.9), (80.0, 8.66), (120.0, 8.56), (160.0, 8.2)];
    Figure {
        name: "scalerpc-10",
        title: "Calls of 32 B where the contexts of queue pairs begin to compete, ConnectX-3",
        source: "ScaleRPC (EuroSys 2019), Fig. 10",
        x_label: "clients",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "RawWrite and `scale` as above, with a batch of 1. Not met: RawWrite with 160 clients, for the reason given for Fig. 8.",
        series: vec![
            Series::new("RawWrite", &raw, rate(raw_write, 1)).held_out().missed_at(&[160.0]),
            Series::new("scale", &scaled, rate(scale, 1)).held_out_at(&[40.0, 80.0, 120.0]),
        ],
    }
}

fn contention_reads() -> Figure {
    let raw = [(40.0, 9.1), (80.0, 24.0), (120.0, 24.0), (160.0, 11.0)];
    Figure {
        name: "scalerpc-10-pcie",
        title: "PCIe reads of the server's NIC where the contexts of queue pairs begin to compete, ConnectX-3",
        source: "ScaleRPC (EuroSys 2019), Fig. 10",
        x_label: "clients",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "The same runs. Not met: all points. The model's NIC reads contexts that it misses as often as its PCIe reader can, from 80 clients on; the paper's rate falls while its reads do not rise, and with 160 clients they are a seventh of what the same paper counts in Fig. 3a. The orders of 80 and 160 and of 120 and 160 clients are reversed. Left out: ScaleRPC, of which the paper only says that it stays below 10 M/s; [the reads of `scale`](figures-backends.md#scale-by-the-number-of-clients) are two to three times as many from 80 clients on. Each stay of a client costs at least one context, and the lines that this evicts.",
        series: vec![
            Series::new("RawWrite", &raw, |clients| Ok(raw_write(clients as usize, 1)?.pcie_reads))
                .missed(),
        ],
    }
}
