//! Round trips of one cache line.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use crossbeam_utils::CachePadded;

use super::partner::{Orders, Partner};
use crate::clock::Clock;
use crate::latency::Latency;

/// Round trips between two readings of the clock, so that its cost is negligible.
const ROUNDS_PER_SAMPLE: u64 = 32;

/// At the start of a slice the partner may still wait for its core; these rounds are not counted.
const UNCOUNTED_ROUNDS: u64 = 4096;

/// One cache line that two pinned threads write alternately.
///
/// It is a lower bound of every round trip over shared memory: a request and a response are at least one transfer
/// of a line each. The partner sleeps between slices and leaves its core to the code that is compared.
pub struct Bounce {
    /// Counts the writes: the partner answers odd numbers.
    line: Arc<CachePadded<AtomicU64>>,
    partner: Partner,
    turn: u64,
    latency: Latency,
}

impl Bounce {
    /// Starts the partner on `core`; the calling thread is the other end.
    pub fn start(core: usize) -> Result<Self> {
        let line = Arc::new(CachePadded::new(AtomicU64::new(0)));
        let theirs = Arc::clone(&line);
        let partner = Partner::start(core, move |orders| answer(&theirs, orders))?;
        Ok(Self { line, partner, turn: 0, latency: Latency::new() })
    }

    /// Bounces the line for about `time`.
    pub fn slice(&mut self, clock: &Clock, time: Duration) {
        let Self { line, partner, turn, latency } = self;
        partner.work_during(|| {
            *turn = rounds(line, *turn, UNCOUNTED_ROUNDS);
            let end = clock.after(time);
            loop {
                let before = clock.stamp();
                *turn = rounds(line, *turn, ROUNDS_PER_SAMPLE);
                let after = clock.stamp();
                latency.record(clock.nanos_between(before, after) / ROUNDS_PER_SAMPLE);
                if after >= end {
                    break;
                }
            }
        });
    }

    /// The round trips so far.
    pub fn latency(&self) -> &Latency {
        &self.latency
    }
}

fn rounds(line: &AtomicU64, mut turn: u64, count: u64) -> u64 {
    for _ in 0..count {
        line.store(turn + 1, Ordering::Release);
        while line.load(Ordering::Acquire) != turn + 2 {
            spin_loop();
        }
        turn += 2;
    }
    turn
}

fn answer(line: &AtomicU64, orders: &Orders) {
    loop {
        let turn = line.load(Ordering::Acquire);
        if turn & 1 == 1 {
            line.store(turn + 1, Ordering::Release);
        } else if orders.are_to_stop() {
            return;
        } else {
            spin_loop();
        }
    }
}
