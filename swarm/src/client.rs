//! A client of the run: an actor that asks at random, keeps to its deadlines, and writes down what it was answered.

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
use farcall_transports::rack::Host;

use crate::caller::{Caller, Entries, Outcome, Pending};
use crate::dice::Dice;
use crate::mutation::Mutation;
use crate::plan::Severity;
use crate::records::{Answer, End, KEYS, Question, Records};
use crate::{transport, value};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// What a client asks while things go wrong.
const STORM_CALLS: u32 = 40;

/// What it asks when they do not any more; then twice a whole window at once.
const CALM_CALLS: u32 = 6;

/// So long after the last fault, everybody has noticed what is gone: a silent queue pair's peer counts as gone after a
/// second, a connection's after five.
pub(crate) const SETTLING_NS: u64 = 12_000 * MS;

/// With nothing wrong a call takes microseconds, and a new connection some more.
const CALM_BOUND_NS: u64 = 20 * MS;

/// What a turn may take beyond the deadlines, pauses apart.
const SLACK_NS: u64 = MS;

/// Where the run's clients find their server, and what they may expect.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// The server's address.
    pub(crate) address: String,
    /// The window in it.
    pub(crate) window: u32,
    /// When the last fault has happened.
    pub(crate) calm_ns: u64,
    /// For how long this client's node is paused, in all.
    pub(crate) pauses_ns: u64,
    /// Whether a connection may break.
    pub(crate) severity: Severity,
    /// The bug that is planted.
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

/// What a phase of the client's life is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Anything may happen, until that time.
    Storm { until_ns: u64 },
    /// All must go well; so many calls at a time.
    Calm { at_once: u32 },
}

/// Why a phase has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Done,
    Closed,
}

/// A client that asks.
pub(crate) struct Client {
    host: Host,
    terms: Terms,
    dice: Dice,
    records: Rc<RefCell<Records>>,
    kv: Option<Caller>,
    /// It uses the client whose calls are futures.
    shares: bool,
    /// What its connections have in common, if they do.
    shares_queue_pair: bool,
    /// A connection that it uses later: meanwhile it looks at this one only as far as the other does for it.
    aside: Option<Caller>,
    calls: Vec<Call>,
    left: u32,
    next_ns: u64,
    /// A planted bug: calls that may have run, to be repeated.
    again: Vec<usize>,
}

impl Client {
    /// A client with numbers of its own.
    pub(crate) fn new(
        host: Host,
        terms: Terms,
        mut dice: Dice,
        records: Rc<RefCell<Records>>,
    ) -> Client {
        Client {
            host,
            // Bugs around a transport are planted in the other client.
            shares: dice.once_in(2) && terms.mutation.is_none_or(|it| it.of_backend().is_some()),
            shares_queue_pair: dice.once_in(2),
            aside: None,
            terms,
            dice,
            records,
            kv: None,
            calls: Vec::new(),
            left: STORM_CALLS,
            next_ns: 0,
            again: Vec::new(),
        }
    }

