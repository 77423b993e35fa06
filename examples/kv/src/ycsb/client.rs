//! One client: a window of operations in flight on one connection. Each answer is checked.

use std::iter::StepBy;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::vec;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use thiserror::Error;

use super::check::{Checker, Snapshot, Wrong};
use super::keys::{ScrambledZipfian, latest_distance};
use super::latency::Latencies;
use super::records::{LOADER, Records};
use super::workload::{Operation, RequestDistribution, Workload};
use crate::link::{Link, LinkError, NotStarted};

/// Why a client could not continue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// An operation failed.
    #[error("{} of {key}: {source}", operation.name())]
    Link {
        /// The kind of the operation.
        operation: Operation,
        /// Its key.
        key: String,
        /// The error.
        source: LinkError,
    },
    /// An operation was not answered in time.
    #[error("{} was not answered within {timeout:?}", operation.name())]
    NoAnswer {
        /// The kind of the operation.
        operation: Operation,
        /// How long the client waited.
        timeout: Duration,
    },
}

/// The configuration of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The mix of operations.
    pub workload: Workload,
    /// The number of this client, from 1.
    pub me: u32,
    /// The number of clients.
    pub clients: u32,
    /// The most operations in flight.
    pub window: usize,
    /// Empty polls before the core is yielded. On a machine with a core per thread, not yielding would be
    /// faster; on a smaller one, yielding lets the server run.
    pub spins_before_yield: u32,
    /// The timeout of an operation.
    pub timeout: Duration,
    /// Whether inserts of this run find no records of an earlier run.
    pub inserts_are_new: bool,
    /// Seed of the choice of operations and records.
    pub seed: u64,
}

/// Counters of a running client, for progress output.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Operations answered.
    pub operations: AtomicU64,
    /// Wrong answers.
    pub wrong: AtomicU64,
    /// Set to stop the client: it starts nothing more, and ends when all operations are answered.
    pub halt: AtomicBool,
}

/// How many wrong answers are described in full.
const MAX_REPORTS: usize = 10;

/// The findings of a client.
#[derive(Debug, Default)]
pub struct Findings {
    /// How long operations took.
    pub latencies: Latencies,
    /// Checked answers, including those of the audit.
    pub checked: u64,
    /// Wrong answers.
    pub wrong: u64,
    /// Descriptions of the first wrong answers.
    pub reports: Vec<String>,
}

/// A client of the store.
pub struct Client<L: Link> {
    link: L,
    config: ClientConfig,
    records: Records,
    checker: Checker,
    zipfian: ScrambledZipfian,
    rng: SmallRng,
    /// Own acknowledged inserts, the latest last, and how many were sent.
    inserted: Vec<u64>,
    inserts_sent: u64,
    /// Operations of the workload that are left to draw.
    left: u64,
    in_flight: Vec<InFlight<L>>,
    /// Drawn, but not sent yet.
    held: Option<Held>,
    spare: Vec<Snapshot>,
    key: Vec<u8>,
    value: Vec<u8>,
    findings: Findings,
}

/// A waiting operation: for another write to its record, or for room.
#[derive(Clone, Copy)]
struct Held {
    operation: Operation,
    record: u64,
    since: Instant,
}

struct InFlight<L: Link> {
    operation: Operation,
    record: u64,
    started: Instant,
    step_started: Instant,
    asked: Snapshot,
    step: Step<L>,
}

enum Step<L: Link> {
    Reading(L::Get),
    /// Between the two halves of a read-modify-write.
    ToWrite,
    Writing(L::Put),
}

/// The source of a client's operations, and when it ends.
enum Source {
    Workload { until: Instant },
    Load(StepBy<Range<u64>>),
    Audit(vec::IntoIter<u64>),
}

impl<L: Link> Client<L> {
    /// A client of `link` that uses `records`, which must not be empty.
    pub fn new(link: L, records: Records, config: ClientConfig) -> Self {
        Self {
            link,
            checker: Checker::new(records.clone(), config.me, config.clients),
            zipfian: ScrambledZipfian::new(records.loaded()),
            rng: SmallRng::seed_from_u64(config.seed ^ u64::from(config.me).rotate_left(40)),
            records,
            inserted: Vec::new(),
            inserts_sent: 0,
            left: 0,
            in_flight: Vec::with_capacity(config.window),
            held: None,
            spare: Vec::with_capacity(config.window),
            key: Vec::new(),
            value: Vec::new(),
            findings: Findings::default(),
            config,
        }
    }

