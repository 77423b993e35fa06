//! `scale` beyond its paper: more clients, other groups and slices.

use anyhow::Result;

use super::scale_calls::{SCALE, by_backend, program, raw_write};
use super::scale_priorities;
use super::study::{Goal, Studied, Study};
use super::verbs_calls::Calls;
use crate::chart::{Lines, charts};
use crate::rack_calls::Point;

pub(super) fn studies() -> Vec<Study> {
    let clients = Study {
        name: "scale-clients",
        title: "Scale by the number of clients",
        notes: "The programs of [ScaleRPC's Fig. 8](figures-queue-pairs.md#calls-of-32-b-by-the-number-of-clients-connectx-3), with other backends and with more clients: calls of 32 B, a batch of 1, ten server threads with ConnectX-3, clients on 11 machines. `scale` serves 40 clients at a time, so its rate is that of 40 clients, and a client waits for all other groups: with 10,000 clients, 25 ms. With 80 clients every other backend is faster, by 4 to 13 %, from 120 on only `datagram`, which has no queue pair per client. Ten threads do not handle more than 9 M calls/s, with the CPU times of these programs. The rates of RawWrite and `write_imm` are uncertain, as the model misses RawWrite's published points.",
        run: by_clients,
    };
    let knobs = Study {
        name: "scale-knobs",
        title: "Scale by group, slice and doorbells",
        notes: "The same programs with 400 clients, unless the row says otherwise; the rates are of batches of 1 and of 8, the times of batches of 1. A smaller group leaves the server's threads idle, a larger one does not fit into the NIC's cache: from 65 clients on in single calls, and with 80 in batches of 8, it spends its time on reading contexts. So it does where slices are so short that too many clients come and go, and with a batch of 8 where the responses of a turn share a doorbell, as the NIC then reads the send queue of each queue pair. Where it is too slow with single calls, the PCIe reader is the limit: a stay costs some 65 reads, which are 2.7 contexts, and at most 70 M/s are read; so a slice of 30 us, with 1.3 M stays/s, is too short where more than three groups take turns. The paper counted less than 10 M reads/s with a slice of 100 us (Fig. 10), about one context for each stay. The row *usual CPU time* has the CPU times of [farcall's own calls](simulated-rack.md) and not those of the paper's programs: the NIC gets more to do. The row *without warm-up* has the option `without=warm_up`, which exists only with the cargo feature `ablation`: the requests of a group are read when its slice has begun, and not 2 us before. The warm-up gains nothing here, where the threads of the server have clients of the last group to serve when a slice begins. The clients are alike here; [what priorities are worth where they are not](#scale-by-priorities-of-unlike-clients).",
        run: by_knobs,
    };
    vec![clients, knobs, scale_priorities::study()]
}

/// Longest latency that the paper shows with 120 clients (Fig. 9), in microseconds.
const PAPERS_MAXIMUM_US: f64 = 217.0;

/// Runs `scale` for at least a round of all its groups of `group` clients, after a warm-up of the same length.
fn rounds(point: Point, group: usize, slice_us: usize) -> Result<Calls> {
    let round_ns = (point.clients.div_ceil(group) * slice_us * 1000) as u64;
    let measured_ns = point.measured_ns.max(round_ns);
    by_backend(&Point { warm_up_ns: measured_ns, measured_ns, ..point })
}

fn us(calls: &Calls, quantile: f64) -> f64 {
    calls.latency.value_at_quantile(quantile) as f64 / 1e3
}

