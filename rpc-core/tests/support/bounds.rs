//! Waits that end.

use std::time::{Duration, Instant};

/// Long enough for any machine; no test waits as long unless it fails.
pub const BOUND: Duration = Duration::from_secs(30);

/// Waits for the condition.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < BOUND, "never: {what}");
        std::thread::yield_now();
    }
}
