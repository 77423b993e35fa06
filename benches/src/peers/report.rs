//! The report of `peers`. Scripts read the fields by name: only add fields.

use anyhow::Result;
use serde::Serialize;

use crate::echo::load::Totals;
use crate::latency::Latency;

/// One run of `peers`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `peers`.
    pub bench: &'static str,
    /// The servers' core, then the clients'.
    pub cores: [usize; 2],
    /// The level of the smallest cache that both cores use; none if there is none, or none is known.
    pub shared_cache_level: Option<u32>,
    /// All peers, in the order of the tables.
    pub peers: Vec<Name>,
    /// One for each window and size.
    pub cells: Vec<Cell>,
    /// First calls after silence, one for each length of it.
    pub silences: Vec<Silence>,
}

/// The two names of a peer.
#[derive(Debug, Clone, Serialize)]
pub struct Name {
    /// In the rest of the report.
    pub peer: &'static str,
    /// In tables.
    pub title: &'static str,
}

/// Peers that alternated.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// Bytes of the argument, and of the result.
    pub size: usize,
    /// Calls outstanding on the one connection.
    pub window: usize,
    /// Median round trip of a cache line between the two cores.
    pub line_ns: u64,
    /// Median round trip of two threads that sleep until the other one wakes them.
    pub futex_ns: u64,
    /// One for each peer that can have so many calls outstanding.
    pub runs: Vec<Run>,
}

/// One peer in a cell. All figures are medians of its rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Its name.
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
    /// Why the measurement failed; the figures are 0 then.
    pub failure: Option<String>,
}

/// One length of silence.
#[derive(Debug, Clone, Serialize)]
pub struct Silence {
    /// How long a client waits before its call.
    pub silence_ns: u64,
    /// Bytes of the argument, and of the result.
    pub size: usize,
    /// The median round trip of two threads that sleep for that time, of which one then wakes the other and is woken by it.
    pub futex_p50_ns: u64,
    /// Their longest round trip.
    pub futex_max_ns: u64,
    /// One for each peer.
    pub runs: Vec<FirstCalls>,
}

/// One peer's first calls after silence.
#[derive(Debug, Clone, Serialize)]
pub struct FirstCalls {
    /// Its name.
    pub peer: &'static str,
    /// How many calls.
    pub calls: u64,
    /// The median call.
    pub p50_ns: u64,
    /// The longest call.
    pub max_ns: u64,
    /// Why the measurement failed; the figures are 0 then.
    pub failure: Option<String>,
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
    /// The medians of these rounds, or an error.
    pub(super) fn of(peer: &'static str, rounds: Result<Vec<Round>>) -> Self {
        let failure = rounds.as_ref().err().map(|why| format!("{why:#}"));
        let rounds = rounds.unwrap_or_default();
        Self {
            peer,
            rounds: rounds.len(),
            calls: rounds.iter().map(|round| round.calls).sum(),
            p50_ns: median(&rounds, |round| round.p50_ns as f64) as u64,
            p99_ns: median(&rounds, |round| round.p99_ns as f64) as u64,
            rate: median(&rounds, |round| round.rate),
            failure,
        }
    }
}

impl FirstCalls {
    pub(super) fn of(peer: &'static str, latency: &Latency) -> Self {
        let (p50_ns, max_ns) = (latency.quantile(0.5), latency.quantile(1.0));
        Self { peer, calls: latency.samples(), p50_ns, max_ns, failure: None }
    }
}

/// The upper one of an even number; 0 of none.
fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut values: Vec<_> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl Report {
    /// The number of measurements that failed.
    pub fn failures(&self) -> usize {
        let runs = self.cells.iter().flat_map(|cell| &cell.runs);
        let silent = self.silences.iter().flat_map(|silence| &silence.runs);
        runs.filter(|run| run.failure.is_some()).count()
            + silent.filter(|run| run.failure.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_of_rounds_and_failures_say_why() {
        let round = |(p50_ns, rate)| Round { p50_ns, p99_ns: 2 * p50_ns, rate, calls: 10 };
        let run = Run::of("ours", Ok([(9, 1.0), (5, 60.0), (6, 50.0)].map(round).to_vec()));
        assert_eq!((run.p50_ns, run.p99_ns, run.rate), (6, 12, 50.0));
        assert_eq!((run.rounds, run.calls, run.failure), (3, 30, None));
        let failed = Run::of("theirs", Err(anyhow::anyhow!("gone").context("no answer")));
        assert_eq!(failed.failure.as_deref(), Some("no answer: gone"));
        assert_eq!((failed.rounds, failed.p50_ns), (0, 0));
    }
}
