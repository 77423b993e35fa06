//! Calls whose handlers take long: how many requests are handled between two looks at the clock, and which clients send such calls.
//! Times in, numbers out.
//!
//! Handlers run in the server's thread, so the end of a slice is seen only between looks. A look takes as many requests as fit the
//! rest of the slice, by what those of the look before took. A slice begins with few. A client whose calls are known to be long
//! comes at the end of the slice, with one. A client of which it is not known has a look of its own: when it is new, or when one of those that
//! were in a look with it must have had a long call.

use farcall_core::time::Instant;

/// A slice fits so many calls that are not long, and its first look takes as many.
const CALLS_OF_A_SLICE: u64 = 8;

/// A shorter call is not long, however short slices are: it costs less than what is done for long ones.
const SHORTEST_LONG_NANOS: u64 = 10_000;

/// More long calls of a client are not counted: after so many short ones it is like others.
const MOST_COUNTED: u8 = 4;

/// How long the calls of a client are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Calls {
    /// A call that is taken alone tells.
    Unknown,
    Short,
    /// After so many short ones it is like others.
    Long(u8),
}

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
    /// The slice is not over.
    has_time: bool,
    /// Nothing more is taken in this look.
    takes_one: bool,
    /// A request of a client with long calls may be taken in this look.
    may_take_long: bool,
    /// One was taken in this slice.
    has_taken_long: bool,
    clients_calls: Vec<Calls>,
    /// Some client's calls became short.
    have_shortened: bool,
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
            has_time: true,
            takes_one: false,
            may_take_long: true,
            has_taken_long: false,
            clients_calls: Vec::new(),
            have_shortened: false,
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
        (self.looked, self.requests, self.takes_one) = (now, 0, false);
        self.clients.clear();
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        let Some(left_nanos) = left_nanos else {
            (self.has_time, self.may_take_long) = (true, true);
            return u32::MAX;
        };
        self.has_time = left_nanos > 0;
        self.may_take_long = !self.has_time && !self.has_taken_long;
        let fit = left_nanos / self.each_nanos.max(1);
        let least = u64::from(is_first || left_nanos > 0);
        u32::try_from(fit.max(least)).unwrap_or(u32::MAX)
    }

    /// A request of a client with long calls may be taken now, after so many others in this look. One may when there is nothing else to
    /// do and the slice is not over, and one at the end of a slice that had none. While no other group waits, one in each look.
    pub(super) fn may_take_long(&self, others: u32) -> bool {
        !self.takes_one && (self.may_take_long || others == 0 && self.has_time)
    }

    /// How many requests of a client may be taken in this look before those of clients with [long](LongCalls::may_take_long) calls,
    /// if so many more may be taken at all.
    #[inline]
    pub(super) fn most_of(&self, client: u32, most: u32) -> u32 {
        match self.of(client) {
            _ if self.takes_one => 0,
            Calls::Short => most,
            Calls::Unknown if self.requests == 0 => most.min(1),
            Calls::Unknown | Calls::Long(_) => 0,
        }
    }

    /// So many requests of a client were taken.
    pub(super) fn record(&mut self, client: u32, requests: u32) {
        if requests > 0 {
            self.requests += requests;
            self.clients.push(client);
            match self.of(client) {
                Calls::Short => {}
                Calls::Unknown => self.takes_one = true,
                Calls::Long(_) => (self.may_take_long, self.has_taken_long) = (false, true),
            }
        }
    }

    /// The requests of the last look took so long each.
    fn learn(&mut self, each_nanos: u64) {
        if self.has_looked {
            self.each_nanos = each_nanos;
        }
        let is_long = each_nanos > self.long_nanos;
        let is_one = self.clients.len() == 1;
        let is_known = self.clients.iter().any(|client| self.are_long(*client));
        for &client in &self.clients {
            let at = client as usize;
            if self.clients_calls.len() <= at {
                self.clients_calls.resize(at + 1, Calls::Unknown);
            }
            let calls = &mut self.clients_calls[at];
            *calls = match (is_long, is_one, *calls) {
                (true, true, Calls::Long(counted)) => Calls::Long((counted + 1).min(MOST_COUNTED)),
                (true, true, _) => Calls::Long(1),
                // It may be this one.
                (true, false, _) if !is_known => Calls::Unknown,
                (false, true, Calls::Long(counted @ 2..)) => Calls::Long(counted - 1),
                (false, true, Calls::Long(_) | Calls::Unknown) => {
                    self.have_shortened = true;
                    Calls::Short
                }
                // A long one may be among many short ones.
                (_, _, same) => same,
            };
        }
    }

    /// How long the calls of this client are.
    #[inline]
    pub(super) fn of(&self, client: u32) -> Calls {
        self.clients_calls.get(client as usize).copied().unwrap_or(Calls::Unknown)
    }

    /// The calls of this client are long. Its requests are taken [one by one](LongCalls::may_take_long), out of its log.
    #[inline]
    pub(super) fn are_long(&self, client: u32) -> bool {
        matches!(self.of(client), Calls::Long(_))
    }

    /// Since this was called last, the calls of some client became short.
    #[inline]
    pub(super) fn have_shortened(&mut self) -> bool {
        std::mem::take(&mut self.have_shortened)
    }

    /// There is one group, and no switch that calls could hold up.
    pub(super) fn forget_all(&mut self) {
        self.requests = 0;
        self.clients_calls.fill(Calls::Unknown);
    }

    /// A client has gone.
    pub(super) fn forget(&mut self, client: u32) {
        if let Some(calls) = self.clients_calls.get_mut(client as usize) {
            *calls = Calls::Unknown;
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

    /// A look in which each of these clients has a call that takes so long in the mean.
    fn take(calls: &mut LongCalls, now: &mut u64, nanos: u64, clients: &[u32]) {
        let requests: Vec<_> = clients.iter().map(|client| (*client, 1)).collect();
        look(calls, *now, SLICE, &requests);
        *now += nanos * clients.len() as u64;
        look(calls, *now, SLICE, &[]);
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
        assert!(calls.are_long(1));
        calls.begin_slice();
        look(&mut calls, 3 * SLICE, 50_000, &[]);
        assert!(!calls.may_take_long(3) && calls.may_take_long(0));
        look(&mut calls, 4 * SLICE, 0, &[]);
        assert!(calls.may_take_long(3));
        calls.record(1, 1);
        assert!(!calls.may_take_long(3) && !calls.may_take_long(0), "one at the end of each slice");
        look(&mut calls, 6 * SLICE, None, &[]);
        assert!(calls.may_take_long(3), "no other group waits");
    }

    #[test]
    fn a_clients_calls_are_long_until_as_many_were_short() {
        let mut calls = LongCalls::new(SLICE, 4);
        let mut now = 0;
        (0..10).for_each(|_| take(&mut calls, &mut now, 2 * SLICE, &[1]));
        for _ in 0..4 {
            assert!(calls.are_long(1));
            take(&mut calls, &mut now, 500, &[1]);
        }
        assert_eq!(calls.of(1), Calls::Short);
        take(&mut calls, &mut now, 2 * SLICE, &[1]);
        take(&mut calls, &mut now, 2 * SLICE, &[2]);
        calls.forget(1);
        assert!(!calls.are_long(1) && calls.are_long(2), "another client of that number");
        calls.forget_all();
        assert_eq!(calls.of(2), Calls::Unknown);
    }

    #[test]
    fn what_is_not_known_of_a_client_is_found_out_alone() {
        let mut calls = LongCalls::new(SLICE, 4);
        let mut now = 0;
        (1..4).for_each(|client| take(&mut calls, &mut now, 500, &[client]));
        assert!(calls.have_shortened() && !calls.have_shortened());
        assert_eq!((calls.most_of(1, 7), calls.most_of(4, 7)), (7, 1), "a new one is first");
        calls.record(1, 1);
        assert_eq!((calls.most_of(1, 7), calls.most_of(4, 7)), (7, 0), "or waits");
        take(&mut calls, &mut now, 3 * SLICE, &[1, 2]);
        assert_eq!(
            [calls.of(1), calls.of(2), calls.of(3)],
            [Calls::Unknown, Calls::Unknown, Calls::Short]
        );
        calls.record(1, 1);
        assert_eq!((calls.most_of(3, 7), calls.may_take_long(1)), (0, false), "alone");
        take(&mut calls, &mut now, 500, &[1]);
        take(&mut calls, &mut now, 3 * SLICE, &[2]);
        assert!(calls.of(1) == Calls::Short && calls.are_long(2));
        take(&mut calls, &mut now, 3 * SLICE, &[1, 2]);
        assert_eq!(calls.of(1), Calls::Short, "it was the other");
    }
}
