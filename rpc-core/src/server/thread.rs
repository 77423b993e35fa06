//! The driver of one server thread: reads the clock, turns the desk, rests when there is nothing to do.

use super::CancelPolicy;
use super::control::Control;
use super::desk::Desk;
use super::executor::Executor;
use super::table::Table;
use super::turn::Turn;
use crate::idle::{IdlePolicy, Idler, Rest};
use crate::metrics::ThreadCounters;
use crate::service::Service;
use crate::time::{Instant, PollAt, Progress};
use crate::transport::ServerTransport;
use std::sync::Arc;

/// While it drains, a thread lets requests in until a turn finds none, but no longer than this: clients that never pause
/// are turned away then.
const LET_IN_NS: u64 = 10_000_000;

/// How long a thread that ends waits for its last answers to reach their clients: a device tries for about so long before
/// it calls a client gone.
const LEAVE_NS: u64 = 1_000_000_000;

/// A thread that is never idle still tells the number of its connections, this often.
const BUSY_TURNS_PER_COUNT: u32 = 4096;

/// What a driver is made of. It crosses to its thread; the driver, whose futures need not be `Send`, does not.
pub(super) struct Seed {
    pub(super) index: usize,
    pub(super) transport: Box<dyn ServerTransport>,
    pub(super) control: Arc<Control>,
    pub(super) idle: IdlePolicy,
    pub(super) services: Vec<Box<dyn Service>>,
    pub(super) table: Table,
    pub(super) unknown: u32,
    pub(super) counters: Arc<ThreadCounters>,
    pub(super) async_calls: usize,
    pub(super) cancel: CancelPolicy,
}

impl Seed {
    /// The driver, on its own thread.
    pub(super) fn into_driver(self) -> Driver {
        let unparker = self.transport.unparker();
        let executor = Executor::new(self.async_calls, self.cancel, unparker);
        let turn = Turn::new(self.counters);
        Driver {
            index: self.index,
            desk: Desk::new(self.services, self.table, self.unknown, turn, executor),
            transport: self.transport,
            control: self.control,
            idle: self.idle,
        }
    }
}

/// One server thread.
pub(super) struct Driver {
    index: usize,
    desk: Desk,
    transport: Box<dyn ServerTransport>,
    control: Arc<Control>,
    idle: IdlePolicy,
}

/// A thread that drains: until when it lets requests in, and when it ends at the latest.
struct Drain {
    let_in_until: Instant,
    until: Instant,
}

impl Driver {
    /// Runs until the server is told to drain and has done so.
    pub(super) fn run(mut self) {
        let mut idler = Idler::new(self.idle);
        let mut now = self.transport.now();
        let mut drain: Option<Drain> = None;
        let mut busy_turns: u32 = 0;
        loop {
            let progress = self.desk.turn(now, &mut *self.transport);
            if !progress.is_idle() {
                idler.worked();
                now = self.transport.now();
                self.desk.ended(now);
                busy_turns = busy_turns.wrapping_add(1);
                if busy_turns.is_multiple_of(BUSY_TURNS_PER_COUNT) {
                    self.control.set_connections(self.index, self.transport.connections());
                }
            } else if idler.wants_clock() {
                now = self.transport.now();
                self.control.set_connections(self.index, self.transport.connections());
                if drain.is_some() {
                    std::thread::yield_now();
                } else if self.rest(&mut idler, now, progress) {
                    now = self.transport.now();
                }
            } else {
                continue;
            }
            if let Some(bound_ns) = self.control.draining() {
                let drain = drain.get_or_insert_with(|| Drain::new(now, bound_ns));
                if self.is_drained(drain, now, progress) {
                    break;
                }
            }
        }
        self.leave(drain.map_or(now, |drain| drain.until));
    }

    /// Rests after an empty turn. Answers whether that took long enough to read the clock again.
    fn rest(&mut self, idler: &mut Idler, now: Instant, progress: Progress) -> bool {
        match (idler.rest(now), progress.next) {
            (Rest::Spin, _) | (_, PollAt::Now) => return false,
            (Rest::Yield, _) => std::thread::yield_now(),
            (Rest::Park, PollAt::At(at)) => self.park(Some(at)),
            (Rest::Park, PollAt::OnEvent) => self.park(None),
        }
        true
    }

    /// Sleeps, unless something came that the transport does not know of.
    fn park(&mut self, until: Option<Instant>) {
        let ready = self.desk.executor().ready().clone();
        ready.fall_asleep();
        if !self.desk.executor().has_ready() && self.control.draining().is_none() {
            self.transport.park(until);
        }
        ready.awake();
    }

    fn is_drained(&mut self, drain: &Drain, now: Instant, progress: Progress) -> bool {
        if progress.is_idle() || now >= drain.let_in_until {
            self.desk.turn_away();
        }
        let is_done =
            self.desk.turns_away() && self.desk.is_done() && !self.transport.has_unfetched();
        is_done || now >= drain.until
    }

    /// Says goodbye, at most until then.
    fn leave(mut self, until: Instant) {
        let aborted = self.desk.abort_all(&mut *self.transport);
        self.control.add_aborted(aborted);
        let now = self.transport.now();
        self.transport.flush(now);
        self.transport.close();
        let until = until.min(now.saturating_add_nanos(LEAVE_NS));
        let mut now = now;
        while !self.transport.has_left(now) && now < until {
            std::thread::yield_now();
            now = self.transport.now();
        }
        self.control.set_connections(self.index, 0);
        tracing::debug!(thread = self.index, aborted, "server thread ended");
    }
}

impl Drain {
    fn new(now: Instant, bound_ns: u64) -> Self {
        let let_in_until = now.saturating_add_nanos(LET_IN_NS.min(bound_ns));
        Drain { let_in_until, until: now.saturating_add_nanos(bound_ns) }
    }
}
