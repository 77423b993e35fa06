//! Round trips of large buffers.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use crossbeam_queue::ArrayQueue;

use super::partner::{Orders, Partner};
use super::{Pace, UNCOUNTED};
use crate::clock::Clock;

/// Filled and free buffers of one direction between two threads.
struct Direction {
    full: ArrayQueue<Vec<u8>>,
    free: ArrayQueue<Vec<u8>>,
}

impl Direction {
    fn new(count: usize, size: usize) -> Direction {
        let direction = Direction { full: ArrayQueue::new(count), free: ArrayQueue::new(count) };
        for _ in 0..count {
            // There is room for all of them.
            let _ = direction.free.push(vec![1; size]);
        }
        direction
    }

    /// Copies `from` into a free buffer and sends it. Returns whether there was one.
    fn send(&self, from: &[u8]) -> bool {
        let Some(mut buffer) = self.free.pop() else { return false };
        buffer.copy_from_slice(black_box(from));
        self.full.push(buffer).is_ok()
    }

    /// Copies a received buffer and frees it. Returns whether there was one.
    fn receive(&self, into: &mut [u8]) -> bool {
        let Some(buffer) = self.full.pop() else { return false };
        black_box(into).copy_from_slice(&buffer);
        self.free.push(buffer).is_ok()
    }
}

/// An echo of large messages with the fewest copies that two sides with separate memory need: each writes into a
/// shared buffer and reads from one. That is four copies per call, two on each core.
pub struct Copies {
    directions: Arc<[Direction; 2]>,
    partner: Partner,
    size: usize,
    window: u64,
    pace: Pace,
}

impl Copies {
    /// Starts the partner on `core`; the calling thread is the other end.
    pub fn start(core: usize, size: usize, window: usize) -> Result<Self> {
        let directions = Arc::new([Direction::new(window, size), Direction::new(window, size)]);
        let theirs = Arc::clone(&directions);
        let mut own = vec![2; size];
        let partner = Partner::start(core, move |orders| answer(&theirs, &mut own, orders))?;
        Ok(Self { directions, partner, size, window: window as u64, pace: Pace::default() })
    }

    /// Sends and answers for about `time`.
    pub fn slice(&mut self, clock: &Clock, time: Duration) {
        let Self { directions, partner, size, window, pace } = self;
        let [there, back] = &**directions;
        let (argument, mut result) = (vec![3; *size], vec![4; *size]);
        partner.work_during(|| {
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

    /// Bytes per second in one direction.
    pub fn bandwidth(&self) -> f64 {
        2.0 * self.size as f64 * self.pace.per_second()
    }
}

fn answer(directions: &[Direction; 2], own: &mut [u8], orders: &Orders) {
    let [there, back] = directions;
    loop {
        if !there.receive(own) {
            if orders.are_to_stop() {
                return;
            }
            continue;
        }
        // There is a free buffer: at most as many requests are outstanding.
        while !back.send(own) {}
    }
}
