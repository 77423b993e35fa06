//! The calls of one channel, as a state machine: time and transport are arguments.

use super::job::{Job, Outcome};
use super::shared::Shared;
use super::ticket::Ticket;
use super::waking::{self, wake_all};
use crate::compatibility::{Compatibility, Fit};
use crate::error::{FailureKind, GoneReason, ReserveError, RpcError, TransportFailure, Waited};
use crate::metrics::{MethodTable, ThreadCounters};
use crate::time::{Instant, PollAt, Progress};
use crate::transport::{ClientTransport, Message, ReplySink, SlotId};
use crate::wire;
use core::ops::Range;
use core::task::Waker;
use std::collections::VecDeque;
use std::sync::Arc;

/// The calls of one channel that the one who drives has taken.
pub(super) struct Driver {
    shared: Arc<Shared>,
    methods: Arc<MethodTable>,
    counters: Arc<ThreadCounters>,
    /// What the server of this connection does not fit; `None` without a connection. Calls that wait have been checked.
    compatibility: Option<Box<Compatibility>>,
    /// Not sent yet: the window is full, or there is no connection.
    waiting: VecDeque<Box<Job>>,
    /// By slot.
    in_flight: Vec<Option<Box<Job>>>,
    in_flight_count: usize,
    /// No call's deadline is before this.
    earliest: Instant,
    seen_cancels: u64,
    now: Instant,
    /// The server of this connection has refused a call because it shuts down: calls wait for the next connection.
    is_refused: bool,
    lost: Option<TransportFailure>,
    /// Why there is no connection, if there is none.
    outage: GoneReason,
    /// The ticket of the call that whoever drives waits for; 0 for none.
    own: usize,
    /// That call, when it has ended.
    own_done: Option<Box<Job>>,
    /// So many calls in a row were the only one.
    alone: u32,
    /// What wakes the callers whose calls have ended, until the turn is over.
    woken: Vec<Waker>,
    /// Those of the jobs that were here, by number: counting the shares of a ticket would be two atomic operations per call.
    tickets: Vec<Option<Arc<Ticket>>>,
    /// The caller that was woken last to drive.
    successor: Option<Arc<Ticket>>,
}

/// After so many calls that were the only one, the next one probably is, too.
const ALONE: u32 = 4;

/// Who drives next, when a caller leaves whose call has ended.
pub(super) enum Successor {
    /// A caller that was not woken yet.
    Woken,
    /// A caller that was woken before, and has not come yet. If it comes before the I/O is put back, it finds nothing.
    OnItsWay(Arc<Ticket>),
    /// Some caller neither drives nor can be woken.
    None,
    /// All callers have left their calls to the I/O thread.
    NotNeeded,
}

impl Driver {
    pub(super) fn new(
        shared: Arc<Shared>,
        methods: Arc<MethodTable>,
        counters: Arc<ThreadCounters>,
        slots: u32,
        compatibility: Option<Box<Compatibility>>,
    ) -> Self {
        let mut driver = Driver {
            shared,
            methods,
            counters,
            compatibility,
            waiting: VecDeque::new(),
            in_flight: Vec::new(),
            in_flight_count: 0,
            earliest: Instant::FAR_FUTURE,
            seen_cancels: 0,
            now: Instant::ZERO,
            is_refused: false,
            lost: None,
            outage: GoneReason::Closed,
            own: 0,
            own_done: None,
            alone: 0,
            woken: Vec::new(),
            tickets: Vec::new(),
            successor: None,
        };
        driver.in_flight.resize_with(slots as usize, || None);
        driver
    }

