//! A comparison as SVG: for each size and window a chart of the rates and one of the latencies.

use std::collections::BTreeSet;

use anyhow::Result;

use super::report::{CompareReport, Run};
use crate::chart::{Lines, Series, charts};

/// Draws the comparison.
pub fn svg(report: &CompareReport) -> Result<String> {
    let kinds: BTreeSet<_> = report.cells.iter().map(|cell| (cell.size, cell.window)).collect();
    let device = &report.device;
    let chart = |kind: &(usize, usize), what, y_label, is_logarithmic, y: fn(&Run) -> f64| Lines {
        title: format!("{what}, {} B, window {}, {device}", kind.0, kind.1),
        x_label: "clients",
        y_label,
        series: series(report, *kind, y),
        is_logarithmic,
    };
    let rates =
        kinds.iter().map(|kind| chart(kind, "rate", "M calls/s", false, |run| run.rate / 1e6));
    let medians =
        kinds.iter().map(|kind| chart(kind, "median", "us", true, |run| run.p50_ns as f64 / 1e3));
    let all: Vec<_> = rates.chain(medians).collect();
    charts(&all, kinds.len())
}

/// A line for each backend, without failed runs.
fn series(report: &CompareReport, kind: (usize, usize), y: fn(&Run) -> f64) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for cell in report.cells.iter().filter(|cell| (cell.size, cell.window) == kind) {
        for run in cell.runs.iter().filter(|run| run.failure.is_none()) {
            let at = (cell.clients as f64, y(run));
            match series.iter_mut().find(|(name, _)| *name == run.backend) {
                Some((_, points)) => points.push(at),
                None => series.push((run.backend.clone(), vec![at])),
            }
        }
    }
    series
}
