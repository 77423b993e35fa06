//! Idle clients: what each of them has (threads, memory, descriptors), how much of the processor they use, and how long a call
//! on each of them takes.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::process::{self, Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use farcall::ping::PingClient;
use farcall::{Endpoint, RunningServer, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use crate::latency::Latency;
use crate::process::{descriptors, proportional_bytes};

/// How long the threads may take to fall asleep.
const SETTLE_BOUND: Duration = Duration::from_secs(20);

/// Nothing may run for this long before the measurement begins: threads that open connections end after half a second without one.
const QUIET: Duration = Duration::from_millis(700);

/// A server needs a service of its own to listen.
#[farcall::service]
trait Nothing {
    fn nothing(&self);
}

#[derive(Clone)]
struct Idle;

impl Nothing for Idle {
    fn nothing(&self) {}
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device under the backend.
    pub device: String,
    /// The backend under the stubs.
    pub backend: String,
    /// Further options of its address; empty for the defaults.
    pub address_options: String,
    /// Clients of one endpoint.
    pub clients: usize,
    /// How long they are idle.
    pub time: Duration,
    /// The server is a process of its own, which runs this program's `serve-idle`.
    pub processes: bool,
}

/// One run of `idle`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `idle`.
    pub bench: &'static str,
    /// The device under the backend.
    pub device: String,
    /// The backend under the stubs.
    pub backend: String,
    /// Clients of one endpoint.
    pub clients: usize,
    /// How long they were idle, in nanoseconds.
    pub time_ns: u64,
    /// Threads that the clients added to those of the process, the server's included.
    pub added_threads: Vec<String>,
    /// What those threads used of a processor meanwhile, in nanoseconds.
    pub cpu_ns: u64,
    /// What all other threads used, most of them the server's.
    pub other_cpu_ns: u64,
    /// Memory of both ends per client, in bytes. A page that both ends map counts once.
    pub bytes_per_client: u64,
    /// The same after each has made a call.
    pub bytes_per_client_after_call: u64,
    /// Descriptors of both ends per client.
    pub descriptors_per_client: f64,
    /// One call on each client after they were idle, one after the other.
    pub call: CallTimes,
}

/// How long the calls took, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct CallTimes {
    /// Of all calls together, divided by their number.
    pub mean_ns: u64,
    /// Half of the calls were as fast.
    pub p50_ns: u64,
    /// 99 % of them were.
    pub p99_ns: u64,
}

impl Report {
    /// Formats the table.
    pub fn table(&self) -> String {
        let percent = |ns: u64| 100.0 * ns as f64 / self.time_ns as f64;
        format!(
            "{} idle clients of one endpoint, {}/{}, for {:.1} s\n  added threads      {} ({})\n  processor, those   {:.4} %\n  processor, others  {:.4} %\n  memory per client  {} KiB (both ends), {} KiB after a call on each\n  descriptors        {:.2} per client (both ends)\n  one call on each   mean {:.1} us, p50 {:.1} us, p99 {:.1} us\n",
            self.clients,
            self.device,
            self.backend,
            self.time_ns as f64 / 1e9,
            self.added_threads.len(),
            self.added_threads.join(", "),
            percent(self.cpu_ns),
            percent(self.other_cpu_ns),
            self.bytes_per_client >> 10,
            self.bytes_per_client_after_call >> 10,
            self.descriptors_per_client,
            self.call.mean_ns as f64 / 1e3,
            self.call.p50_ns as f64 / 1e3,
            self.call.p99_ns as f64 / 1e3,
        )
    }
}

/// Where the clients connect to.
enum Host {
    Thread(Box<RunningServer>),
    /// It ends with its standard input.
    Process(Child),
}

