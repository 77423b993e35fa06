//! A client of the run: an actor that makes random calls with deadlines and records their results.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::DialOptions;
use farcall_core::{
    CallError, ChannelOptions, Connection, ConnectionOptions, PollClient, RpcError,
};
use farcall_kv::service::KvPollClient;
use farcall_rack::Host;

use crate::caller::{Caller, Entries, Outcome, Pending};
use crate::dice::Dice;
use crate::mutation::Mutation;
use crate::plan::Severity;
use crate::records::{Answer, CallEnd, KEYS, Records, Request};
use crate::{transport, value};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// The number of calls while faults happen.
const FAULTY_CALLS: u32 = 40;

/// The number of calls after the faults; then a whole window at once, twice.
const HEALED_CALLS: u32 = 6;

/// After this time without faults, dead peers have been detected: a queue pair detects a silent peer after a
/// second, a connection after five.
pub(crate) const SETTLING_NS: u64 = 12_000 * MS;

/// Without faults a call takes microseconds, and connecting somewhat longer.
const HEALED_CALL_NS: u64 = 20 * MS;

/// Allowance for a turn beyond the deadlines, not counting pauses.
const SLACK_NS: u64 = MS;

/// What the run's clients need to know about their server and the faults.
#[derive(Clone, Debug)]
pub(crate) struct ClientSetup {
    /// The server's address.
    pub(crate) address: String,
    /// The window in that address.
    pub(crate) window: u32,
    /// When the last fault happens.
    pub(crate) healed_ns: u64,
    /// The total time for which this client's node is paused.
    pub(crate) pauses_ns: u64,
    /// Whether connections may break.
    pub(crate) severity: Severity,
    /// The planted bug.
    pub(crate) mutation: Option<Mutation>,
}

enum Waiting {
    Get(Pending<Option<Bytes>>),
    Had(Pending<bool>),
    Scan(Pending<Entries>),
}

struct Call {
    number: usize,
    waiting: Waiting,
    ends_by_ns: u64,
}

/// A phase of the client's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Faults happen until that time.
    Faulty { until_ns: u64 },
    /// All calls must succeed; this many at a time.
    Healed { at_once: u32 },
}

/// Why a phase has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PhaseEnd {
    Done,
    Closed,
}

/// A client that makes calls.
pub(crate) struct Client {
    host: Host,
    setup: ClientSetup,
    dice: Dice,
    records: Rc<RefCell<Records>>,
    kv: Option<Caller>,
    /// Whether it uses the client whose calls are futures.
    shares: bool,
    /// Its connections share a queue pair, where the backend has one to share.
    shares_queue_pair: bool,
    /// A connection for later use. Until then it is only driven through the other connection.
    standby: Option<Caller>,
    calls: Vec<Call>,
    left: u32,
    next_ns: u64,
    /// A planted bug: calls that may have run and are repeated.
    again: Vec<usize>,
}

impl Client {
    /// Creates a client with its own random numbers.
    pub(crate) fn new(
        host: Host,
        setup: ClientSetup,
        mut dice: Dice,
        records: Rc<RefCell<Records>>,
    ) -> Client {
        Client {
            host,
            // Bugs of transports are planted in the polled client.
            shares: dice.once_in(2) && setup.mutation.is_none_or(|it| it.bug().is_some()),
            shares_queue_pair: dice.once_in(2),
            standby: None,
            setup,
            dice,
            records,
            kv: None,
            calls: Vec::new(),
            left: FAULTY_CALLS,
            next_ns: 0,
            again: Vec::new(),
        }
    }

