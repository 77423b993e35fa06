//! What a client sends again, and when; and how much it may have under way.

use std::time::Duration;

use farcall_core::time::{Instant, PollAt};

use super::congestion::Congestion;
use super::flight::Flight;
use super::releases::Releases;
use super::round_trip::RoundTrip;
use super::timers::Timers;
use super::transfers::Transfers;
use super::window::{LATE, Phase, Slot, ToSend, Window};

/// Round trips that have shortened by less may be long again: queues come and go.
const MUCH_SHORTER: u64 = 8;

#[derive(Debug)]
pub(crate) struct Retransmission {
    flight: Flight,
    congestion: Congestion,
    timers: Timers,
    round_trip: RoundTrip,
    /// The longest timeout that something under way may have from what was measured, before it is doubled.
    longest: u64,
    /// Slots that were sent since the last poll: their time counts from the next.
    fresh: Vec<u32>,
}

impl Retransmission {
    /// For a session with this window, whose congestion control, if any, allows at most `most` datagrams.
    pub(crate) fn new(window: u32, most: u32, silence: Duration) -> Self {
        Retransmission {
            flight: Flight::new(window),
            congestion: Congestion::new(most),
            timers: Timers::new(silence),
            round_trip: RoundTrip::default(),
            longest: 0,
            fresh: Vec::with_capacity(window as usize),
        }
    }

    /// Datagrams, or parts, that may be under way.
    pub(crate) fn allowance(&self) -> u32 {
        self.congestion.window()
    }

