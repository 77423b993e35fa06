//! What `peers` prints.

use std::fmt::Write as _;

use serde::Serialize;

use crate::echo::load::Totals;

/// One run of `peers`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `peers`.
    pub bench: &'static str,
    /// Bytes of the argument, and of the result.
    pub size: usize,
    /// What the ratios are to.
    pub reference: &'static str,
    /// One for each window.
    pub cells: Vec<Cell>,
}

/// Peers that took turns.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// Calls outstanding on the one connection.
    pub window: usize,
    /// One for each of them.
    pub runs: Vec<Run>,
}

/// One of them. All figures are medians of its rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// The library, and what carries its bytes.
    pub peer: &'static str,
    /// Turns.
    pub rounds: usize,
    /// Calls of all turns.
    pub calls: u64,
    /// The median round trip.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Calls per second.
    pub rate: f64,
    /// `p50_ns` to that of the reference: less is better.
    pub p50_ratio: f64,
    /// `rate` to that of the reference: more is better.
    pub rate_ratio: f64,
}

/// One turn.
#[derive(Debug, Clone)]
pub(super) struct Round {
    p50_ns: u64,
    p99_ns: u64,
    rate: f64,
    calls: u64,
}

impl Round {
    pub(super) fn of(totals: &Totals) -> Self {
        let quantile = |share| totals.latency.quantile(share);
        let (p50_ns, p99_ns) = (quantile(0.5), quantile(0.99));
        Self { p50_ns, p99_ns, rate: totals.rate(), calls: totals.calls }
    }
}

impl Run {
    /// The medians of these rounds. There are no ratios yet.
    pub(super) fn of(peer: &'static str, rounds: &[Round]) -> Self {
        Self {
            peer,
            rounds: rounds.len(),
            calls: rounds.iter().map(|round| round.calls).sum(),
            p50_ns: median(rounds, |round| round.p50_ns as f64) as u64,
            p99_ns: median(rounds, |round| round.p99_ns as f64) as u64,
            rate: median(rounds, |round| round.rate),
            p50_ratio: 0.0,
            rate_ratio: 0.0,
        }
    }
}

/// The upper one of an even number; 0 of none.
fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut values: Vec<_> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl Cell {
    /// Adds the ratios to the reference.
    pub(super) fn new(window: usize, mut runs: Vec<Run>, reference: &str) -> Self {
        if let Some(reference) = runs.iter().find(|run| run.peer == reference).cloned() {
            for run in &mut runs {
                run.p50_ratio = run.p50_ns as f64 / reference.p50_ns.max(1) as f64;
                run.rate_ratio = run.rate / reference.rate.max(f64::MIN_POSITIVE);
            }
        }
        Self { window, runs }
    }
}

impl Report {
    /// Formats the table.
    pub fn table(&self) -> String {
        let mut text =
            format!("{} B echo, one connection; ratios are to {}\n", self.size, self.reference);
        // Writing into a String does not fail.
        let _ = writeln!(
            text,
            "  {:>6}  {:20} {:>9} {:>9} {:>9} {:>10} {:>10}",
            "window", "", "p50 us", "p99 us", "calls/ms", "p50 ratio", "rate ratio"
        );
        for cell in &self.cells {
            for run in &cell.runs {
                let _ = writeln!(
                    text,
                    "  {:>6}  {:20} {:>9.2} {:>9.2} {:>9.1} {:>10.3} {:>10.2}",
                    cell.window,
                    run.peer,
                    run.p50_ns as f64 / 1e3,
                    run.p99_ns as f64 / 1e3,
                    run.rate / 1e3,
                    run.p50_ratio,
                    run.rate_ratio
                );
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(peer: &'static str, rounds: &[(u64, f64)]) -> Run {
        let round = |&(p50_ns, rate)| Round { p50_ns, p99_ns: 2 * p50_ns, rate, calls: 10 };
        Run::of(peer, &rounds.iter().map(round).collect::<Vec<_>>())
    }

    #[test]
    fn figures_are_medians_of_rounds_and_ratios_are_to_the_reference() {
        let ours = run("ours", &[(9, 1.0), (5, 60.0), (6, 50.0)]);
        let theirs = run("theirs", &[(12, 10.0), (12, 10.0), (90, 1.0)]);
        let cell = Cell::new(1, vec![ours, theirs], "theirs");
        let [ours, theirs] = &cell.runs[..] else { panic!("{cell:?}") };
        assert_eq!((ours.p50_ns, ours.p99_ns, ours.rate), (6, 12, 50.0));
        assert_eq!((ours.rounds, ours.calls), (3, 30));
        assert_eq!((ours.p50_ratio, ours.rate_ratio), (0.5, 5.0));
        assert_eq!((theirs.p50_ratio, theirs.rate_ratio), (1.0, 1.0));
    }
}
