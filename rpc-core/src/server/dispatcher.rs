//! The work of one server thread, as a state machine: time and transports are arguments.

use super::advising::{Advising, NotingSink};
use super::backlog::{Backlog, Waiting};
use super::call_index::Cancel;
use super::clients::ClientKey;
use super::context::CallContext;
use super::deferred::RETRY_NS;
use super::executor::{Executor, Task};
use super::panics;
use super::paths::ReplyPaths;
use super::reply::{Reply, UnansweredCall};
use super::run_times::{Length, RunTimes};
use super::stealing::{Giver, Returned};
use super::table::{Table, Target};
use super::turn::{Extras, Turn};
use crate::panics::catch;
use crate::service::Service;
use crate::time::{Instant, PollAt, Progress};
use crate::transport::{
    CallToken, ClientEvent, ClientId, Message, Replies, RequestSink, ServerTransport,
};
use crate::wire::{HEADER_BYTES, RequestHeader, Status};
use core::cell::Cell;

mod occupied;
mod sinks;
mod waiting;

use self::occupied::Occupied;
use self::sinks::{MeteredSink, StealingSink};

/// After handlers have run for so long, the thread takes in what has arrived before it runs further ones: cancellations of those, for
/// example.
pub(super) const SLICE_NS: u64 = 100_000;

/// The services of a thread, their handlers in flight, and what waits for the next turn.
pub(super) struct Dispatcher {
    services: Services,
    pub(super) turn: Turn,
    executor: Executor,
    occupied: Occupied,
    /// Requests that wait for their handlers.
    backlog: Backlog,
    /// Polls since a request of the backlog was run.
    polls: u32,
    /// Gives requests to idle threads, if the server's threads steal.
    giver: Option<Giver>,
    /// Calls over each transport, if there are several.
    calls: Vec<u64>,
    /// Says which way clients are to take, if the server has several.
    advising: Option<Advising>,
}

