//! Calls per second and processor time per call, by the threads of the server, the threads that call, and the connections of each.

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

/// Each row is measured so often, alternating with the others: the machine is not the same in all minutes.
const ROUNDS: u32 = 3;

/// What to measure: a row for each combination.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device under the backend.
    pub device: String,
    /// The backend under the stubs.
    pub backend: String,
    /// Threads of the server.
    pub threads: Vec<usize>,
    /// Threads that call. Empty: as many as the server has.
    pub callers: Vec<usize>,
    /// Connections that each calling thread drives.
    pub connections: Vec<usize>,
    /// Measure rows with more threads than cores, too; they are marked.
    pub share_cores: bool,
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
    /// Cores that the process may use.
    pub cores: usize,
    /// Bytes of the argument, and of the result.
    pub size: usize,
    /// Calls that each connection keeps outstanding.
    pub window: usize,
    /// By threads and connections.
    pub rows: Vec<Row>,
}

/// Calls by some threads, to others.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Threads of the server.
    pub threads: usize,
    /// Threads that call.
    pub callers: usize,
    /// Clients: connections of all calling threads.
    pub clients: usize,
    /// Some of the threads share a core, so that they wait for each other: not what as many cores would do.
    pub shares_cores: bool,
    /// Calls per second.
    pub rate: f64,
    /// Processor time of both ends for each call.
    pub cpu_ns: f64,
    /// Processor time of the server's threads for each call.
    pub server_cpu_ns: f64,
    /// Median of a call's time from start to result.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// `rate` for each core that the threads use, as a part of that in the first row.
    pub efficiency: f64,
}

impl Report {
    /// Formats the table.
    pub fn table(&self) -> String {
        let Report { device, backend, cores, size, window, .. } = self;
        let mut text = format!(
            "calls of {size} B over {device}/{backend} on {cores} cores; each client has {window} outstanding; threads: server + calling\n\
             {:>9} {:>8} {:>14} {:>14} {:>14} {:>10} {:>10} {:>11}\n",
            "threads",
            "clients",
            "calls/s",
            "CPU per call",
            "of the server",
            "p50",
            "p99",
            "efficiency"
        );
        for row in &self.rows {
            let shared = if row.shares_cores { "*" } else { "" };
            // Writing into a String does not fail.
            let _ = writeln!(
                text,
                "{:>9} {:>8} {:>14.0} {:>11.0} ns {:>11.0} ns {:>7} ns {:>7} ns {:>11.2}",
                format!("{}{} + {}", shared, row.threads, row.callers),
                row.clients,
                row.rate,
                row.cpu_ns,
                row.server_cpu_ns,
                row.p50_ns,
                row.p99_ns,
                row.efficiency,
            );
        }
        if self.rows.iter().any(|row| row.shares_cores) {
            text += "* more threads than cores: they take turns on a core, and their waiting counts as processor time while they poll\n";
        }
        text
    }
}

/// How many threads and connections a row has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    threads: usize,
    callers: usize,
    connections: usize,
}

impl Shape {
    /// The rows of these options, in the order of the table.
    fn all(options: &Options) -> Vec<Shape> {
        let mut shapes = Vec::new();
        for &threads in &options.threads {
            let callers = match &options.callers[..] {
                [] => &[threads],
                some => some,
            };
            for &callers in callers {
                let with = |&connections: &usize| Shape { threads, callers, connections };
                shapes.extend(options.connections.iter().map(with));
            }
        }
        shapes
    }

    /// All of its threads.
    fn wanted(self) -> usize {
        self.threads + self.callers
    }

    fn check(self, cores: usize, may_share: bool) -> Result<()> {
        ensure!(
            may_share || self.wanted() <= cores,
            "{} threads of the server and {} that call need {} cores, and there are {cores}; name fewer in `--threads` or `--callers`, or let them \
             take turns with `--share-cores`",
            self.threads,
            self.callers,
            self.wanted(),
        );
        Ok(())
    }
}

/// What one row has come to so far.
#[derive(Default)]
struct Measured {
    totals: Totals,
    /// Of both ends.
    cpu: Duration,
    /// Of the threads that call.
    callers_cpu: Duration,
}

impl Measured {
    fn add(&mut self, round: &Measured) {
        self.totals.add(&round.totals);
        self.cpu += round.cpu;
        self.callers_cpu += round.callers_cpu;
    }

    /// This time, for each call.
    fn by_call(&self, time: Duration) -> f64 {
        time.as_nanos() as f64 / self.totals.calls.max(1) as f64
    }
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
    let shapes = Shape::all(options);
    shapes.iter().try_for_each(|shape| shape.check(cores.len(), options.share_cores))?;
    let mut measured: Vec<_> = shapes.iter().map(|_| Measured::default()).collect();
    for _ in 0..ROUNDS {
        for (shape, measured) in shapes.iter().zip(&mut measured) {
            let round = measure(options, *shape, cores, options.time / ROUNDS);
            measured.add(&round.with_context(|| format!("with {shape:?}"))?);
        }
    }
    let mut rows = Vec::new();
    let mut first = None;
    for (shape, measured) in shapes.iter().zip(&measured) {
        let Measured { totals, cpu, callers_cpu } = measured;
        let rate = totals.rate();
        let by_core = rate / shape.wanted().min(cores.len()) as f64;
        rows.push(Row {
            threads: shape.threads,
            callers: shape.callers,
            clients: shape.callers * shape.connections,
            shares_cores: shape.wanted() > cores.len(),
            rate,
            cpu_ns: measured.by_call(*cpu),
            server_cpu_ns: measured.by_call(cpu.saturating_sub(*callers_cpu)),
            p50_ns: totals.latency.quantile(0.5),
            p99_ns: totals.latency.quantile(0.99),
            efficiency: by_core / *first.get_or_insert(by_core),
        });
    }
    Ok(Report {
        bench: "scaling",
        device: options.device.clone(),
        backend: options.backend.clone(),
        cores: cores.len(),
        size: options.size,
        window: options.window,
        rows,
    })
}

