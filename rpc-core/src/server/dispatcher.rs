//! The work of one server thread, as a state machine: time and transports are arguments.

use super::call_index::Cancel;
use super::context::CallContext;
use super::executor::{Executor, Task};
use super::panics;
use super::paths::ReplyPaths;
use super::quota::Client;
use super::reply::{Reply, UnansweredCall};
use super::stealing::{Giver, Returned};
use super::table::{Table, Target};
use super::turn::{Extras, Turn};
use crate::identity::Identity;
use crate::panics::catch;
use crate::service::Service;
use crate::time::{Instant, PollAt, Progress};
use crate::transport::{CallToken, Message, Replies, RequestSink, ServerTransport};
use crate::wire::{HEADER_BYTES, RequestHeader, Status};
use core::cell::Cell;

/// The services of a thread, their handlers in flight, and what waits for the next turn.
pub(super) struct Dispatcher {
    services: Services,
    pub(super) turn: Turn,
    executor: Executor,
    /// Gives requests to idle threads, if the server's threads steal.
    giver: Option<Giver>,
}

/// The services of a thread, and which methods they have.
struct Services {
    instances: Vec<Box<dyn Service>>,
    methods: Table,
    /// The row that counts calls of unknown methods.
    unknown_row: u32,
    /// Which requests are refused, and why.
    refusing: Cell<Refusing>,
}

/// Whether requests are refused before they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusing {
    No,
    /// The server ends.
    ShuttingDown,
    /// For this request: its client is over its quota.
    OverQuota,
}

impl Dispatcher {
    pub(super) fn new(
        instances: Vec<Box<dyn Service>>,
        methods: Table,
        unknown_row: u32,
        mut turn: Turn,
        executor: Executor,
        giver: Option<Giver>,
    ) -> Self {
        turn.extras.set(Extras::STEALS, giver.is_some());
        let refusing = Cell::new(Refusing::No);
        let services = Services { instances, methods, unknown_row, refusing };
        Dispatcher { services, turn, executor, giver }
    }

    /// There is work for a turn that no transport announces.
    pub(super) fn has_ready(&self) -> bool {
        self.executor.has_ready() || self.has_answers()
    }

    /// Other threads have answered requests of this one.
    #[inline]
    fn has_answers(&self) -> bool {
        self.giver.as_ref().is_some_and(Giver::has_answers)
    }

    /// One turn at `now`: handles the requests that arrived, runs the handlers that were woken, sends all replies.
    ///
    /// After a turn that worked, the driver reads the clock and calls [`end_turn`](Self::end_turn).
    #[inline]
    pub(super) fn turn(
        &mut self,
        now: Instant,
        transports: &mut [Box<dyn ServerTransport>],
    ) -> Progress {
        let extras = self.turn.extras;
        match (extras.have(Extras::STEALS), extras.have(Extras::METERED)) {
            (true, _) => self.take_turn::<true, true>(now, transports),
            (false, true) => self.take_turn::<false, true>(now, transports),
            (false, false) => self.take_turn::<false, false>(now, transports),
        }
    }

    /// A turn of a thread that `STEALS`, or whose clients may be `METERED`: others decide nothing.
    #[inline]
    pub(super) fn take_turn<const STEALS: bool, const METERED: bool>(
        &mut self,
        now: Instant,
        transports: &mut [Box<dyn ServerTransport>],
    ) -> Progress {
        self.turn.now = now;
        let mut progress = match transports.first_mut() {
            Some(first) => self.poll::<STEALS, METERED>(0, &mut **first),
            None => Progress::IDLE,
        };
        for (number, transport) in transports.iter_mut().enumerate().skip(1) {
            progress = progress.and(self.poll::<STEALS, METERED>(number as u32, &mut **transport));
        }
        if self.has_chores() || (STEALS && self.has_answers()) {
            progress.worked += self.do_chores(&mut ReplyPaths::new(transports));
        }
        if progress.is_idle() {
            self.turn.end_empty();
            if STEALS && let Some(giver) = &mut self.giver {
                giver.set_idle(true);
            }
            progress.next = progress.next.earlier(self.poll_at());
        } else {
            transports.iter_mut().for_each(|transport| transport.flush());
        }
        progress
    }

