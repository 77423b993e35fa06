//! Injectors that drop by a rule.

use std::sync::atomic::{AtomicU64, Ordering};

use super::injector::{FaultInjector, Outgoing, Verdict};
use crate::QpType;

/// Drops each n-th of the work requests that are posted on unreliable queue pairs (UC and UD).
#[derive(Debug)]
pub struct DropEvery {
    n: u64,
    seen: AtomicU64,
}

impl DropEvery {
    /// # Panics
    /// If `n` is 0.
    pub fn new(n: u64) -> DropEvery {
        assert!(n > 0, "there is no 0th work request");
        DropEvery { n, seen: AtomicU64::new(0) }
    }
}

impl FaultInjector for DropEvery {
    fn outgoing(&self, request: &Outgoing<'_>) -> Verdict {
        if request.ty == QpType::Rc {
            return Verdict::Pass;
        }
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        if seen.is_multiple_of(self.n) { Verdict::Drop } else { Verdict::Pass }
    }
}

/// Drops the work requests that a closure names. Over RC that loses the connection.
#[derive(Debug)]
pub struct DropWhen<P>(P);

impl<P: Fn(&Outgoing<'_>) -> bool + Send + Sync> DropWhen<P> {
    /// Drops those of which `predicate` is true.
    pub fn new(predicate: P) -> DropWhen<P> {
        DropWhen(predicate)
    }
}

impl<P: Fn(&Outgoing<'_>) -> bool + Send + Sync> FaultInjector for DropWhen<P> {
    fn outgoing(&self, request: &Outgoing<'_>) -> Verdict {
        if (self.0)(request) { Verdict::Drop } else { Verdict::Pass }
    }
}
