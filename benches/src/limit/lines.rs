//! Round trips of many cache lines at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;

use super::partner::{Orders, Partner};
use super::{Pace, UNCOUNTED};
use crate::clock::Clock;

/// The longest message that fits in a line together with the word that announces it.
pub const LINE_BYTES: usize = 48;

/// Lines that are read or written in a row before the other direction is served.
const BATCH: usize = 16;

/// Set in answers.
const ANSWER: u64 = 1 << 63;

#[repr(align(64))]
#[derive(Default)]
struct Line {
    /// The message's number, written last.
    number: AtomicU64,
    payload: [AtomicU64; LINE_BYTES / 8],
}

impl Line {
    #[inline]
    fn write(&self, number: u64, payload: &[u64; LINE_BYTES / 8]) {
        for (word, value) in self.payload.iter().zip(payload) {
            word.store(*value, Ordering::Relaxed);
        }
        self.number.store(number, Ordering::Release);
    }

    #[inline]
    fn read(&self, number: u64, payload: &mut [u64; LINE_BYTES / 8]) -> bool {
        if self.number.load(Ordering::Acquire) != number {
            return false;
        }
        for (value, word) in payload.iter_mut().zip(&self.payload) {
            *value = word.load(Ordering::Relaxed);
        }
        true
    }
}

/// Messages of one line each, a window of which is outstanding between two pinned threads. Each is answered in
/// the line in which it arrived. This is what a ring in shared memory can reach if it only copies.
pub struct Lines {
    ring: Arc<[Line]>,
    partner: Partner,
    window: u64,
    sent: u64,
    answered: u64,
    pace: Pace,
}

impl Lines {
    /// Starts the partner on `core`; the calling thread is the other end.
    pub fn start(core: usize, window: usize) -> Result<Self> {
        // Twice the window, so that at the end of the ring no thread waits for the line just written.
        let length = (2 * window).next_power_of_two();
        let ring: Arc<[Line]> = (0..length).map(|_| Line::default()).collect();
        let theirs = Arc::clone(&ring);
        let mut next = 1;
        let partner = Partner::start(core, move |orders| answer(&theirs, &mut next, orders))?;
        let (sent, answered) = (0, 0);
        Ok(Self { ring, partner, window: window as u64, sent, answered, pace: Pace::default() })
    }

    /// Sends and answers for about `time`.
    pub fn slice(&mut self, clock: &Clock, time: Duration) {
        let Self { ring, partner, window, sent, answered, pace } = self;
        partner.work_during(|| {
            let mut exchange = |time| {
                let (before, begin, end) = (*answered, clock.stamp(), clock.after(time));
                let mut now = begin;
                loop {
                    while now < end && *sent - *answered < *window {
                        *sent += 1;
                        line(ring, *sent).write(*sent, &[*sent; LINE_BYTES / 8]);
                    }
                    let mut payload = [0; LINE_BYTES / 8];
                    let mut found = 0;
                    while found < BATCH
                        && *answered < *sent
                        && line(ring, *answered + 1).read((*answered + 1) | ANSWER, &mut payload)
                    {
                        *answered += 1;
                        found += 1;
                    }
                    if *answered == *sent {
                        now = clock.stamp();
                        if now >= end {
                            return (*answered - before, clock.nanos_between(begin, now));
                        }
                    } else if (*answered).is_multiple_of(64) {
                        now = clock.stamp();
                    }
                }
            };
            exchange(UNCOUNTED);
            let (calls, nanos) = exchange(time);
            pace.add(calls, nanos);
        });
    }

    /// Answered messages per second.
    pub fn rate(&self) -> f64 {
        self.pace.per_second()
    }
}

#[inline]
fn line(ring: &[Line], number: u64) -> &Line {
    &ring[number as usize & (ring.len() - 1)]
}

fn answer(ring: &[Line], next: &mut u64, orders: &Orders) {
    let mut payloads = [[0; LINE_BYTES / 8]; BATCH];
    loop {
        let mut found = 0;
        for payload in &mut payloads {
            if !line(ring, *next + found).read(*next + found, payload) {
                break;
            }
            found += 1;
        }
        for payload in &payloads[..found as usize] {
            line(ring, *next).write(*next | ANSWER, payload);
            *next += 1;
        }
        if found == 0 && orders.are_to_stop() {
            return;
        }
    }
}