    /// One turn over a connection, at `now`.
    pub(super) fn turn(&mut self, now: Instant, transport: &mut dyn ClientTransport) -> Progress {
        self.now = now;
        // Poll first: a request that is sent after the server's goodbye has arrived could not be said not to have run.
        let mut progress = transport.poll(now, self);
        if self.is_refused && self.in_flight_count == 0 {
            // The server has answered what it accepted. It accepts no more, and the next one may be there already.
            self.lost.get_or_insert(TransportFailure::new(FailureKind::Goodbye, false));
            self.outage = GoneReason::ShuttingDown;
        }
        let mut worked = self.accept();
        worked += self.sweep_cancelled(Some(&mut *transport));
        if now >= self.earliest {
            worked += self.expire(Some(&mut *transport));
        }
        if !self.waiting.is_empty() {
            worked += self.send(transport);
        }
        if worked > 0 {
            transport.flush();
        }
        progress.worked += worked;
        progress.next = progress.next.earlier(self.poll_at());
        progress
    }

    /// One turn without a connection, at `now`.
    pub(super) fn turn_unconnected(&mut self, now: Instant) -> Progress {
        self.now = now;
        let mut worked = self.accept() + self.sweep_cancelled(None);
        if now >= self.earliest {
            worked += self.expire(None);
        }
        Progress { worked, next: self.poll_at(), scanned: 0 }
    }

    fn poll_at(&self) -> PollAt {
        match self.earliest {
            at if at != Instant::FAR_FUTURE && self.has_calls() => PollAt::At(at),
            _ => PollAt::OnEvent,
        }
    }

    #[inline]
    pub(super) fn has_calls(&self) -> bool {
        self.in_flight_count > 0 || !self.waiting.is_empty()
    }