    /// Writes this client's share of the records.
    ///
    /// If the link failed.
    /// The link failed.
    pub fn load(&mut self, counters: &Counters) -> Result<(), RunError> {
        let step = self.config.clients as usize;
        let mine = (u64::from(self.config.me) - 1..self.records.loaded()).step_by(step);
        self.run(Source::Load(mine), counters)
    }

    /// Runs the workload until `until`, or for `operations`.
    ///
    /// # Errors
    /// If the link failed. A wrong answer is not an error here, but counted.
    pub fn work(
        &mut self,
        until: Instant,
        operations: u64,
        counters: &Counters,
    ) -> Result<(), RunError> {
        self.left = operations;
        self.run(Source::Workload { until }, counters)
    }

    /// How many operations were left when the work ended.
    pub fn operations_left(&self) -> u64 {
        self.left
    }

    /// Continues on a new link to the same store. Operations in flight have failed and may or may not have
    /// run. Returns their number.
    pub fn reconnect(&mut self, link: L) -> usize {
        self.link = link;
        self.held = None;
        let lost = self.in_flight.len();
        for flight in self.in_flight.drain(..) {
            if matches!(flight.step, Step::Writing(_)) && flight.operation != Operation::Load {
                self.checker.lost(&flight.asked);
            }
            self.spare.push(flight.asked);
        }
        lost
    }

    /// Continues on a new link to an empty store, with new records to be loaded. Findings are kept. Returns
    /// the number of operations that were in flight.
    pub fn start_over(&mut self, link: L, records: Records) -> usize {
        let lost = self.reconnect(link);
        self.checker = Checker::new(records.clone(), self.config.me, self.config.clients);
        self.records = records;
        self.inserted.clear();
        self.inserts_sent = 0;
        self.config.inserts_are_new = true;
        lost
    }

    /// Reads again everything that this client touched, after all writes, to check that no acknowledged
    /// write is lost.
    ///
    /// # Errors
    /// If the link failed.
    pub fn audit(&mut self, counters: &Counters) -> Result<(), RunError> {
        self.run(Source::Audit(self.checker.known_records().into_iter()), counters)
    }

