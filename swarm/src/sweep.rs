//! Many seeds, one after the other on each of several threads.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::{Counts, Mutation, Outcome, run_seed};

/// What a sweep has come to.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// Seeds that were run.
    pub seeds: u64,
    /// How all their calls have ended.
    pub counts: Counts,
    /// The wrong one with the smallest seed, if one was found.
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
            let outcome = run_seed(first.wrapping_add(number), mutation, |_| {});
            found.fetch_or(outcome.wrong.is_some(), Ordering::Relaxed);
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.seeds += 1;
            all.counts.add(outcome.counts);
            let is_first = all.wrong.as_ref().is_none_or(|other| outcome.seed < other.seed);
            if outcome.wrong.is_some() && is_first {
                all.wrong = Some(outcome);
            }
        }
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}
