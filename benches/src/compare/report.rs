//! The report of a comparison: a table, or JSON for scripts.

use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;

use super::{Contender, Options, Workload};

/// The whole report. Scripts read the fields by name: only add fields.
#[derive(Debug, Clone, Serialize)]
pub struct CompareReport {
    /// Always `compare`.
    pub bench: &'static str,
    /// The device under the backends.
    pub device: String,
    /// Calls that each client keeps outstanding, in the first cell.
    pub window: usize,
    /// One for each workload.
    pub cells: Vec<Cell>,
}

/// One number of clients with one size and one window.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// Connections.
    pub clients: usize,
    /// Bytes of the argument, and of the result.
    pub size: usize,
    /// Calls that each client keeps outstanding.
    pub window: usize,
    /// The limit of the machine without any call; unknown if nothing was measured.
    pub limit: Option<Limit>,
    /// The backends, in the order they were named.
    pub runs: Vec<Run>,
}

/// The performance of the same cores, or the same NICs, without any call.
#[derive(Debug, Clone, Serialize)]
pub struct Limit {
    /// The operation.
    pub what: &'static str,
    /// Its duration in nanoseconds.
    pub ns: u64,
    /// For small messages: lines per second that two cores exchange and answer, with many outstanding.
    pub line_rate: Option<f64>,
    /// For large messages: bytes per second in one direction that two cores copy back and forth.
    pub copy_bandwidth: Option<f64>,
}

/// One backend in a cell.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Run {
    /// Its name.
    pub backend: String,
    /// Calls that were answered.
    pub calls: u64,
    /// Calls per second.
    pub rate: f64,
    /// Median of a call's time from start to result.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// `p50_ns` relative to the limit.
    pub ratio: f64,
    /// `rate` relative to the limit's rate of lines or copies, if it was measured.
    pub rate_ratio: Option<f64>,
    /// `rate` relative to the first backend of the cell that did not fail.
    pub of_first: f64,
    /// Memory of both ends per client; of the client alone if servers are processes.
    pub bytes_per_client: Option<u64>,
    /// Why the measurement failed.
    pub failure: Option<String>,
}

impl CompareReport {
    pub(super) fn new(options: &Options) -> CompareReport {
        let Options { device, windows, .. } = options;
        let window = windows.first().copied().unwrap_or_default();
        CompareReport { bench: "compare", device: device.clone(), window, cells: Vec::new() }
    }

    /// The number of backends that failed anywhere.
    pub fn failures(&self) -> usize {
        let runs = self.cells.iter().flat_map(|cell| &cell.runs);
        runs.filter(|run| run.failure.is_some()).count()
    }
}

impl Run {
    /// Converts a measurement or its error.
    pub(super) fn of(contender: &Contender, ended: Result<Run>) -> Run {
        let failed = |why| Run { failure: Some(format!("{why:#}")), ..Run::default() };
        Run { backend: contender.name.clone(), ..ended.unwrap_or_else(failed) }
    }
}

impl Cell {
    /// Computes the ratios.
    pub(super) fn new(workload: Workload, limit: Limit, mut runs: Vec<Run>) -> Cell {
        let Workload { clients, size, window } = workload;
        let first = runs.iter().find(|run| run.failure.is_none()).map_or(0.0, |run| run.rate);
        for run in runs.iter_mut().filter(|run| run.failure.is_none()) {
            run.ratio = run.p50_ns as f64 / limit.ns.max(1) as f64;
            run.of_first = run.rate / first.max(f64::MIN_POSITIVE);
            let lines = limit.line_rate.map(|lines| run.rate / lines.max(f64::MIN_POSITIVE));
            let bandwidth = run.rate * 2.0 * size as f64;
            let copies = limit.copy_bandwidth.map(|bare| bandwidth / bare.max(f64::MIN_POSITIVE));
            run.rate_ratio = lines.or(copies);
        }
        Cell { clients, size, window, limit: Some(limit), runs }
    }

    /// A cell that was not measured, for this reason.
    pub(super) fn refused(workload: Workload, all: &[Contender], why: &str) -> Cell {
        let Workload { clients, size, window } = workload;
        let runs =
            all.iter().map(|contender| Run::of(contender, Err(anyhow::Error::msg(why.to_owned()))));
        Cell { clients, size, window, limit: None, runs: runs.collect() }
    }

    fn limit(&self) -> String {
        let Some(Limit { what, ns, line_rate, copy_bandwidth }) = &self.limit else {
            return String::new();
        };
        let mut text = format!("{what}: {:.2} us", *ns as f64 / 1e3);
        // Writing to a String cannot fail.
        if let Some(lines) = line_rate {
            let _ = write!(text, ", bare lines: {:.2} M/s", lines / 1e6);
        }
        if let Some(copies) = copy_bandwidth {
            let _ = write!(text, ", bare copies: {:.2} GB/s", copies / 1e9);
        }
        text
    }
}

impl CompareReport {
    /// Formats the table.
    pub fn table(&self) -> String {
        let first = self.cells.iter().flat_map(|cell| &cell.runs).next();
        let first = first.map_or("", |run| &run.backend);
        let mut text = format!("calls on {}\n\n", self.device);
        let _ = writeln!(
            text,
            "{:>7} {:>7} {:>7}  {:10} {:>9} {:>11} {:>9} {:>9} {:>8} {:>8} {:>10}",
            "clients",
            "bytes",
            "window",
            "backend",
            "M calls/s",
            format!("x {first}"),
            "p50 us",
            "p99 us",
            "x limit",
            "x bare",
            "KiB/client"
        );
        for cell in &self.cells {
            for run in &cell.runs {
                let Cell { clients, size, window, .. } = cell;
                let _ = write!(text, "{clients:>7} {size:>7} {window:>7}  {:10} ", run.backend);
                if let Some(why) = &run.failure {
                    let _ = writeln!(text, "failed: {why}");
                    continue;
                }
                let _ = writeln!(
                    text,
                    "{:>9.3} {:>11.2} {:>9.2} {:>9.2} {:>8.2} {:>8} {:>10}",
                    run.rate / 1e6,
                    run.of_first,
                    run.p50_ns as f64 / 1e3,
                    run.p99_ns as f64 / 1e3,
                    run.ratio,
                    run.rate_ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
                    run.bytes_per_client.map_or(String::new(), |bytes| (bytes >> 10).to_string()),
                );
            }
            let _ = writeln!(text, "{:25}{}", "", cell.limit());
        }
        text
    }
}
