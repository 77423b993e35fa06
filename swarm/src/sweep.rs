//! One seed, and many.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use farcall_transports::{Backend, registry};

use crate::dice::Dice;
use crate::{Counts, Mutation, Outcome, Trace, kv, suite};

/// What seeds are run with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setting {
    /// The backend; without one, each seed has its own, or that in which a bug is planted.
    pub backend: Option<&'static dyn Backend>,
    /// The bug that is planted.
    pub mutation: Option<Mutation>,
}

impl Setting {
    pub(crate) fn backend_of(&self, seed: u64) -> &'static dyn Backend {
        let mutated = self.mutation.and_then(Mutation::of_backend).map(|(backend, _)| backend);
        self.backend.or(mutated).unwrap_or_else(|| Dice::new(seed, 6).pick(registry::ALL))
    }
}

/// Runs a seed: the key-value store with everything that can go wrong, and a case of the backends' suite with what
/// a connection makes up for. With a planted bug, the store alone.
pub fn run_seed(seed: u64, setting: Setting, trace: &Trace) -> Vec<Outcome> {
    let backend = setting.backend_of(seed);
    let store = kv::run(seed, backend, setting.mutation, trace);
    match setting.mutation {
        Some(_) => vec![store],
        None => vec![store, suite::run(seed, backend, trace)],
    }
}

/// What a sweep has come to.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// Seeds that were run.
    pub seeds: u64,
    /// How all calls of the key-value stores' clients have ended.
    pub counts: Counts,
    /// What was found wrong with the smallest seed for which something was.
    pub wrong: Option<Outcome>,
}

/// Runs seeds from `first` on, `seeds` of them, or until one is wrong. Each of the `threads` has a seed at a time.
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
                let is_first = all.wrong.as_ref().is_none_or(|other| outcome.seed < other.seed);
                if outcome.wrong.is_some() && is_first {
                    found.store(true, Ordering::Relaxed);
                    all.wrong = Some(outcome);
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
