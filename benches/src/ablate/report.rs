//! The report of an ablation.

use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;

use crate::chart::{Bar, bars};
use crate::compare::report::{CompareReport, Limit, Run};

/// The role of a measured configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// All optimizations.
    Whole,
    /// All optimizations but one.
    Without,
    /// The previous configuration and one more optimization.
    Added,
    /// All optimizations without a safety mechanism.
    Safety,
}

/// The whole report. Scripts read the fields by name: only add fields.
#[derive(Debug, Clone, Serialize)]
pub struct AblateReport {
    /// Always `ablate`.
    pub bench: &'static str,
    /// The device under the backend.
    pub device: String,
    /// Connections.
    pub clients: usize,
    /// Calls that each keeps outstanding.
    pub window: usize,
    /// Bytes of the argument, and of the result.
    pub size: usize,
    /// The limit of the machine without any call.
    pub limit: Option<Limit>,
    /// What was measured.
    pub measured: Vec<Measured>,
}

/// One measured configuration.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Its role.
    pub part: Part,
    /// Its rate relative to the whole; for an added optimization, relative to the configuration before it.
    pub worth: f64,
    /// The measurement.
    #[serde(flatten)]
    pub run: Run,
}

impl AblateReport {
    pub(super) fn new(parts: &[Part], report: CompareReport) -> AblateReport {
        let CompareReport { device, window, cells, .. } = report;
        let mut ablated = AblateReport {
            bench: "ablate",
            device,
            clients: 0,
            window,
            size: 0,
            limit: None,
            measured: Vec::new(),
        };
        for cell in cells {
            (ablated.clients, ablated.size, ablated.limit) = (cell.clients, cell.size, cell.limit);
            for (part, run) in parts.iter().zip(cell.runs) {
                let before = ablated.measured.last().filter(|before| before.part == Part::Added);
                let of = match (part, before) {
                    (Part::Added, Some(before)) => before.run.rate,
                    (Part::Added, None) => run.rate,
                    _ => ablated.measured.first().map_or(run.rate, |whole| whole.run.rate),
                };
                let worth = run.rate / of.max(f64::MIN_POSITIVE);
                ablated.measured.push(Measured { part: *part, worth, run });
            }
        }
        ablated
    }

    /// The number of failed runs.
    pub fn failures(&self) -> usize {
        self.measured.iter().filter(|measured| measured.run.failure.is_some()).count()
    }

    /// Formats the table.
    pub fn table(&self) -> String {
        let AblateReport { device, clients, window, size, .. } = self;
        let mut text =
            format!("datagram on {device}: {size} B, {clients} client(s), window {window}\n");
        let mut last = None;
        for Measured { part, worth, run } in &self.measured {
            if last.replace(*part) != Some(*part) {
                let (title, ratio) = match part {
                    Part::Whole => ("", ""),
                    Part::Without => ("without one of them", "x all"),
                    Part::Added => ("one after the other", "x before"),
                    Part::Safety => ("what only costs where nothing is lost", "x all"),
                };
                // Writing to a String cannot fail.
                let _ = writeln!(
                    text,
                    "\n{title:38} {:>9} {ratio:>9} {:>9} {:>9}",
                    "M calls/s", "p50 us", "p99 us"
                );
            }
            let _ = match &run.failure {
                Some(why) => writeln!(text, "  {:36} failed: {why}", run.backend),
                None => writeln!(
                    text,
                    "  {:36} {:>9.3} {worth:>9.2} {:>9.2} {:>9.2}",
                    run.backend,
                    run.rate / 1e6,
                    run.p50_ns as f64 / 1e3,
                    run.p99_ns as f64 / 1e3
                ),
            };
        }
        text
    }

    /// Draws the rates as bars.
    pub fn svg(&self) -> Result<String> {
        let AblateReport { device, clients, window, size, .. } = self;
        let bar = |Measured { part, run, .. }: &Measured| Bar {
            name: run.backend.clone(),
            value: run.rate / 1e6,
            group: *part as usize,
        };
        let all: Vec<_> = self.measured.iter().map(bar).collect();
        let title = format!(
            "datagram on {device}, {size} B, {clients} client(s), window {window}: M calls/s"
        );
        bars(&title, &all)
    }
}
