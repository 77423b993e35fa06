//! The work of one server thread, as a state machine: time and transport are arguments.

use super::context::CallContext;
use super::executor::{Executor, Task};
use super::reply::{Open, Reply};
use super::table::{Table, Target};
use super::turn::{Cancel, Turn};
use crate::service::Service;
use crate::time::{Instant, PollAt, Progress};
use crate::transport::{CallToken, Message, Replies, RequestSink, ServerTransport};
use crate::wire::{HEADER_BYTES, RequestHeader, Status};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How often answers that found no memory are tried again.
const DEFERRED_RETRY_NS: u64 = 100_000;

/// Services, their handlers in flight, and what waits for the next turn.
pub(super) struct Desk {
    counter: Counter,
    turn: Turn,
    executor: Executor,
}

/// What a request meets: the part of the desk that stays the same.
struct Counter {
    services: Vec<Box<dyn Service>>,
    table: Table,
    /// The row of calls of unknown methods.
    unknown: u32,
    /// New requests are turned away: the server is going.
    closing: bool,
}

impl Desk {
    pub(super) fn new(
        services: Vec<Box<dyn Service>>,
        table: Table,
        unknown: u32,
        turn: Turn,
        executor: Executor,
    ) -> Self {
        Desk { counter: Counter { services, table, unknown, closing: false }, turn, executor }
    }

    pub(super) fn executor(&self) -> &Executor {
        &self.executor
    }

    /// One turn, at `now`: what arrived is handled, what was woken runs, all replies leave.
    ///
    /// After a turn that worked the driver reads the clock and says [`ended`](Self::ended).
    #[inline]
    pub(super) fn turn(&mut self, now: Instant, transport: &mut dyn ServerTransport) -> Progress {
        self.turn.now = now;
        let mut sink =
            Sink { counter: &self.counter, turn: &mut self.turn, executor: &mut self.executor };
        let mut progress = transport.poll(now, &mut sink);
        if self.has_chores() {
            progress.worked += self.chores(transport);
        }
        if progress.is_idle() {
            self.turn.ended_empty();
            progress.next = progress.next.earlier(self.poll_at());
        } else {
            transport.flush(now);
        }
        progress
    }

    /// A turn that worked is over, its replies have left.
    #[inline]
    pub(super) fn ended(&mut self, now: Instant) {
        self.turn.ended(now);
    }

    #[inline]
    fn has_chores(&self) -> bool {
        self.executor.has_ready()
            || !self.turn.cancels.is_empty()
            || self.turn.now >= self.executor.earliest()
            || self.turn.has_deferred()
    }

    /// What does not come with a request: woken handlers, cancellations, deadlines, answers that found no memory.
    fn chores(&mut self, transport: &mut dyn ServerTransport) -> u32 {
        let Desk { turn, executor, .. } = self;
        let replies = transport.replies();
        let mut worked = 0;
        if !turn.cancels.is_empty() {
            let mut cancels = core::mem::take(&mut turn.cancels);
            for wish in cancels.drain(..) {
                executor.cancel(&wish, turn, replies);
                worked += 1;
            }
            turn.cancels = cancels;
        }
        worked += executor.run(turn, replies);
        if turn.now >= executor.earliest() {
            worked += executor.expire(turn, replies);
        }
        if turn.has_deferred() {
            worked += turn.send_deferred(replies);
        }
        worked
    }

    /// When the next turn has something to do that no event announces.
    fn poll_at(&self) -> PollAt {
        if self.executor.has_ready() {
            return PollAt::Now;
        }
        let deadlines = match self.executor.earliest() {
            at if at != Instant::FAR_FUTURE && self.executor.len() > 0 => PollAt::At(at),
            _ => PollAt::OnEvent,
        };
        if self.turn.has_deferred() {
            // Most memory comes back with an event; what handlers give back does not.
            let again = self.turn.now.saturating_add_nanos(DEFERRED_RETRY_NS);
            return deadlines.earlier(PollAt::At(again));
        }
        deadlines
    }

    /// From now on requests are turned away with [`Status::ShuttingDown`].
    pub(super) fn turn_away(&mut self) {
        self.counter.closing = true;
    }

    pub(super) fn turns_away(&self) -> bool {
        self.counter.closing
    }

    /// Is every request that was let in answered?
    pub(super) fn is_done(&self) -> bool {
        self.executor.len() == 0 && !self.turn.has_deferred()
    }

    /// Drops the handlers that are left. Answers how many.
    pub(super) fn abort_all(&mut self, transport: &mut dyn ServerTransport) -> u32 {
        self.executor.abort_all(&mut self.turn, transport.replies())
    }
}

struct Sink<'a> {
    counter: &'a Counter,
    turn: &'a mut Turn,
    executor: &'a mut Executor,
}

impl RequestSink for Sink<'_> {
    #[inline]
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        self.turn.request(replies);
        let header = RequestHeader::read(&message);
        let method = header.map_or(0, RequestHeader::method);
        let target = header.and_then(|_| self.counter.table.find(method));
        let row = target.map_or(self.counter.unknown, |target| target.row);
        self.turn.counters.started(row);
        let arrived = self.turn.arrival();
        let deadline = match header.map_or(0, RequestHeader::timeout_us) {
            0 => Instant::FAR_FUTURE,
            us => arrived.saturating_add_nanos(u64::from(us) * 1000),
        };
        let now = self.turn.now;
        let task = Task::new(call, row, arrived, deadline);
        let mut open = Open::new(task, replies, self.turn, Some(self.executor));
        let reply = open.reply();
        let (Some(target), Some(arguments)) = (target, message.skip(HEADER_BYTES)) else {
            return reply.no_such_method(method);
        };
        if self.counter.closing {
            return reply.fail_with(Status::ShuttingDown);
        }
        if now >= deadline {
            return reply.fail_with(Status::Late);
        }
        CallContext::enter(deadline, now, false);
        self.counter.dispatch(target, method, arguments, reply);
        CallContext::leave();
    }

    #[cold]
    fn cancelled(&mut self, client: u32, client_generation: u32, slot: u32, generation: u32) {
        let slot = Some((slot, generation));
        self.turn.cancels.push(Cancel { client, client_generation, slot });
    }

    #[cold]
    fn disconnected(&mut self, client: u32, client_generation: u32) {
        self.turn.cancels.push(Cancel { client, client_generation, slot: None });
    }
}

impl Counter {
    #[inline]
    fn dispatch(&self, target: Target, method: u32, arguments: Message<'_>, reply: Reply<'_>) {
        let service = &*self.services[target.service as usize];
        // A reply that unwinding drops answers that the handler panicked.
        let handled = catch_unwind(AssertUnwindSafe(|| service.dispatch(method, arguments, reply)));
        if handled.is_err() {
            panicked(service, method);
        }
    }
}

#[cold]
fn panicked(service: &dyn Service, method: u32) {
    let description = service.description();
    let name = description.methods.iter().find(|m| m.id == method).map_or("?", |m| m.name);
    tracing::error!(
        service = description.name,
        method = name,
        "a handler panicked; its call failed, the server goes on"
    );
}