    /// One call is under way, and those before it were the only ones too.
    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        self.alone >= ALONE && self.has_one_call()
    }

    /// One call is under way, or waits to be.
    #[inline]
    pub(super) fn has_one_call(&self) -> bool {
        self.in_flight_count + self.waiting.len() == 1
    }

    /// The time of the last turn.
    #[inline]
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Sends a call at once if there is no other, before the clock is read: [`stamp`](Self::stamp) it then. Otherwise gives it back.
    #[inline]
    pub(super) fn send_alone(
        &mut self,
        mut job: Box<Job>,
        transport: &mut dyn ClientTransport,
    ) -> Result<SlotId, Box<Job>> {
        if self.has_calls() || self.compatibility.is_some() {
            return Err(job);
        }
        // As in a turn, poll first. No call of others can end in it. A server that refuses calls is lost when none is in flight.
        transport.poll(self.now, self);
        if self.lost.is_some() {
            return Err(job);
        }
        let Ok(slot) = job.post(transport, job.timeout_ns) else { return Err(job) };
        transport.flush();
        job.row = self.methods.row(job.method);
        self.counters.started(job.row);
        job.slot = slot;
        self.in_flight[slot.index as usize] = Some(job);
        self.in_flight_count = 1;
        Ok(slot)
    }

    /// Counts the timeout of a call that was [sent](Self::send_alone) from `now`.
    #[inline]
    pub(super) fn stamp(&mut self, slot: SlotId, now: Instant) {
        if let Some(job) = &mut self.in_flight[slot.index as usize] {
            job.sent = Some(now);
            job.deadline = job.ticket.start(job.timeout_ns, now);
            self.earliest = self.earliest.min(job.deadline);
        }
    }

    /// The one who drives waits for this call: when it has ended, [`take_own`](Self::take_own) gives it, and its ticket does not.
    #[inline]
    pub(super) fn set_own(&mut self, ticket: usize) {
        self.own = ticket;
    }

    /// The ticket of the call that the one who drives waits for.
    pub(super) fn own(&self) -> usize {
        self.own
    }

    /// The call that the one who drives waits for, if it has ended.
    #[inline]
    pub(super) fn take_own(&mut self) -> Option<Box<Job>> {
        self.own_done.take()
    }

    /// The one who drives stops before its call has ended. Returns the call's ticket.
    #[cold]
    pub(super) fn release_own(&mut self) -> Option<Arc<Ticket>> {
        let own = core::mem::take(&mut self.own);
        self.find(own).map(|job| Arc::clone(&job.ticket))
    }

    /// The caller of this ticket does not drive any more. Returns its ticket.
    #[cold]
    pub(super) fn leave_call(&mut self, ticket: usize) -> Option<Arc<Ticket>> {
        self.own = 0;
        let job = self.find(ticket)?;
        job.is_left = true;
        Some(Arc::clone(&job.ticket))
    }

    fn find(&mut self, ticket: usize) -> Option<&mut Box<Job>> {
        let mut all = self.waiting.iter_mut().chain(self.in_flight.iter_mut().flatten());
        all.find(|job| job.ticket.id() == ticket)
    }

    /// Counts how long the call took that the one who drives has waited for.
    #[inline]
    pub(super) fn record_own(&mut self, job: &Job, now: Instant) {
        if let Some(sent) = job.sent {
            self.counters.latency(job.row, (now - sent).as_nanos() as u64, 1);
        }
    }

    /// Callers wait to be [woken](Self::woken).
    #[inline]
    pub(super) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// What wakes the callers whose calls have ended. To be called when nothing of the channel is in use: it may poll a task at once.
    #[inline]
    pub(super) fn woken(&mut self) -> &mut Vec<Waker> {
        &mut self.woken
    }

    /// Finds the caller that drives next. It is woken with those whose calls have ended, unless it has been woken before.
    pub(super) fn find_successor(&mut self) -> Successor {
        if let Some(ticket) = &self.successor
            && ticket.is_to_drive()
        {
            return Successor::OnItsWay(Arc::clone(ticket));
        }
        let mut found = Successor::NotNeeded;
        for job in self.in_flight.iter().flatten().chain(&self.waiting) {
            if !job.is_left {
                found = Successor::None;
                if let Some(waker) = job.ticket.call_to_drive() {
                    waking::add(&mut self.woken, waker);
                    self.successor = Some(Arc::clone(&job.ticket));
                    return Successor::Woken;
                }
            }
        }
        found
    }

    /// The server shuts down and has not run this call: the next one can.
    #[cold]
    fn wait_for_next_server(&mut self, mut job: Box<Job>) {
        self.is_refused = true;
        job.sent = None;
        self.waiting.push_back(job);
    }

    /// No new connection could be made.
    #[cold]
    pub(super) fn set_outage(&mut self, why: GoneReason) {
        self.outage = why;
    }

    /// Ends all calls that were not sent: there is no connection for them.
    #[cold]
    pub(super) fn give_up_waiting(&mut self) {
        self.fail_waiting(&RpcError::not_sent(self.outage.clone()));
    }

    /// Why the connection is over, if it is.
    pub(super) fn lost(&self) -> Option<TransportFailure> {
        self.lost
    }

    /// Calls wait for a connection.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Cancellations seen so far, for [`Shared::has_news`].
    pub(super) fn seen_cancels(&self) -> u64 {
        self.seen_cancels
    }

    /// There is a new connection.
    pub(super) fn connected(&mut self, slots: u32, compatibility: Option<Box<Compatibility>>) {
        (self.lost, self.is_refused) = (None, false);
        self.outage = GoneReason::Closed;
        self.in_flight.resize_with(slots as usize, || None);
        self.compatibility = compatibility;
        // The server may be another than the one that the calls were made for.
        for _ in 0..self.waiting.len() {
            let Some(mut job) = self.waiting.pop_front() else { break };
            job.send_as_newest();
            self.wait(job);
        }
    }

    /// Keeps a call until there is room for it, unless this connection's server cannot run it.
    fn wait(&mut self, mut job: Box<Job>) {
        if let Some(compatibility) = &self.compatibility {
            let checked = compatibility.check(job.method, job.delivery);
            let fits = checked.and_then(|Fit { delivery, older }| {
                job.delivery = delivery;
                older.map_or(Ok(()), |older| job.send_as(older))
            });
            if let Err(error) = fits {
                return self.end(job, Outcome::Failed(error));
            }
        }
        if self.waiting.capacity() == 0 {
            // Not before there is a call that waits: a client may make one at a time, or none.
            self.waiting.reserve(waking::ROOM);
        }
        self.waiting.push_back(job);
    }

    /// Ends all calls that were not sent.
    pub(super) fn fail_waiting(&mut self, error: &RpcError) {
        while let Some(job) = self.waiting.pop_front() {
            self.end(job, Outcome::Failed(error.clone()));
        }
    }

    /// Takes what callers submitted.
    #[inline]
    fn accept(&mut self) -> u32 {
        match self.shared.submitted() {
            0 => 0,
            submitted => self.accept_some(submitted as u32),
        }
    }

    fn accept_some(&mut self, submitted: u32) -> u32 {
        self.alone = 0;
        // What is submitted meanwhile waits for the next turn: the connection is polled in between.
        for _ in 0..submitted {
            let Some(job) = self.shared.next() else { break };
            self.accept_one(job, self.now);
        }
        submitted
    }

    /// Takes a call that the next turn sends, at `now`.
    #[inline]
    pub(super) fn accept_one(&mut self, mut job: Box<Job>, now: Instant) {
        job.row = self.methods.row(job.method);
        self.counters.started(job.row);
        job.deadline = job.ticket.start(job.timeout_ns, now);
        self.earliest = self.earliest.min(job.deadline);
        self.wait(job);
    }

    /// Sends the calls that wait, as far as there is room.
    fn send(&mut self, transport: &mut dyn ClientTransport) -> u32 {
        let mut sent = 0;
        while self.lost.is_none()
            && !self.is_refused
            && let Some(mut job) = self.waiting.pop_front()
        {
            if job.ticket.is_cancelled() {
                self.end(job, Outcome::Pending);
                continue;
            }
            let left = (job.deadline - self.now).as_nanos() as u64;
            match job.post(transport, left) {
                Ok(slot) => {
                    (job.slot, job.sent) = (slot, Some(self.now));
                    self.in_flight[slot.index as usize] = Some(job);
                    self.in_flight_count += 1;
                    sent += 1;
                }
                // Full; or closed: the next poll says why, and the call waits for a new connection.
                Err(ReserveError::Backpressure(_) | ReserveError::Closed) => {
                    self.waiting.push_front(job);
                    break;
                }
                Err(error) => self.end(job, Outcome::Failed(error.into())),
            }
        }
        sent
    }

    /// Ends the calls that their callers gave up.
    #[inline]
    fn sweep_cancelled(&mut self, transport: Option<&mut dyn ClientTransport>) -> u32 {
        let cancels = self.shared.cancels();
        if cancels == self.seen_cancels { 0 } else { self.end_cancelled(cancels, transport) }
    }

    #[cold]
    fn end_cancelled(&mut self, cancels: u64, transport: Option<&mut dyn ClientTransport>) -> u32 {
        self.seen_cancels = cancels;
        self.end_where(transport, |job| job.ticket.is_cancelled().then_some(Outcome::Pending))
    }

    /// Ends the calls whose deadline has passed.
    #[cold]
    fn expire(&mut self, transport: Option<&mut dyn ClientTransport>) -> u32 {
        let (now, connected) = (self.now, transport.is_some());
        let outage = self.outage.clone();
        let sent = |job: &Job| job.sent.is_some();
        let ended = self.end_where(transport, |job| {
            let error = match (connected, sent(job)) {
                (false, _) => RpcError::not_sent(outage.clone()),
                (true, false) => {
                    let waited = Waited::ForWindow;
                    RpcError::DeadlineExceeded { may_have_run: false, waited }
                }
                (true, true) => {
                    let waited = Waited::ForAnswer;
                    RpcError::DeadlineExceeded { may_have_run: true, waited }
                }
            };
            (job.deadline <= now).then_some(Outcome::Failed(error))
        });
        let all = self.waiting.iter().chain(self.in_flight.iter().flatten());
        self.earliest = all.map(|job| job.deadline).min().unwrap_or(Instant::FAR_FUTURE);
        ended
    }

    /// Ends each call for which `outcome` gives one. Calls in flight are abandoned.
    fn end_where(
        &mut self,
        mut transport: Option<&mut dyn ClientTransport>,
        outcome: impl Fn(&Job) -> Option<Outcome>,
    ) -> u32 {
        let mut ended = 0;
        for index in 0..self.in_flight.len() {
            let Some(end) = self.in_flight[index].as_deref().and_then(&outcome) else { continue };
            if let Some(job) = self.in_flight[index].take() {
                self.in_flight_count -= 1;
                if let Some(transport) = &mut transport {
                    transport.abandon(job.slot);
                }
                self.end(job, end);
                ended += 1;
            }
        }
        for _ in 0..self.waiting.len() {
            let Some(job) = self.waiting.pop_front() else { break };
            match outcome(&job) {
                None => self.waiting.push_back(job),
                Some(end) => {
                    self.end(job, end);
                    ended += 1;
                }
            }
        }
        ended
    }

    /// Ends a call: counts it, and gives it to its caller.
    fn end(&mut self, mut job: Box<Job>, outcome: Outcome) {
        job.outcome = outcome;
        self.hand_over(job);
    }

    fn hand_over(&mut self, job: Box<Job>) {
        self.counters.ended(job.row, job.status());
        if job.ticket.id() == self.own {
            // Its latency is counted by the one who waits, which reads the clock then.
            self.own = 0;
            self.own_done = Some(job);
            self.alone = self.alone.saturating_add(1);
            return;
        }
        self.alone = 0;
        if let Some(sent) = job.sent {
            self.counters.latency(job.row, (self.now - sent).as_nanos() as u64, 1);
        }
        if self.tickets.get(job.number).is_none_or(Option::is_none) {
            self.keep_ticket(&job);
        }
        if let Some(Some(ticket)) = self.tickets.get(job.number)
            && let Some(waker) = self.shared.finish(ticket, job)
        {
            waking::add(&mut self.woken, waker);
        }
    }

    #[cold]
    fn keep_ticket(&mut self, job: &Job) {
        if self.tickets.len() <= job.number {
            self.tickets.resize(job.number + 1, None);
        }
        self.tickets[job.number] = Some(Arc::clone(&job.ticket));
    }

    fn take_in_flight(&mut self, slot: SlotId) -> Option<Box<Job>> {
        let in_flight = self.in_flight.get_mut(slot.index as usize)?;
        let job = in_flight.take_if(|job| job.slot == slot)?;
        self.in_flight_count -= 1;
        Some(job)
    }

    fn fail_in_flight(&mut self, slots: Range<u32>, why: TransportFailure) {
        for index in slots.start as usize..self.in_flight.len().min(slots.end as usize) {
            if let Some(job) = self.in_flight[index].take() {
                self.in_flight_count -= 1;
                self.end(job, Outcome::Failed(why.into()));
            }
        }
    }
}