/// The services of a thread, and which methods they have.
struct Services {
    instances: Vec<Box<dyn Service>>,
    methods: Table,
    /// The row that counts calls of unknown methods.
    unknown_row: u32,
    /// Which requests are refused, and why.
    refusing: Cell<Refusing>,
    run_times: RunTimes,
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
        let run_times = RunTimes::new(unknown_row as usize);
        let services = Services { instances, methods, unknown_row, refusing, run_times };
        let (occupied, backlog) = (Occupied::default(), Backlog::default());
        let (calls, advising) = (Vec::new(), None);
        Dispatcher { services, turn, executor, occupied, backlog, polls: 0, giver, calls, advising }
    }

    /// Advises clients from now on.
    pub(super) fn advise_by(&mut self, advising: Option<Advising>) {
        self.advising = advising;
    }

    /// There is work for a turn that no transport announces.
    pub(super) fn has_ready(&self) -> bool {
        self.executor.has_ready() || self.has_answers() || !self.backlog.is_empty()
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
        let mut progress = match &mut *transports {
            [only] => self.poll::<STEALS, METERED>(0, &mut **only, false),
            several => self.poll_several::<STEALS, METERED>(several),
        };
        if self.has_chores() || (STEALS && self.has_answers()) {
            progress.worked += self.do_chores(progress.next, transports);
        }
        if progress.is_idle() {
            self.turn.end_empty();
            if STEALS && let Some(giver) = &mut self.giver {
                giver.set_idle(true);
            }
            progress.next = progress.next.earlier(self.poll_at());
        } else {
            self.flush(transports);
        }
        progress
    }

    /// Sends what the turn has answered. Transports that were not polled have no clients whom to answer.
    #[inline]
    fn flush(&self, transports: &mut [Box<dyn ServerTransport>]) {
        match transports {
            [only] => only.flush(),
            several => match self.occupied.polled() {
                [only] => several[*only as usize].flush(),
                polled => polled.iter().for_each(|number| several[*number as usize].flush()),
            },
        }
    }

    /// Polls those transports that have clients, and the others now and then.
    fn poll_several<const STEALS: bool, const METERED: bool>(
        &mut self,
        transports: &mut [Box<dyn ServerTransport>],
    ) -> Progress {
        if self.occupied.is_to_look(self.turn.now) {
            return self.look_at_all::<STEALS, METERED>(transports);
        }
        if let [only] = self.occupied.polled() {
            let only = *only;
            return self.poll_counted::<STEALS, METERED>(only, &mut *transports[only as usize]);
        }
        let mut progress = Progress::IDLE;
        for at in 0..self.occupied.polled().len() {
            let number = self.occupied.polled()[at];
            let transport = &mut *transports[number as usize];
            progress = progress.and(self.poll_counted::<STEALS, METERED>(number, transport));
        }
        progress
    }

    /// Polls all transports, and notes which of them have clients.
    fn look_at_all<const STEALS: bool, const METERED: bool>(
        &mut self,
        transports: &mut [Box<dyn ServerTransport>],
    ) -> Progress {
        self.occupied.begin_look(self.turn.now);
        self.calls.resize(transports.len(), 0);
        let mut progress = Progress::IDLE;
        for (number, transport) in (0..).zip(&mut *transports) {
            let before = self.turn.requests();
            let polled = self.poll::<STEALS, METERED>(number, &mut **transport, true);
            self.calls[number as usize] += u64::from(self.turn.requests() - before);
            // One that is to be polled at some moment has something to do then, although it has no clients.
            let waits = polled.is_idle() && polled.next == PollAt::OnEvent;
            if waits && transport.is_vacant() {
                // What clients that have left were still to get.
                transport.flush();
            } else {
                self.occupied.note(number);
            }
            progress = progress.and(polled);
        }
        if let Some(advising) = &mut self.advising
            && advising.is_due(self.turn.now)
        {
            self.turn.advice = advising.tell(&self.calls, self.turn.now);
        }
        progress
    }

    /// All transports are polled in the next turn: one of them has news.
    pub(super) fn look_at_all_soon(&mut self) {
        self.occupied.look_soon();
    }

    /// Polls one of several transports.
    #[inline]
    fn poll_counted<const STEALS: bool, const METERED: bool>(
        &mut self,
        number: u32,
        transport: &mut dyn ServerTransport,
    ) -> Progress {
        let before = self.turn.requests();
        let progress = self.poll::<STEALS, METERED>(number, transport, false);
        self.calls[number as usize] += u64::from(self.turn.requests() - before);
        progress
    }

    #[inline]
    fn poll<const STEALS: bool, const METERED: bool>(
        &mut self,
        number: u32,
        transport: &mut dyn ServerTransport,
        notes_clients: bool,
    ) -> Progress {
        let Dispatcher { services, turn, executor, backlog, giver, advising, .. } = self;
        turn.transport = number;
        let now = turn.now;
        let mut sink = Sink { services, turn, executor, backlog };
        let mut poll = |sink: &mut dyn RequestSink| match advising {
            Some(Advising { active, .. }) if notes_clients => {
                transport.poll(now, &mut NotingSink { sink, active, transport: number })
            }
            _ => transport.poll(now, sink),
        };
        match giver {
            Some(giver) if STEALS => poll(&mut StealingSink { sink, giver }),
            _ if METERED => poll(&mut MeteredSink { sink }),
            _ => poll(&mut sink),
        }
    }

    /// Ends a turn that worked, after its replies have left.
    #[inline]
    pub(super) fn end_turn(&mut self, now: Instant) {
        self.turn.end(now, &self.services.run_times);
    }

    #[inline]
    fn has_chores(&self) -> bool {
        self.executor.has_ready()
            || self.executor.has_cancelled()
            || self.turn.now >= self.executor.earliest()
            || self.turn.has_deferred()
            || !self.backlog.is_empty()
    }

    /// Does the work that does not come with a request: woken handlers, cancellations, deadlines, deferred answers, requests that have
    /// waited. `next` is when the transports are to be polled again.
    fn do_chores(&mut self, next: PollAt, transports: &mut [Box<dyn ServerTransport>]) -> u32 {
        let paths = &mut ReplyPaths::new(transports);
        let Dispatcher { services, turn, executor, backlog, giver, .. } = self;
        let mut worked = 0;
        if let Some(giver) = giver {
            giver.set_idle(false);
            worked += giver.send_answers(turn, paths);
            while let Some(Returned { call, transport, content }) = giver.take_returned() {
                // It has been admitted, and is not given away again.
                let replies = paths.enter(transport, turn);
                let mut sink = Sink { services, turn, executor, backlog };
                let _ = sink.handle_metered(call, content.message(), replies);
            }
        }
        if executor.has_cancelled() {
            worked += executor.end_cancelled(turn, paths);
        }
        if turn.now >= executor.earliest() {
            worked += executor.expire(turn, paths);
        }
        worked += executor.run(turn, paths);
        if !self.backlog.is_empty() {
            worked += self.work_off_backlog(next, paths);
        }
        if self.turn.has_deferred() {
            worked += self.turn.send_deferred(paths);
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
        if self.turn.has_deferred() {
            // Most memory is freed with an event; memory that handlers free is not.
            let again = self.turn.now.saturating_add_nanos(RETRY_NS);
            return deadlines.earlier(PollAt::At(again));
        }
        deadlines
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
        let is_at_work = self.executor.len() > 0 || !self.backlog.is_empty();
        !is_at_work && !self.turn.has_deferred() && given == 0
    }

    /// Ends the calls that other threads gave to this one, which has panicked.
    pub(super) fn end_taken(&mut self, transports: &mut [Box<dyn ServerTransport>]) {
        let Some(taker) = self.giver.as_ref().map(Giver::taker) else { return };
        let paths = &mut ReplyPaths::new(transports);
        self.executor.end_of(taker, &mut self.turn, paths);
        while let Some(request) = self.backlog.take_any(Some(taker)) {
            self.end_waiting(request, Status::HandlerPanicked, paths);
        }
    }

    /// Goes on with nothing but the services, after a panic. Gives what it had for the caller to drop. From now on this thread gives no
    /// requests to others, and takes none: answers to those that it gave may still come.
    pub(super) fn renew(&mut self, turn: Turn, executor: Executor) -> impl Sized + use<> {
        let turn = core::mem::replace(&mut self.turn, turn);
        let executor = core::mem::replace(&mut self.executor, executor);
        let backlog = core::mem::take(&mut self.backlog);
        (turn, executor, backlog, self.giver.take())
    }

    /// Drops the handlers that are left, and the requests that wait for one. Returns how many.
    pub(super) fn abort_all(&mut self, transports: &mut [Box<dyn ServerTransport>]) -> u32 {
        let paths = &mut ReplyPaths::new(transports);
        let mut waited = 0;
        while let Some(request) = self.backlog.take_any(None) {
            self.end_waiting(request, Status::Cancelled, paths);
            waited += 1;
        }
        let Dispatcher { turn, executor, giver, .. } = self;
        let given = giver.as_mut().map_or(0, |giver| giver.abort_all(turn, paths));
        waited + given + executor.abort_all(turn, paths)
    }
}

