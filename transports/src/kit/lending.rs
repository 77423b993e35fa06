//! Memory for large messages, lent to the clients of one server thread: each client's share, who waits for memory, and
//! who holds it without moving on.

use std::sync::Arc;

use farcall_core::error::Backpressure;
use farcall_core::time::{Instant, PollAt};

use super::fair_queue::{FairQueue, Verdict};
use super::memory::{Budget, RETRY_NANOS};
use crate::planted::{Bug, is_planted};

/// How long a client may hold memory that others wait for without moving on. Longer if it READs responses: so long as the longest of
/// them takes at the least rate.
const STALL_NANOS: u64 = 10_000_000_000;

/// How long a client may hold memory that others wait for with one message: so long, and as long as its bytes take at the
/// least rate. A client that moves on in small steps holds it no longer.
const MESSAGE_NANOS: u64 = 30_000_000_000;

/// The least rate, in bytes per second: what each of a hundred messages gets that share a network of 1 Gbit/s.
const LEAST_RATE: u64 = 1 << 20;

/// How often clients are checked for that.
const STALL_CHECK_NANOS: u64 = 100_000_000;

/// Whether there is memory for all messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    None,
    /// Responses wait because their clients have used up their own shares.
    Shares,
    /// Messages wait for memory that other clients hold.
    Memory,
}

/// A message that has memory.
#[derive(Debug)]
struct Lent {
    slot: u32,
    bytes: u64,
    /// Zero: not known, the next check dates it.
    since: Instant,
    /// The client READs it, which this end does not notice before the end.
    is_read: bool,
}

impl Lent {
    /// How long its bytes take at the least rate.
    fn nanos(&self) -> u64 {
        let nanos = u128::from(self.bytes) * 1_000_000_000 / u128::from(LEAST_RATE);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// Until when it may have the memory although others wait for it.
    fn until(&self) -> Instant {
        self.since.saturating_add_nanos(self.nanos().saturating_add(MESSAGE_NANOS))
    }
}

/// What one client holds.
#[derive(Debug, Default)]
pub(crate) struct Loan {
    /// At most one for each slot.
    lent: Vec<Lent>,
    /// A response waits until the client has given something back.
    is_full: bool,
    /// When one of its messages last moved on; zero: not known, the next check dates it.
    moved: Instant,
}

impl Loan {
    /// It holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }

    fn bytes(&self) -> u64 {
        self.lent.iter().map(|lent| lent.bytes).sum()
    }

    /// It gets memory for the request of a slot.
    pub(crate) fn take(&mut self, slot: u32, bytes: u64, now: Instant) {
        self.lend(Lent { slot, bytes, since: now, is_read: false });
    }

    /// It gets the response of a slot to fetch. Responses are posted outside of polls, where the time is not known.
    pub(crate) fn take_response(&mut self, slot: u32, bytes: u64) {
        self.take(slot, bytes, Instant::ZERO);
    }

    /// It gets the response of a slot to READ: this end does not notice how far it is.
    pub(crate) fn take_response_to_read(&mut self, slot: u32, bytes: u64) {
        self.lend(Lent { slot, bytes, since: Instant::ZERO, is_read: true });
    }

    fn lend(&mut self, lent: Lent) {
        self.moved = lent.since;
        self.lent.push(lent);
    }

    /// The memory of a slot's message comes back, if it has any.
    pub(crate) fn give_back(&mut self, slot: u32) {
        let Some(at) = self.lent.iter().position(|lent| lent.slot == slot) else { return };
        self.lent.swap_remove(at);
        self.is_full = false;
    }

    /// A response is not within the client's share any more. From now on it is to move on, whatever it did before.
    fn fill(&mut self) {
        if !std::mem::replace(&mut self.is_full, true) {
            self.moved = Instant::ZERO;
        }
    }

    /// One of its messages has moved on.
    pub(crate) fn move_on(&mut self, now: Instant) {
        self.moved = now;
    }

    fn is_stalled(&mut self, now: Instant) -> bool {
        if self.is_empty() {
            return false;
        }
        for since in self.lent.iter_mut().map(|lent| &mut lent.since).chain([&mut self.moved]) {
            if *since == Instant::ZERO {
                *since = now;
            }
        }
        // A client may READ its responses one after the other, and the longest first.
        let unseen = self.lent.iter().filter(|lent| lent.is_read).map(Lent::nanos).max();
        let patience = STALL_NANOS.saturating_add(unseen.unwrap_or(0));
        self.moved.saturating_add_nanos(patience) < now
    }

