//! Copies in one core's own memory.

use std::hint::black_box;
use std::time::Duration;

use crate::clock::Clock;

/// The fewest bytes copied between two readings of the clock, so that its cost is negligible.
const COPIED_PER_STAMP_BYTES: usize = 1 << 16;

/// Copies between different buffers of one size, on the calling thread's core.
pub struct Memcpy {
    from: Vec<u8>,
    to: Vec<u8>,
    copies: u64,
    nanos: u64,
}

impl Memcpy {
    /// Allocates buffers of `size` bytes each, and touches all their pages.
    pub fn new(size: usize) -> Self {
        Self { from: vec![1; size], to: vec![2; size], copies: 0, nanos: 0 }
    }

    /// Copies for about `time`.
    pub fn slice(&mut self, clock: &Clock, time: Duration) {
        let copies = (COPIED_PER_STAMP_BYTES / self.from.len().max(1)).max(1) as u64;
        let begin = clock.stamp();
        let end = clock.after(time);
        loop {
            for _ in 0..copies {
                black_box(&mut self.to).copy_from_slice(black_box(&self.from));
            }
            self.copies += copies;
            let now = clock.stamp();
            if now >= end {
                self.nanos += clock.nanos_between(begin, now);
                return;
            }
        }
    }

    /// Bytes per second, each copied byte counted once.
    pub fn bandwidth(&self) -> f64 {
        if self.nanos == 0 {
            return 0.0;
        }
        (self.copies * self.from.len() as u64) as f64 / (self.nanos as f64 / 1e9)
    }
}
