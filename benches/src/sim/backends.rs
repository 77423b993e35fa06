//! Comparisons of backends.

use std::time::Duration;

use anyhow::{Error, Result, bail};

use super::study::{Goal, Studied, Study};
use crate::ablate::{self, Measured, Part};
use crate::chart::{Lines, charts};
use crate::compare::{Options, RackOptions, SIMULATED, backends, run};
use crate::echo::Mode;

pub(super) fn studies() -> Vec<Study> {
    let backends = Study {
        name: "backends",
        title: "Backends by the number of clients",
        notes: "`farcall-bench compare --device sim --nic connectx3 --backends write_imm,datagram,send_recv,rfp,scale --server-threads 10 --clients 10,100,400`: clients on 11 machines, one call outstanding per client. The rates of `write_imm` are uncertain: the model misses the points of [RawWrite](figures-queue-pairs.md#calls-of-32-b-by-the-number-of-clients-connectx-3), which is built alike.",
        run: side_by_side,
    };
    let ablation = Study {
        name: "ablation",
        title: "What the optimizations of datagram are worth",
        notes: "`farcall-bench ablate --device sim --nic connectx3 --clients 20 --window 11`: one server thread with ConnectX-3, and 20 clients that each send 11 calls of 32 B at a time. A row `without ...` is relative to `all`; a row `+ ...` is relative to the row before it. FaSST's own table counts calls per core of a machine that both calls and serves: 2.0 M with no optimization, 2.8 M with three requests per doorbell, 2.9 M with cheap receives, 3.9 M with responses under one doorbell, 4.4 and 4.8 M with batches of 5 and 11. FaSST puts one message in a datagram and therefore has no coalescing. The model charges every receive the same, posted in bulk or not, and charges nothing for the CPU time of timers. `ablate --device shm` measures what loss repair costs a CPU.",
        run: ablation,
    };
    vec![backends, ablation]
}

/// The options of a rack with ConnectX-3.
fn options(clients: Vec<usize>, sizes: Vec<usize>, window: usize, threads: usize) -> Options {
    Options {
        device: SIMULATED.into(),
        contenders: Vec::new(),
        clients,
        sizes,
        windows: vec![window],
        one_at_a_time: false,
        mode: Mode::Threads,
        time: Duration::ZERO,
        cores: [0, 1],
        rack: RackOptions { nic: Some("connectx3".into()), server_threads: Some(threads) },
    }
}

fn ablation() -> Result<Studied> {
    let report = ablate::run(options(vec![20], vec![32], 11, 1))?;
    let mut rows = Vec::new();
    let mut rates = Vec::new();
    for Measured { part, worth, run } in &report.measured {
        if let Some(why) = &run.failure {
            bail!("{}: {why}", run.backend);
        }
        if *part == Part::Added {
            rates.push((rates.len() as f64 + 1.0, run.rate / 1e6));
        }
        rows.push(vec![
            run.backend.clone(),
            format!("{:.2}", run.rate / 1e6),
            format!("{worth:.2}"),
            format!("{:.1}", run.p50_ns as f64 / 1e3),
        ]);
    }
    let safety = report.measured.iter().filter(|measured| measured.part == Part::Safety);
    let cost = safety.map(|without| without.worth - 1.0).fold(0.0, f64::max);
    Ok(Studied {
        header: &["", "M calls/s", "times", "p50, us"],
        rows,
        picture: report.svg()?,
        goals: vec![Goal::at_most("cost of loss repair without loss", cost, 0.05)],
    })
}

fn side_by_side() -> Result<Studied> {
    let options = options(vec![10, 100, 400], vec![32, 1024, 65_536], 1, 10);
    let contenders = backends("write_imm,datagram,send_recv,rfp,scale").map_err(Error::msg)?;
    let report = run(&Options { contenders, ..options })?;
    let mut rows = Vec::new();
    let mut small: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    let mut large = Vec::new();
    for cell in &report.cells {
        for run in &cell.runs {
            rows.push(match &run.failure {
                Some(why) => {
                    let mut row = vec![cell.size.to_string(), cell.clients.to_string()];
                    row.extend([run.backend.clone(), why.clone()]);
                    row.resize(6, String::new());
                    row
                }
                None => vec![
                    cell.size.to_string(),
                    cell.clients.to_string(),
                    run.backend.clone(),
                    format!("{:.3}", run.rate / 1e6),
                    format!("{:.1}", run.p50_ns as f64 / 1e3),
                    format!("{:.1}", run.p99_ns as f64 / 1e3),
                ],
            });
            let series = match cell.size {
                32 => &mut small,
                65_536 => &mut large,
                _ => continue,
            };
            let at = (cell.clients as f64, run.rate / 1e6);
            match series.iter_mut().find(|(name, _)| *name == run.backend) {
                Some((_, points)) => points.push(at),
                None => series.push((run.backend.clone(), vec![at])),
            }
        }
    }
    let chart = |title: &str, series| Lines {
        title: title.to_owned(),
        x_label: "clients",
        y_label: "M calls/s",
        series,
        is_logarithmic: false,
    };
    Ok(Studied {
        header: &["bytes", "clients", "backend", "M calls/s", "p50, us", "p99, us"],
        rows,
        picture: charts(&[chart("calls of 32 B", small), chart("calls of 64 KiB", large)], 2)?,
        goals: Vec::new(),
    })
}