    #[inline]
    fn poll<const STEALS: bool, const METERED: bool>(
        &mut self,
        number: u32,
        transport: &mut dyn ServerTransport,
    ) -> Progress {
        let Dispatcher { services, turn, executor, giver } = self;
        turn.transport = number;
        let now = turn.now;
        let mut sink = Sink { services, turn, executor };
        match giver {
            Some(giver) if STEALS => transport.poll(now, &mut StealingSink { sink, giver }),
            _ if METERED => transport.poll(now, &mut MeteredSink { sink }),
            _ => transport.poll(now, &mut sink),
        }
    }

    /// Ends a turn that worked, after its replies have left.
    #[inline]
    pub(super) fn end_turn(&mut self, now: Instant) {
        self.turn.end(now);
    }

    #[inline]
    fn has_chores(&self) -> bool {
        self.executor.has_ready()
            || self.executor.has_cancelled()
            || self.turn.now >= self.executor.earliest()
            || self.turn.deferred.is_due(self.turn.now)
    }

    /// Does the work that does not come with a request: woken handlers, cancellations, deadlines, deferred answers.
    fn do_chores(&mut self, paths: &mut ReplyPaths<'_>) -> u32 {
        let Dispatcher { services, turn, executor, giver } = self;
        let mut worked = 0;
        if let Some(giver) = giver {
            giver.set_idle(false);
            worked += giver.send_answers(turn, paths);
            while let Some(Returned { call, transport, content }) = giver.take_returned() {
                // It has been admitted, and is not given away again.
                let replies = paths.enter(transport, turn);
                let mut sink = Sink { services, turn, executor };
                let _ = sink.handle_metered(call, content.message(), replies);
            }
        }
        if executor.has_cancelled() {
            worked += executor.end_cancelled(turn, paths);
        }
        worked += executor.run(turn, paths);
        if turn.now >= executor.earliest() {
            worked += executor.expire(turn, paths);
        }
        if turn.deferred.is_due(turn.now) {
            worked += turn.send_deferred(paths);
        }
        worked
    }

    /// When the next turn has work that no event announces.
    fn poll_at(&self) -> PollAt {
        if self.has_ready() {
            return PollAt::Now;
        }
        let deadlines = match self.executor.earliest() {
            at if at != Instant::FAR_FUTURE && self.executor.len() > 0 => PollAt::At(at),
            _ => PollAt::OnEvent,
        };
        match self.turn.deferred.next_try(self.turn.now) {
            Some(again) => deadlines.earlier(PollAt::At(again)),
            None => deadlines,
        }
    }

    /// Refuses requests from now on with [`Status::ShuttingDown`].
    pub(super) fn refuse_requests(&mut self) {
        self.services.refusing.set(Refusing::ShuttingDown);
        self.giver.iter_mut().for_each(Giver::leave);
    }

    pub(super) fn is_refusing(&self) -> bool {
        self.services.refusing.get() != Refusing::No
    }

    /// Every accepted request is answered.
    pub(super) fn is_done(&self) -> bool {
        let given = self.giver.as_ref().map_or(0, Giver::outstanding);
        self.executor.len() == 0 && !self.turn.has_deferred() && given == 0
    }

    /// Ends the calls that other threads gave to this one, which has panicked.
    pub(super) fn end_taken(&mut self, transports: &mut [Box<dyn ServerTransport>]) {
        let Dispatcher { turn, executor, giver, .. } = self;
        if let Some(giver) = giver {
            executor.end_of(giver.taker(), turn, &mut ReplyPaths::new(transports));
        }
    }

    /// Goes on with nothing but the services, after a panic. Gives what it had for the caller to drop. From now on this thread gives no
    /// requests to others, and takes none: answers to those that it gave may still come.
    pub(super) fn renew(&mut self, turn: Turn, executor: Executor) -> impl Sized + use<> {
        let turn = core::mem::replace(&mut self.turn, turn);
        let executor = core::mem::replace(&mut self.executor, executor);
        (turn, executor, self.giver.take())
    }

    /// Drops the handlers that are left. Returns how many.
    pub(super) fn abort_all(&mut self, transports: &mut [Box<dyn ServerTransport>]) -> u32 {
        let Dispatcher { turn, executor, giver, .. } = self;
        let paths = &mut ReplyPaths::new(transports);
        let given = giver.as_mut().map_or(0, |giver| giver.abort_all(turn, paths));
        given + executor.abort_all(turn, paths)
    }
}

