//! The limits of the machine: a cache line bounced between two cores, many lines in flight, large buffers copied
//! back and forth, and memcpy in one core's memory.

mod bare;
mod bounce;
mod copies;
mod futex;
mod lines;
mod memcpy;
mod partner;

pub(crate) use bare::Bare;
pub use bounce::Bounce;
pub use copies::Copies;
pub use futex::Futex;
pub use lines::{LINE_BYTES, Lines};
pub use memcpy::Memcpy;

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::clock::Clock;
use crate::report::LimitReport;
use crate::{SLICE, cores};

/// At the start of a slice the partner may still wait for its core, and caches hold the other slice's data; this
/// time is not counted.
const UNCOUNTED: Duration = Duration::from_millis(1);

/// Lines and large buffers in flight if only the limit is measured.
const WINDOW_OF_LINES: usize = 32;
const WINDOW_OF_COPIES: usize = 2;

/// A number of operations and their total time.
#[derive(Debug, Default)]
struct Pace {
    count: u64,
    nanos: u64,
}

impl Pace {
    fn add(&mut self, count: u64, nanos: u64) {
        self.count += count;
        self.nanos += nanos;
    }

    fn per_second(&self) -> f64 {
        if self.nanos == 0 {
            return 0.0;
        }
        self.count as f64 / (self.nanos as f64 / 1e9)
    }
}

/// Measures the machine's limit alone, for about `time`.
pub fn run(size: usize, time: Duration, cores: [usize; 2]) -> Result<LimitReport> {
    let [server, client] = cores;
    cores::pin(client)?;
    let clock = Clock::new();
    let mut bounce = Bounce::start(server)?;
    let mut memcpy = Memcpy::new(size);
    let mut lines = Lines::start(server, WINDOW_OF_LINES)?;
    let mut copies = Copies::start(server, size, WINDOW_OF_COPIES)?;
    let end = Instant::now() + time;
    while Instant::now() < end {
        bounce.slice(&clock, SLICE);
        memcpy.slice(&clock, SLICE);
        lines.slice(&clock, SLICE);
        copies.slice(&clock, SLICE);
    }
    Ok(LimitReport {
        bench: "limit",
        size,
        cores,
        limit_ns: bounce.latency().quantile(0.5),
        limit_p99_ns: bounce.latency().quantile(0.99),
        memcpy_bandwidth: memcpy.bandwidth(),
        line_rate: lines.rate(),
        copy_bandwidth: copies.bandwidth(),
    })
}