impl ReplySink for Driver {
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        if let Some(mut job) = self.take_in_flight(slot) {
            if wire::is_refusal(&message) {
                return self.wait_for_next_server(job);
            }
            job.reply(message);
            self.hand_over(job);
        }
    }

    #[cold]
    fn failed(&mut self, slot: SlotId, why: TransportFailure) {
        if let Some(job) = self.take_in_flight(slot) {
            self.end(job, Outcome::Failed(why.into()));
        }
    }

    #[cold]
    fn lane_lost(&mut self, slots: Range<u32>, why: TransportFailure) {
        self.fail_in_flight(slots, why);
    }

    #[cold]
    fn closed(&mut self, why: TransportFailure) {
        if self.lost.is_none() {
            self.outage = GoneReason::of(why.kind);
        }
        self.lost.get_or_insert(why);
        self.compatibility = None;
        self.fail_in_flight(0..u32::MAX, why);
    }
}

impl Drop for Driver {
    /// No caller waits for ever, however the channel ends.
    fn drop(&mut self) {
        self.own = 0;
        self.fail_in_flight(0..u32::MAX, TransportFailure::new(FailureKind::Closed, true));
        self.fail_waiting(&RpcError::not_sent(self.outage.clone()));
        self.shared.die();
        wake_all(&mut self.woken);
    }
}
