//! Calls per second and processor time per call, by the threads of the server and as many of the clients.

use std::fmt::Write as _;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use farcall::Server;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::clock::Clock;
use crate::cores;
use crate::echo::calling;
use crate::echo::load::Totals;
use crate::echo::service::{EchoPollClient, EchoServer, EchoService};

/// Each row is measured so often, by turns with the others: the machine is not the same in all minutes.
const ROUNDS: u32 = 3;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device under the backend.
    pub device: String,
    /// The backend under the stubs.
    pub backend: String,
    /// Threads of the server, for each row. As many threads call.
    pub threads: Vec<usize>,
    /// Connections that each calling thread drives.
    pub connections: usize,
    /// Bytes of the argument, and of the result.
    pub size: usize,
    /// Calls that each connection keeps outstanding.
    pub window: usize,
    /// The time of each row.
    pub time: Duration,
}

/// One run of `scaling`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `scaling`.
    pub bench: &'static str,
    /// The device under the backend.
    pub device: String,
    /// The backend under the stubs.
    pub backend: String,
    /// Connections that each calling thread drives.
    pub connections: usize,
    /// Bytes of the argument, and of the result.
    pub size: usize,
    /// Calls that each connection keeps outstanding.
    pub window: usize,
    /// By threads.
    pub rows: Vec<Row>,
}

/// Calls by so many threads, to as many.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Threads of the server, and threads that call; each has a core.
    pub threads: usize,
    /// Calls per second.
    pub rate: f64,
    /// Processor time of both ends for each call.
    pub cpu_ns: f64,
    /// Median of a call's time from start to result.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// `rate` by thread, as a part of that in the first row.
    pub efficiency: f64,
}

impl Report {
    /// Formats the table.
    pub fn table(&self) -> String {
        let Report { device, backend, connections, size, window, .. } = self;
        let mut text = format!(
            "calls of {size} B over {device}/{backend}; each calling thread has {connections} connections with {window} outstanding\n\
             {:>9} {:>14} {:>14} {:>9} {:>9} {:>11}\n",
            "threads", "calls/s", "CPU per call", "p50", "p99", "efficiency"
        );
        for row in &self.rows {
            // Writing into a String does not fail.
            let _ = writeln!(
                text,
                "{:>9} {:>14.0} {:>11.0} ns {:>6} ns {:>6} ns {:>11.2}",
                format!("{} + {}", row.threads, row.threads),
                row.rate,
                row.cpu_ns,
                row.p50_ns,
                row.p99_ns,
                row.efficiency,
            );
        }
        text
    }
}

/// What one row has come to so far.
#[derive(Default)]
struct Measured {
    totals: Totals,
    cpu: Duration,
}

/// 1, 2, 4 and so on: as many server threads as there are cores for, with one more for each.
pub fn default_threads() -> Vec<usize> {
    let cores = cores::available().len();
    let doubled = std::iter::successors(Some(1), |threads| Some(threads * 2));
    doubled.take_while(|threads| *threads == 1 || 2 * threads <= cores).collect()
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report> {
    let cores = cores::available();
    for threads in &options.threads {
        ensure!(
            2 * threads <= cores.len(),
            "{threads} threads of the server and as many that call need {} cores, and there are {}; name fewer in `--threads`",
            2 * threads,
            cores.len()
        );
    }
    let mut measured: Vec<_> = options.threads.iter().map(|_| Measured::default()).collect();
    for _ in 0..ROUNDS {
        for (threads, measured) in options.threads.iter().zip(&mut measured) {
            let round = measure(options, &cores[..2 * threads], options.time / ROUNDS);
            let (totals, cpu) = round.with_context(|| format!("with {threads} threads"))?;
            measured.totals.add(&totals);
            measured.cpu += cpu;
        }
    }
    let mut rows = Vec::new();
    let mut first = None;
    for (&threads, Measured { totals, cpu }) in options.threads.iter().zip(&measured) {
        let rate = totals.rate();
        let by_thread = rate / threads as f64;
        rows.push(Row {
            threads,
            rate,
            cpu_ns: cpu.as_nanos() as f64 / totals.calls.max(1) as f64,
            p50_ns: totals.latency.quantile(0.5),
            p99_ns: totals.latency.quantile(0.99),
            efficiency: by_thread / *first.get_or_insert(by_thread),
        });
    }
    Ok(Report {
        bench: "scaling",
        device: options.device.clone(),
        backend: options.backend.clone(),
        connections: options.connections,
        size: options.size,
        window: options.window,
        rows,
    })
}

/// One round of a row: server threads on the first half of these cores, calling threads on the others.
fn measure(options: &Options, cores: &[usize], time: Duration) -> Result<(Totals, Duration)> {
    let (of_server, of_clients) = cores.split_at(cores.len() / 2);
    // A small window does not also mean few slots.
    let slots = format!("window={}", options.window.max(64));
    let address = crate::address::local(&options.device, &options.backend, &slots);
    let clients = of_clients.len() * options.connections;
    let server = Server::builder()
        .service(EchoServer::new(EchoService::new().0))
        .threads(of_server.len())
        .pin(of_server.iter().copied())
        .max_clients(clients + 1)
        .listen(&address)
        .with_context(|| format!("cannot listen at {address}"))?;
    let (clock, ready) = (Clock::new(), Barrier::new(of_clients.len() + 1));
    let (totals, cpu) = thread::scope(|scope| {
        let callers: Vec<_> = of_clients
            .iter()
            .map(|&core| {
                let (ready, clock, address) = (&ready, clock.clone(), server.address());
                scope.spawn(move || {
                    let connected = connect(core, address, options.connections);
                    ready.wait();
                    let mut totals = Totals::default();
                    let mut load = calling(options.size, options.window, connected?, clock);
                    load.calls(time, &mut totals)?;
                    anyhow::Ok(totals)
                })
            })
            .collect();
        ready.wait();
        let before = processor_time();
        let mut all = Totals::default();
        for caller in callers {
            let ended = caller.join().map_err(|_| anyhow!("a calling thread panicked"))?;
            all.add_concurrent(&ended?);
        }
        anyhow::Ok((all, processor_time().saturating_sub(before)))
    })?;
    server.shutdown();
    Ok((totals, cpu))
}

fn connect(core: usize, address: &str, connections: usize) -> Result<Vec<EchoPollClient>> {
    cores::pin(core)?;
    let connected = (0..connections).map(|_| EchoPollClient::connect(address).wait());
    connected.collect::<Result<_, _>>().with_context(|| format!("cannot connect to {address}"))
}

/// What this process has used of the processor.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(threads: Vec<usize>) -> Options {
        Options {
            device: "shm".into(),
            backend: "write_imm".into(),
            threads,
            connections: 2,
            size: 32,
            window: 4,
            time: Duration::from_millis(30),
        }
    }

    #[test]
    fn calls_are_counted_and_cores_that_are_missing_are_named() {
        assert_eq!(default_threads()[0], 1);
        if cores::available().len() >= 2 {
            let report = run(&options(vec![1])).unwrap();
            let [row] = &report.rows[..] else { panic!("{report:?}") };
            assert!(row.rate > 0.0 && row.cpu_ns > 0.0 && row.efficiency == 1.0, "{row:?}");
            assert!(report.table().contains("1 + 1"));
        }
        let error = run(&options(vec![1 << 20])).unwrap_err().to_string();
        assert!(error.contains("name fewer in `--threads`"), "{error}");
    }
}
