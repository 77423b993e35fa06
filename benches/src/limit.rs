//! What the machine itself allows: a cache line bounced between two cores, and memcpy.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use crossbeam_utils::CachePadded;

use crate::clock::Clock;
use crate::latency::Latency;
use crate::report::LimitReport;
use crate::{SLICE, cores};

/// Round trips between two readings of the clock, so that its cost does not show in the limit.
const ROUNDS_PER_SAMPLE: u64 = 32;

/// Bytes copied between two readings of the clock, at least, for the same reason.
const COPIED_PER_STAMP_BYTES: usize = 1 << 16;

/// At a slice's begin the partner may still wait for its core; this much of it is not counted.
const UNCOUNTED_ROUNDS: u64 = 4096;

// What the line says to the partner. Turns count up from zero: odd ones are the partner's to answer.
const REST: u64 = u64::MAX - 1;
const QUIT: u64 = u64::MAX - 3;

/// One cache line that two pinned threads write in turn.
///
/// It is the floor below every round trip over shared memory: a request and a response are at
/// least one transfer of a line each. The partner sleeps between slices and leaves its core to
/// whoever is measured against it.
pub struct Bounce {
    line: Arc<CachePadded<AtomicU64>>,
    partner: Option<JoinHandle<()>>,
    latency: Latency,
}

impl Bounce {
    /// Starts the partner on `core`; the caller's thread is the other end.
    pub fn start(core: usize) -> Result<Self> {
        let line = Arc::new(CachePadded::new(AtomicU64::new(REST)));
        let theirs = Arc::clone(&line);
        let (pinned, is_pinned) = mpsc::channel();
        let partner = thread::Builder::new().name("bounce".into()).spawn(move || {
            // The receiver waits below, and an error means that nobody wants a partner any more.
            if pinned.send(cores::pin(core)).is_ok() {
                answer(&theirs);
            }
        })?;
        is_pinned.recv().context("the bounce's other thread ended")??;
        Ok(Self { line, partner: Some(partner), latency: Latency::new() })
    }

    /// Bounces the line for about `time`.
    pub fn slice(&mut self, clock: &Clock, time: Duration) {
        self.line.store(0, Ordering::Release);
        if let Some(partner) = &self.partner {
            partner.thread().unpark();
        }
        let mut turn = rounds(&self.line, 0, UNCOUNTED_ROUNDS);
        let end = clock.after(time);
        loop {
            let before = clock.stamp();
            turn = rounds(&self.line, turn, ROUNDS_PER_SAMPLE);
            let after = clock.stamp();
            self.latency.record(clock.nanos_between(before, after) / ROUNDS_PER_SAMPLE);
            if after >= end {
                break;
            }
        }
        self.line.store(REST, Ordering::Release);
    }

    /// The round trips so far.
    pub fn latency(&self) -> &Latency {
        &self.latency
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        self.line.store(QUIT, Ordering::Release);
        if let Some(partner) = self.partner.take() {
            partner.thread().unpark();
            // It ends at the next look at the line; it cannot panic.
            let _ = partner.join();
        }
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

fn answer(line: &AtomicU64) {
    loop {
        let turn = line.load(Ordering::Acquire);
        if turn & 1 == 1 {
            line.store(turn + 1, Ordering::Release);
            continue;
        }
        match turn {
            QUIT => return,
            // Sleeps, or returns at once if a slice has begun since the line was read.
            REST => thread::park(),
            _ => spin_loop(),
        }
    }
}

/// The machine's limit alone, for about `time`.
pub fn run(size: usize, time: Duration, cores: [usize; 2]) -> Result<LimitReport> {
    let [server, client] = cores;
    cores::pin(client)?;
    let clock = Clock::new();
    let mut bounce = Bounce::start(server)?;
    let mut memcpy = Memcpy::new(size);
    let end = Instant::now() + time;
    while Instant::now() < end {
        bounce.slice(&clock, SLICE);
        memcpy.slice(&clock, SLICE);
    }
    Ok(LimitReport {
        bench: "limit",
        size,
        cores,
        limit_ns: bounce.latency().quantile(0.5),
        limit_p99_ns: bounce.latency().quantile(0.99),
        memcpy_bandwidth: memcpy.bandwidth(),
    })
}

/// Copies between distinct buffers of one size, on the caller's core.
pub struct Memcpy {
    from: Vec<u8>,
    to: Vec<u8>,
    copies: u64,
    nanos: u64,
}

impl Memcpy {
    /// Buffers of `size` bytes each, all their pages touched.
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
