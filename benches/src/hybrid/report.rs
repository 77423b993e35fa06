//! How close connections that move come to an oracle.

use std::fmt::Write as _;

use anyhow::Result;

use super::day::Day;
use super::run::{PhaseRun, Run};
use crate::chart;

/// From then on, connections that move are to be as good as the best backend of the phase.
const SETTLED_MS: usize = 50;

/// A day over each backend, and over connections that move.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was asked of them.
    pub day: Day,
    /// Over each backend.
    pub fixed: Vec<(String, Run)>,
    /// Over connections that move.
    pub moving: Run,
}

/// Connections that move, in one phase.
#[derive(Clone, Copy, Debug, Default)]
struct OfPhase {
    /// The part of the best backend's answers, of the whole phase and of its settled part.
    whole: f64,
    settled: f64,
    /// Milliseconds with fewer than 0.8 of them.
    low_ms: usize,
    /// The 99th percentile of the time that calls take, over the best backend's.
    p99: f64,
}

/// One target, and what was measured.
#[derive(Clone, Debug)]
pub struct Goal {
    /// What it is.
    pub what: &'static str,
    /// What was measured.
    pub measured: f64,
    /// The bound.
    pub bound: f64,
    /// Whether the bound is from above.
    pub is_most: bool,
}

impl Goal {
    /// Whether it is reached.
    pub fn is_reached(&self) -> bool {
        if self.is_most { self.measured <= self.bound } else { self.measured >= self.bound }
    }
}

impl Report {
    /// The best backend of a phase, with its run.
    fn best(&self, phase: usize) -> Option<(&str, &PhaseRun)> {
        let runs = self.fixed.iter().map(|(name, run)| (name.as_str(), &run.phases[phase]));
        runs.max_by_key(|(_, run)| run.calls())
    }

    /// How connections that move do in a phase, next to its best backend.
    fn of_phase(&self, phase: usize) -> Option<OfPhase> {
        let (moving, best) = (&self.moving.phases[phase], self.best(phase)?.1);
        let ratio = |of: u64, to: u64| of as f64 / to.max(1) as f64;
        let whole = ratio(moving.calls(), best.calls());
        let settled = ratio(moving.calls_after(SETTLED_MS), best.calls_after(SETTLED_MS));
        let usual = best.calls() as f64 / best.by_ms.len().max(1) as f64;
        let low =
            moving.by_ms.iter().take(SETTLED_MS).filter(|calls| (**calls as f64) < 0.8 * usual);
        let p99 = ratio(moving.p99_ns(), best.p99_ns());
        Some(OfPhase { whole, settled, low_ms: low.count(), p99 })
    }

    /// The targets.
    pub fn goals(&self) -> Vec<Goal> {
        let phases = || 0..self.day.phases.len();
        // Each phase counts alike, however many calls it has.
        let mean = |of: &dyn Fn(usize) -> f64| {
            phases().map(of).sum::<f64>() / phases().len().max(1) as f64
        };
        let part = |run: &Run, phase: usize| {
            let best = self.best(phase).map_or(1, |(_, best)| best.calls());
            run.phases[phase].calls() as f64 / best.max(1) as f64
        };
        let oracle = mean(&|phase| part(&self.moving, phase));
        let single = self.fixed.iter().map(|(_, run)| mean(&|phase| part(run, phase)));
        let single = single.fold(0.0, f64::max);
        let all = phases().filter_map(|phase| self.of_phase(phase));
        let settled = all.clone().map(|it| it.settled).fold(f64::INFINITY, f64::min);
        let low = all.clone().map(|it| it.low_ms).max().unwrap_or(0);
        let p99 = all.map(|it| it.p99);
        let goal = |what, measured, bound, is_most| Goal { what, measured, bound, is_most };
        vec![
            goal("calls / the best backend of each phase", oracle, 0.95, false),
            goal("calls / the best backend of the day", oracle / single, 1.2, false),
            goal("longest below 0.8 of the phase's best, ms", low as f64, 20.0, true),
            goal("p99 / that of the phase's best, at most", p99.fold(0.0, f64::max), 2.0, true),
            goal("calls after 50 ms of a phase / its best, at least", settled, 0.9, false),
        ]
    }

    /// As text.
    ///
    /// # Errors
    /// None: text can be written.
    pub fn table(&self) -> Result<String> {
        let mut text = String::new();
        write!(text, "{:24} {:>7}", "calls per ms", "clients")?;
        self.fixed.iter().try_for_each(|(name, _)| write!(text, " {name:>10}"))?;
        let of_hybrid = ["hybrid", "/ best", "settled", "ms < 0.8", "p99 /"];
        let [moving, whole, settled, low, p99] = of_hybrid;
        writeln!(text, " {moving:>10} {whole:>7} {settled:>8} {low:>8} {p99:>7}")?;
        for (number, phase) in self.day.phases.iter().enumerate() {
            write!(text, "{:24} {:>7}", phase.name, phase.clients)?;
            let per_ms = |run: &Run| per_ms(&run.phases[number]);
            self.fixed.iter().try_for_each(|(_, run)| write!(text, " {:>10.1}", per_ms(run)))?;
            let OfPhase { whole, settled, low_ms, p99 } = self.of_phase(number).unwrap_or_default();
            let moving = per_ms(&self.moving);
            writeln!(text, " {moving:>10.1} {whole:>7.2} {settled:>8.2} {low_ms:>8} {p99:>7.2}")?;
        }
        for Goal { what, measured, bound, is_most } in self.goals() {
            let (sign, of) = if is_most { ("at most", "") } else { ("at least", "") };
            writeln!(text, "{what:52} {measured:>8.2}  {sign} {bound}{of}")?;
        }
        Ok(text)
    }

    /// The rate over the day, next to that of each phase's best backend.
    ///
    /// # Errors
    /// The picture cannot be drawn.
    pub fn svg(&self) -> Result<String> {
        let (mut moving, mut best, mut ms) = (Vec::new(), Vec::new(), 0);
        for number in 0..self.day.phases.len() {
            let usual = self.best(number).map_or(0.0, |(_, run)| per_ms(run));
            for some in self.moving.phases[number].by_ms.chunks(MS_PER_POINT) {
                let calls = some.iter().sum::<u64>() as f64 / some.len() as f64;
                moving.push((f64::from(ms), calls.max(1.0)));
                best.push((f64::from(ms), usual.max(1.0)));
                ms += some.len() as u32;
            }
        }
        let lines = [("hybrid", moving), ("best backend of the phase", best)];
        chart::timeline("A day on the rack", ["ms", "answers per ms"], &lines)
    }
}

/// One point of the picture stands for so many milliseconds.
const MS_PER_POINT: usize = 3;

/// Answers per millisecond.
fn per_ms(run: &PhaseRun) -> f64 {
    run.calls() as f64 / run.by_ms.len().max(1) as f64
}