    /// No more requests may be under way.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.flight.under_way() >= self.congestion.window() || !self.flight.has_room()
    }

    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.timers.next() <= now
    }

    /// When something is to be sent again.
    #[inline]
    pub(crate) fn poll_at(&self) -> PollAt {
        match self.timers.next() {
            Instant::FAR_FUTURE => PollAt::OnEvent,
            at => PollAt::At(at),
        }
    }

    /// A request or its announcement was put into the datagram that the port builds after having posted this many.
    #[inline]
    pub(crate) fn add_request(&mut self, index: u32, slot: &mut Slot, posted: u32) {
        slot.datagram = Some(self.flight.add_request(posted));
        self.add(index, slot);
    }

    /// A message of the slot was put into a datagram.
    #[inline]
    pub(crate) fn add(&mut self, index: u32, slot: &mut Slot) {
        slot.to_send = ToSend::Nothing;
        slot.copy = slot.next_copy();
        slot.sent = true;
        self.fresh.push(index);
    }

    /// Begins the timeouts of what was sent since the last poll.
    #[inline]
    pub(crate) fn start_timers(&mut self, window: &mut Window, now: Instant) {
        let mut has_repeated = false;
        for index in self.fresh.drain(..) {
            let slot = &mut window.slots[index as usize];
            slot.sent_at = now;
            if slot.copy == 0 {
                slot.first_at = now;
            } else {
                has_repeated = true;
            }
            slot.due = now.saturating_add_nanos(self.round_trip.timeout(slot.repeats));
            self.timers.set(slot.due);
        }
        if has_repeated {
            self.timers.note_repeat(now);
        }
    }

    /// Never repeats what was sent since the last poll: to measure what repair costs.
    #[inline]
    pub(crate) fn discard_timers(&mut self) {
        self.fresh.clear();
    }

    /// Begins the slot's timeout now.
    #[inline]
    pub(crate) fn start_timer(&mut self, slot: &mut Slot, now: Instant) {
        slot.due = now.saturating_add_nanos(self.round_trip.timeout(slot.repeats));
        self.timers.set(slot.due);
    }

    /// There was progress: the timeout begins again, and is short.
    pub(crate) fn restart_timer(&mut self, slot: &mut Slot, now: Instant) {
        slot.repeats = 0;
        self.start_timer(slot, now);
    }

    /// There are releases to send: they are timed from the next poll.
    pub(crate) fn queue_release(&mut self) {
        self.timers.set(Instant::ZERO);
    }

    /// The server has sent a datagram.
    #[inline]
    pub(crate) fn note_datagram(
        &mut self,
        window: &mut Window,
        releases: &mut Releases,
        now: Instant,
    ) {
        if let Some(since) = self.timers.note_answer() {
            self.end_silence(window, releases, since, now);
        }
    }

    /// The server answers again, after messages were repeated since that moment. How often they were says nothing of it
    /// any more: no other message waits as long as the silence has made them wait (RFC 9002, section 6.2.1).
    #[cold]
    fn end_silence(
        &mut self,
        window: &mut Window,
        releases: &mut Releases,
        since: Instant,
        now: Instant,
    ) {
        // An answer in time to a question about a call that runs: the next question may come later.
        if since.saturating_add_nanos(self.round_trip.timeout(0)) >= now {
            return;
        }
        for slot in window.slots.iter_mut().filter(|slot| slot.is_posted() && slot.repeats > 0) {
            self.restart_timer(slot, now);
        }
        releases.restart_timers(now, &self.round_trip, &mut self.timers);
    }

    /// The server mentioned this slot; `mark` says which transmission it acknowledges.
    #[inline]
    pub(crate) fn acknowledge_copy(&mut self, slot: &Slot, mark: u8, now: Instant) {
        let Some(datagram) = slot.datagram else { return };
        // One round trip for each datagram; and only the latest copy says which datagram it was.
        if mark & !LATE == slot.copy && !self.flight.acknowledge(datagram) {
            return;
        }
        if let Some(sent_at) = slot.sent_at(mark) {
            self.record_round_trip(now, sent_at, Some(1));
        }
    }

    /// What was sent at `sent_at` was answered now. The round trip stands for `datagrams`, or for all that were under way.
    #[inline]
    pub(crate) fn record_round_trip(
        &mut self,
        now: Instant,
        sent_at: Instant,
        datagrams: Option<u32>,
    ) {
        let nanos = now.as_nanos().saturating_sub(sent_at.as_nanos());
        self.round_trip.record(nanos);
        self.congestion.record(now, nanos, datagrams);
        let timeout = self.round_trip.timeout(0);
        match timeout < self.longest / MUCH_SHORTER {
            true => self.shorten_timeouts(timeout),
            false => self.longest = self.longest.max(timeout),
        }
    }

    /// What is under way was timed when round trips took much longer, while the server was paused for example. The next look at what is
    /// due times it by what they take now.
    #[cold]
    fn shorten_timeouts(&mut self, timeout: u64) {
        self.longest = timeout;
        self.timers.set(Instant::ZERO);
    }

    /// The server mentioned the slot's request, or its call is over.
    #[inline]
    pub(crate) fn forget_datagram(&mut self, slot: &mut Slot) {
        if let Some(datagram) = slot.datagram.take() {
            self.flight.remove_request(datagram);
        }
    }

    /// One more copy of what the slot has sent is to leave.
    fn repeat(&mut self, slot: &mut Slot, now: Instant) {
        self.forget_datagram(slot);
        slot.repeats = slot.repeats.saturating_add(1);
        self.start_timer(slot, now);
    }

    /// Some datagram was overtaken.
    #[inline]
    pub(crate) fn has_overtaken(&self) -> bool {
        self.flight.has_overtaken()
    }

    /// Queues requests again whose datagram was overtaken: they, or their answers, are likely lost. If they are not, the
    /// server says that it has them, and only a timeout repeats them.
    #[cold]
    pub(crate) fn queue_overtaken(&mut self, window: &mut Window, now: Instant) {
        // What is younger may be only late (RACK, RFC 8985, section 6.2).
        let sent_before = self.round_trip.answered_if_sent_before(now);
        for index in 0..window.used() {
            let slot = &mut window.slots[index as usize];
            let is_overtaken = slot.datagram.is_some_and(|it| self.flight.is_overtaken(it));
            let is_late = slot.due != Instant::FAR_FUTURE && slot.sent_at <= sent_before;
            if is_overtaken && is_late && slot.is_unknown() {
                let what = if slot.abandoned { ToSend::Cancel } else { ToSend::Request };
                self.repeat(slot, now);
                window.queue(index, what);
            }
        }
    }

    /// Queues again what is due. Tells whether the server is to be declared dead.
    pub(crate) fn queue_due(
        &mut self,
        window: &mut Window,
        transfers: &mut Transfers,
        releases: &mut Releases,
        now: Instant,
    ) -> bool {
        self.timers.clear();
        let (mut is_overdue, mut has_repeated) = (false, false);
        for index in 0..window.used() {
            let slot = &mut window.slots[index as usize];
            if !slot.is_posted() {
                continue;
            }
            if slot.due > now {
                if slot.due != Instant::FAR_FUTURE {
                    let timeout = self.round_trip.timeout(slot.repeats);
                    slot.due = slot.due.min(now.saturating_add_nanos(timeout));
                }
                self.timers.set(slot.due);
                continue;
            }
            if slot.to_send != ToSend::Nothing {
                // It has not left yet.
                self.start_timer(slot, now);
                continue;
            }
            self.repeat(slot, now);
            let what = match slot.phase {
                _ if slot.abandoned => ToSend::Cancel,
                Phase::Known => ToSend::Ask,
                Phase::Sending => {
                    transfers.time_out(index);
                    ToSend::Nothing
                }
                // Nothing is missing while the response waits for memory.
                Phase::Fetching if transfers.missing(index).is_none() => continue,
                Phase::Fetching => {
                    transfers.time_out(index);
                    ToSend::Missing
                }
                _ => ToSend::Request,
            };
            is_overdue = true;
            match what {
                // Parts are repeated at once; all else counts when it has left: a request may wait for others.
                ToSend::Nothing => has_repeated = true,
                what => window.queue(index, what),
            }
        }
        has_repeated |= releases.queue_due(now, &self.round_trip, &mut self.timers);
        if has_repeated {
            self.timers.note_repeat(now);
        }
        (is_overdue || has_repeated) && self.timers.is_silent(now)
    }
}