    /// Runs the client to its end.
    pub(crate) async fn run(mut self) {
        let until_ns = self.setup.healed_ns + SETTLING_NS;
        while self.now_ns() < until_ns {
            if self.connect(5_000 * MS).await {
                self.run_phase(Phase::Faulty { until_ns }).await;
            } else {
                let pause_ns = self.dice.magnitude(10 * US, 100 * MS);
                self.host.sleep(Duration::from_nanos(pause_ns)).await;
            }
        }
        self.standby = None;
        if self.shares {
            // The end of its connection is reported by its calls.
            self.kv = None;
        }
        for at_once in [1, self.setup.window, self.setup.window] {
            if !self.connect(HEALED_CALL_NS).await {
                return self.record_failure("no connection, although all faults are healed");
            }
            self.left = if at_once == 1 { HEALED_CALLS } else { at_once };
            if self.run_phase(Phase::Healed { at_once }).await == PhaseEnd::Closed {
                self.record_failure("the connection is lost, although all faults are healed");
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.host.node().now_ns()
    }

    fn record_failure(&self, what: &str) {
        let (node, now_ns) = (self.host.node().id(), self.now_ns());
        self.host.node().note(|| format!("failure: {what}"));
        self.records
            .borrow_mut()
            .record_failure(|| format!("{now_ns} ns, client {node:?}: {what}"));
    }

    /// Connects if necessary. Returns whether there is a connection.
    async fn connect(&mut self, within_ns: u64) -> bool {
        if self.kv.is_some() {
            return true;
        }
        let timeout = Duration::from_nanos(within_ns);
        let dial = DialOptions { timeout, share: self.shares_queue_pair, ..DialOptions::default() };
        if self.shares {
            let options = ChannelOptions::default().dial_timeout(dial.timeout).share(dial.share);
            let connected = self.host.connect_with(&self.setup.address, &options).await;
            self.kv = connected.ok().map(|client| Caller::Shared { client, is_over: false });
            return self.kv.is_some();
        }
        let service = KvPollClient::DESCRIPTION;
        let dialled = self.host.dial(&self.setup.address, service, &dial).await;
        let Ok(bare) = dialled else { return false };
        let bare = bare.with_layer(|bare| transport::mutated(bare, self.setup.mutation));
        let connection = Connection::new(bare, self.host.site(), &ConnectionOptions::default());
        let client = Box::new(KvPollClient::from_connection(connection));
        self.kv = Some(Caller::Polled(client));
        true
    }

    async fn run_phase(&mut self, phase: Phase) -> PhaseEnd {
        let host = self.host.clone();
        host.turns(|now| self.turn(phase, now)).await
    }

    fn turn(&mut self, phase: Phase, now: Instant) -> Result<PhaseEnd, Progress> {
        let now_ns = now.as_nanos();
        let Some(kv) = &mut self.kv else { return Ok(PhaseEnd::Closed) };
        let mut progress = kv.turn(now);
        if matches!(phase, Phase::Faulty { .. }) && self.dice.once_in(80) {
            // One that was never polled, for example, or whose answer has come.
            self.cancel();
        }
        self.take(phase, now_ns);
        if self.kv.as_mut().is_none_or(Caller::is_over) {
            if !self.calls.is_empty() {
                self.record_failure("a connection is over, and a call on it is not");
            }
            self.kv = None;
            return Ok(PhaseEnd::Closed);
        }
        match phase {
            Phase::Faulty { until_ns } => {
                if now_ns >= until_ns && self.calls.is_empty() {
                    return Ok(PhaseEnd::Done);
                }
                let asks = self.left > 0 && now_ns < self.setup.healed_ns;
                // The client whose calls are futures allows any number of them.
                let has_room = self.calls.len() < 2 * self.setup.window as usize;
                if asks && has_room && now_ns >= self.next_ns {
                    progress.worked += u32::from(self.start_call(phase, now_ns));
                    let most_ns = (self.setup.healed_ns / u64::from(FAULTY_CALLS)).max(2 * US);
                    self.next_ns = now_ns + self.dice.magnitude(US, most_ns);
                } else if self.dice.once_in(40) {
                    self.cancel();
                } else if self.dice.once_in(100) {
                    self.disconnect();
                    return Ok(PhaseEnd::Closed);
                } else if asks && self.calls.is_empty() && self.dice.once_in(10) {
                    std::mem::swap(&mut self.kv, &mut self.standby);
                    return Ok(PhaseEnd::Closed);
                }
                let wake_ns = if asks && has_room { self.next_ns } else { until_ns };
                progress.next = progress.next.earlier(PollAt::At(Instant::from_nanos(wake_ns)));
            }
            Phase::Healed { at_once } => {
                if self.left == 0 && self.calls.is_empty() {
                    return Ok(PhaseEnd::Done);
                }
                while self.left > 0 && self.calls.len() < at_once as usize {
                    if !self.start_call(phase, now_ns) {
                        break;
                    }
                    progress.worked += 1;
                }
            }
        }
        Err(progress)
    }

    /// Starts a call.
    fn start_call(&mut self, phase: Phase, now_ns: u64) -> bool {
        let (number, is_new) = match self.again.pop() {
            Some(number) => (number, false),
            None => {
                let request = self.draw_request();
                if !self.records.borrow().has_room(request) {
                    self.left = self.left.saturating_sub(1);
                    return true;
                }
                (self.records.borrow_mut().start_call(request), true)
            }
        };
        let request = self.records.borrow().request(number);
        let timeout_ns = match phase {
            Phase::Faulty { .. } => self.dice.magnitude(10 * US, 100 * MS),
            Phase::Healed { .. } => HEALED_CALL_NS,
        };
        let Some(kv) = &mut self.kv else { return false };
        let timeout = Duration::from_nanos(timeout_ns);
        let key = |key: usize| [b'a' + key as u8];
        let started = match request {
            Request::Get(at) => kv.get(&key(at), timeout).map(Waiting::Get),
            Request::Put(at, number) => {
                let len = match self.dice.below(20) {
                    0 => self.dice.magnitude(4_000, 60_000),
                    _ => self.dice.magnitude(8, 2_000),
                };
                let value = value::bytes(number, len as usize);
                kv.put(&key(at), &value, timeout).map(Waiting::Had)
            }
            Request::Del(at) => kv.del(&key(at), timeout).map(Waiting::Had),
            Request::Scan => kv.scan(b"a", KEYS as u32, timeout).map(Waiting::Scan),
        };
        match started {
            Ok(waiting) => {
                self.host.node().note(|| format!("call {number} begins: {request:?}"));
                let ends_by_ns = now_ns + timeout_ns + SLACK_NS + self.setup.pauses_ns;
                self.calls.push(Call { number, waiting, ends_by_ns });
                self.left = self.left.saturating_sub(1);
                true
            }
            Err(error) => {
                if is_new {
                    self.records.borrow_mut().end(number, CallEnd::NeverRan);
                }
                match error {
                    RpcError::Overloaded(_) | RpcError::PeerGone { .. } => {}
                    other => self.record_failure(&format!("a call did not start: {other}")),
                }
                false
            }
        }
    }

    fn draw_request(&mut self) -> Request {
        let key = self.dice.below(KEYS as u64) as usize;
        match self.dice.below(20) {
            0..=8 => Request::Put(key, self.records.borrow_mut().fresh_value()),
            9..=10 => Request::Del(key),
            11 => Request::Scan,
            _ => Request::Get(key),
        }
    }

    /// Takes the results that have arrived.
    fn take(&mut self, phase: Phase, now_ns: u64) {
        let Some(kv) = &mut self.kv else { return };
        let mut ended = Vec::new();
        self.calls.retain_mut(|call| {
            let outcome = match &mut call.waiting {
                Waiting::Get(pending) => kv.take(pending).map(|outcome| {
                    outcome
                        .map(|value| value.map_or(Ok(Answer::Value(None)), |it| parse_value(&it)))
                }),
                Waiting::Had(pending) => {
                    kv.take(pending).map(|outcome| outcome.map(|had| Ok(Answer::Had(had))))
                }
                Waiting::Scan(pending) => {
                    kv.take(pending).map(|outcome| outcome.map(|entries| parse_entries(&entries)))
                }
            };
            match outcome {
                Some(outcome) => ended.push((call.number, outcome)),
                None if now_ns > call.ends_by_ns => {
                    ended.push((call.number, Ok(Err("did not end in time".to_owned()))));
                }
                None => return true,
            }
            false
        });
        for (number, outcome) in ended {
            self.ended(phase, number, outcome);
        }
    }

    fn ended(&mut self, phase: Phase, number: usize, outcome: Outcome<Result<Answer, String>>) {
        let end = match outcome {
            Ok(Ok(answer)) => CallEnd::Answered(answer),
            Ok(Err(what)) => {
                self.record_failure(&format!("call {number} {what}"));
                CallEnd::Unknown
            }
            Err(CallError::Rpc(error)) => {
                let may_happen = match error {
                    RpcError::DeadlineExceeded { .. } | RpcError::Overloaded(_) => true,
                    RpcError::PeerGone { .. } => self.setup.severity == Severity::Any,
                    _ => false,
                };
                if !may_happen || matches!(phase, Phase::Healed { .. }) {
                    self.record_failure(&format!("call {number} has failed: {error}"));
                }
                let blind = self.setup.mutation == Some(Mutation::BlindRetry);
                if blind && error.may_have_run() && phase != (Phase::Healed { at_once: 1 }) {
                    self.again.push(number);
                }
                if error.may_have_run() { CallEnd::Unknown } else { CallEnd::NeverRan }
            }
            Err(CallError::Service(error)) => {
                self.record_failure(&format!("call {number} was refused: {error}"));
                CallEnd::Unknown
            }
        };
        self.host.node().note(|| format!("call {number} ends: {end:?}"));
        self.records.borrow_mut().end(number, end);
    }

    /// Cancels a random call.
    fn cancel(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let at = self.dice.below(self.calls.len() as u64) as usize;
        let Call { number, waiting, .. } = self.calls.swap_remove(at);
        self.host.node().note(|| format!("call {number} is cancelled"));
        let Some(kv) = &mut self.kv else { return };
        match waiting {
            Waiting::Get(pending) => kv.cancel(pending),
            Waiting::Had(pending) => kv.cancel(pending),
            Waiting::Scan(pending) => kv.cancel(pending),
        }
        self.records.borrow_mut().end(number, CallEnd::Unknown);
    }

    /// Closes the connection with all calls in flight.
    fn disconnect(&mut self) {
        self.host.node().note(|| "the client disconnects".to_owned());
        for call in self.calls.drain(..) {
            self.records.borrow_mut().end(call.number, CallEnd::Unknown);
        }
        self.kv = None;
    }
}

/// Parses the value of one key.
fn parse_value(value: &[u8]) -> Result<Answer, String> {
    match value::check(value) {
        Some(number) => Ok(Answer::Value(Some(number))),
        None => Err(format!("brought {} bytes that were never put", value.len())),
    }
}

/// Parses the values of all keys.
fn parse_entries(entries: &[(Bytes, Bytes)]) -> Result<Answer, String> {
    let mut held = [None; KEYS];
    for (key, value) in entries {
        let place = match key[..] {
            [letter] => usize::from(letter.wrapping_sub(b'a')),
            _ => KEYS,
        };
        let known = held.get_mut(place).zip(value::check(value));
        let Some((place, number)) = known else {
            return Err(format!("brought an entry that was never put: key {key:?}"));
        };
        if place.replace(number).is_some() {
            return Err(format!("brought key {key:?} twice"));
        }
    }
    Ok(Answer::Values(held))
}
