//! The client side: makes and times calls on one thread.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::time::Duration;

use anyhow::{Result, bail};
use farcall::{Backpressure, RpcError};

use super::service::EchoPollClient;
use super::shape::{Pending, Shape};
use crate::clock::Clock;
use crate::latency::Latency;

/// With many outstanding calls, one in this many is timed.
const TIMED_EACH: u64 = 16;

/// The first calls of a slice warm up the caches, which the other slice has used; this time is not counted.
const UNCOUNTED: Duration = Duration::from_millis(1);

/// Empty polls after which the clock is read.
const TURNS_PER_CLOCK: u32 = 1 << 16;

/// The timeout of an answer, more than a thousand times the expected time.
const ANSWER_BOUND: Duration = Duration::from_secs(10);

/// The results of a measurement.
#[derive(Default)]
pub(crate) struct Totals {
    /// Answers.
    pub(crate) calls: u64,
    /// The total time of the slices.
    pub(crate) nanos: u64,
    /// From start to answer.
    pub(crate) latency: Latency,
    /// Compare the whole of each answer, which takes time.
    thorough: bool,
}

impl Totals {
    /// Calls per second.
    pub(crate) fn rate(&self) -> f64 {
        self.calls as f64 / (self.nanos as f64 / 1e9).max(f64::MIN_POSITIVE)
    }

    /// Adds what was done at another time.
    pub(crate) fn add(&mut self, other: &Totals) {
        self.calls += other.calls;
        self.nanos += other.nanos;
        self.latency.add(&other.latency);
    }

    /// Adds what another loop has done in the same time.
    pub(crate) fn add_concurrent(&mut self, other: &Totals) {
        self.calls += other.calls;
        self.nanos = self.nanos.max(other.nanos);
        self.latency.add(&other.latency);
    }

    fn warming() -> Self {
        Self { thorough: true, ..Self::default() }
    }
}

/// One connection and its outstanding calls, oldest first.
struct Connection<S: Shape> {
    client: EchoPollClient,
    outstanding: VecDeque<(Pending<S::Output>, Option<u64>)>,
}

/// Calls of one size over some connections, for any shape.
pub(crate) trait Calling {
    /// Makes calls for about `time`; on return, no call is outstanding.
    fn calls(&mut self, time: Duration, totals: &mut Totals) -> Result<()>;
}

impl<S: Shape> Calling for Load<S> {
    fn calls(&mut self, time: Duration, totals: &mut Totals) -> Result<()> {
        self.slice(time, totals)
    }
}

/// All connections of the run.
pub(super) struct Load<S: Shape> {
    shape: S,
    window: usize,
    connections: Vec<Connection<S>>,
    clock: Clock,
}

impl<S: Shape> Load<S> {
    /// Keeps `window` calls outstanding on each of `clients`.
    pub(super) fn new(shape: S, window: usize, clients: Vec<EchoPollClient>, clock: Clock) -> Self {
        let connection =
            |client| Connection { client, outstanding: VecDeque::with_capacity(window) };
        Self { shape, window, connections: clients.into_iter().map(connection).collect(), clock }
    }

    /// Lets the server sleep, so that its core is free for `meanwhile`.
    pub(super) fn rest(&mut self, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        let client = &mut self.connections[0].client;
        let resting = client.start_rest()?;
        client.poll();
        meanwhile()?;
        match client.connection().wait(resting) {
            Some(Ok(true)) => Ok(()),
            Some(Ok(false)) => bail!("the server was not resumed in time"),
            Some(Err(error)) => Err(error.into()),
            None => bail!("the server's rest was taken twice"),
        }
    }

    /// Makes calls for about `time`; on return, no call is outstanding.
    pub(super) fn slice(&mut self, time: Duration, totals: &mut Totals) -> Result<()> {
        if self.window == 1 && self.connections.len() == 1 {
            self.one_by_one(UNCOUNTED, &mut Totals::warming())?;
            return self.one_by_one(time, totals);
        }
        self.many(UNCOUNTED, &mut Totals::warming())?;
        self.many(time, totals)
    }

