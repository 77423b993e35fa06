//! Whether responses are fetched or sent (RFP, section 3.2): fetches and times in, mode out.
//!
//! Fetching costs the server no operation of its NIC, but as long as a call lasts the client reads in vain. When that has been
//! too often, the client asks the server to send, and listens; when the server has become fast, it fetches again.
//!
//! The two ways never lose a response, nor bring it twice: the server leaves each either in the ring or sends it. When it
//! begins to send, it says so, and the client reads the ring until that is empty. When the client fetches again, it takes
//! what still is sent.

use crate::planted::{Bug, is_planted};

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    /// What is faster.
    Adaptive,
    Fetched,
    Sent,
}

/// What the client tells the server; the argument of the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Ask {
    /// Nothing: the server may be asleep, and a WRITE alone does not wake it.
    Wake = 0,
    /// Send responses from now on.
    Send = 1,
    /// Leave them from now on: they are fetched.
    Leave = 2,
    /// All that were left have been fetched.
    Drained = 3,
}

impl Ask {
    pub(super) fn from_wire(argument: u32) -> Option<Ask> {
        [Ask::Wake, Ask::Send, Ask::Leave, Ask::Drained]
            .into_iter()
            .find(|ask| *ask as u32 == argument)
    }
}

/// How responses come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Fetching,
    /// The server was asked to send.
    Asked,
    /// The server sends; what it has left before is fetched. `is_last`: the READ under way was posted after that was known.
    Draining {
        is_last: bool,
    },
    Sent,
}

/// After so many times the allowed failures the call is slow even if no other was.
const LONG_CALL: u32 = 16;

/// Calls in a row that have to be quick before the client fetches again.
const QUICK_CALLS: u32 = 4;

/// A READ takes no less than this: where it is a copy, its time is not measured.
const LEAST_ROUND_TRIP_NANOS: u64 = 200;

/// The client's decisions.
#[derive(Debug)]
pub(super) struct Switch {
    policy: Policy,
    retries: u32,
    mode: Mode,
    /// READs that have failed since the last response.
    failed: u32,
    /// Calls in a row with more failures than allowed.
    slow_calls: u32,
    quick_calls: u32,
    /// How often the client began to fetch again: the server repeats it, so that what it has said before is known as old.
    epoch: u32,
    asks: [Option<Ask>; 2],
}

impl Switch {
    /// Fetches, with so many failures allowed per call (the paper's R).
    pub(super) fn new(policy: Policy, retries: u32) -> Switch {
        let mut switch = Switch {
            policy,
            retries,
            mode: Mode::Fetching,
            failed: 0,
            slow_calls: 0,
            quick_calls: 0,
            epoch: 0,
            asks: [None; 2],
        };
        if policy == Policy::Sent {
            switch.ask_to_send();
        }
        switch
    }

    /// What to tell the server.
    #[inline]
    pub(super) fn take_ask(&mut self) -> Option<Ask> {
        let ask = self.asks[0].take()?;
        self.asks.swap(0, 1);
        Some(ask)
    }

    fn ask(&mut self, ask: Ask) {
        if self.asks.contains(&Some(ask)) {
            return;
        }
        let free = self.asks.iter_mut().find(|place| place.is_none());
        debug_assert!(free.is_some(), "two at most are due");
        if let Some(place) = free {
            *place = Some(ask);
        }
    }

    fn ask_to_send(&mut self) {
        self.mode = Mode::Asked;
        self.ask(Ask::Send);
    }

    /// All responses are fetched.
    #[inline]
    pub(super) fn is_fetching(&self) -> bool {
        self.mode == Mode::Fetching
    }

    /// Responses may be in the ring.
    #[inline]
    pub(super) fn fetches(&self) -> bool {
        self.mode != Mode::Sent
    }

    /// The ring is read until it is empty.
    #[inline]
    pub(super) fn is_draining(&self) -> bool {
        matches!(self.mode, Mode::Draining { .. })
    }

    /// A READ is posted.
    #[inline]
    pub(super) fn reads(&mut self) {
        if let Mode::Draining { is_last } = &mut self.mode {
            *is_last = true;
        }
    }

    /// A READ has brought so many responses.
    #[inline]
    pub(super) fn brought(&mut self, responses: usize) {
        if responses == 0 {
            return;
        }
        self.slow_calls = if self.failed > self.retries { self.slow_calls + 1 } else { 0 };
        self.failed = 0;
        if self.slow_calls >= 2 && self.may_ask() {
            self.ask_to_send();
        }
    }

    /// A READ has brought nothing, although calls are outstanding.
    pub(super) fn failed(&mut self) {
        self.failed += 1;
        if self.mode != Mode::Fetching {
            return;
        }
        let is_slow = self.failed > self.retries && self.slow_calls > 0;
        if (is_slow || self.failed > self.retries * LONG_CALL) && self.may_ask() {
            self.ask_to_send();
        } else if self.failed == self.retries {
            self.ask(Ask::Wake);
        }
    }

    fn may_ask(&self) -> bool {
        self.policy == Policy::Adaptive && self.mode == Mode::Fetching
    }

    /// A READ while [draining](Switch::is_draining) has brought nothing, and no response is under way.
    pub(super) fn is_empty(&mut self) {
        if self.mode == (Mode::Draining { is_last: true }) {
            self.mode = Mode::Sent;
            self.quick_calls = 0;
            self.ask(Ask::Drained);
        }
    }

