//! One server thread: its work in turns, and the loop of an OS thread that takes them.

use super::CancelPolicy;
use super::advising::Advising;
use super::control::Control;
use super::dispatcher::Dispatcher;
use super::executor::Executor;
use super::lost::Replacements;
use super::panics;
use super::quota::{Accounts, SharedAccounts};
use super::recovery::Recovery;
use super::stealing::{self, Giver, Taker};
use super::table::Table;
use super::turn::{Extras, Turn};
use crate::idle::{IdlePolicy, Idler, Rest};
use crate::metrics::{Connections, ThreadCounters};
use crate::panics::{Panic, catch};
use crate::service::Service;
use crate::site::{Asleep, Site};
use crate::time::{Instant, PollAt, Progress};
use crate::transport::{Renewal, ServerTransport, WindDown};
use core::fmt;
use std::sync::Arc;

/// A draining thread accepts requests until a turn finds none, but no longer than this: clients may never pause.
const ACCEPT_NS: u64 = 10_000_000;

/// A draining thread then refuses requests for as long before it says goodbye, while it has clients: a client that is refused
/// sends no more there, so that its calls do not end with the connection.
const REFUSE_NS: u64 = 20_000_000;

/// How long an ending thread waits for its last replies to leave. A device retries for about this long before it reports
/// that a client is gone.
const CLOSE_NS: u64 = 1_000_000_000;

/// An ending thread waits at least this long for its last replies, even when the bound of the shutdown has passed.
const LEAST_CLOSE_NS: u64 = 100_000_000;

/// How often an ending thread asks its transports whether they are done.
const WIND_DOWN_NS: u64 = 10_000_000;

/// A thread that is never idle publishes the number of its connections once in so many turns.
const BUSY_TURNS_PER_COUNT: u32 = 4096;

/// The parts of a server thread, on their way to its OS thread: unlike its futures, they are `Send`.
pub(super) struct ThreadParts {
    pub(super) index: usize,
    pub(super) site: Site,
    /// One per address of the server.
    pub(super) transports: Vec<Box<dyn ServerTransport>>,
    /// Makes each of them once more, as far as it can be.
    pub(super) renewals: Vec<Option<Arc<dyn Renewal>>>,
    pub(super) control: Arc<Control>,
    pub(super) services: Vec<Box<dyn Service>>,
    pub(super) table: Table,
    pub(super) unknown_row: u32,
    pub(super) counters: Arc<ThreadCounters>,
    /// What others see of its connections.
    pub(super) connections: Arc<Connections>,
    pub(super) async_calls: usize,
    pub(super) cancel: CancelPolicy,
    /// What the threads share, if they steal.
    pub(super) stealing: Option<Arc<stealing::Shared>>,
    /// What the threads' clients use, if they have quotas.
    pub(super) accounts: Option<Arc<SharedAccounts>>,
    pub(super) advising: Option<Advising>,
}

impl ThreadParts {
    /// Makes the server thread, on the thread that will run it.
    pub(super) fn into_thread(mut self) -> ServerThread {
        let giver = self.stealing.map(|shared| {
            let (thread, taker) = (self.index as u32, self.transports.len() as u32);
            self.transports.push(Box::new(Taker::new(Arc::clone(&shared), thread)));
            Giver::new(shared, thread, taker)
        });
        let executor = Executor::new(self.async_calls, self.cancel, self.site.clone());
        let recovery = Recovery {
            renewals: self.renewals,
            async_calls: self.async_calls,
            cancel: self.cancel,
            counters: Arc::clone(&self.counters),
            accounts: self.accounts.clone(),
            connections: self.connections.clone(),
            not_before: Instant::ZERO,
        };
        let taker = giver.as_ref().map(Giver::taker);
        let accounts = self.accounts.map(|it| Accounts::new(it).counted_elsewhere(taker));
        let turn = Turn::new(self.site.clone(), self.counters, accounts).showing(self.connections);
        let mut dispatcher =
            Dispatcher::new(self.services, self.table, self.unknown_row, turn, executor, giver);
        dispatcher.advise_by(self.advising);
        ServerThread {
            index: self.index,
            site: self.site,
            dispatcher,
            transports: self.transports,
            control: self.control,
            recovery,
            replacements: Replacements::default(),
            stage: Stage::Serving,
            busy_turns: 0,
            asleep: None,
        }
    }
}

