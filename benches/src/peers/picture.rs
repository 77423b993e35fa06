//! The report as SVG: medians and rates by size, and first calls by the length of the silence.

use anyhow::Result;

use super::report::{Name, Report, Run};
use crate::chart::{Lines, Series, charts};

/// Draws a chart for each window and one for the silences.
///
/// # Errors
///
/// The picture cannot be drawn.
pub fn svg(report: &Report) -> Result<String> {
    let mut windows: Vec<_> = report.cells.iter().map(|cell| cell.window).collect();
    windows.dedup();
    let of_window = |window: &usize| {
        let (y_label, y): (_, fn(&Run) -> f64) = match window {
            1 => ("p50, us", |run| run.p50_ns as f64 / 1e3),
            _ => ("k calls/s", |run| run.rate / 1e3),
        };
        chart(format!("echo, {window} outstanding"), "bytes", y_label, by_size(report, *window, y))
    };
    let mut all: Vec<_> = windows.iter().map(of_window).collect();
    if report.silences.iter().any(|silence| silence.silence_ns > 0) {
        let title = "first call after silence".to_owned();
        all.push(chart(title, "ms of silence", "p50, us", after_silence(report)));
    }
    charts(&all, 2)
}

fn chart<'a>(title: String, x_label: &'a str, y_label: &'a str, series: Vec<Series>) -> Lines<'a> {
    Lines { title, x_label, y_label, series, is_logarithmic: true }
}

fn title(name: &Name) -> String {
    name.title.replace('`', "")
}

fn by_size(report: &Report, window: usize, y: fn(&Run) -> f64) -> Vec<Series> {
    let cells = || report.cells.iter().filter(|cell| cell.window == window);
    let line = |name: &Name| {
        let runs = cells().flat_map(|cell| cell.runs.iter().map(move |run| (cell.size, run)));
        let runs = runs.filter(|(_, run)| run.peer == name.peer && run.failure.is_none());
        (title(name), runs.map(|(size, run)| (size as f64, y(run))).collect::<Vec<_>>())
    };
    report.peers.iter().map(line).filter(|(_, points)| !points.is_empty()).collect()
}

fn after_silence(report: &Report) -> Vec<Series> {
    let line = |name: &Name| {
        let runs = report.silences.iter().flat_map(|silence| {
            silence.runs.iter().map(|run| (silence.silence_ns as f64 / 1e6, run))
        });
        let runs =
            runs.filter(|(ms, run)| *ms > 0.0 && run.peer == name.peer && run.failure.is_none());
        (title(name), runs.map(|(ms, run)| (ms, run.p50_ns as f64 / 1e3)).collect::<Vec<_>>())
    };
    report.peers.iter().map(line).filter(|(_, points)| !points.is_empty()).collect()
}
