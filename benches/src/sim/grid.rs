//! Rates on grids of clients, batches, windows and threads, with each NIC: a small change of these, of the seed or of the start must
//! not change a rate much. A rate that has two states, one of which it reaches if much waits at the start, is an error of the model.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, anyhow};
use farcall_verbs::QpType;
use farcall_verbs::sim::Costs;

use super::echo::{Echo, EchoVerb};
use super::flows::Outbound;
use super::raw_write;
use super::rig::{Rack, Start, Verb, Work};
use super::verbs_calls::VerbsCalls;

/// Its name and its costs.
type Nic = (&'static str, fn() -> Costs);

/// All NICs of the model.
const NICS: [Nic; 4] = [
    ("ConnectX-3", Costs::connectx3),
    ("ConnectX-3, 40 Gbit/s", Costs::connectx3_qdr),
    ("Connect-IB", Costs::connect_ib),
    ("ConnectX-5", Costs::connectx5),
];

/// All programs start at once; with another seed; and at random times within 3 and within 30 us.
const STARTS: [Start; 4] = [
    Start { seed: 1, spread_ns: 0 },
    Start { seed: 2, spread_ns: 0 },
    Start { seed: 3, spread_ns: 3_000 },
    Start { seed: 4, spread_ns: 30_000 },
];

/// The most by which rates of one point may differ, as a logarithm.
const SPREAD: f64 = 0.07;

/// The most by which rates of neighbours may differ beyond the steepest smooth trend, as a logarithm.
const STEP: f64 = 0.06;

/// A rate that falls because contexts of queue pairs no longer fit into the cache falls at most with this power of their number.
const STEEPEST_FALL: f64 = 3.0;

/// How closely the points of a grid lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// For each test run.
    Coarse,
    /// More programs and all points.
    Fine,
}

/// The rates along one axis of the grid.
struct Line {
    name: String,
    costs: Costs,
    points: Vec<(usize, Run)>,
}

type Run = Box<dyn Fn(Rack) -> Result<f64> + Send + Sync>;

/// The points at which a rate depends on the start, or jumps between neighbours. Empty if there is none. Runs on all cores.
pub fn jumps(grid: Grid) -> Result<Vec<String>> {
    let lines: Vec<Line> = NICS.iter().flat_map(|nic| lines(nic, grid)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut wrong = Vec::new();
        while let Some(line) = lines.get(next.fetch_add(1, Ordering::Relaxed)) {
            line.check(&mut wrong)?;
        }
        Ok(wrong)
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let found = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let found = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err(anyhow!("a simulation panicked"))));
        found.collect::<Result<Vec<Vec<String>>>>()
    })?;
    Ok(found.concat())
}

impl Line {
    fn new(
        &(nic, costs): &Nic,
        name: &str,
        at: &[usize],
        run: impl Fn(usize, Rack) -> Result<f64> + Clone + Send + Sync + 'static,
    ) -> Line {
        let point = |&at: &usize| {
            let run = run.clone();
            (at, Box::new(move |rack| run(at, rack)) as Run)
        };
        let name = format!("{nic}, {name}");
        Line { name, costs: costs(), points: at.iter().map(point).collect() }
    }

    fn check(&self, wrong: &mut Vec<String>) -> Result<()> {
        let mut before: Option<(usize, f64)> = None;
        for (at, run) in &self.points {
            let rates = STARTS.map(|start| run(Rack::starting(&self.costs, start)));
            let rates = rates.into_iter().collect::<Result<Vec<f64>>>()?;
            let place = format!("{}, {at}", self.name);
            let least = rates.iter().copied().reduce(f64::min).context("no start")?;
            let most = rates.iter().copied().reduce(f64::max).context("no start")?;
            if (most / least).ln() > SPREAD {
                wrong.push(format!("{place}: depends on the start: {rates:.2?} M/s"));
            }
            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
            if let Some((at_before, mean_before)) = before {
                let grown = (*at as f64 / at_before as f64).ln();
                let rise = (mean / mean_before).ln();
                // More clients or a larger window raise a rate in proportion at most.
                if rise > grown + STEP || rise < -STEEPEST_FALL * grown - STEP {
                    wrong.push(format!(
                        "{place}: {mean:.2} M/s after {mean_before:.2} at {at_before}"
                    ));
                }
            }
            before = Some((*at, mean));
        }
        Ok(())
    }
}