    /// One of its messages takes too long, however often it moves on. Asked after `is_stalled`, which dates them.
    fn is_overdue(&self, now: Instant) -> bool {
        self.lent.iter().any(|lent| lent.until() < now)
    }
}

/// The memory, and the requests that wait for it.
#[derive(Debug)]
pub(crate) struct Lending {
    budget: Arc<Budget>,
    waiting: FairQueue,
    /// Of the messages since the last look.
    shortage: Shortage,
    next_stall_check: Instant,
}

impl Lending {
    pub(crate) fn new(budget: Arc<Budget>) -> Lending {
        let waiting = FairQueue::default();
        Lending { budget, waiting, shortage: Shortage::None, next_stall_check: Instant::ZERO }
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Whether `len` more bytes are within the share of a client, which is half of the memory. One message of any length
    /// always is.
    pub(crate) fn is_within_share(&self, loan: &Loan, len: u64) -> bool {
        loan.is_empty()
            || loan.bytes() + len <= self.budget.limit() / 2
            || is_planted(Bug::UncheckedShare)
    }

    /// Memory for a response of `len` bytes, if `take` finds some now. A client that does not fetch its responses holds its
    /// share, and no more.
    pub(crate) fn take_for_response<B>(
        &mut self,
        loan: &mut Loan,
        len: usize,
        take: impl FnOnce(usize) -> Option<B>,
    ) -> Result<B, Backpressure> {
        if !self.is_within_share(loan, len as u64) {
            loan.fill();
            if self.shortage == Shortage::None {
                self.shortage = Shortage::Shares;
            }
            return Err(Backpressure::Memory);
        }
        take(len).ok_or_else(|| {
            // The next poll frees what is kept for later, and looks for clients that do not move on.
            self.note_shortage();
            Backpressure::Memory
        })
    }

    /// A request waits for memory.
    pub(crate) fn wait(&mut self, client: u32, slot: u32, len: u64) {
        self.waiting.push(client, slot, len);
    }

    /// A request does not wait any more.
    pub(crate) fn stop_waiting(&mut self, client: u32, slot: u32) {
        self.waiting.remove(client, slot);
    }

    /// A client is gone. Those that wait for its memory are served after the next look at the shortage.
    pub(crate) fn forget(&mut self, client: u32) {
        self.waiting.remove_client(client);
        if !self.waiting.is_empty() {
            self.note_shortage();
        }
    }

    /// Requests wait for memory.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A message found no memory.
    #[inline]
    pub(crate) fn has_shortage(&self) -> bool {
        self.shortage != Shortage::None
    }

    /// A message waits for memory that others hold.
    pub(crate) fn note_shortage(&mut self) {
        self.shortage = Shortage::Memory;
    }

    /// Which shortage there was. Serving notes it again if there still is one, and so does a response that waits.
    pub(crate) fn take_shortage(&mut self) -> Shortage {
        std::mem::replace(&mut self.shortage, Shortage::None)
    }

    /// When to look again: memory comes back from handlers without an event.
    pub(crate) fn poll_at(&self, now: Instant) -> PollAt {
        match self.shortage {
            Shortage::Memory => PollAt::At(now.saturating_add_nanos(RETRY_NANOS)),
            // Responses that wait for their client's share are tried again by those that have made them.
            Shortage::Shares | Shortage::None => PollAt::OnEvent,
        }
    }

    /// Tries to give memory to those that wait, in turn. `lending` finds this in the `owner`, whom `attempt` gets too.
    pub(crate) fn serve<O>(
        owner: &mut O,
        lending: impl Fn(&mut O) -> &mut Lending,
        mut attempt: impl FnMut(&mut O, u32, u32, u64) -> Verdict,
    ) {
        let mut waiting = std::mem::take(&mut lending(owner).waiting);
        waiting.serve(|client, slot, len| attempt(owner, client, slot, len));
        let added = std::mem::replace(&mut lending(owner).waiting, waiting);
        debug_assert!(added.is_empty(), "serving adds nobody to the queue");
    }

    /// Finds clients that do not move on and hold memory which others wait for, or which their own responses wait for.
    pub(crate) fn find_stalled<'l>(
        &mut self,
        shortage: Shortage,
        now: Instant,
        loans: impl Iterator<Item = (u32, &'l mut Loan)>,
        stalled: &mut Vec<u32>,
    ) {
        if now < self.next_stall_check {
            return;
        }
        self.next_stall_check = now.saturating_add_nanos(STALL_CHECK_NANOS);
        let is_stalled = |loan: &mut Loan| match shortage {
            Shortage::Memory => loan.is_stalled(now) || loan.is_overdue(now),
            Shortage::Shares | Shortage::None => loan.is_full && loan.is_stalled(now),
        };
        stalled.extend(loans.filter_map(|(client, loan)| is_stalled(loan).then_some(client)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn a_client_gets_one_message_of_any_length_and_then_half_of_the_memory() {
        let lending = Lending::new(Budget::new(100));
        let mut loan = Loan::default();
        assert!(lending.is_within_share(&loan, 90));
        loan.take(0, 20, at(1));
        assert!(lending.is_within_share(&loan, 30) && !lending.is_within_share(&loan, 31));
        loan.give_back(1);
        assert!(!loan.is_empty(), "another slot has nothing to give back");
        loan.give_back(0);
        assert!(loan.is_empty());
    }

    #[test]
    fn a_client_that_does_not_move_on_is_stalled() {
        let mut lending = Lending::new(Budget::new(100));
        let (mut idle, mut holding, mut lent) = (Loan::default(), Loan::default(), Loan::default());
        holding.take(0, 10, at(1));
        lent.take_response(0, 10);
        let mut check = |lending: &mut Lending, now| {
            let mut stalled = Vec::new();
            let loans = [(0, &mut idle), (1, &mut holding), (2, &mut lent)];
            lending.find_stalled(Shortage::Memory, now, loans.into_iter(), &mut stalled);
            stalled
        };
        assert_eq!(check(&mut lending, at(STALL_NANOS)), []);
        assert_eq!(check(&mut lending, at(STALL_NANOS + STALL_CHECK_NANOS)), [1]);
        assert_eq!(check(&mut lending, at(STALL_NANOS + STALL_CHECK_NANOS + 1)), [], "too soon");
        assert_eq!(check(&mut lending, at(3 * STALL_NANOS)), [1, 2]);
    }

    #[test]
    fn a_client_whose_share_is_used_up_is_to_move_on_even_if_no_other_waits() {
        let mut lending = Lending::new(Budget::new(100));
        let (mut full, mut other) = (Loan::default(), Loan::default());
        full.take(0, 50, at(1));
        other.take(0, 40, at(1));
        let respond = |full: &mut Loan, lending: &mut Lending| {
            lending.take_for_response(full, 1, Some).is_ok()
        };
        let mut check = |full: &mut Loan, lending: &mut Lending, now| {
            let shortage = lending.take_shortage();
            let mut stalled = Vec::new();
            let loans = [(0, full), (1, &mut other)];
            lending.find_stalled(shortage, at(now), loans.into_iter(), &mut stalled);
            (shortage, stalled)
        };
        let late = 5 * STALL_NANOS;
        assert!(!respond(&mut full, &mut lending));
        assert_eq!(check(&mut full, &mut lending, late), (Shortage::Shares, vec![]), "only now");
        assert!(!respond(&mut full, &mut lending));
        assert_eq!(check(&mut full, &mut lending, late + STALL_NANOS), (Shortage::Shares, vec![]));
        let later = late + STALL_NANOS + STALL_CHECK_NANOS;
        assert!(!respond(&mut full, &mut lending));
        assert_eq!(check(&mut full, &mut lending, later), (Shortage::Shares, vec![0]));
        full.give_back(0);
        assert!(respond(&mut full, &mut lending));
        assert_eq!(check(&mut full, &mut lending, 2 * later), (Shortage::None, vec![]));
    }

    #[test]
    fn a_client_that_moves_on_in_small_steps_is_stalled_if_a_message_takes_too_long() {
        const SECOND: u64 = 1_000_000_000;
        let mut lending = Lending::new(Budget::new(100 << 20));
        let mut loan = Loan::default();
        // At the least rate it takes 20 s, and it may take 30 s more.
        loan.take(100, 20 * LEAST_RATE, at(SECOND));
        let mut is_stalled = |loan: &mut Loan, now| {
            let mut stalled = Vec::new();
            lending.find_stalled(Shortage::Memory, at(now), [(0, loan)].into_iter(), &mut stalled);
            !stalled.is_empty()
        };
        for second in 2..=51 {
            // Other messages come and go meanwhile.
            loan.take(second, LEAST_RATE, at(u64::from(second) * SECOND));
            loan.move_on(at(u64::from(second) * SECOND));
            assert!(!is_stalled(&mut loan, u64::from(second) * SECOND), "after {second} s");
            loan.give_back(second);
        }
        loan.move_on(at(52 * SECOND));
        assert!(is_stalled(&mut loan, 52 * SECOND));
        loan.give_back(100);
        assert!(!is_stalled(&mut loan, 60 * SECOND), "it holds nothing");
    }

    #[test]
    fn a_client_that_reads_a_long_response_may_be_silent_for_as_long_as_that_takes() {
        const SECOND: u64 = 1_000_000_000;
        let lending = || Lending::new(Budget::new(100 << 20));
        let stalled_after = |loan: &mut Loan| {
            let mut lending = lending();
            let is_stalled = |second: &u64| {
                let (mut stalled, now) = (Vec::new(), at(second * SECOND));
                let loans = [(0, &mut *loan)].into_iter();
                lending.find_stalled(Shortage::Memory, now, loans, &mut stalled);
                !stalled.is_empty()
            };
            (1..100).find(is_stalled).unwrap()
        };
        // The first look dates it.
        let (mut read, mut sent) = (Loan::default(), Loan::default());
        read.take_response_to_read(0, 20 * LEAST_RATE);
        read.take_response_to_read(1, 5 * LEAST_RATE);
        sent.take_response(0, 20 * LEAST_RATE);
        assert_eq!(stalled_after(&mut read), 1 + STALL_NANOS / SECOND + 20 + 1);
        assert_eq!(stalled_after(&mut sent), 1 + STALL_NANOS / SECOND + 1);
    }
}
