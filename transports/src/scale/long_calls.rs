//! Calls whose handlers take long: how many requests are handled between two looks at the clock, and which clients send such calls.
//! Times in, numbers out.
//!
//! Handlers run in the server's thread, so the end of a slice is seen only between looks. A look takes as many requests as fit the
//! rest of the slice, by what those of the look before took. A slice begins with few. A client whose calls are known to be long
//! comes at the end of the slice, with one.

use farcall_core::time::Instant;

/// A slice fits so many calls that are not long, and its first look takes as many.
const CALLS_OF_A_SLICE: u64 = 8;

/// A shorter call is not long, however short slices are: it costs less than what is done for long ones.
const SHORTEST_LONG_NANOS: u64 = 10_000;

/// More long calls of a client are not counted: after so many short ones it is like others.
const MOST_COUNTED: u8 = 4;

/// How long handlers take.
#[derive(Debug)]
pub(super) struct LongCalls {
    /// A call that takes longer is long.
    long_nanos: u64,
    /// Of the last look.
    looked: Instant,
    requests: u32,
    clients: Vec<u32>,
    /// What a request takes, as far as the slice has shown.
    each_nanos: u64,
    /// There was a look in this slice.
    has_looked: bool,
    /// A request of a client with long calls may be taken in this look.
    may_take_long: bool,
    /// One was taken in this slice.
    has_taken_long: bool,
    /// Long calls of each client, less short ones.
    counted: Vec<u8>,
}

impl LongCalls {
    /// For usual slices of this length, in which at most so many clients are served.
    pub(super) fn new(slice_nanos: u64, clients: usize) -> LongCalls {
        let long_nanos = (slice_nanos / CALLS_OF_A_SLICE).max(SHORTEST_LONG_NANOS);
        LongCalls {
            long_nanos,
            looked: Instant::ZERO,
            requests: 0,
            clients: Vec::with_capacity(clients),
            each_nanos: long_nanos,
            has_looked: false,
            may_take_long: true,
            has_taken_long: false,
            counted: Vec::new(),
        }
    }

    /// A slice begins.
    pub(super) fn begin_slice(&mut self) {
        self.each_nanos = self.long_nanos;
        (self.has_looked, self.has_taken_long) = (false, false);
    }

    /// A look begins, with so much of the slice left; `None`: no other group waits. How many requests it may take of clients with
    /// short calls: at least one in each slice.
    pub(super) fn begin_look(&mut self, now: Instant, left_nanos: Option<u64>) -> u32 {
        if self.requests > 0 {
            let nanos = now.as_nanos().saturating_sub(self.looked.as_nanos());
            self.learn(nanos / u64::from(self.requests));
        }
        (self.looked, self.requests) = (now, 0);
        self.clients.clear();
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        let Some(left_nanos) = left_nanos else {
            self.may_take_long = true;
            return u32::MAX;
        };
        self.may_take_long = left_nanos == 0 && !self.has_taken_long;
        let fit = left_nanos / self.each_nanos.max(1);
        let least = u64::from(is_first || left_nanos > 0);
        u32::try_from(fit.max(least)).unwrap_or(u32::MAX)
    }

    /// A request of a client with long calls may be taken now, after so many others in this look. One in each slice may: at its end,
    /// or when there is nothing else to do. While no other group waits, one in each look.
    pub(super) fn may_take_long(&self, others: u32) -> bool {
        self.may_take_long || others == 0 && !self.has_taken_long
    }

    /// A request of a client with long calls was taken in this slice.
    pub(super) fn have_been_taken(&self) -> bool {
        self.has_taken_long
    }

    /// So many requests of a client were taken.
    pub(super) fn record(&mut self, client: u32, requests: u32) {
        if requests > 0 {
            self.requests += requests;
            self.clients.push(client);
            if self.are_of(client) {
                (self.may_take_long, self.has_taken_long) = (false, true);
            }
        }
    }

    /// The requests of the last look took so long each.
    fn learn(&mut self, each_nanos: u64) {
        if self.has_looked {
            self.each_nanos = each_nanos;
        }
        let is_long = each_nanos > self.long_nanos;
        // One of several may have been long. Which one shows when they are served one by one.
        let is_sure = self.clients.len() == 1;
        for &client in &self.clients {
            let at = client as usize;
            if is_long && self.counted.len() <= at {
                self.counted.resize(at + 1, 0);
            }
            let Some(counted) = self.counted.get_mut(at) else { continue };
            *counted = match (is_long, is_sure) {
                (true, true) => (*counted + 1).min(MOST_COUNTED),
                (true, false) => (*counted).max(1),
                (false, true) => counted.saturating_sub(1),
                // A long one may be among many short ones.
                (false, false) => *counted,
            };
        }
    }

