//! One server thread: its work in turns, and the loop that an OS thread spends on them.

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
use core::fmt;
use std::sync::Arc;

/// While it drains, a thread lets requests in until a turn finds none, but no longer than this: clients that never pause
/// are turned away then.
const LET_IN_NS: u64 = 10_000_000;

/// How long a thread that ends waits for its last answers to reach their clients: a device tries for about so long before
/// it calls a client gone.
const LEAVE_NS: u64 = 1_000_000_000;

/// How often a thread that ends asks its transport whether the clients have all that they were sent.
const LOOK_AGAIN_NS: u64 = 10_000_000;

/// At least so long it waits, also where a shutdown's bound is over.
const LAST_WORDS_NS: u64 = 100_000_000;

/// A thread that is never idle still tells the number of its connections, this often.
const BUSY_TURNS_PER_COUNT: u32 = 4096;

/// What a server thread is made of. It crosses to its OS thread; the thread's futures need not be `Send`, and do not.
pub(super) struct Seed {
    pub(super) index: usize,
    pub(super) transport: Box<dyn ServerTransport>,
    pub(super) control: Arc<Control>,
    pub(super) services: Vec<Box<dyn Service>>,
    pub(super) table: Table,
    pub(super) unknown: u32,
    pub(super) counters: Arc<ThreadCounters>,
    pub(super) async_calls: usize,
    pub(super) cancel: CancelPolicy,
}

impl Seed {
    /// The server thread, where it is to run.
    pub(super) fn into_thread(self) -> ServerThread {
        let unparker = self.transport.unparker();
        let executor = Executor::new(self.async_calls, self.cancel, unparker);
        let turn = Turn::new(self.counters);
        ServerThread {
            index: self.index,
            desk: Desk::new(self.services, self.table, self.unknown, turn, executor),
            transport: self.transport,
            control: self.control,
            stage: Stage::Serving,
            busy_turns: 0,
        }
    }
}

/// One server thread: its connections, and the handlers of their calls.
///
/// Whoever has it drives it, by [`turn`](Self::turn): an OS thread of the server's own
/// ([`ServerBuilder::serve`](super::ServerBuilder::serve)), or a simulator, in virtual time
/// ([`ServerBuilder::assemble`](super::ServerBuilder::assemble)).
pub struct ServerThread {
    index: usize,
    desk: Desk,
    transport: Box<dyn ServerTransport>,
    control: Arc<Control>,
    stage: Stage,
    busy_turns: u32,
}

/// Where in its life a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    /// It lets requests in until the first moment, and ends by the second.
    Draining {
        let_in_until: Instant,
        until: Instant,
    },
    /// It has said goodbye, and waits until the last answers have left, at most until then.
    Leaving {
        until: Instant,
    },
    Over,
}

impl ServerThread {
    /// One turn at `now`, the time on the device's clock: what arrived is handled, what was woken runs, replies leave.
    ///
    /// For drivers whose clock stands still during a turn. After a turn that worked there may be more to do at once. After
    /// an empty one the answer's `next` says when: at that moment, or with an event of the transport (a completion, a new
    /// client, its [`unparker`](ServerTransport::unparker)). Waits for nothing itself.
    pub fn turn(&mut self, now: Instant) -> Progress {
        let ready = self.desk.executor().ready().clone();
        ready.awake();
        let mut progress = match self.has_said_goodbye() {
            false => self.desk.turn(now, &mut *self.transport),
            true => Progress::IDLE,
        };
        self.look(now, progress);
        if !progress.is_idle() {
            return progress;
        }
        // From here on whoever wakes a handler, or tells the server to end, unparks the transport too.
        ready.fall_asleep();
        let news = self.desk.executor().has_ready()
            || (self.stage == Stage::Serving && self.control.draining().is_some());
        progress.next = match self.stage {
            _ if news => PollAt::Now,
            Stage::Serving | Stage::Over => progress.next,
            // What the transport waits for then may be no event.
            Stage::Draining { until, .. } | Stage::Leaving { until } => {
                let again = now.saturating_add_nanos(LOOK_AGAIN_NS);
                progress.next.earlier(PollAt::At(until.min(again)))
            }
        };
        progress
    }

    /// Has the thread ended? It was told to drain, and has done so: nothing is left to be done.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Runs until the server is told to drain and has done so.
    pub(super) fn run(mut self, idle: IdlePolicy) {
        let mut idler = Idler::new(idle);
        let mut now = self.transport.now();
        loop {
            let progress = self.desk.turn(now, &mut *self.transport);
            if !progress.is_idle() {
                idler.worked();
            } else if !idler.wants_clock() {
                continue;
            }
            now = self.transport.now();
            self.look(now, progress);
            if self.has_said_goodbye() {
                break;
            }
            if progress.is_idle() {
                if self.stage != Stage::Serving {
                    std::thread::yield_now();
                } else if self.rest(&mut idler, now, progress) {
                    now = self.transport.now();
                }
            }
        }
        while !self.is_over() {
            std::thread::yield_now();
            now = self.transport.now();
            self.look(now, Progress::IDLE);
        }
    }

    fn has_said_goodbye(&self) -> bool {
        matches!(self.stage, Stage::Leaving { .. } | Stage::Over)
    }

    /// What follows a turn of the desk, at `now`: the counters, and the end.
    #[inline]
    fn look(&mut self, now: Instant, progress: Progress) {
        if !progress.is_idle() {
            self.desk.ended(now);
            self.busy_turns = self.busy_turns.wrapping_add(1);
            if self.busy_turns.is_multiple_of(BUSY_TURNS_PER_COUNT) {
                self.count();
            }
        } else if self.stage == Stage::Serving {
            self.count();
        }
        if self.stage != Stage::Serving || self.control.draining().is_some() {
            self.move_on(now, progress);
        }
    }

    fn count(&self) {
        self.control.set_connections(self.index, self.transport.connections());
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

    /// The server ends: drains, then says goodbye, then waits until that has left.
    #[cold]
    fn move_on(&mut self, now: Instant, progress: Progress) {
        if self.stage == Stage::Serving
            && let Some(bound_ns) = self.control.draining()
        {
            self.stage = Stage::Draining {
                let_in_until: now.saturating_add_nanos(LET_IN_NS.min(bound_ns)),
                until: now.saturating_add_nanos(bound_ns),
            };
        }
        if let Stage::Draining { let_in_until, until } = self.stage {
            if progress.is_idle() || now >= let_in_until {
                self.desk.turn_away();
            }
            let is_done =
                self.desk.turns_away() && self.desk.is_done() && !self.transport.has_unfetched();
            if is_done || now >= until {
                self.say_goodbye(now, until);
            }
        }
        if let Stage::Leaving { until } = self.stage
            && (self.transport.has_left(now) || now >= until)
        {
            self.stage = Stage::Over;
            self.control.set_connections(self.index, 0);
        }
    }

    fn say_goodbye(&mut self, now: Instant, until: Instant) {
        let aborted = self.desk.abort_all(&mut *self.transport);
        self.control.add_aborted(aborted);
        self.transport.flush(now);
        self.transport.close();
        tracing::debug!(thread = self.index, aborted, "server thread ends");
        let (least, most) =
            (now.saturating_add_nanos(LAST_WORDS_NS), now.saturating_add_nanos(LEAVE_NS));
        self.stage = Stage::Leaving { until: until.clamp(least, most) };
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.control.thread_ended();
    }
}

impl fmt::Debug for ServerThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerThread")
            .field("index", &self.index)
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}
