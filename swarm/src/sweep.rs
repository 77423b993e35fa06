//! One seed, and many.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::{Counts, Mutation, Outcome, Trace, kv, suite};

/// Runs a seed: the key-value store with everything that can go wrong, and a case of the backends' suite with what
/// connections make up for. With a planted bug, the store alone.
pub fn run_seed(seed: u64, mutation: Option<Mutation>, trace: &Trace) -> Vec<Outcome> {
    let store = kv::run(seed, mutation, trace);
    match mutation {
        Some(_) => vec![store],
        None => vec![store, suite::run(seed, trace)],
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
pub fn sweep(first: u64, seeds: u64, threads: usize, mutation: Option<Mutation>) -> Sweep {
    let (next, found) = (AtomicU64::new(0), AtomicBool::new(false));
    let all = Mutex::new(Sweep::default());
    let work = || {
        while !found.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= seeds {
                break;
            }
            let outcomes = run_seed(first.wrapping_add(number), mutation, &Trace::Off);
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