/// One server thread: its connections, and the handlers of their calls.
///
/// It is driven by calls of [`turn`](Self::turn): by an OS thread of the server
/// ([`ServerBuilder::serve`](super::ServerBuilder::serve)), or by a simulator in virtual time
/// ([`ServerBuilder::assemble`](super::ServerBuilder::assemble)).
pub struct ServerThread {
    pub(super) index: usize,
    pub(super) site: Site,
    pub(super) dispatcher: Dispatcher,
    pub(super) transports: Vec<Box<dyn ServerTransport>>,
    pub(super) control: Arc<Control>,
    pub(super) recovery: Recovery,
    pub(super) replacements: Replacements,
    stage: Stage,
    busy_turns: u32,
    /// Between an empty [`turn`](Self::turn) and the next one.
    asleep: Option<Asleep>,
}

/// Where in its life a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    /// Answers what is in flight.
    Draining {
        accept_until: Instant,
        refuse_until: Instant,
        until: Instant,
    },
    /// Has said goodbye; the last replies leave.
    Leaving {
        until: Instant,
    },
    Over,
}

impl ServerThread {
    /// One turn at `now` on the site's clock: handles what arrived, runs the handlers that were woken, sends the replies.
    ///
    /// For drivers whose clock stands still during a turn. Never waits. After a turn that worked there may be more to do at
    /// once. After an empty one, `next` of the result says when to call again: at that moment, or earlier with an event of
    /// the site (a completion, a new client, a [wake](Site::wake)).
    pub fn turn(&mut self, now: Instant) -> Progress {
        self.site.make_current();
        self.asleep = None;
        let mut progress = match self.has_said_goodbye() {
            false => self.take_turn(now),
            true => Progress::IDLE,
        };
        if !progress.is_idle() {
            // By a clock that goes on during turns, handlers have run.
            self.end_turn(self.site.now().max(now), progress);
            return progress;
        }
        self.end_turn(now, progress);
        self.asleep = Some(self.site.fall_asleep());
        let has_news = !self.has_said_goodbye() && !self.may_sleep();
        progress.next = match self.stage {
            _ if has_news => PollAt::Now,
            Stage::Serving | Stage::Over => progress.next,
            // What the transports wait for may come without an event.
            Stage::Draining { until, .. } | Stage::Leaving { until } => {
                let again = now.saturating_add_nanos(WIND_DOWN_NS);
                progress.next.earlier(PollAt::At(until.min(again)))
            }
        };
        progress
    }