#[cfg(test)]
mod tests {
    use farcall_core::transport::Delivery;
    use farcall_verbs::Device;

    use super::*;
    use crate::repair::round_trip::CAP_NANOS;

    const SILENCE: Duration = Duration::from_secs(1);
    const SLOTS: u32 = 64;
    const TURN: Duration = Duration::from_millis(1);

    /// When a server that says nothing is declared dead: one new request leaves every 20 turns, and repeats if they may.
    fn declared_dead_after(repeats_leave: bool) -> Option<Duration> {
        let pd = Device::open("shm").unwrap().alloc_pd().unwrap();
        let mut transfers = Transfers::new(SLOTS, &pd, 1 << 20, 1024, 1);
        let (mut window, mut releases) = (Window::new(SLOTS), Releases::default());
        let mut repair = Retransmission::new(SLOTS, 0, SILENCE);
        let start = Instant::from_nanos(1);
        for turn in 0..20 * SLOTS {
            let now = start + turn * TURN;
            repair.start_timers(&mut window, now);
            if repair.is_due(now)
                && repair.queue_due(&mut window, &mut transfers, &mut releases, now)
            {
                return Some(now - start);
            }
            if turn % 20 == 0 {
                let (id, _) = window.reserve(1).unwrap();
                window.post(id, Delivery::AtMostOnce);
            }
            for _ in 0..window.outbox.len() {
                let Some(index) = window.outbox.pop_front() else { break };
                let slot = &mut window.slots[index as usize];
                match slot.sent && !repeats_leave {
                    true => window.outbox.push_back(index),
                    false => repair.add_request(index, slot, turn),
                }
            }
        }
        None
    }

    const CAP: Duration = Duration::from_nanos(CAP_NANOS);

    /// A client with one small call, whose messages all leave at once.
    struct Client {
        window: Window,
        transfers: Transfers,
        releases: Releases,
        repair: Retransmission,
        turn: u32,
    }

    impl Client {
        fn with_a_call() -> Client {
            let pd = Device::open("shm").unwrap().alloc_pd().unwrap();
            let mut window = Window::new(SLOTS);
            let (id, _) = window.reserve(1).unwrap();
            window.post(id, Delivery::AtMostOnce);
            Client {
                window,
                transfers: Transfers::new(SLOTS, &pd, 1 << 20, 1024, 1),
                releases: Releases::default(),
                repair: Retransmission::new(SLOTS, 0, SILENCE),
                turn: 0,
            }
        }

        fn now(&self) -> Instant {
            Instant::from_nanos(1) + self.turn * TURN
        }

