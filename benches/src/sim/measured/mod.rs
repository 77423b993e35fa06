//! One-sided operations in hundreds of configurations that FaSST's authors measured, and their simulation.

mod configuration;
mod program;
mod report;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, anyhow};

pub use configuration::{Configuration, MeasuredNic, Operation, configurations};
pub use report::{Errors, page, summary, table};

/// A measured configuration, and its simulated rate.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// The configuration.
    pub configuration: Configuration,
    /// Simulated million operations per second of one machine.
    pub rate: f64,
}

impl Simulated {
    /// The relative error of the simulated rate.
    pub fn error(&self) -> f64 {
        self.rate / self.configuration.measured - 1.0
    }
}

/// The windows that FaSST's authors tried.
const WINDOWS: [usize; 4] = [8, 16, 24, 32];

/// Million READs per second of one machine with the best window, all signaled, as in FaSST's figures.
pub(super) fn best_rate(
    nic: MeasuredNic,
    bytes: usize,
    machines: usize,
    emulated_nodes: usize,
) -> Result<f64> {
    let mut best = 0.0;
    for window in WINDOWS {
        let configuration = Configuration {
            nic,
            operation: Operation::Read,
            bytes,
            machines,
            emulated_nodes,
            threads: nic.cores(),
            window,
            signal_every: 1,
            measured: f64::NAN,
            fitted: false,
        };
        best = f64::max(best, program::rate(&nic.costs(), &configuration)?);
    }
    Ok(best)
}

/// Simulates these configurations, each on a rack of its own, on all cores. The result does not depend on the number
/// of cores.
pub fn simulate(configurations: &[Configuration]) -> Result<Vec<Simulated>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut simulated = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(configuration) = configurations.get(index) else { return Ok(simulated) };
            let rate = program::rate(&configuration.nic.costs(), configuration)?;
            simulated.push((index, Simulated { configuration: configuration.clone(), rate }));
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut all: Vec<(usize, Simulated)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let results = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err(anyhow!("a simulation panicked"))));
        results.collect::<Result<Vec<_>>>()
    })?
    .concat();
    all.sort_by_key(|(index, _)| *index);
    Ok(all.into_iter().map(|(_, simulated)| simulated).collect())
}