fn by_clients() -> Result<Studied> {
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    let mut kept = Vec::new();
    for name in ["scale", "RawWrite", "write_imm", "datagram"] {
        let mut line = Vec::new();
        for clients in [40, 80, 120, 400, 1000, 10_000] {
            let calls = match name {
                "scale" => rounds(program(SCALE, clients, 1), 40, 100)?,
                "RawWrite" => raw_write(clients, 1)?,
                "write_imm" => by_backend(&program("backend=write_imm&slot=4096", clients, 1))?,
                _ => by_backend(&program("backend=datagram", clients, 1))?,
            };
            rows.push(vec![
                name.to_owned(),
                clients.to_string(),
                format!("{:.2}", calls.rate),
                format!("{:.1}", us(&calls, 0.5)),
                format!("{:.1}", us(&calls, 0.99)),
                format!("{:.1}", calls.pcie_reads),
            ]);
            line.push((clients as f64, calls.rate));
        }
        if name == "scale" {
            kept = line.iter().map(|(_, rate)| rate / line[0].1).collect();
        }
        series.push((name.to_owned(), line));
    }
    let chart = Lines {
        title: "calls of 32 B".to_owned(),
        x_label: "clients",
        y_label: "M calls/s",
        series,
        is_logarithmic: true,
    };
    Ok(Studied {
        header: &["backend", "clients", "M calls/s", "p50, us", "p99, us", "M PCIe reads/s"],
        rows,
        picture: charts(&[chart], 1)?,
        goals: vec![
            Goal::at_least("scale at 400 clients, relative to 40", kept[3], 0.95),
            Goal::at_least("scale at 10,000 clients, relative to 40", kept[5], 0.8),
        ],
    })
}

fn by_knobs() -> Result<Studied> {
    let mut rows = Vec::new();
    let mut row = |name: String, one: &Calls, eight: &Calls| {
        rows.push(vec![
            name,
            format!("{:.2}", one.rate),
            format!("{:.2}", eight.rate),
            format!("{:.1}", us(one, 0.5)),
            format!("{:.1}", us(one, 0.99)),
            format!("{:.1}", one.pcie_reads),
            format!("{:.1}", eight.pcie_reads),
        ]);
    };
    let (mut by_group, mut by_slice) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for group in [10, 20, 30, 40, 50, 60, 80] {
        let options = format!("{SCALE}&group={group}");
        let run = |batch| rounds(program(&options, 400, batch), group, 100);
        let (one, eight) = (run(1)?, run(8)?);
        by_group[0].push((group as f64, one.rate));
        by_group[1].push((group as f64, eight.rate));
        row(format!("group={group}"), &one, &eight);
    }
    let mut short_p99_us = f64::MAX;
    for clients in [400, 120] {
        for slice_us in [25, 50, 100, 200, 400] {
            let options = format!("{SCALE}&slice={slice_us}us");
            let run = |batch| rounds(program(&options, clients, batch), 40, slice_us);
            let (one, eight) = (run(1)?, run(8)?);
            if clients == 400 {
                by_slice[0].push((slice_us as f64, one.rate));
                by_slice[1].push((slice_us as f64, eight.rate));
            } else if slice_us == 50 {
                short_p99_us = us(&one, 0.99);
            }
            row(format!("slice={slice_us}us, {clients} clients"), &one, &eight);
        }
    }
    let options = format!("{SCALE}&without=warm_up");
    let run = |batch| rounds(program(&options, 400, batch), 40, 100);
    row("without warm-up".to_owned(), &run(1)?, &run(8)?);
    let run = |batch| rounds(program("backend=scale&slot=4096", 400, batch), 40, 100);
    row("doorbells=turn".to_owned(), &run(1)?, &run(8)?);
    let run = |batch| {
        let usual = Point { cpu: Default::default(), ..program(SCALE, 400, batch) };
        rounds(usual, 40, 100)
    };
    row("usual CPU time".to_owned(), &run(1)?, &run(8)?);
    let chart = |title: &str, x_label, [one, eight]: [Vec<(f64, f64)>; 2]| Lines {
        title: title.to_owned(),
        x_label,
        y_label: "M calls/s",
        series: vec![("batch of 1".to_owned(), one), ("batch of 8".to_owned(), eight)],
        is_logarithmic: false,
    };
    let lines =
        [chart("400 clients", "group", by_group), chart("400 clients", "slice, us", by_slice)];
    Ok(Studied {
        header: &[
            "",
            "M calls/s, batch 1",
            "batch 8",
            "p50, us",
            "p99, us",
            "M PCIe reads/s, batch 1",
            "batch 8",
        ],
        rows,
        picture: charts(&lines, 2)?,
        goals: vec![Goal::at_most(
            "p99 of 120 clients with slice=50us, relative to the paper's maximum",
            short_p99_us / PAPERS_MAXIMUM_US,
            0.5,
        )],
    })
}
