//! Running one seed, and many.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use farcall_transports::{hybrid, registry};
use farcall_transports_conformance::Case;

use crate::dice::Dice;
use crate::{Counts, Mutation, Outcome, Trace, advice, kv, lanes, memory, moves, suite};

/// The configuration of all seeds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setting {
    /// The backend's name, or `hybrid`. Without one, it depends on the seed or on the planted bug.
    pub backend: Option<&'static str>,
    /// The planted bug.
    pub mutation: Option<Mutation>,
    /// Only this case of the conformance suite, over backends that have it.
    pub case: Option<&'static Case>,
}

impl Setting {
    pub(crate) fn backend_of(&self, seed: u64) -> &'static str {
        let by_seed = || {
            let mut dice = Dice::new(seed, 6);
            let backend = dice.pick(registry::ALL).name();
            // Planted bugs are of backends, or of all.
            if self.mutation.is_none() && dice.once_in(4) { hybrid::NAME } else { backend }
        };
        self.backend.or(self.mutation.and_then(Mutation::backend)).unwrap_or_else(by_seed)
    }
}

/// Runs a seed: the key-value store, connections of several lanes and lent memory with all faults, and a case of the conformance suite with
/// faults that a connection repairs. With a planted bug, runs only what shows it; with a case, only that.
pub fn run_seed(seed: u64, setting: Setting, trace: &Trace) -> Vec<Outcome> {
    let backend = setting.backend_of(seed);
    let name = setting.case.map(|case| case.name).or(setting.mutation.and_then(Mutation::case));
    if let Some(name) = name {
        let case = suite::case(backend, name);
        let play = |case| suite::play(seed, backend, case, setting.mutation, trace);
        return case.map(play).into_iter().collect();
    }
    let store = || kv::run(seed, backend, setting.mutation, trace);
    let lanes = || lanes::run(seed, backend, setting.mutation, trace);
    let memory = || memory::run(seed, backend, setting.mutation, trace);
    match setting.mutation {
        Some(Mutation::Lanes(_)) => vec![lanes()],
        Some(Mutation::Memory(_)) => vec![memory()],
        Some(Mutation::Hybrid(_)) => vec![moves::run(seed, setting.mutation, trace)],
        Some(Mutation::Advice(_)) => vec![advice::run(seed, setting.mutation, trace)],
        Some(_) => vec![store()],
        None => {
            let mut all = vec![store(), lanes(), memory(), suite::run(seed, backend, trace)];
            if backend == hybrid::NAME {
                all.push(moves::run(seed, None, trace));
                all.push(advice::run(seed, None, trace));
            }
            all
        }
    }
}

/// The result of a sweep.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// The number of seeds run.
    pub seeds: u64,
    /// How many calls of the key-value stores' clients ended in which way.
    pub counts: Counts,
    /// The outcome of the smallest failing seed.
    pub failure: Option<Outcome>,
}

/// Runs `seeds` seeds from `first` on, or until one fails. Each of the `threads` runs one seed at a time.
pub fn sweep(first: u64, seeds: u64, threads: usize, setting: Setting) -> Sweep {
    let (next, found) = (AtomicU64::new(0), AtomicBool::new(false));
    let all = Mutex::new(Sweep::default());
    let work = || {
        while !found.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= seeds {
                break;
            }
            let outcomes = run_seed(first.wrapping_add(number), setting, &Trace::Off);
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.seeds += 1;
            for outcome in outcomes {
                all.counts.add(outcome.counts);
                let is_first = all.failure.as_ref().is_none_or(|other| outcome.seed < other.seed);
                if outcome.failure.is_some() && is_first {
                    found.store(true, Ordering::Relaxed);
                    all.failure = Some(outcome);
                }
            }
        }
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}