/// Takes the requests of one transport.
struct Sink<'a> {
    services: &'a Services,
    turn: &'a mut Turn,
    executor: &'a mut Executor,
}

impl RequestSink for Sink<'_> {
    #[inline]
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        self.turn.begin_request();
        let header = RequestHeader::read(&message);
        let method = header.map_or(0, RequestHeader::method);
        let target = header.and_then(|_| self.services.methods.find(method));
        let row = target.map_or(self.services.unknown_row, |target| target.row);
        self.turn.counters.started(row);
        let arrived = self.turn.arrival();
        let deadline = match header.map_or(0, RequestHeader::timeout_us) {
            0 => Instant::FAR_FUTURE,
            us => arrived.saturating_add_nanos(u64::from(us) * 1000),
        };
        let now = self.turn.now;
        let task = Task::new(call, self.turn.transport, row, arrived, deadline);
        let mut unanswered = UnansweredCall::new(task, replies, self.turn, Some(self.executor));
        let reply = unanswered.reply();
        let (Some(target), Some(arguments)) = (target, message.skip(HEADER_BYTES)) else {
            return reply.no_such_method(method);
        };
        let refusing = self.services.refusing.get();
        if refusing != Refusing::No {
            return refuse(reply, refusing);
        }
        if reply.is_client_full() {
            return reply.fail_with(Status::Overloaded);
        }
        if now >= deadline {
            return reply.fail_with(Status::Late);
        }
        CallContext::enter(deadline, now, false, None);
        reply.identify_caller();
        self.services.dispatch(target, arguments, reply);
        CallContext::leave();
    }

    #[inline]
    fn is_idempotent(&self, request: &[u8]) -> bool {
        self.services.is_idempotent(request)
    }

    #[cold]
    fn cancelled(&mut self, client: u32, client_generation: u32, slot: u32, generation: u32) {
        let transport = self.turn.transport;
        let (client, slot) = ((client, client_generation), (slot, generation));
        self.executor.cancel(&Cancel::of_call(transport, client, slot));
    }

    #[cold]
    fn identified(&mut self, client: u32, client_generation: u32, identity: Option<Identity>) {
        let transport = self.turn.transport;
        self.turn.identities.set(transport, (client, client_generation), identity);
        if let Some(accounts) = &mut self.turn.accounts {
            let client = Client { transport, index: client, generation: client_generation };
            accounts.identify(client, identity);
        }
    }

    #[cold]
    fn disconnected(&mut self, client: u32, client_generation: u32) {
        self.executor.cancel(&Cancel::of_client(self.turn.transport, (client, client_generation)));
    }

    #[cold]
    fn device_lost(&mut self) {
        self.turn.note_lost(self.turn.transport);
    }
}

impl Sink<'_> {
    /// The client of a call.
    #[inline]
    fn client(&self, call: &CallToken) -> Client {
        Client::of(self.turn.transport, call)
    }

    /// Handles a request that is within its client's quota, and charges the time that it takes. Returns that in nanoseconds, if
    /// it is limited.
    #[inline]
    fn handle_metered(
        &mut self,
        call: CallToken,
        message: Message<'_>,
        replies: &mut dyn Replies,
    ) -> Option<u64> {
        let client = self.client(&call);
        self.turn.begin_work();
        self.request(call, message, replies);
        self.turn.end_work(client)
    }

    /// Refuses a request of a client that is over its quota.
    #[cold]
    fn refuse_over_quota(
        &mut self,
        call: CallToken,
        message: Message<'_>,
        replies: &mut dyn Replies,
    ) {
        let before = self.services.refusing.replace(Refusing::OverQuota);
        self.request(call, message, replies);
        self.services.refusing.set(before);
    }
}

#[cold]
fn refuse(reply: Reply<'_>, why: Refusing) {
    match why {
        Refusing::OverQuota => reply.over_quota(),
        Refusing::ShuttingDown | Refusing::No => reply.fail_with(Status::ShuttingDown),
    }
}

/// Takes the requests of one transport from clients that have quotas. A type of its own, so that threads without quotas have nothing to
/// decide.
struct MeteredSink<'a> {
    sink: Sink<'a>,
}