/// One round of a row: the server's threads on the first of these cores, calling threads on the next ones.
fn measure(options: &Options, shape: Shape, cores: &[usize], time: Duration) -> Result<Measured> {
    let Shape { threads, callers, connections } = shape;
    let mut placed = cores.iter().copied().cycle();
    let of_server: Vec<_> = placed.by_ref().take(threads).collect();
    let of_callers: Vec<_> = placed.take(callers).collect();
    // A small window does not also mean few slots.
    let slots = format!("window={}", options.window.max(64));
    let address = crate::address::local(&options.device, &options.backend, &slots);
    let server = Server::builder()
        .service(EchoServer::new(EchoService::new().0))
        .threads(threads)
        .pin(of_server)
        .max_clients(callers * connections + threads)
        .listen(&address)
        .with_context(|| format!("cannot listen at {address}"))?;
    let (clock, ready) = (Clock::new(), Barrier::new(callers + 1));
    let measured = thread::scope(|scope| {
        let running: Vec<_> = of_callers
            .iter()
            .map(|&core| {
                let (ready, clock, address) = (&ready, clock.clone(), server.address());
                scope.spawn(move || {
                    let connected = connect(core, address, connections);
                    ready.wait();
                    let before = processor_time(ClockId::ThreadCPUTime);
                    let mut totals = Totals::default();
                    let mut load = calling(options.size, options.window, connected?, clock);
                    load.calls(time, &mut totals)?;
                    let cpu = processor_time(ClockId::ThreadCPUTime).saturating_sub(before);
                    anyhow::Ok((totals, cpu))
                })
            })
            .collect();
        ready.wait();
        let before = processor_time(ClockId::ProcessCPUTime);
        let mut all = Measured::default();
        for caller in running {
            let ended = caller.join().map_err(|_| anyhow!("a calling thread panicked"))?;
            let (totals, cpu) = ended?;
            all.totals.add_concurrent(&totals);
            all.callers_cpu += cpu;
        }
        all.cpu = processor_time(ClockId::ProcessCPUTime).saturating_sub(before);
        anyhow::Ok(all)
    })?;
    server.shutdown();
    Ok(measured)
}

fn connect(core: usize, address: &str, connections: usize) -> Result<Vec<EchoPollClient>> {
    cores::pin(core)?;
    let connected = (0..connections).map(|_| EchoPollClient::connect(address).wait());
    connected.collect::<Result<_, _>>().with_context(|| format!("cannot connect to {address}"))
}

/// What this process, or this thread, has used of the processor.
fn processor_time(of: ClockId) -> Duration {
    let time = clock_gettime(of);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(threads: &[usize], callers: &[usize]) -> Options {
        Options {
            device: "shm".into(),
            backend: "write_imm".into(),
            threads: threads.into(),
            callers: callers.into(),
            connections: vec![1, 2],
            share_cores: false,
            size: 32,
            window: 4,
            time: Duration::from_millis(30),
        }
    }

    #[test]
    fn rows_are_all_combinations_and_threads_that_call_are_as_many_as_the_servers_unless_named() {
        let rows = |threads: &[usize], callers: &[usize]| {
            let shapes = Shape::all(&options(threads, callers));
            shapes.iter().map(|it| (it.threads, it.callers, it.connections)).collect::<Vec<_>>()
        };
        assert_eq!(rows(&[1, 2], &[]), [(1, 1, 1), (1, 1, 2), (2, 2, 1), (2, 2, 2)]);
        assert_eq!(rows(&[2], &[1, 3]), [(2, 1, 1), (2, 1, 2), (2, 3, 1), (2, 3, 2)]);
    }

    #[test]
    fn calls_are_counted_and_the_processor_time_is_split_between_the_ends() {
        assert_eq!(default_threads()[0], 1);
        if cores::available().len() < 2 {
            return;
        }
        let report = run(&options(&[1], &[])).unwrap();
        let [one, two] = &report.rows[..] else { panic!("{report:?}") };
        assert_eq!((one.clients, two.clients), (1, 2));
        assert!(one.rate > 0.0 && one.efficiency == 1.0 && !one.shares_cores, "{one:?}");
        for Row { cpu_ns, server_cpu_ns, .. } in [one, two] {
            assert!(0.0 < *server_cpu_ns && server_cpu_ns < cpu_ns, "{report:?}");
        }
        assert!(report.table().contains("1 + 1") && !report.table().contains('*'));
    }

    #[test]
    fn more_threads_than_cores_are_refused_unless_they_may_share_and_are_marked_then() {
        let many = cores::available().len();
        let error = run(&options(&[1], &[many])).unwrap_err().to_string();
        assert!(error.contains("`--share-cores`"), "{error}");
        let mut options = options(&[1], &[many]);
        options.share_cores = true;
        options.connections = vec![1];
        let report = run(&options).unwrap();
        assert!(report.rows[0].shares_cores && report.rows[0].rate > 0.0, "{report:?}");
        assert!(report.table().contains(&format!("*1 + {many}")), "{}", report.table());
    }
}