    fn one_by_one(&mut self, time: Duration, totals: &mut Totals) -> Result<()> {
        let client = &mut self.connections[0].client;
        let begin = self.clock.stamp();
        let end = self.clock.after(time);
        loop {
            let before = self.clock.stamp();
            let output = self.shape.call(client)?;
            let after = self.clock.stamp();
            totals.latency.record(self.clock.nanos_between(before, after));
            totals.calls += 1;
            check(&self.shape, &output, totals.thorough)?;
            if after >= end {
                totals.nanos += self.clock.nanos_between(begin, after);
                return Ok(());
            }
        }
    }

    fn many(&mut self, time: Duration, totals: &mut Totals) -> Result<()> {
        let clock = self.clock.clone();
        let mut turns = Turns::begin(&clock, time);
        loop {
            let mut outstanding = 0;
            let before = totals.calls;
            for connection in &mut self.connections {
                connection.answers(&self.shape, &mut turns, totals)?;
                if turns.last < turns.end {
                    connection.fill(&self.shape, self.window, &mut turns)?;
                }
                outstanding += connection.outstanding.len();
            }
            if outstanding == 0 && turns.last >= turns.end {
                break;
            }
            if totals.calls == before {
                turns.idle()?;
            }
        }
        totals.nanos += clock.nanos_between(turns.begin, clock.stamp());
        Ok(())
    }
}

/// The time in a slice of many calls. The clock is only read to time a call, or if nothing arrives.
struct Turns<'c> {
    clock: &'c Clock,
    begin: u64,
    end: u64,
    last: u64,
    give_up: u64,
    idle: u32,
    started: u64,
}

impl<'c> Turns<'c> {
    fn begin(clock: &'c Clock, time: Duration) -> Self {
        let begin = clock.stamp();
        let end = clock.after(time);
        let give_up = clock.after(time + ANSWER_BOUND);
        Self { clock, begin, end, last: begin, give_up, idle: 0, started: 0 }
    }

    fn stamp(&mut self) -> u64 {
        self.last = self.clock.stamp();
        self.last
    }

    /// Handles an empty poll.
    fn idle(&mut self) -> Result<()> {
        spin_loop();
        self.idle += 1;
        if self.idle < TURNS_PER_CLOCK {
            return Ok(());
        }
        self.idle = 0;
        if self.stamp() >= self.give_up {
            bail!("an answer did not come within {ANSWER_BOUND:?}");
        }
        Ok(())
    }
}

impl<S: Shape> Connection<S> {
    /// Takes the answers that have arrived.
    fn answers(&mut self, shape: &S, turns: &mut Turns<'_>, totals: &mut Totals) -> Result<()> {
        self.client.poll();
        while let Some((pending, started)) = self.outstanding.front_mut() {
            let Some(output) = self.client.take(pending) else { break };
            if let Some(started) = *started {
                totals.latency.record(turns.clock.nanos_between(started, turns.stamp()));
            }
            self.outstanding.pop_front();
            totals.calls += 1;
            check(shape, &output?, totals.thorough)?;
        }
        Ok(())
    }

    /// Starts calls until the window or the send queue is full.
    fn fill(&mut self, shape: &S, window: usize, turns: &mut Turns<'_>) -> Result<()> {
        while self.outstanding.len() < window {
            let timed = turns.started.is_multiple_of(TIMED_EACH).then(|| turns.stamp());
            match shape.start(&mut self.client) {
                Ok(pending) => self.outstanding.push_back((pending, timed)),
                // The answers have overtaken the acknowledgements of their requests.
                Err(RpcError::Overloaded(Backpressure::SendQueue)) => break,
                Err(error) => return Err(error.into()),
            }
            turns.started += 1;
        }
        Ok(())
    }
}

fn check<S: Shape>(shape: &S, output: &S::Output, all: bool) -> Result<()> {
    if !shape.is_right(output, all) {
        bail!("an answer differs from what was sent");
    }
    Ok(())
}
