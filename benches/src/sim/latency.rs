//! Latencies of single operations.

use anyhow::Result;
use farcall_verbs::QpType;
use farcall_verbs::sim::Costs;

use super::echo::{Echo, EchoVerb};
use super::figure::{Axis, Figure, Series};
use super::flows::Inbound;
use super::rig::{Verb, Work};

pub(super) fn figures() -> Vec<Figure> {
    vec![herd(), others()]
}

/// Microseconds of sequential operations, from the post until the completion is polled.
fn single(costs: Costs, work: Work) -> Result<f64> {
    let work = work.window(1);
    let rate = Inbound { costs, ty: QpType::Rc, work, machines: 1, threads: 1 }.rate()?;
    Ok(1.0 / rate)
}

/// Nanoseconds of a single READ of this many bytes.
pub(crate) fn read_ns(costs: &Costs, size: usize) -> Result<u64> {
    Ok((1e3 * single(costs.clone(), Work::of(Verb::Read, size))?).round() as u64)
}

fn of(verb: Verb, inline: bool) -> impl Fn(f64) -> Result<f64> + Clone {
    move |len| single(Costs::connectx3(), Work { inline, ..Work::of(verb, len as usize) })
}

fn echo(len: f64) -> Result<f64> {
    let echo = Echo::of(EchoVerb::Write, EchoVerb::Write);
    let one = Echo { len: (len as usize).max(8), server_threads: 1, clients: 1, window: 1, ..echo };
    Ok(1.0 / one.rate(&Costs::connectx3())?)
}

fn herd() -> Figure {
    let inline = [(4.0, 2.13), (16.0, 2.14), (64.0, 2.23), (256.0, 2.65)];
    let write = [(4.0, 2.48), (16.0, 2.48), (64.0, 2.55), (256.0, 2.65), (1024.0, 3.02)];
    let read = [(4.0, 2.52), (16.0, 2.52), (64.0, 2.58), (256.0, 2.78), (1024.0, 3.10)];
    let echoes = [(4.0, 2.57), (16.0, 2.61), (64.0, 2.80), (256.0, 3.87)];
    Figure {
        name: "herd-2",
        title: "Latency of verbs and of an ECHO by payload, ConnectX-3",
        source: "HERD (SIGCOMM 2014), Fig. 2",
        x_label: "payload, B",
        y_label: "us",
        axis: Axis::Logarithmic,
        notes: "One operation at a time. HERD reports 2.5 us for a READ and eRPC 1.7 us on the same NIC. The model's constants lie between the two. Not met: inline messages of 256 B, which took longer than their MMIO writes explain.",
        series: vec![
            Series::new("WRITE, inline", &inline, of(Verb::Write, true)).missed_at(&[256.0]),
            Series::new("WRITE", &write, of(Verb::Write, false)),
            Series::new("READ", &read, of(Verb::Read, false)),
            Series::new("ECHO, WRITEs, inline", &echoes, echo).missed_at(&[256.0]),
        ],
    }
}

const OTHERS: [&str; 9] = [
    "READ 32 B, ConnectX-3 (eRPC)",
    "READ 32 B, ConnectX-5 (eRPC)",
    "WRITE 64 B, ConnectX-3 (Kalia 2020)",
    "WRITE 1 KiB, ConnectX-3 (Kalia 2020)",
    "WRITE + READ 64 B, ConnectX-3 (Kalia 2020)",
    "WRITE + READ 1 KiB, ConnectX-3 (Kalia 2020)",
    "WRITE + READ 64 B, ConnectX-5 (Kalia 2020)",
    "WRITE 64 B, ConnectX-5 (Wei 2021)",
    "WRITE + READ 64 B, ConnectX-5 (Wei 2021)",
];

fn other(row: f64) -> Result<f64> {
    let (cx3, cx5) = (Costs::connectx3(), Costs::connectx5());
    let (read, write, durable) = (
        Work::of(Verb::Read, 32),
        |len| Work::of(Verb::Write, len),
        |len| Work::of(Verb::WriteRead, len),
    );
    match row as usize {
        0 => single(cx3, read),
        1 => single(cx5, read),
        2 => single(cx3, write(64)),
        3 => single(cx3, write(1024)),
        4 => single(cx3, durable(64)),
        5 => single(cx3, durable(1024)),
        6 | 8 => single(cx5, durable(64)),
        _ => single(cx5, write(64)),
    }
}

fn others() -> Figure {
    let points = [1.7, 2.0, 1.4, 2.2, 2.9, 3.5, 2.5, 2.0, 3.0];
    let points: Vec<_> = points.iter().enumerate().map(|(row, us)| (row as f64, *us)).collect();
    Figure {
        name: "latency",
        title: "Latencies of one-sided operations",
        source: "eRPC (NSDI 2019), Table 2; Kalia et al. (SoCC 2020); Wei et al. (USENIX ATC 2021)",
        x_label: "operation",
        y_label: "us",
        axis: Axis::Names(&OTHERS),
        notes: "One operation at a time. WRITE + READ is a WRITE followed by a READ under one doorbell, measured as one operation. Not met: two operations on ConnectX-3 that these papers measured much faster than HERD did (see the figure above).",
        series: vec![
            Series::new("one at a time", &points, other)
                .held_out_at(&[3.0, 4.0, 5.0, 6.0, 8.0])
                .missed_at(&[0.0, 2.0]),
        ],
    }
}