fn lines(nic: &Nic, grid: Grid) -> Vec<Line> {
    let mut lines = Vec::new();
    for (batch, threads) in [(1, 10), (4, 10), (8, 10), (8, 20), (16, 10)] {
        if grid == Grid::Fine || matches!((batch, threads), (1 | 8, 10)) {
            lines.push(raw_writes(nic, batch, threads, grid));
        }
    }
    for response in [EchoVerb::Send, EchoVerb::Write] {
        for threads in [6, 14] {
            if grid == Grid::Fine || (response == EchoVerb::Send && threads == 6) {
                lines.push(echoes(nic, response, threads));
            }
        }
    }
    for operations in
        [Operations::Write, Operations::SignaledWrite, Operations::UcWrite, Operations::Read]
    {
        for (threads, pairs) in [(3, 8), (4, 16), (6, 1), (6, 8), (10, 4), (10, 8)] {
            if grid == Grid::Fine || matches!((threads, pairs), (4, 16) | (10, 4)) {
                lines.push(outbound(nic, operations, threads, pairs, grid));
            }
        }
    }
    lines
}

/// RawWrite by the number of clients: where the contexts begin not to fit into the cache of ConnectX-3, with much outstanding.
fn raw_writes(nic: &Nic, batch: usize, server_threads: usize, grid: Grid) -> Line {
    let clients: &[usize] = match grid {
        Grid::Coarse => &[80, 90, 100, 110, 120, 130, 140],
        Grid::Fine => &[
            40, 50, 60, 70, 80, 85, 90, 95, 100, 105, 110, 115, 120, 125, 130, 135, 140, 150, 160,
            180, 200, 240, 280, 320, 360, 400,
        ],
    };
    let name = format!("RawWrite, batch of {batch}, {server_threads} threads");
    Line::new(nic, &name, clients, move |clients, rack| {
        let dispatch_ns = 265 + 740 / batch as u64;
        let calls = VerbsCalls {
            machines: 11,
            server_threads,
            clients,
            batch,
            dispatch_ns,
            measured_ns: 400_000,
        };
        Ok(raw_write::run(&calls, rack)?.rate)
    })
}

/// ECHOs by the number of clients, with a window of 12 each.
fn echoes(nic: &Nic, response: EchoVerb, server_threads: usize) -> Line {
    let clients = &[25, 40, 51, 64, 80, 102, 128, 160];
    let name = format!("ECHO, WRITE and {response:?}, {server_threads} threads");
    Line::new(nic, &name, clients, move |clients, rack| {
        let echo = Echo::of(EchoVerb::Write, response);
        Echo { server_threads, clients, window: 12, datagrams: true, ..echo }.rate_on(rack)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operations {
    Write,
    SignaledWrite,
    UcWrite,
    Read,
}

/// Operations out of one machine, by the window on each queue pair. READs of which more wait than may be outstanding are another
/// matter: the NIC reads them again, and the rate has the step that is published (Kalia 2016, Fig. 13).
fn outbound(nic: &Nic, operations: Operations, threads: usize, pairs: usize, grid: Grid) -> Line {
    let windows: &[usize] = match (operations, grid) {
        (_, Grid::Coarse) => &[6, 8, 10, 12, 14, 16],
        (Operations::Read, Grid::Fine) => &[4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
        (_, Grid::Fine) => &[4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64],
    };
    let costs = nic.1();
    let name =
        format!("{operations:?}, {threads} threads with {pairs} queue pairs each, by window");
    Line::new(nic, &name, windows, move |window, rack| {
        let (ty, work) = match operations {
            Operations::Write => (QpType::Rc, Work::of(Verb::Write, 32).window(window)),
            Operations::SignaledWrite => {
                (QpType::Rc, Work::of(Verb::Write, 32).window(window).all_signaled())
            }
            Operations::UcWrite => (QpType::Uc, Work::of(Verb::Write, 32).window(window)),
            Operations::Read => {
                (QpType::Rc, Work::of(Verb::Read, 32).window(window).all_signaled())
            }
        };
        let out = Outbound { costs: costs.clone(), ty, work, threads, pairs, machines: 11 };
        Ok(out.run_on(rack)?.0)
    })
}
