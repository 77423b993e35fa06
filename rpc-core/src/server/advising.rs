//! A thread's part in what its server advises.

use std::ops::Range;
use std::sync::Arc;

use super::clients::ClientKey;
use crate::time::Instant;
use crate::transport::{
    Adviser, CallToken, Message, Replies, RequestLayer, RequestSink, ThreadLoad,
};

/// How often the thread tells its load.
const EVERY_NS: u64 = 500_000;

/// Clients are counted lately for so long, and up to twice that: 2 ms. In less, not all of a crowd are seen.
const LATELY: u32 = 4;

/// Tells the load of one thread, and takes the advice for its clients.
pub(super) struct Advising {
    adviser: Arc<dyn Adviser>,
    thread: usize,
    /// The transports that are ways of the adviser's address.
    ways: Range<usize>,
    next: Instant,
    pub(super) active: ActiveClients,
}

impl Advising {
    pub(super) fn new(adviser: Arc<dyn Adviser>, thread: usize, ways: Range<usize>) -> Advising {
        let active = ActiveClients::default();
        Advising { adviser, thread, ways, next: Instant::ZERO, active }
    }

    /// Whether the thread is to tell its load.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Tells the load, with the calls over each transport since the thread began. Returns the advice.
    pub(super) fn tell(&mut self, calls: &[u64], now: Instant) -> u8 {
        self.next = now.saturating_add_nanos(EVERY_NS);
        let calls = calls.get(self.ways.clone()).unwrap_or_default();
        let mean_bytes = self.active.take_mean_bytes();
        let (active, active_lately) = self.active.take();
        let load = ThreadLoad { active, active_lately, calls, mean_bytes };
        self.adviser.advise(self.thread, &load, now)
    }
}

/// Which clients have made calls: a set of hashes, of which two clients may have the same one. And how long those were.
#[derive(Default)]
pub(super) struct ActiveClients {
    seen: [u64; 16],
    /// Of this and the last period of [`LATELY`] takes.
    lately: [[u64; 16]; 2],
    takes: u32,
    requests: usize,
    bytes: usize,
}

impl ActiveClients {
    fn note(&mut self, client: ClientKey, len: usize) {
        let number = u64::from(client.id.number) << 8 | u64::from(client.transport);
        // Fibonacci hashing: the high bits of a product with the golden ratio.
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - 10);
        self.seen[(hash >> 6) as usize] |= 1 << (hash & 63);
        self.requests += 1;
        self.bytes = self.bytes.saturating_add(len);
    }

    /// The mean length of the requests since this was last asked.
    fn take_mean_bytes(&mut self) -> usize {
        let requests = core::mem::take(&mut self.requests);
        core::mem::take(&mut self.bytes).checked_div(requests).unwrap_or(0)
    }

    /// How many there were since this was last asked, and lately.
    fn take(&mut self) -> (usize, usize) {
        let seen = core::mem::take(&mut self.seen);
        if self.takes.is_multiple_of(LATELY) {
            self.lately = [[0; 16], self.lately[0]];
        }
        self.takes = self.takes.wrapping_add(1);
        let [this, last] = &mut self.lately;
        this.iter_mut().zip(&seen).for_each(|(this, seen)| *this |= seen);
        let lately = this.iter().zip(last).map(|(this, last)| *this | *last);
        (count(seen.into_iter()), count(lately))
    }
}

fn count(words: impl Iterator<Item = u64>) -> usize {
    words.map(|word| word.count_ones() as usize).sum()
}

/// Takes the requests of one transport, and notes whose they are.
pub(super) struct NotingSink<'a> {
    pub(super) sink: &'a mut dyn RequestSink,
    pub(super) active: &'a mut ActiveClients,
    pub(super) transport: u32,
}

impl RequestLayer for NotingSink<'_> {
    fn inner(&self) -> &dyn RequestSink {
        self.sink
    }

    fn inner_mut(&mut self) -> &mut dyn RequestSink {
        self.sink
    }

    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        self.active.note(ClientKey::of(self.transport, &call), message.len());
        self.sink.request(call, message, replies);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::ClientId;

    #[test]
    fn clients_are_counted_once_and_few_for_the_same() {
        let mut active = ActiveClients::default();
        for _ in 0..3 {
            for number in 0..100 {
                let id = ClientId { number, generation: 1 };
                active.note(ClientKey { transport: 2, id }, 64 << (number % 2));
            }
        }
        let (counted, lately) = active.take();
        assert!((90..=100).contains(&counted), "{counted}");
        assert_eq!(lately, counted);
        assert_eq!((active.take(), active.take_mean_bytes()), ((0, counted), 96));
        assert_eq!(active.take_mean_bytes(), 0);
        let forgotten = (0..2 * LATELY).map(|_| active.take()).last();
        assert_eq!(forgotten, Some((0, 0)));
    }
}
