//! The state of one turn of a server thread, and what waits from one turn to the next.

use super::clients::{ClientKey, Clients};
use super::deferred::DeferredReplies;
use super::dispatcher::SLICE_NS;
use super::quota::{Account, Accounts};
use super::run_times::RunTimes;
use crate::metrics::{Connections, RefusalReason, ThreadCounters};
use crate::planted::{Bug, is_planted};
use crate::site::Site;
use crate::time::Instant;
use crate::transport::{CallToken, ClientInfo};
use std::sync::Arc;

/// A hot thread measures one turn in this many; reading the clock when a request is noticed would delay its answer.
const MEASURED_TURNS: u32 = 16;

/// A thread is hot if a request comes after fewer empty turns than this (some 3 us).
const HOT_EMPTY_TURNS: u32 = 256;

/// Turns that take longer are all measured: the age of the clock's reading (some 300 ns) does not matter there.
const SLOW_TURN_NS: u64 = 20_000;

/// Calls of one turn that are measured; further ones are not.
const MEASURED_CALLS: usize = 4096;

/// What a turn has to look at besides requests and handlers: for most threads nothing, which is one check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras(u8);

impl Extras {
    /// The server's threads steal requests from each other.
    pub(super) const STEALS: Extras = Extras(1);
    /// Clients have quotas.
    pub(super) const METERED: Extras = Extras(2);
    /// A transport has lost its device, or is being replaced.
    pub(super) const LOST: Extras = Extras(4);

    #[inline]
    pub(super) fn are_none(self) -> bool {
        self == Extras::default()
    }

    #[inline]
    pub(super) fn have(self, extra: Extras) -> bool {
        self.0 & extra.0 != 0
    }

    pub(super) fn set(&mut self, extra: Extras, is_set: bool) {
        self.0 = if is_set { self.0 | extra.0 } else { self.0 & !extra.0 };
    }
}

/// The state of a thread's turn.
pub(super) struct Turn {
    site: Site,
    /// The number of the transport whose calls are handled at present.
    pub(super) transport: u32,
    /// What the server advises in its answers.
    pub(super) advice: u8,
    /// The last reading of the site's clock.
    pub(super) now: Instant,
    pub(super) counters: Arc<ThreadCounters>,
    pub(super) deferred: DeferredReplies,
    pub(super) clients: Clients,
    pub(super) extras: Extras,
    /// How the quotas of clients are counted, if they have quotas.
    pub(super) accounts: Option<Accounts>,
    /// Transports whose devices are lost.
    pub(super) lost: Vec<u32>,
    /// Rows of the calls answered in place.
    in_place: Vec<u32>,
    requests: u32,
    /// Those of them that were not run, but [wait](super::backlog).
    pub(super) kept: u32,
    /// How long the next requests have waited at their client, if that is known.
    pub(super) waited_ns: u64,
    /// How long handlers of requests that had waited ran in this turn.
    pub(super) backlog_ns: u64,
    empty_turns: u32,
    hot_turns: u32,
    /// When the turn's first request was noticed; the far future before.
    noticed: Instant,
    /// How many calls each measured call stands for; 0: the turn is not measured.
    weight: u64,
    /// Handlers were slow in the last turn: read the clock before each handler of this one.
    is_slow: bool,
}

impl Turn {
    pub(super) fn new(
        site: Site,
        counters: Arc<ThreadCounters>,
        accounts: Option<Accounts>,
    ) -> Self {
        let mut extras = Extras::default();
        extras.set(Extras::METERED, accounts.is_some());
        Turn {
            site,
            transport: 0,
            advice: 0,
            now: Instant::ZERO,
            counters,
            deferred: DeferredReplies::default(),
            clients: Clients::default(),
            extras,
            accounts,
            lost: Vec::new(),
            in_place: Vec::with_capacity(MEASURED_CALLS),
            requests: 0,
            waited_ns: 0,
            kept: 0,
            backlog_ns: 0,
            empty_turns: 0,
            hot_turns: 0,
            noticed: Instant::FAR_FUTURE,
            weight: 0,
            is_slow: false,
        }
    }

    /// Others see in these connections which ones the thread has.
    pub(super) fn showing(mut self, connections: Arc<Connections>) -> Self {
        self.clients.show(connections);
        self
    }

    /// This transport has lost its device.
    #[cold]
    pub(super) fn note_lost(&mut self, transport: u32) {
        self.extras.set(Extras::LOST, true);
        if !self.lost.contains(&transport) {
            self.lost.push(transport);
        }
    }

    /// Requests of this turn so far.
    #[inline]
    pub(super) fn requests(&self) -> u32 {
        self.requests
    }

    /// A request is about to be handled.
    #[inline]
    pub(super) fn begin_request(&mut self) {
        self.requests += 1;
        if self.requests == 1 {
            self.begin_first_request();
        } else if self.is_slow || self.requests.is_multiple_of(64) {
            self.now = self.site.now();
        }
    }

    #[inline]
    fn begin_first_request(&mut self) {
        self.noticed = self.now;
        self.weight = 0;
        if self.empty_turns < HOT_EMPTY_TURNS {
            self.hot_turns = self.hot_turns.wrapping_add(1);
            if !self.hot_turns.is_multiple_of(MEASURED_TURNS) {
                return;
            }
            self.weight = u64::from(MEASURED_TURNS);
        } else {
            self.weight = 1;
        }
        self.now = self.site.now();
        self.noticed = self.now;
    }

    /// How long ago the turn's first request was noticed, as of the last reading of the clock.
    #[inline]
    pub(super) fn nanos_so_far(&self) -> u64 {
        self.now.as_nanos().saturating_sub(self.noticed.as_nanos())
    }