impl RequestSink for MeteredSink<'_> {
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        if self.sink.turn.admit(self.sink.client(&call)) {
            let _ = self.sink.handle_metered(call, message, replies);
        } else {
            self.sink.refuse_over_quota(call, message, replies);
        }
    }

    #[inline]
    fn is_idempotent(&self, request: &[u8]) -> bool {
        self.sink.is_idempotent(request)
    }

    fn cancelled(&mut self, client: u32, client_generation: u32, slot: u32, generation: u32) {
        self.sink.cancelled(client, client_generation, slot, generation);
    }

    fn identified(&mut self, client: u32, client_generation: u32, identity: Option<Identity>) {
        self.sink.identified(client, client_generation, identity);
    }

    fn disconnected(&mut self, client: u32, client_generation: u32) {
        self.sink.disconnected(client, client_generation);
    }

    fn device_lost(&mut self) {
        self.sink.device_lost();
    }
}

/// Takes the requests of one transport, and gives some to idle threads. A type of its own, so that threads that do not steal
/// have nothing to decide.
struct StealingSink<'a> {
    sink: Sink<'a>,
    giver: &'a mut Giver,
}

impl RequestSink for StealingSink<'_> {
    /// Gives a call to an idle thread, if this one is behind; otherwise handles it, and notes how long that takes.
    fn request(&mut self, mut call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        self.giver.set_idle(false);
        if !self.sink.turn.admit(self.sink.client(&call)) {
            return self.sink.refuse_over_quota(call, message, replies);
        }
        let Sink { services, turn, .. } = &mut self.sink;
        let method = RequestHeader::read(&message).map_or(0, RequestHeader::method);
        let Some(target) = services.methods.find(method) else {
            return self.sink.request(call, message, replies);
        };
        let is_refusing = services.refusing.get() != Refusing::No;
        let is_refused = is_refusing || turn.deferred.is_full(turn.transport, &call);
        let may_give = target.any_thread && !is_refused && turn.may_give_away(&call);
        if may_give && self.giver.wants_rid_of(target.row, turn) {
            let identity = turn.identities.of(turn.transport, &call);
            match self.giver.give(call, &message, (turn.transport, identity)) {
                None => return turn.counters.stolen(target.row),
                Some(kept) => call = kept,
            }
        }
        let measured = self.sink.handle_metered(call, message, replies);
        let nanos = measured.unwrap_or_else(|| self.sink.turn.read_clock());
        self.giver.ran(target.row, nanos);
    }

    #[inline]
    fn is_idempotent(&self, request: &[u8]) -> bool {
        self.sink.services.is_idempotent(request)
    }

    fn cancelled(&mut self, client: u32, client_generation: u32, slot: u32, generation: u32) {
        let (client, slot) = ((client, client_generation), (slot, generation));
        let cancel = Cancel::of_call(self.sink.turn.transport, client, slot);
        self.giver.cancel(&cancel);
        self.sink.executor.cancel(&cancel);
    }

    fn identified(&mut self, client: u32, client_generation: u32, identity: Option<Identity>) {
        self.sink.identified(client, client_generation, identity);
    }

    fn disconnected(&mut self, client: u32, client_generation: u32) {
        let cancel = Cancel::of_client(self.sink.turn.transport, (client, client_generation));
        self.giver.cancel(&cancel);
        self.sink.executor.cancel(&cancel);
    }

    fn device_lost(&mut self) {
        self.sink.device_lost();
    }
}

impl Services {
    #[inline]
    fn is_idempotent(&self, request: &[u8]) -> bool {
        let target = RequestHeader::read(request).and_then(|it| self.methods.find(it.method()));
        target.is_some_and(|target| target.idempotent)
    }

    #[inline]
    fn dispatch(&self, target: Target, arguments: Message<'_>, reply: Reply<'_>) {
        let service = &*self.instances[target.service as usize];
        let method = target.method as usize;
        // Unwinding drops the reply, which then answers that the handler panicked.
        let handled = catch(|| service.dispatch(method, arguments, reply));
        if let Err(panic) = handled {
            log_panic(service, method, &panics::describe(&panic));
        }
    }
}

#[cold]
fn log_panic(service: &dyn Service, method: usize, panic: &str) {
    let description = service.description();
    let name = description.methods.get(method).map_or("?", |method| method.name);
    tracing::error!(
        service = description.name,
        method = name,
        panic,
        "a handler panicked; its call failed, the server goes on"
    );
}