    /// The findings so far.
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    fn run(&mut self, mut source: Source, counters: &Counters) -> Result<(), RunError> {
        let measured = !matches!(source, Source::Audit(_));
        let mut idle_polls = 0;
        let mut now = Instant::now();
        loop {
            let halted = counters.halt.load(Ordering::Relaxed);
            self.fill(&mut source, now, halted)?;
            if self.in_flight.is_empty() && self.held.is_none() {
                return Ok(());
            }
            self.link.poll();
            now = Instant::now();
            let answered = self.collect(now, measured, counters)?;
            if answered {
                idle_polls = 0;
                continue;
            }
            idle_polls += 1;
            if idle_polls > self.config.spins_before_yield {
                self.check_timeout(now)?;
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Sends operations until the window is full or the source has ended.
    fn fill(&mut self, source: &mut Source, now: Instant, halted: bool) -> Result<(), RunError> {
        while self.in_flight.len() < self.config.window {
            let held = self.held.take();
            let next = held.or_else(|| if halted { None } else { self.next(source, now) });
            let Some(next) = next else { return Ok(()) };
            if !self.start(next.operation, next.record, now)? {
                self.held = Some(next);
                return Ok(());
            }
        }
        Ok(())
    }

    fn next(&mut self, source: &mut Source, now: Instant) -> Option<Held> {
        let (operation, record) = match source {
            Source::Load(records) => (Operation::Load, records.next()?),
            Source::Audit(records) => (Operation::Read, records.next()?),
            Source::Workload { until } => {
                if now >= *until || self.left == 0 {
                    return None;
                }
                self.left -= 1;
                let operation = self.config.workload.next_operation(&mut self.rng);
                let record = self.choose(operation);
                if operation != Operation::Read && self.checker.is_uncertain(record) {
                    (Operation::Read, record)
                } else {
                    (operation, record)
                }
            }
        };
        Some(Held { operation, record, since: now })
    }

    fn choose(&mut self, operation: Operation) -> u64 {
        if operation == Operation::Insert {
            self.inserts_sent += 1;
            return self.checker.insertable(self.inserts_sent - 1);
        }
        let record = match self.config.workload.distribution() {
            RequestDistribution::ScrambledZipfian => self.zipfian.next(&mut self.rng),
            RequestDistribution::Latest => {
                let inserted = self.inserted.len() as u64;
                let loaded = self.records.loaded();
                let back = latest_distance(loaded + inserted, &mut self.rng);
                match usize::try_from(back) {
                    Ok(back) if back < self.inserted.len() => {
                        self.inserted[self.inserted.len() - 1 - back]
                    }
                    _ => loaded + inserted - 1 - back,
                }
            }
        };
        match operation {
            Operation::Read => record,
            _ => self.checker.writable(record),
        }
    }

    /// Sends an operation; `false` if it has to wait.
    fn start(&mut self, operation: Operation, record: u64, now: Instant) -> Result<bool, RunError> {
        let writes = operation != Operation::Read;
        let reads = matches!(operation, Operation::Read | Operation::ReadModifyWrite);
        if writes && self.is_being_written(record) {
            return Ok(false);
        }
        let mut asked = self.spare.pop().unwrap_or_default();
        let step = if reads {
            self.records.key(record, &mut self.key);
            match self.link.start_get(&self.key) {
                Ok(get) => {
                    self.checker.ask(record, &mut asked);
                    Step::Reading(get)
                }
                Err(why) => return self.not_started(operation, why).map(|()| false),
            }
        } else {
            match self.start_write(operation, record, &mut asked)? {
                Some(put) => Step::Writing(put),
                None => return Ok(false),
            }
        };
        let started = now;
        let flight = InFlight { operation, record, started, step_started: now, asked, step };
        self.in_flight.push(flight);
        Ok(true)
    }

    /// Whether a write of this client to the record is in flight, including the second half of a
    /// read-modify-write. Only one is allowed.
    fn is_being_written(&self, record: u64) -> bool {
        self.checker.is_writing(record)
            || self.in_flight.iter().any(|flight| {
                flight.record == record && flight.operation == Operation::ReadModifyWrite
            })
    }

    fn start_write(
        &mut self,
        operation: Operation,
        record: u64,
        asked: &mut Snapshot,
    ) -> Result<Option<L::Put>, RunError> {
        let (writer, version) = match operation {
            Operation::Load => (LOADER, 1),
            _ => (self.config.me, self.checker.next_version(record)),
        };
        self.records.key(record, &mut self.key);
        self.records.value(record, writer, version, &mut self.value);
        match self.link.start_put(&self.key, &self.value) {
            Ok(put) => {
                if operation != Operation::Load {
                    self.checker.write(record, asked);
                }
                Ok(Some(put))
            }
            Err(why) => self.not_started(operation, why).map(|()| None),
        }
    }

    fn not_started(&self, operation: Operation, why: NotStarted) -> Result<(), RunError> {
        match why {
            NotStarted::Full => Ok(()),
            NotStarted::Failed(source) => Err(self.failed(operation, source)),
        }
    }

    fn failed(&self, operation: Operation, source: LinkError) -> RunError {
        let key = self.key.escape_ascii().to_string();
        RunError::Link { operation, key, source }
    }

    /// Takes available answers. Returns whether there were any.
    fn collect(
        &mut self,
        now: Instant,
        measured: bool,
        counters: &Counters,
    ) -> Result<bool, RunError> {
        let (done_before, wrong_before) = (self.findings.checked, self.findings.wrong);
        let mut finished = 0;
        let mut at = 0;
        while at < self.in_flight.len() {
            if !self.advance(at, now, measured)? {
                at += 1;
                continue;
            }
            let flight = self.in_flight.swap_remove(at);
            if measured {
                self.findings.latencies.record(flight.operation, now - flight.started);
            }
            self.spare.push(flight.asked);
            finished += 1;
        }
        if finished > 0 {
            counters.operations.fetch_add(finished, Ordering::Relaxed);
        }
        let wrong = self.findings.wrong - wrong_before;
        if wrong > 0 {
            counters.wrong.fetch_add(wrong, Ordering::Relaxed);
        }
        Ok(self.findings.checked > done_before)
    }

    /// Checks whether the operation at `at` was answered. Returns whether it is finished.
    fn advance(&mut self, at: usize, now: Instant, measured: bool) -> Result<bool, RunError> {
        let flight = &mut self.in_flight[at];
        let (operation, record) = (flight.operation, flight.record);
        match &mut flight.step {
            Step::Reading(get) => {
                let Some(answer) = self.link.take_get(get) else { return Ok(false) };
                let outcome = match answer {
                    Ok(value) => self.checker.read(&flight.asked, value.as_deref()),
                    Err(why) => return Err(self.failed_at(operation, record, why)),
                };
                let asked_for = now - flight.step_started;
                flight.step = Step::ToWrite;
                self.judge(operation, record, outcome);
                if operation == Operation::Read {
                    return Ok(true);
                }
                if measured {
                    self.findings.latencies.record(Operation::Read, asked_for);
                }
                self.write_back(at, now)?;
                Ok(false)
            }
            Step::ToWrite => {
                self.write_back(at, now)?;
                Ok(false)
            }
            Step::Writing(put) => {
                let Some(answer) = self.link.take_put(put) else { return Ok(false) };
                let replaced = match answer {
                    Ok(replaced) => replaced,
                    Err(why) => return Err(self.failed_at(operation, record, why)),
                };
                let outcome = match operation {
                    Operation::Load => Ok(()),
                    Operation::Insert => {
                        self.inserted.push(record);
                        let expected = self.config.inserts_are_new.then_some(false);
                        self.checker.written(&flight.asked, replaced, expected)
                    }
                    _ => self.checker.written(&flight.asked, replaced, Some(true)),
                };
                if operation == Operation::ReadModifyWrite && measured {
                    let took = now - flight.step_started;
                    self.findings.latencies.record(Operation::Update, took);
                }
                self.judge(operation, record, outcome);
                Ok(true)
            }
        }
    }

    /// Sends the second half of a read-modify-write, if the window has room.
    fn write_back(&mut self, at: usize, now: Instant) -> Result<(), RunError> {
        let (operation, record) = (self.in_flight[at].operation, self.in_flight[at].record);
        let mut asked = std::mem::take(&mut self.in_flight[at].asked);
        let put = self.start_write(operation, record, &mut asked)?;
        let flight = &mut self.in_flight[at];
        flight.asked = asked;
        flight.step_started = now;
        if let Some(put) = put {
            flight.step = Step::Writing(put);
        }
        Ok(())
    }

    fn judge(&mut self, operation: Operation, record: u64, outcome: Result<(), Wrong>) {
        self.findings.checked += 1;
        let Err(wrong) = outcome else { return };
        self.findings.wrong += 1;
        if self.findings.reports.len() < MAX_REPORTS {
            self.records.key(record, &mut self.key);
            let key = self.key.escape_ascii();
            self.findings.reports.push(format!("{} of {key}: {wrong}", operation.name()));
        }
    }

    #[cold]
    fn failed_at(&mut self, operation: Operation, record: u64, why: LinkError) -> RunError {
        self.records.key(record, &mut self.key);
        self.failed(operation, why)
    }

    fn check_timeout(&self, now: Instant) -> Result<(), RunError> {
        let timeout = self.config.timeout;
        let late = self.in_flight.iter().find(|flight| now - flight.step_started > timeout);
        let late = late.map(|late| late.operation);
        let stuck = self.held.filter(|held| now - held.since > timeout).map(|held| held.operation);
        late.or(stuck).map_or(Ok(()), |operation| Err(RunError::NoAnswer { operation, timeout }))
    }
}

#[cfg(test)]
mod tests;
