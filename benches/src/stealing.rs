//! Short calls beside long ones on the same server thread, with work stealing and without, by turns.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use farcall::{PendingCall, RpcError, RunningServer, Server};
use serde::Serialize;

use crate::clock::Clock;
use crate::latency::Latency;

/// The length of a turn of either server.
const TURN: Duration = Duration::from_millis(200);

/// Clients tried until one is on the same thread as the first.
const MOST_CLIENTS_PER_THREAD: usize = 4;

/// Calls that run in place.
#[farcall::service(any_thread)]
trait Work {
    /// Blocks its thread for so many microseconds, as a handler does that waits for a disk.
    fn block(&self, us: u64);
    /// Returns a number that each server thread has for itself.
    fn short(&self) -> u64;
}

struct Worker;

impl Work for Worker {
    fn block(&self, us: u64) {
        std::thread::sleep(Duration::from_micros(us));
    }

    fn short(&self) -> u64 {
        thread_local! {
            static HERE: u8 = const { 0 };
        }
        HERE.with(|here| std::ptr::from_ref(here).addr() as u64)
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the servers listen, without a name: `shm`.
    pub backend: String,
    /// Server threads.
    pub threads: usize,
    /// How long the long calls take.
    pub long: Duration,
    /// Long calls outstanding.
    pub long_calls: usize,
    /// The time of both servers together.
    pub time: Duration,
}

/// One run of `stealing`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `stealing`.
    pub bench: &'static str,
    /// The backend under the stubs, on `shm`.
    pub backend: String,
    /// Server threads.
    pub threads: usize,
    /// How long the long calls take, in microseconds.
    pub long_us: u64,
    /// Long calls outstanding.
    pub long_calls: usize,
    /// Without work stealing.
    pub without: Side,
    /// With work stealing.
    pub with: Side,
    /// `without.p99_ns / with.p99_ns`.
    pub p99_ratio: f64,
}

/// The short calls to one of the two servers.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    /// Short calls.
    pub calls: u64,
    /// Their median latency.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Long calls answered.
    pub long_calls: u64,
    /// Calls of either kind that an idle thread ran for the one that had them.
    pub stolen: u64,
}

impl Report {
    /// Formats the table.
    pub fn table(&self) -> String {
        let mut text = format!(
            "short calls beside {} call(s) of {} us on one of {} threads, shm/{}\n  {:16} {:>9} {:>10} {:>10} {:>10} {:>9} {:>9}\n",
            self.long_calls,
            self.long_us,
            self.threads,
            self.backend,
            "",
            "calls",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "long",
            "stolen"
        );
        let us = |nanos: u64| nanos as f64 / 1e3;
        for (name, side) in [("without stealing", &self.without), ("with stealing", &self.with)] {
            // Writing into a String does not fail.
            let _ = writeln!(
                text,
                "  {name:16} {:>9} {:>10.2} {:>10.2} {:>10.2} {:>9} {:>9}",
                side.calls,
                us(side.p50_ns),
                us(side.p99_ns),
                us(side.p999_ns),
                side.long_calls,
                side.stolen
            );
        }
        let _ = writeln!(text, "  p99 without : with = {:.1}", self.p99_ratio);
        text
    }
}

/// Runs the benchmark. The calling thread drives all clients.
pub fn run(options: &Options) -> Result<Report> {
    ensure!(options.threads > 1, "stealing needs two threads: `--threads 4`");
    let clock = Clock::new();
    let mut without = Contender::start(options, false)?;
    let mut with = Contender::start(options, true)?;
    let end = Instant::now() + options.time;
    while Instant::now() < end {
        without.turn(&clock)?;
        with.turn(&clock)?;
    }
    let (without, with) = (without.side(), with.side());
    Ok(Report {
        bench: "stealing",
        backend: options.backend.clone(),
        threads: options.threads,
        long_us: options.long.as_micros() as u64,
        long_calls: options.long_calls,
        p99_ratio: without.p99_ns as f64 / with.p99_ns.max(1) as f64,
        without,
        with,
    })
}

/// A server, and two clients of the same of its threads.
struct Contender {
    server: RunningServer,
    short: WorkPollClient,
    long: WorkPollClient,
    long_us: u64,
    long_calls: usize,
    latency: Latency,
    answered: u64,
}

impl Contender {
    fn start(options: &Options, steals: bool) -> Result<Contender> {
        let address = crate::address::local("shm", &options.backend, "");
        let server = Server::builder()
            .service(WorkServer::new(Worker))
            .threads(options.threads)
            .work_stealing(steals)
            .listen(&address)
            .with_context(|| format!("cannot listen at {address}"))?;
        let address = server.address().to_owned();
        let mut short = WorkPollClient::connect(&address).wait()?;
        let home = short.short()?;
        for _ in 0..MOST_CLIENTS_PER_THREAD * options.threads {
            let mut long = WorkPollClient::connect(&address).wait()?;
            if long.short()? == home {
                let (long_us, long_calls) = (options.long.as_micros() as u64, options.long_calls);
                let latency = Latency::new();
                return Ok(Contender {
                    server,
                    short,
                    long,
                    long_us,
                    long_calls,
                    latency,
                    answered: 0,
                });
            }
        }
        anyhow::bail!("no second client was assigned to the thread of the first")
    }

    /// Short calls one after the other, beside long ones.
    fn turn(&mut self, clock: &Clock) -> Result<()> {
        let mut long: VecDeque<PendingCall<Result<(), RpcError>>> = VecDeque::new();
        let end = clock.after(TURN);
        let mut is_first = true;
        while clock.stamp() < end {
            while long.len() < self.long_calls {
                long.push_back(self.long.start_block(self.long_us)?);
                self.long.poll();
            }
            let begun = clock.stamp();
            let mut call = self.short.start_short()?;
            loop {
                self.short.poll();
                if let Some(answer) = self.short.take(&mut call) {
                    answer?;
                    break;
                }
            }
            // The server's threads were asleep before the first.
            if !std::mem::take(&mut is_first) {
                self.latency.record(clock.nanos_between(begun, clock.stamp()));
            }
            self.long.poll();
            let mut left = VecDeque::new();
            for mut call in long {
                match self.long.take(&mut call) {
                    Some(answer) => {
                        answer?;
                        self.answered += 1;
                    }
                    None => left.push_back(call),
                }
            }
            long = left;
        }
        for call in long {
            self.long.connection().wait(call).context("a call was taken twice")??;
        }
        Ok(())
    }

    fn side(self) -> Side {
        let snapshot = self.server.metrics().snapshot();
        let methods = ["short", "block"].into_iter();
        let stolen = methods.filter_map(|name| Some(snapshot.method("Work", name)?.stolen())).sum();
        Side {
            calls: self.latency.samples(),
            p50_ns: self.latency.quantile(0.5),
            p99_ns: self.latency.quantile(0.99),
            p999_ns: self.latency.quantile(0.999),
            long_calls: self.answered,
            stolen,
        }
    }
}