impl Host {
    fn start(options: &Options) -> Result<(Host, String)> {
        let address =
            crate::address::local(&options.device, &options.backend, &options.address_options);
        if !options.processes {
            let server = listen(&address, options.clients)?;
            let address = server.address().to_owned();
            return Ok((Host::Thread(Box::new(server)), address));
        }
        let program = env::current_exe().context("cannot find this program's own file")?;
        let mut child = Command::new(program)
            .args(["serve-idle", "--address", &address, "--clients", &options.clients.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the server process")?;
        let mut line = String::new();
        let output = child.stdout.take().context("the server process has no pipes")?;
        BufReader::new(output).read_line(&mut line).context("cannot hear the server process")?;
        ensure!(!line.is_empty(), "the server process did not start; its error is above");
        Ok((Host::Process(child), line.trim().to_owned()))
    }

    /// The processes of both ends.
    fn processes(&self) -> Vec<u32> {
        let other = if let Host::Process(child) = self { Some(child.id()) } else { None };
        other.into_iter().chain([process::id()]).collect()
    }

    fn stop(self) -> Result<()> {
        match self {
            Host::Thread(server) => {
                server.shutdown();
            }
            Host::Process(mut child) => {
                drop(child.stdin.take());
                let status = child.wait().context("cannot wait for the server process")?;
                ensure!(status.success(), "the server process failed: {status}");
            }
        }
        Ok(())
    }
}

fn listen(address: &str, clients: usize) -> Result<RunningServer> {
    let server = Server::builder().service(NothingServer::new(Idle));
    Ok(server.max_clients(clients + 1).listen(address)?)
}

/// The main function of a server process: serves until its standard input ends.
pub fn serve(address: &str, clients: usize) -> Result<()> {
    let server = listen(address, clients)?;
    println!("{}", server.address());
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    server.shutdown();
    Ok(())
}

/// The memory of these processes together.
fn bytes_of(processes: &[u32]) -> Result<u64> {
    processes.iter().map(|process| proportional_bytes(*process)).sum()
}

/// The descriptors of these processes together.
fn descriptors_of(processes: &[u32]) -> Result<usize> {
    processes.iter().map(|process| descriptors(*process)).sum()
}

/// A server raises it for itself; here are thousands of clients.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Connects the clients, and measures the threads of the process while there are no calls.
pub fn run(options: &Options) -> Result<Report> {
    raise_descriptor_limit();
    let (server, address) = Host::start(options)?;
    let processes = server.processes();
    let endpoint = Endpoint::new();
    // What the process has once, such as the watch over sockets, belongs to no client.
    drop(PingClient::connect(&address).wait()?);
    settle()?;
    let (before, memory_before) = (threads()?, bytes_of(&processes)?);
    let descriptors_before = descriptors_of(&processes)?;
    let mut clients = Vec::with_capacity(options.clients);
    for _ in 0..options.clients {
        clients.push(PingClient::connect(&address).endpoint(&endpoint).wait()?);
    }
    call_some(&clients)?;
    settle()?;
    let memory = bytes_of(&processes)?.saturating_sub(memory_before);
    let descriptors = descriptors_of(&processes)?.saturating_sub(descriptors_before);
    let (begin, first) = (Instant::now(), threads()?);
    thread::sleep(options.time);
    let (time, last) = (begin.elapsed(), threads()?);
    let call = call_each(&clients).context("after they were idle")?;
    let memory_after = bytes_of(&processes)?.saturating_sub(memory_before);
    let number = options.clients.max(1);
    let mut report = Report {
        bench: "idle",
        device: options.device.clone(),
        backend: options.backend.clone(),
        clients: options.clients,
        time_ns: time.as_nanos() as u64,
        added_threads: Vec::new(),
        cpu_ns: 0,
        other_cpu_ns: 0,
        bytes_per_client: memory / number as u64,
        bytes_per_client_after_call: memory_after / number as u64,
        descriptors_per_client: descriptors as f64 / number as f64,
        call,
    };
    let myself = thread_of_caller()?;
    for (id, thread) in &last {
        let used = thread.cpu_ns - first.get(id).map_or(0, |thread| thread.cpu_ns);
        if *id == myself {
            // It only measures.
        } else if before.contains_key(id) {
            report.other_cpu_ns += used;
        } else {
            report.added_threads.push(thread.name.clone());
            report.cpu_ns += used;
        }
    }
    drop(clients);
    server.stop()?;
    Ok(report)
}

/// How many clients make a call before they are idle.
const CALLERS: usize = 16;

/// Some of the clients make a call each, the first and the last among them.
fn call_some(clients: &[PingClient]) -> Result<()> {
    let step = (clients.len() / CALLERS).max(1);
    for client in clients.iter().step_by(step).chain(clients.last()) {
        ensure!(client.ping("there?".into()).wait()? == "there?", "a ping came back changed");
    }
    Ok(())
}

/// One call on each of the clients, one after the other.
fn call_each(clients: &[PingClient]) -> Result<CallTimes> {
    let mut latency = Latency::new();
    let mut sum_ns = 0;
    for client in clients {
        let begin = Instant::now();
        let answer = client.ping("there?".into()).wait()?;
        let took_ns = begin.elapsed().as_nanos() as u64;
        ensure!(answer == "there?", "a ping came back changed");
        latency.record(took_ns);
        sum_ns += took_ns;
    }
    Ok(CallTimes {
        mean_ns: sum_ns / clients.len().max(1) as u64,
        p50_ns: latency.quantile(0.5),
        p99_ns: latency.quantile(0.99),
    })
}

/// A thread of this process.
struct Thread {
    name: String,
    /// Time that it ran.
    cpu_ns: u64,
}

/// The threads of this process by their ids, but not those that end meanwhile.
fn threads() -> Result<BTreeMap<u32, Thread>> {
    let mut threads = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/task")? {
        let path = entry?.path();
        let read = |file: &str| fs::read_to_string(path.join(file)).ok();
        let (Some(name), Some(schedule)) = (read("comm"), read("schedstat")) else { continue };
        let id = path.file_name().and_then(|id| id.to_str()?.parse().ok());
        let cpu_ns = schedule.split_whitespace().next().and_then(|ns| ns.parse().ok());
        let (id, cpu_ns) = id.zip(cpu_ns).context("/proc/self/task is not as expected")?;
        threads.insert(id, Thread { name: name.trim_end().to_owned(), cpu_ns });
    }
    ensure!(!threads.is_empty(), "the kernel keeps no schedstat of threads");
    Ok(threads)
}

fn thread_of_caller() -> Result<u32> {
    let link = fs::read_link("/proc/thread-self")?;
    let id = link.file_name().and_then(|id| id.to_str()?.parse().ok());
    id.context("/proc/thread-self names no thread")
}

/// Waits until no thread but the caller's has run, begun or ended for a while.
fn settle() -> Result<()> {
    let (begin, myself) = (Instant::now(), thread_of_caller()?);
    let others = || -> Result<Vec<(u32, u64)>> {
        let times = threads()?.into_iter().map(|(id, thread)| (id, thread.cpu_ns));
        Ok(times.filter(|(id, _)| *id != myself).collect())
    };
    let mut last = others()?;
    loop {
        thread::sleep(QUIET);
        let now = others()?;
        if now == last {
            return Ok(());
        }
        ensure!(begin.elapsed() < SETTLE_BOUND, "the process is never quiet");
        last = now;
    }
}