    /// The calls of this client are long. Its requests are taken [one by one](LongCalls::may_take_long), out of its log.
    #[inline]
    pub(super) fn are_of(&self, client: u32) -> bool {
        self.counted.get(client as usize).is_some_and(|counted| *counted > 0)
    }

    /// There is one group, and no switch that calls could hold up.
    pub(super) fn forget_all(&mut self) {
        self.requests = 0;
        self.counted.fill(0);
    }

    /// A client has gone.
    pub(super) fn forget(&mut self, client: u32) {
        if let Some(counted) = self.counted.get_mut(client as usize) {
            *counted = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: u64 = 100_000;

    /// A look at this time that takes these requests, and how many it may take.
    fn look(
        calls: &mut LongCalls,
        now: u64,
        left: impl Into<Option<u64>>,
        requests: &[(u32, u32)],
    ) -> u32 {
        let most = calls.begin_look(Instant::from_nanos(now), left.into());
        requests.iter().for_each(|(client, requests)| calls.record(*client, *requests));
        most
    }

    #[test]
    fn a_look_takes_as_many_requests_as_fit_the_slice() {
        let mut calls = LongCalls::new(SLICE, 4);
        calls.begin_slice();
        assert_eq!(look(&mut calls, 0, SLICE, &[(1, 8)]), 8);
        assert_eq!(look(&mut calls, 4_000, SLICE - 4_000, &[(1, 2)]), 192, "500 ns each");
        assert_eq!(look(&mut calls, 44_000, 56_000, &[(1, 1)]), 2, "20 us each");
        assert_eq!(look(&mut calls, 94_000, 6_000, &[]), 1, "50 us");
        assert_eq!(look(&mut calls, 101_000, 0, &[]), 0, "it is over");
        assert_eq!(look(&mut calls, 102_000, None, &[]), u32::MAX, "no other group waits");
        calls.begin_slice();
        assert_eq!(look(&mut calls, 202_000, 0, &[]), 1, "one in each slice");
        assert_eq!(look(&mut calls, 203_000, 0, &[]), 0);
    }

    #[test]
    fn a_long_call_is_taken_at_the_end_of_a_slice_or_when_there_is_nothing_else() {
        let mut calls = LongCalls::new(SLICE, 4);
        for now in [0, 2 * SLICE] {
            look(&mut calls, now, SLICE, &[(1, 1)]);
        }
        assert!(calls.are_of(1));
        calls.begin_slice();
        look(&mut calls, 3 * SLICE, 50_000, &[]);
        assert!(!calls.may_take_long(3) && calls.may_take_long(0));
        look(&mut calls, 4 * SLICE, 0, &[]);
        assert!(calls.may_take_long(3));
        calls.record(1, 1);
        assert!(!calls.may_take_long(3) && !calls.may_take_long(0), "one in each slice");
        assert!(calls.have_been_taken());
        look(&mut calls, 6 * SLICE, None, &[]);
        assert!(calls.may_take_long(3), "no other group waits");
    }

    #[test]
    fn a_clients_calls_are_long_until_as_many_were_short() {
        let mut calls = LongCalls::new(SLICE, 4);
        let mut now = 0;
        let mut take = |calls: &mut LongCalls, nanos: u64, clients: &[u32]| {
            let requests: Vec<_> = clients.iter().map(|client| (*client, 1)).collect();
            look(calls, now, SLICE, &requests);
            now += nanos;
            look(calls, now, SLICE, &[]);
        };
        take(&mut calls, 3 * SLICE, &[1, 2]);
        assert!(calls.are_of(1) && calls.are_of(2), "either may be it");
        take(&mut calls, SLICE / 8, &[2]);
        assert!(!calls.are_of(2));
        take(&mut calls, 2 * SLICE, &[1]);
        take(&mut calls, 500, &[1]);
        (0..9).for_each(|_| take(&mut calls, 500, &[1, 2]));
        assert!(calls.are_of(1));
        take(&mut calls, 500, &[1]);
        assert!(!calls.are_of(1));
        (0..10).for_each(|_| take(&mut calls, 2 * SLICE, &[1]));
        (0..4).for_each(|_| take(&mut calls, 500, &[1]));
        assert!(!calls.are_of(1));
        take(&mut calls, 2 * SLICE, &[1]);
        take(&mut calls, 2 * SLICE, &[2]);
        calls.forget(1);
        assert!(!calls.are_of(1) && calls.are_of(2), "another client of that number");
        calls.forget_all();
        assert!(!calls.are_of(2));
    }
}