/// Takes the requests of one transport.
struct Sink<'a> {
    services: &'a Services,
    turn: &'a mut Turn,
    executor: &'a mut Executor,
    backlog: &'a mut Backlog,
}

impl RequestSink for Sink<'_> {
    #[inline]
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        self.turn.begin_request();
        if self.services.run_times.are_all_short() {
            let found = self.find(&call, &message);
            self.handle(call, message, replies, found);
        } else {
            self.handle_or_keep(call, message, replies);
        }
    }

    fn have_waited(&mut self, nanos: u64) {
        self.turn.waited_ns = nanos;
    }

    #[inline]
    fn is_idempotent(&self, request: &[u8]) -> bool {
        self.services.is_idempotent(request)
    }

    #[cold]
    fn client(&mut self, client: ClientId, event: ClientEvent) {
        let client = ClientKey { transport: self.turn.transport, id: client };
        match event {
            ClientEvent::Joined(info) => self.turn.join(client, info),
            ClientEvent::Cancelled { slot, generation } => {
                self.cancel(&Cancel::of_call(client, (slot, generation)));
            }
            ClientEvent::Left => {
                self.cancel(&Cancel::of_client(client));
                self.turn.leave(client);
            }
        }
    }

    #[cold]
    fn device_lost(&mut self) {
        self.turn.note_lost(self.turn.transport);
    }
}

/// A request as it was found.
#[derive(Clone, Copy)]
struct Found {
    method: u32,
    target: Option<Target>,
    row: u32,
    arrived: Instant,
    deadline: Instant,
}