        /// One turn. Tells whether the call's message left, or a release.
        fn turn(&mut self) -> bool {
            self.turn += 1;
            let now = self.now();
            let Client { window, transfers, releases, repair, turn } = self;
            repair.start_timers(window, now);
            if repair.is_due(now) {
                repair.queue_due(window, transfers, releases, now);
            }
            let mut has_left = false;
            while let Some(index) = window.outbox.pop_front() {
                has_left = true;
                match window.slots[index as usize].is_unknown() {
                    true => repair.add_request(index, &mut window.slots[index as usize], *turn),
                    false => repair.add(index, &mut window.slots[index as usize]),
                }
            }
            releases.send(|_, _| {
                has_left = true;
                true
            });
            has_left
        }

        /// The server sends something that says nothing of the call.
        fn hear(&mut self) {
            let now = self.now();
            self.repair.note_datagram(&mut self.window, &mut self.releases, now);
        }

        /// The turns until something leaves.
        fn turns_until_something_leaves(&mut self) -> u32 {
            let before = self.turn;
            while !self.turn() {
                assert!(self.turn < 10_000, "nothing leaves");
            }
            self.turn - before
        }
    }

    /// Each takes twice as long as the one before, up to the longest timeout.
    fn assert_doubling(gaps: &[u32]) {
        assert!(TURN * gaps[0] < CAP / 4, "{gaps:?}");
        for two in gaps.windows(2) {
            // A timer starts with the turn after its message, and is looked at once a turn.
            assert!((two[1] + 3) * TURN >= CAP.min(2 * two[0] * TURN), "{gaps:?}");
        }
    }

    #[test]
    fn repeats_to_a_silent_server_leave_ever_later() {
        let mut client = Client::with_a_call();
        assert!(client.turn());
        let gaps: Vec<u32> = (0..8).map(|_| client.turns_until_something_leaves()).collect();
        assert_doubling(&gaps);
    }

    #[test]
    fn once_the_server_answers_again_repeats_leave_soon() {
        let mut client = Client::with_a_call();
        for _ in 0..300 {
            client.turn();
        }
        while TURN * client.turns_until_something_leaves() < CAP {}
        client.hear();
        let gaps: Vec<u32> = (0..4).map(|_| client.turns_until_something_leaves()).collect();
        assert_doubling(&gaps);
    }

    #[test]
    fn once_the_server_answers_again_releases_leave_soon() {
        let mut client = Client::with_a_call();
        client.window.outbox.clear();
        client.window.free(0);
        client.releases.push(0, 1);
        client.repair.queue_release();
        for _ in 0..300 {
            client.turn();
        }
        while TURN * client.turns_until_something_leaves() < CAP {}
        client.hear();
        let gaps: Vec<u32> = (0..4).map(|_| client.turns_until_something_leaves()).collect();
        assert_doubling(&gaps);
    }

    #[test]
    fn a_message_that_left_when_round_trips_were_long_is_repeated_when_they_are_short_again() {
        let mut client = Client::with_a_call();
        let long = Duration::from_millis(16).as_nanos() as u64;
        let start = client.now();
        client.repair.record_round_trip(start + Duration::from_nanos(long), start, Some(1));
        assert!(client.turn() && !client.turn());
        let due = client.window.slots[0].due;
        assert!(due > client.now() + Duration::from_nanos(2 * long), "{due:?}");
        // Other messages of the session are answered, each within a turn.
        for _ in 0..60 {
            let now = client.now();
            client.repair.record_round_trip(now + TURN, now, None);
        }
        assert!(!client.turn(), "it may be answered in time");
        assert!(client.window.slots[0].due < client.now() + Duration::from_nanos(long));
        assert!(TURN * client.turns_until_something_leaves() < Duration::from_nanos(long));
    }

    #[test]
    fn questions_about_a_call_that_runs_leave_ever_later_though_they_are_answered() {
        let mut client = Client::with_a_call();
        assert!(client.turn());
        client.window.slots[0].phase = Phase::Known;
        let gaps: Vec<u32> = (0..8)
            .map(|_| {
                let gap = client.turns_until_something_leaves();
                assert!(!client.turn());
                client.hear();
                gap
            })
            .collect();
        assert_doubling(&gaps);
    }

    #[test]
    fn a_server_that_answers_no_repeats_is_declared_dead() {
        let after = declared_dead_after(true).expect("dead");
        assert!(after > SILENCE && after < SILENCE + SILENCE / 4, "{after:?}");
    }

    #[test]
    fn a_server_that_was_sent_no_repeats_is_not_declared_dead() {
        assert_eq!(declared_dead_after(false), None);
    }
}