    /// Its whole life.
    pub(crate) async fn live(mut self) {
        let until_ns = self.terms.calm_ns + SETTLING_NS;
        while self.now_ns() < until_ns {
            if self.connect(5_000 * MS).await {
                self.phase(Phase::Storm { until_ns }).await;
            } else {
                let pause_ns = self.dice.magnitude(10 * US, 100 * MS);
                self.host.sleep(Duration::from_nanos(pause_ns)).await;
            }
        }
        self.aside = None;
        if self.shares {
            // It hears of its connection's end by its calls.
            self.kv = None;
        }
        for at_once in [1, self.terms.window, self.terms.window] {
            if !self.connect(CALM_BOUND_NS).await {
                return self.wrong("no connection, though nothing is wrong");
            }
            self.left = if at_once == 1 { CALM_CALLS } else { at_once };
            if self.phase(Phase::Calm { at_once }).await == Over::Closed {
                self.wrong("the connection is lost, though nothing is wrong");
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.host.node().now_ns()
    }

    fn wrong(&self, what: &str) {
        let (node, now_ns) = (self.host.node().id(), self.now_ns());
        self.host.node().note(|| format!("something is wrong: {what}"));
        self.records.borrow_mut().wrong(|| format!("{now_ns} ns, client {node:?}: {what}"));
    }

    /// Whether there is a connection, or could be made.
    async fn connect(&mut self, within_ns: u64) -> bool {
        if self.kv.is_some() {
            return true;
        }
        let timeout = Duration::from_nanos(within_ns);
        let dial = DialOptions::default().timeout(timeout).share(self.shares_queue_pair);
        if self.shares {
            let options = ChannelOptions::default().dial(dial);
            let connected = self.host.connect_with(&self.terms.address, &options).await;
            self.kv = connected.ok().map(|client| Caller::Shared { client, is_over: false });
            return self.kv.is_some();
        }
        let service = KvPollClient::DESCRIPTION;
        let dialled = self.host.dial(&self.terms.address, service, &dial).await;
        let Ok(bare) = dialled else { return false };
        let bare = transport::mutated(bare, self.terms.mutation);
        let connection = Connection::new(bare, self.host.site(), &ConnectionOptions::default());
        let client = Box::new(KvPollClient::from_connection(connection));
        self.kv = Some(Caller::Polled(client));
        true
    }

    async fn phase(&mut self, phase: Phase) -> Over {
        let host = self.host.clone();
        host.turns(|now| self.turn(phase, now)).await
    }

    fn turn(&mut self, phase: Phase, now: Instant) -> Result<Over, Progress> {
        let now_ns = now.as_nanos();
        let Some(kv) = &mut self.kv else { return Ok(Over::Closed) };
        let mut progress = kv.turn(now);
        self.take(phase, now_ns);
        if self.kv.as_mut().is_none_or(Caller::is_over) {
            if !self.calls.is_empty() {
                self.wrong("a connection is over, and a call on it is not");
            }
            self.kv = None;
            return Ok(Over::Closed);
        }
        match phase {
            Phase::Storm { until_ns } => {
                if now_ns >= until_ns && self.calls.is_empty() {
                    return Ok(Over::Done);
                }
                let asks = self.left > 0 && now_ns < self.terms.calm_ns;
                // The client whose calls are futures holds any number of them.
                let has_room = self.calls.len() < 2 * self.terms.window as usize;
                if asks && has_room && now_ns >= self.next_ns {
                    progress.worked += u32::from(self.ask(phase, now_ns));
                    let most_ns = (self.terms.calm_ns / u64::from(STORM_CALLS)).max(2 * US);
                    self.next_ns = now_ns + self.dice.magnitude(US, most_ns);
                } else if self.dice.once_in(40) {
                    self.cancel();
                } else if self.dice.once_in(100) {
                    self.leave();
                    return Ok(Over::Closed);
                } else if asks && self.calls.is_empty() && self.dice.once_in(10) {
                    std::mem::swap(&mut self.kv, &mut self.aside);
                    return Ok(Over::Closed);
                }
                let wake_ns = if asks && has_room { self.next_ns } else { until_ns };
                progress.next = progress.next.earlier(PollAt::At(Instant::from_nanos(wake_ns)));
            }
            Phase::Calm { at_once } => {
                if self.left == 0 && self.calls.is_empty() {
                    return Ok(Over::Done);
                }
                while self.left > 0 && self.calls.len() < at_once as usize {
                    if !self.ask(phase, now_ns) {
                        break;
                    }
                    progress.worked += 1;
                }
            }
        }
        Err(progress)
    }

    /// Starts a call.
    fn ask(&mut self, phase: Phase, now_ns: u64) -> bool {
        let (number, is_new) = match self.again.pop() {
            Some(number) => (number, false),
            None => {
                let question = self.question();
                if !self.records.borrow().has_room(question) {
                    self.left = self.left.saturating_sub(1);
                    return true;
                }
                (self.records.borrow_mut().ask(question), true)
            }
        };
        let question = self.records.borrow().question(number);
        let timeout_ns = match phase {
            Phase::Storm { .. } => self.dice.magnitude(10 * US, 100 * MS),
            Phase::Calm { .. } => CALM_BOUND_NS,
        };
        let Some(kv) = &mut self.kv else { return false };
        let timeout = Duration::from_nanos(timeout_ns);
        let key = |key: usize| [b'a' + key as u8];
        let started = match question {
            Question::Get(at) => kv.get(&key(at), timeout).map(Waiting::Get),
            Question::Put(at, number) => {
                let len = match self.dice.below(20) {
                    0 => self.dice.magnitude(4_000, 60_000),
                    _ => self.dice.magnitude(8, 2_000),
                };
                let value = value::bytes(number, len as usize);
                kv.put(&key(at), &value, timeout).map(Waiting::Had)
            }
            Question::Del(at) => kv.del(&key(at), timeout).map(Waiting::Had),
            Question::Scan => kv.scan(b"a", KEYS as u32, timeout).map(Waiting::Scan),
        };
        match started {
            Ok(waiting) => {
                self.host.node().note(|| format!("call {number} begins: {question:?}"));
                let ends_by_ns = now_ns + timeout_ns + SLACK_NS + self.terms.pauses_ns;
                self.calls.push(Call { number, waiting, ends_by_ns });
                self.left = self.left.saturating_sub(1);
                true
            }
            Err(error) => {
                if is_new {
                    self.records.borrow_mut().end(number, End::NeverRan);
                }
                match error {
                    RpcError::Overloaded(_) | RpcError::PeerGone { .. } => {}
                    other => self.wrong(&format!("a call did not start: {other}")),
                }
                false
            }
        }
    }

    fn question(&mut self) -> Question {
        let key = self.dice.below(KEYS as u64) as usize;
        match self.dice.below(20) {
            0..=8 => Question::Put(key, self.records.borrow_mut().fresh_value()),
            9..=10 => Question::Del(key),
            11 => Question::Scan,
            _ => Question::Get(key),
        }
    }

    /// Takes the answers that have come.
    fn take(&mut self, phase: Phase, now_ns: u64) {
        let Some(kv) = &mut self.kv else { return };
        let mut ended = Vec::new();
        self.calls.retain_mut(|call| {
            let outcome = match &mut call.waiting {
                Waiting::Get(pending) => kv.take(pending).map(|outcome| {
                    outcome.map(|value| value.map_or(Ok(Answer::Value(None)), |it| seen(&it)))
                }),
                Waiting::Had(pending) => {
                    kv.take(pending).map(|outcome| outcome.map(|had| Ok(Answer::Had(had))))
                }
                Waiting::Scan(pending) => {
                    kv.take(pending).map(|outcome| outcome.map(|entries| all_seen(&entries)))
                }
            };
            match outcome {
                Some(outcome) => ended.push((call.number, outcome)),
                None if now_ns > call.ends_by_ns => {
                    ended.push((call.number, Ok(Err("has not ended in time".to_owned()))));
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
            Ok(Ok(answer)) => End::Answered(answer),
            Ok(Err(what)) => {
                self.wrong(&format!("call {number} {what}"));
                End::Unknown
            }
            Err(CallError::Rpc(error)) => {
                let may_happen = match error {
                    RpcError::DeadlineExceeded { .. } | RpcError::Overloaded(_) => true,
                    RpcError::PeerGone { .. } => self.terms.severity == Severity::Any,
                    _ => false,
                };
                if !may_happen || matches!(phase, Phase::Calm { .. }) {
                    self.wrong(&format!("call {number} has failed: {error}"));
                }
                let blind = self.terms.mutation == Some(Mutation::BlindRetry);
                if blind && error.may_have_run() && phase != (Phase::Calm { at_once: 1 }) {
                    self.again.push(number);
                }
                if error.may_have_run() { End::Unknown } else { End::NeverRan }
            }
            Err(CallError::Service(error)) => {
                self.wrong(&format!("call {number} was refused: {error}"));
                End::Unknown
            }
        };
        self.host.node().note(|| format!("call {number} ends: {end:?}"));
        self.records.borrow_mut().end(number, end);
    }

    /// Gives some call up.
    fn cancel(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let at = self.dice.below(self.calls.len() as u64) as usize;
        let Call { number, waiting, .. } = self.calls.swap_remove(at);
        self.host.node().note(|| format!("call {number} is given up"));
        let Some(kv) = &mut self.kv else { return };
        match waiting {
            Waiting::Get(pending) => kv.cancel(pending),
            Waiting::Had(pending) => kv.cancel(pending),
            Waiting::Scan(pending) => kv.cancel(pending),
        }
        self.records.borrow_mut().end(number, End::Unknown);
    }

    /// Closes the connection, whatever calls are under way.
    fn leave(&mut self) {
        self.host.node().note(|| "the client leaves".to_owned());
        for call in self.calls.drain(..) {
            self.records.borrow_mut().end(call.number, End::Unknown);
        }
        self.kv = None;
    }
}

/// What was seen of one key.
fn seen(value: &[u8]) -> Result<Answer, String> {
    match value::check(value) {
        Some(number) => Ok(Answer::Value(Some(number))),
        None => Err(format!("brought {} bytes that nobody has put", value.len())),
    }
}

/// What was seen of all keys.
fn all_seen(entries: &[(Bytes, Bytes)]) -> Result<Answer, String> {
    let mut held = [None; KEYS];
    for (key, value) in entries {
        let place = match key[..] {
            [letter] => usize::from(letter.wrapping_sub(b'a')),
            _ => KEYS,
        };
        let known = held.get_mut(place).zip(value::check(value));
        let Some((place, number)) = known else {
            return Err(format!("brought an entry that nobody has made: key {key:?}"));
        };
        if place.replace(number).is_some() {
            return Err(format!("brought key {key:?} twice"));
        }
    }
    Ok(Answer::Values(held))
}