impl Sink<'_> {
    #[inline(always)]
    fn find(&self, call: &CallToken, message: &[u8]) -> Found {
        let header = RequestHeader::read(message);
        let method = header.map_or(0, RequestHeader::method);
        let target = header.and_then(|_| self.services.methods.find(method));
        let target = target.filter(|target| self.turn.may_call(call, target.service));
        let row = target.map_or(self.services.unknown_row, |target| target.row);
        let arrived = self.turn.arrival();
        let deadline = match header.map_or(0, RequestHeader::timeout_us) {
            0 => Instant::FAR_FUTURE,
            us => arrived.saturating_add_nanos(u64::from(us) * 1000),
        };
        Found { method, target, row, arrived, deadline }
    }

    /// Runs the handler of a request, or refuses it.
    #[inline(always)]
    fn handle(
        &mut self,
        call: CallToken,
        message: Message<'_>,
        replies: &mut dyn Replies,
        found: Found,
    ) {
        let Found { method, target, row, arrived, deadline } = found;
        let (now, transport) = (self.turn.now, self.turn.transport);
        self.turn.counters.started(row);
        let client = ClientKey::of(transport, &call);
        let task = Task::new(call, transport, row, arrived, deadline);
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
        CallContext::enter(deadline, now, false, client);
        reply.identify_caller();
        self.services.dispatch(target, arguments, reply);
        CallContext::leave();
    }

    /// Handles a request while some methods are not known to be short: one of a long method waits, and a run of a method of which it is
    /// not known is measured.
    #[inline(never)]
    fn handle_or_keep(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        let found = self.find(&call, &message);
        let length = self.services.run_times.length(found.row);
        if matches!(length, Length::Long(_))
            && let Some(target) = found.target
            && self.turn.now < found.deadline
            && self.may_wait(&call, message.len())
        {
            return self.keep(call, message, target, found);
        }
        let began = matches!(length, Length::Unknown { .. }).then(|| self.turn.clock());
        self.handle(call, message, replies, found);
        if let Some(began) = began {
            self.services.run_times.record(found.row, self.turn.nanos_since(began));
        }
    }

    /// The backlog takes a request of this call.
    fn may_wait(&mut self, call: &CallToken, len: usize) -> bool {
        let Sink { services, turn, backlog, .. } = self;
        services.refusing.get() == Refusing::No
            && !turn.is_client_full(call)
            && backlog.has_room(len)
    }

    /// Lets a request wait.
    fn keep(&mut self, call: CallToken, message: Message<'_>, target: Target, found: Found) {
        let Found { arrived, deadline, .. } = found;
        let deadline = self.turn.postponed(deadline);
        self.turn.kept += 1;
        let transport = self.turn.transport;
        let identity = self.turn.clients.identity(transport, &call).cloned();
        let content = self.backlog.content(message);
        let waited_ns = self.turn.waited_ns;
        let request =
            Waiting { call, transport, target, arrived, waited_ns, deadline, identity, content };
        self.backlog.push(request);
    }

    #[cold]
    fn cancel(&mut self, cancel: &Cancel) {
        self.executor.cancel(cancel);
        self.backlog.cancel(cancel);
    }
}

#[cold]
fn refuse(reply: Reply<'_>, why: Refusing) {
    match why {
        Refusing::OverQuota => reply.over_quota(),
        Refusing::ShuttingDown | Refusing::No => reply.fail_with(Status::ShuttingDown),
    }
}

/// Whether an idle thread would better run this request, which was noticed so long ago.
fn may_give(giver: &Giver, target: Target, call: &CallToken, turn: &Turn, waited_ns: u64) -> bool {
    target.any_thread
        && turn.may_call(call, target.service)
        && !turn.is_client_full(call)
        && turn.may_give_away(call)
        && giver.wants_rid_of(target.row, turn.transport, waited_ns)
}

impl Services {
    #[inline]
    fn is_idempotent(&self, request: &[u8]) -> bool {
        let target = RequestHeader::read(request).and_then(|it| self.methods.find(it.method()));
        target.is_some_and(|target| target.idempotent)
    }

    #[inline(always)]
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