    /// The thread was told to end, and has nothing left to do.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Runs until the server is told to end and has drained. After a panic it starts again.
    ///
    /// # Errors
    /// It cannot start again after a panic.
    pub(super) fn run(mut self, idle: IdlePolicy) -> Result<(), String> {
        let mut panicked: Option<Panic> = None;
        loop {
            let ended = catch(|| {
                if let Some(panic) = panicked.take()
                    && !self.recover(&panic)
                {
                    return match self.control.draining() {
                        Some(_) => Ok(()),
                        None => Err(panics::describe(&panic)),
                    };
                }
                self.serve(idle);
                Ok(())
            });
            match ended {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(panic)) => {
                    return Err(format!(
                        "it panicked ({panic}), and an address cannot be listened at again"
                    ));
                }
                Err(panic) => panicked = Some(panic),
            }
        }
    }

    /// Takes turns until the server is told to end and has drained.
    fn serve(&mut self, idle: IdlePolicy) {
        self.site.make_current();
        let mut idler = Idler::new(idle);
        let mut now = self.site.now();
        loop {
            let progress = self.take_turn(now);
            if !progress.is_idle() {
                idler.worked();
            } else if !idler.wants_clock() {
                continue;
            }
            now = self.site.now();
            self.end_turn(now, progress);
            if self.has_said_goodbye() {
                break;
            }
            if progress.is_idle() {
                if self.stage != Stage::Serving {
                    std::thread::yield_now();
                } else if self.rest(&mut idler, now, progress) {
                    now = self.site.now();
                }
            }
        }
        while !self.is_over() {
            std::thread::yield_now();
            now = self.site.now();
            self.end_turn(now, Progress::IDLE);
        }
    }

    #[inline]
    fn take_turn(&mut self, now: Instant) -> Progress {
        if self.dispatcher.turn.extras.are_none() && !self.site.has_companions() {
            return self.dispatcher.take_turn::<false, false>(now, &mut self.transports);
        }
        self.take_turn_with_extras(now)
    }

    /// Not in the loop of the others.
    #[inline(never)]
    fn take_turn_with_extras(&mut self, now: Instant) -> Progress {
        if self.dispatcher.turn.extras.have(Extras::LOST) {
            self.replace_lost();
        }
        let progress = self.dispatcher.turn(now, &mut self.transports);
        match self.site.has_companions() {
            true => progress.and(self.site.turn_companions(now)),
            false => progress,
        }
    }

    fn has_said_goodbye(&self) -> bool {
        matches!(self.stage, Stage::Leaving { .. } | Stage::Over)
    }

    /// Ends a turn at `now`: updates the counters, and moves a shutdown on.
    #[inline]
    fn end_turn(&mut self, now: Instant, progress: Progress) {
        if !progress.is_idle() {
            self.dispatcher.end_turn(now);
            self.busy_turns = self.busy_turns.wrapping_add(1);
            if self.busy_turns.is_multiple_of(BUSY_TURNS_PER_COUNT) {
                self.publish_connections();
            }
        } else if self.stage == Stage::Serving {
            self.publish_connections();
        }
        if self.stage != Stage::Serving || self.control.draining().is_some() {
            self.wind_down(now, progress);
        }
    }

    fn publish_connections(&self) {
        let lanes: usize = self.transports.iter().map(|transport| transport.connections()).sum();
        let further = self.dispatcher.turn.clients.further_lanes();
        self.control.set_connections(self.index, lanes.saturating_sub(further));
    }

    /// Rests after an empty turn. Returns whether that took long enough to read the clock again.
    fn rest(&mut self, idler: &mut Idler, now: Instant, progress: Progress) -> bool {
        match (idler.rest(now), progress.next) {
            (Rest::Spin, _) | (_, PollAt::Now) => return false,
            (Rest::Yield, _) => std::thread::yield_now(),
            (Rest::Park, PollAt::At(at)) => self.sleep(Some(at)),
            (Rest::Park, PollAt::OnEvent) => self.sleep(None),
        }
        true
    }

    fn sleep(&mut self, until: Option<Instant>) {
        let asleep = self.site.fall_asleep();
        if self.may_sleep() {
            asleep.sleep(until);
        }
    }

    /// Nothing came since the last turn, and what comes from now on wakes the thread. After [`Site::fall_asleep`].
    fn may_sleep(&mut self) -> bool {
        let is_told_to_end = self.stage == Stage::Serving && self.control.draining().is_some();
        !self.dispatcher.has_ready()
            && self.dispatcher.turn.lost.is_empty()
            && !is_told_to_end
            && self.site.arm_companions().may_sleep()
            && self.arm()
    }

    /// Arms all transports. `false`: one has news.
    fn arm(&mut self) -> bool {
        let are_armed = self.transports.iter_mut().all(|transport| transport.arm());
        if !are_armed {
            self.dispatcher.look_at_all_soon();
        }
        are_armed
    }

    /// Moves a shutdown on: drains, then says goodbye, then waits until the last replies have left.
    #[cold]
    fn wind_down(&mut self, now: Instant, progress: Progress) {
        if self.stage == Stage::Serving
            && let Some(bound_ns) = self.control.draining()
        {
            self.stage = Stage::Draining {
                accept_until: now.saturating_add_nanos(ACCEPT_NS.min(bound_ns)),
                refuse_until: now.saturating_add_nanos((ACCEPT_NS + REFUSE_NS).min(bound_ns)),
                until: now.saturating_add_nanos(bound_ns),
            };
        }
        // Also of those that have lost their last client: what is left of it may have to leave.
        self.dispatcher.look_at_all_soon();
        if let Stage::Draining { accept_until, refuse_until, until } = self.stage {
            if progress.is_idle() || now >= accept_until {
                self.dispatcher.refuse_requests();
            }
            let is_left =
                now >= refuse_until || self.transports.iter().all(|it| it.connections() == 0);
            // From the beginning: answers that are still to be made may have to go another way.
            let is_drained = self.drain(now);
            let is_done =
                is_left && self.dispatcher.is_refusing() && self.dispatcher.is_done() && is_drained;
            if is_done || now >= until {
                self.say_goodbye(now, until);
            }
        }
        if let Stage::Leaving { until } = self.stage {
            // A transport that is done goes first; the others may take longer.
            self.transports.retain_mut(|transport| !transport.wind_down(now, WindDown::Close));
            if self.transports.is_empty() || now >= until {
                self.stage = Stage::Over;
                self.control.set_connections(self.index, 0);
            }
        }
    }

    /// Lets all transports drain. Returns whether all are done.
    fn drain(&mut self, now: Instant) -> bool {
        let steps = self.transports.iter_mut().map(|it| it.wind_down(now, WindDown::Drain));
        steps.filter(|is_done| !is_done).count() == 0
    }

    fn say_goodbye(&mut self, now: Instant, until: Instant) {
        let aborted = self.dispatcher.abort_all(&mut self.transports);
        self.control.add_aborted(aborted);
        self.transports.iter_mut().for_each(|transport| transport.flush());
        tracing::debug!(thread = self.index, aborted, "server thread ends");
        let (least, most) =
            (now.saturating_add_nanos(LEAST_CLOSE_NS), now.saturating_add_nanos(CLOSE_NS));
        self.stage = Stage::Leaving { until: until.clamp(least, most) };
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.site.end_thread();
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