    /// The server says that it sends from now on. `true`: that is news, so the ring is to be drained.
    pub(super) fn server_sends(&mut self, epoch: u32) -> bool {
        let is_news = epoch == self.epoch && matches!(self.mode, Mode::Fetching | Mode::Asked);
        if is_news {
            self.mode = Mode::Draining { is_last: false };
            if is_planted(Bug::SkippedDrain) {
                self.mode = Mode::Sent;
            }
        }
        is_news
    }

    /// The server has said goodbye: it leaves no more responses, and sends none.
    pub(super) fn server_leaves(&mut self) {
        if matches!(self.mode, Mode::Fetching | Mode::Asked) {
            self.mode = Mode::Draining { is_last: false };
        }
    }

    /// A response was sent, for which the server took this time; a READ takes `round_trip_nanos`.
    pub(super) fn was_sent(&mut self, service_nanos: u64, round_trip_nanos: u64) {
        let round_trip = round_trip_nanos.max(LEAST_ROUND_TRIP_NANOS);
        // A quarter less than what makes a call slow, so that the modes do not alternate.
        let is_quick = service_nanos < u64::from(self.retries) * round_trip / 4 * 3;
        self.quick_calls = if is_quick { self.quick_calls + 1 } else { 0 };
        let may_fetch = self.policy == Policy::Adaptive && self.mode == Mode::Sent;
        if self.quick_calls >= QUICK_CALLS && may_fetch {
            self.mode = Mode::Fetching;
            self.epoch = next_epoch(self.epoch);
            (self.failed, self.slow_calls, self.quick_calls) = (0, 0, 0);
            self.ask(Ask::Leave);
        }
    }
}

/// Epochs count round in the bits that an operation has.
pub(super) fn next_epoch(epoch: u32) -> u32 {
    (epoch + 1) & 0x3ff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(switch: &mut Switch) -> Vec<Ask> {
        std::iter::from_fn(|| switch.take_ask()).collect()
    }

    fn call(switch: &mut Switch, failures: u32) {
        (0..failures).for_each(|_| switch.failed());
        switch.brought(1);
    }

    fn in_sent_mode() -> Switch {
        let mut switch = Switch::new(Policy::Adaptive, 5);
        call(&mut switch, 6);
        call(&mut switch, 6);
        assert_eq!(asks(&mut switch), [Ask::Wake, Ask::Send]);
        assert!(switch.server_sends(0) && switch.is_draining());
        switch.reads();
        switch.is_empty();
        assert_eq!(asks(&mut switch), [Ask::Drained]);
        switch
    }

    #[test]
    fn two_slow_calls_in_a_row_end_fetching() {
        let mut switch = Switch::new(Policy::Adaptive, 5);
        for _ in 0..100 {
            call(&mut switch, 6);
            call(&mut switch, 5);
        }
        let told = asks(&mut switch);
        assert!(told.iter().all(|ask| *ask == Ask::Wake), "{told:?}");
        assert!(switch.is_fetching());
        call(&mut switch, 6);
        (0..5).for_each(|_| switch.failed());
        assert!(switch.is_fetching(), "as many READs may fail");
        switch.failed();
        assert!(!switch.is_fetching(), "the second one's response is not waited for");
    }

    #[test]
    fn one_call_that_lasts_ends_fetching() {
        let mut switch = Switch::new(Policy::Adaptive, 5);
        (0..1000).for_each(|_| switch.failed());
        assert_eq!(asks(&mut switch), [Ask::Wake, Ask::Send]);
    }

    #[test]
    fn only_a_read_that_began_after_the_news_shows_that_nothing_is_left() {
        let mut switch = Switch::new(Policy::Sent, 5);
        assert_eq!(asks(&mut switch), [Ask::Send]);
        switch.reads();
        assert!(switch.server_sends(0));
        switch.is_empty();
        assert!(switch.is_draining(), "that READ was under way before");
        switch.reads();
        switch.is_empty();
        assert!(!switch.fetches());
    }

    #[test]
    fn quick_calls_in_a_row_begin_fetching_again() {
        let mut switch = in_sent_mode();
        for service in [100, 100, 100, 100_000, 100, 100, 100] {
            switch.was_sent(service, 2_000);
        }
        assert!(!switch.fetches());
        switch.was_sent(100, 2_000);
        assert!(switch.is_fetching());
        assert_eq!(asks(&mut switch), [Ask::Leave]);
    }

    #[test]
    fn what_the_server_said_before_is_old() {
        let mut switch = in_sent_mode();
        assert!(!switch.server_sends(0), "said twice");
        (0..4).for_each(|_| switch.was_sent(0, 2_000));
        assert!(!switch.server_sends(0) && switch.is_fetching(), "of an earlier epoch");
        assert!(switch.server_sends(1), "the server ends");
    }

    #[test]
    fn a_policy_is_kept() {
        let mut fetched = Switch::new(Policy::Fetched, 5);
        (0..1000).for_each(|_| fetched.failed());
        assert!(fetched.is_fetching());
        let mut sent = Switch::new(Policy::Sent, 5);
        sent.server_sends(0);
        sent.reads();
        sent.is_empty();
        (0..100).for_each(|_| sent.was_sent(0, 2_000));
        assert!(!sent.fetches());
    }
}