    /// This deadline, later by what has passed since the clock was read last: the system may have run something else between that and the
    /// arrival of the request, which would end before its time.
    pub(super) fn postponed(&self, deadline: Instant) -> Instant {
        deadline.saturating_add_nanos(self.nanos_since(self.now))
    }

    /// What the clock shows, for a measurement of its own.
    #[inline]
    pub(super) fn clock(&self) -> Instant {
        self.site.now()
    }

    /// The nanoseconds since then, by the clock.
    #[inline]
    pub(super) fn nanos_since(&self, then: Instant) -> u64 {
        self.clock().as_nanos().saturating_sub(then.as_nanos())
    }

    /// Reads the clock. Returns the nanoseconds since it was read last.
    #[inline]
    pub(super) fn read_clock(&mut self) -> u64 {
        let before = core::mem::replace(&mut self.now, self.site.now());
        self.now.as_nanos().saturating_sub(before.as_nanos())
    }

    /// A client is here, of which the transport knows that.
    pub(super) fn join(&mut self, client: ClientKey, info: ClientInfo) {
        let (accounts, now) = (&self.accounts, self.now);
        self.clients.arrive(client, info, |identity| {
            accounts.as_ref().map_or_else(Account::default, |it| it.open(identity, now))
        });
    }

    /// A client is gone.
    #[cold]
    pub(super) fn leave(&mut self, client: ClientKey) {
        self.clients.leave(client);
        self.site.client_left(client.transport, client.id);
    }

    /// Whether the client of this call may call the service of this index.
    #[inline]
    pub(super) fn may_call(&self, call: &CallToken, service: u32) -> bool {
        self.clients.may_call(self.transport, call, service)
    }

    /// Whether this client may make a call, by its quota. If not, that is counted.
    #[inline]
    pub(super) fn admit(&mut self, client: ClientKey) -> bool {
        let Some(accounts) = self.accounts.as_ref().filter(|it| it.count(client.transport)) else {
            return true;
        };
        let index = self.clients.enter(client);
        let account = &self.clients.at(index).account;
        let may_call = accounts.admit(account, self.now) || is_planted(Bug::UncheckedQuota);
        if !may_call {
            self.site.refusals().count(RefusalReason::OverQuota);
            tracing::debug!(client = client.id.number, "refused a call of a client over its quota");
        }
        may_call
    }

    #[inline]
    fn limits_cpu(&self) -> bool {
        self.accounts.as_ref().is_some_and(Accounts::limits_cpu)
    }

    /// Begins to measure how long the thread is busy with a client's call, if that is limited.
    #[inline]
    pub(super) fn begin_work(&mut self) {
        if self.limits_cpu() {
            self.now = self.site.now();
        }
    }

    /// Charges to this client's quota how long the thread was busy since [`begin_work`](Self::begin_work). Returns it in nanoseconds.
    #[inline]
    pub(super) fn end_work(&mut self, client: ClientKey) -> Option<u64> {
        if !self.limits_cpu() {
            return None;
        }
        let nanos = self.read_clock();
        self.charge(client, nanos);
        Some(nanos)
    }

    /// Charges to this client's quota that the thread was busy with it for so long until now.
    #[inline]
    pub(super) fn charge(&mut self, client: ClientKey, nanos: u64) {
        if let Some(accounts) = self.accounts.as_ref().filter(|accounts| accounts.limits_cpu())
            && let Some(connection) = self.clients.get(client)
        {
            accounts.charge(&connection.account, nanos, self.now);
        }
    }

    /// Whether another thread may run this call.
    #[inline]
    pub(super) fn may_give_away(&self, call: &CallToken) -> bool {
        let Some(accounts) = &self.accounts else { return true };
        accounts.may_give_away(self.clients.identity(self.transport, call))
    }

    /// When the requests of this turn arrived, as far as the thread knows.
    #[inline]
    pub(super) fn arrival(&self) -> Instant {
        self.noticed
    }

    /// Notes a call that was answered in place, to be measured when the turn ends.
    #[inline]
    pub(super) fn record_in_place(&mut self, row: u32) {
        if self.in_place.len() < MEASURED_CALLS {
            self.in_place.push(row);
        }
    }

    /// Ends a turn without work.
    #[inline]
    pub(super) fn end_empty(&mut self) {
        debug_assert_eq!(self.requests, 0, "a transport that has handed over a request has worked");
        self.empty_turns = self.empty_turns.saturating_add(1);
    }

    /// Ends a turn that worked, after its replies have left. If handlers that ran as their requests were found have held up the thread,
    /// their methods may run long.
    #[inline]
    pub(super) fn end(&mut self, now: Instant, run_times: &RunTimes) {
        self.now = now;
        self.empty_turns = 0;
        let backlog_ns = core::mem::take(&mut self.backlog_ns);
        if self.requests == 0 {
            return;
        }
        let nanos = now.as_nanos().saturating_sub(self.noticed.as_nanos());
        let weight = if nanos >= SLOW_TURN_NS { 1 } else { self.weight };
        if weight > 0 {
            for row in &self.in_place {
                self.counters.latency(*row, nanos, weight);
            }
        }
        let found_ns = nanos.saturating_sub(backlog_ns);
        let ran = self.requests - core::mem::take(&mut self.kept);
        self.is_slow = found_ns / u64::from(ran.max(1)) >= SLOW_TURN_NS;
        if self.is_slow && found_ns >= SLICE_NS {
            self.in_place.iter().for_each(|row| run_times.doubt(*row));
        }
        self.in_place.clear();
        self.requests = 0;
        self.noticed = Instant::FAR_FUTURE;
    }

    #[inline]
    pub(super) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }
}
