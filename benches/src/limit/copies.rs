//! Large buffers, there and back.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use crossbeam_queue::ArrayQueue;

use super::partner::{Orders, Partner};
use super::{Pace, UNCOUNTED};
use crate::clock::Clock;

/// Buffers that two threads hand to each other, and those that are free.
struct Way {
    full: ArrayQueue<Vec<u8>>,
    free: ArrayQueue<Vec<u8>>,
}

impl Way {
    fn new(count: usize, size: usize) -> Way {
        let way = Way { full: ArrayQueue::new(count), free: ArrayQueue::new(count) };
        for _ in 0..count {
            // There is room for all of them.
            let _ = way.free.push(vec![1; size]);
        }
        way
    }

    /// Copies `from` into a free buffer and hands it over, if there is one.
    fn send(&self, from: &[u8]) -> bool {
        let Some(mut buffer) = self.free.pop() else { return false };
        buffer.copy_from_slice(black_box(from));
        self.full.push(buffer).is_ok()
    }

    /// Copies what was handed over, and gives the buffer back.
    fn receive(&self, into: &mut [u8]) -> bool {
        let Some(buffer) = self.full.pop() else { return false };
        black_box(into).copy_from_slice(&buffer);
        self.free.push(buffer).is_ok()
    }
}

/// An echo of large messages with the fewest copies that two sides with memory of their own need: each
/// writes into a shared buffer and reads out of one. Four copies a call, two on each core.
pub struct Copies {
    ways: Arc<[Way; 2]>,
    partner: Partner,
    size: usize,
    window: u64,
    pace: Pace,
}

impl Copies {
    /// Starts the partner on `core`; the caller's thread is the other end.
    pub fn start(core: usize, size: usize, window: usize) -> Result<Self> {
        let ways = Arc::new([Way::new(window, size), Way::new(window, size)]);
        let theirs = Arc::clone(&ways);
        let mut own = vec![2; size];
        let partner = Partner::start(core, move |orders| answer(&theirs, &mut own, orders))?;
        Ok(Self { ways, partner, size, window: window as u64, pace: Pace::default() })
    }

    /// Sends and answers for about `time`.
    pub fn slice(&mut self, clock: &Clock, time: Duration) {
        let Self { ways, partner, size, window, pace } = self;
        let [there, back] = &**ways;
        let (argument, mut result) = (vec![3; *size], vec![4; *size]);
        partner.beside(|| {
            let mut exchange = |time| {
                let (begin, end) = (clock.stamp(), clock.after(time));
                let (mut now, mut sent, mut answered) = (begin, 0, 0);
                while now < end || answered < sent {
                    if now < end && sent - answered < *window && there.send(&argument) {
                        sent += 1;
                    }
                    answered += u64::from(back.receive(&mut result));
                    now = clock.stamp();
                }
                (answered, clock.nanos_between(begin, now))
            };
            exchange(UNCOUNTED);
            let (calls, nanos) = exchange(time);
            pace.add(calls, nanos);
        });
    }

    /// Bytes per second, counted once each way.
    pub fn bandwidth(&self) -> f64 {
        2.0 * self.size as f64 * self.pace.per_second()
    }
}

fn answer(ways: &[Way; 2], own: &mut [u8], orders: &Orders) {
    let [there, back] = ways;
    loop {
        if !there.receive(own) {
            if orders.are_to_stop() {
                return;
            }
            continue;
        }
        // There is a free buffer: no more questions are outstanding than there are.
        while !back.send(own) {}
    }
}
