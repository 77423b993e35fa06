//! The demo: a server process, client processes, a real text, and a check of every answer.
//!
//! 1. A server is started at a unique address.
//! 2. The text is loaded: each line's number is a key, and the line its value.
//! 3. Client processes run YCSB B: 95% reads, 5% updates, and check each answer. Halfway through, one
//!    more client starts and is killed with its calls in flight, which the others do not notice.
//! 4. Each client reads again all that it touched, and the whole store is scanned.
//! 5. All processes end, and a table shows the throughput and latencies.
//!
//! Every wait is bounded, and every process ends with the demo, however it ends.

mod client;
mod process;
mod protocol;
mod text;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use farcall::Address;
use farcall_kv::ycsb::client::{Client, ClientConfig};
use farcall_kv::ycsb::latency::{Latencies, human_rate};
use farcall_kv::ycsb::records::Records;
use farcall_kv::ycsb::workload::Operation;

pub(crate) use self::client::run as run_client;
use self::process::Clients;
use self::protocol::{Command, Event, Task};
use super::args::DemoArgs;
use super::pages::Pages;
use super::phase::{self, Extent};
use super::progress::Progress;
use super::{connect_poll, exit, idle};

/// Startup timeout of a process.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// The victim's duration, which it never reaches because it is killed.
const VICTIM_WORKS: Duration = Duration::from_secs(86_400);

/// The timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How many wrong answers are described; the rest are only counted.
const MAX_REPORTS: usize = 20;

const SECONDS: Duration = Duration::from_secs(5);
const SECONDS_SMALL: Duration = Duration::from_secs(1);

/// Runs the demo.
pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode> {
    let duration = args.seconds.unwrap_or(if args.small { SECONDS_SMALL } else { SECONDS });
    let source = text::read(args.file.as_deref(), args.small)?;
    let run: u64 = rand::random();
    let spins_before_yield = idle::spins_before_yield(args.clients + args.threads);

    let cut = if source.cut { " (its beginning)" } else { "" };
    eprintln!("{:>12}  {}{cut}, {} lines", "text", source.name, source.lines);
    let listen = unused_address(&args.backend, run)?;
    let (server, address) = process::serve(&listen, args.threads, READY_WITHIN)?;
    let threads = if args.threads == 1 { "thread" } else { "threads" };
    eprintln!("{:>12}  {address}, {} {threads}", "server", args.threads);

    let task = |me| Task {
        address: address.clone(),
        run,
        me,
        clients: args.clients + 1, // The victim writes too.
        window: args.window as usize,
        spins_before_yield,
        timeout: ANSWER_TIMEOUT,
        text_bytes: source.text.len(),
    };
    let tasks: Vec<Task> = (1..=args.clients).map(task).collect();
    let victim = task(args.clients + 1);
    let records = Records::lines(run, source.text.clone());
    let (load_time, mut findings) = load(&tasks[0], &records)?;

    let mut clients = Clients::start(&tasks, &source.text)?;
    clients.until_all(READY_WITHIN, |_, event| matches!(event, Event::Ready))?;
    let victim = Clients::start(&[victim], &source.text)?;
    victim.until_all(READY_WITHIN, |_, event| matches!(event, Event::Ready))?;
    let work_time = work(&mut clients, victim, duration)?;
    audit(&mut clients, &mut findings)?;
    clients.end()?;
    scan(&address, &records, &mut findings)?;
    server.end()?;

    let table = findings.latencies.table(|operation| match operation {
        Operation::Load => load_time,
        _ => work_time,
    });
    println!("\n{table}\n");
    println!(
        "{} answers checked, {} wrong. {} client processes, {} in flight each, YCSB B for {:.1} s.",
        human_rate(findings.checked as f64),
        findings.wrong,
        args.clients,
        args.window,
        work_time.as_secs_f64(),
    );
    for report in &findings.reports {
        println!("wrong: {report}");
    }
    Ok(if findings.wrong == 0 { ExitCode::SUCCESS } else { exit::WRONG_ANSWER.into() })
}

/// Where a server with that backend can listen: in shared memory; over loopback if the backend needs no device.
fn unused_address(backend: &str, run: u64) -> Result<String> {
    let name = format!("farcall-kv-demo-{}-{run:016x}", std::process::id());
    let in_memory = Address::shm(name).backend(backend).build();
    let address = in_memory.or_else(|_| Address::tcp("127.0.0.1", 0).backend(backend).build())?;
    Ok(address.to_string())
}

/// The combined findings of all clients.
#[derive(Default)]
struct Findings {
    latencies: Latencies,
    checked: u64,
    wrong: u64,
    reports: Vec<String>,
}

impl Findings {
    fn wrong(&mut self, report: String) {
        self.wrong += 1;
        self.report(report);
    }

    /// Describes the first wrong answers; the rest are only counted.
    fn report(&mut self, report: String) {
        if self.reports.len() < MAX_REPORTS {
            self.reports.push(report);
        }
    }
}

/// Puts every line. Returns how long that took.
fn load(task: &Task, records: &Records) -> Result<(Duration, Findings)> {
    let config = ClientConfig { me: 1, clients: 1, ..task.client_config() };
    let mut client =
        [Client::new(connect_poll(&task.address, task.timeout)?, records.clone(), config)];
    let extent = Extent::Operations(records.loaded());
    let took =
        phase::run("load", extent, &mut client, |client, _, counters| client.load(counters))?
            .whole()?;
    let found = client[0].findings();
    let findings = Findings {
        latencies: found.latencies.clone(),
        checked: found.checked,
        ..Findings::default()
    };
    Ok((took, findings))
}

/// Lets the clients run the workload, and kills one more client meanwhile. Returns how long it took.
fn work(clients: &mut Clients, victim: Clients, duration: Duration) -> Result<Duration> {
    let mut progress = Progress::new("YCSB B", Some(duration.as_millis() as u64));
    let started = Instant::now();
    clients.send(&Command::Work(duration))?;
    let mut so_far = vec![(0, 0); clients.len()];
    let mut longest = Duration::ZERO;
    let mut victim = Victim::Idle(victim);
    let mut victim_outcome = Ok(());
    clients.until_all(duration + ANSWER_TIMEOUT + ANSWER_TIMEOUT, |client, event| match event {
        Event::Worked(took) => {
            longest = longest.max(took);
            true
        }
        Event::Progress { operations, wrong } => {
            so_far[client] = (operations, wrong);
            let elapsed = started.elapsed().min(duration);
            progress.set(elapsed.as_millis() as u64, || describe(&so_far, elapsed));
            if victim_outcome.is_ok() {
                victim_outcome = victim.step(elapsed.as_secs_f64() / duration.as_secs_f64());
            }
            false
        }
        _ => false,
    })?;
    progress.finish(describe(&so_far, longest));
    victim_outcome?;
    if matches!(victim, Victim::Killed) {
        eprintln!("{:>12}  one more client, its calls in flight; the others went on", "killed");
    }
    Ok(longest)
}

/// A client that is started and killed while the others work.
enum Victim {
    Idle(Clients),
    Working(Clients),
    Killed,
}

impl Victim {
    /// The fraction of the time after which it starts.
    const STARTS_AT: f64 = 0.3;
    const DIES_AT: f64 = 0.4;

    fn step(&mut self, part: f64) -> Result<()> {
        *self = match std::mem::replace(self, Victim::Killed) {
            Victim::Idle(mut client) if part >= Self::STARTS_AT => {
                client.send(&Command::Work(VICTIM_WORKS))?;
                Victim::Working(client)
            }
            Victim::Working(client) if part >= Self::DIES_AT => {
                client.kill_at_work()?;
                Victim::Killed
            }
            unchanged => unchanged,
        };
        Ok(())
    }
}

fn describe(so_far: &[(u64, u64)], elapsed: Duration) -> String {
    let operations: u64 = so_far.iter().map(|(operations, _)| operations).sum();
    let wrong: u64 = so_far.iter().map(|(_, wrong)| wrong).sum();
    let rate = human_rate(operations as f64 / elapsed.as_secs_f64().max(1e-3));
    format!("{rate} operations/s, {wrong} wrong answers")
}

/// Lets each client read again what it touched, after all writes.
fn audit(clients: &mut Clients, findings: &mut Findings) -> Result<()> {
    let progress = Progress::new("audit", None);
    clients.send(&Command::Audit)?;
    clients.until_all(ANSWER_TIMEOUT + ANSWER_TIMEOUT, |client, event| {
        let Event::Done { latencies, checked, wrong, reports } = event else { return false };
        findings.latencies.add(&Latencies::from_portable(&latencies));
        findings.checked += checked;
        findings.wrong += wrong;
        reports
            .iter()
            .for_each(|report| findings.report(format!("client {}: {report}", client + 1)));
        true
    })?;
    progress.finish("each client read again what it had touched");
    Ok(())
}

/// Scans the whole store: every line must be there, and nothing else.
fn scan(address: &str, records: &Records, findings: &mut Findings) -> Result<()> {
    let mut progress = Progress::new("scan", Some(records.loaded()));
    let mut pages = Pages::connect(address, ANSWER_TIMEOUT)?;
    let mut seen = vec![false; usize::try_from(records.loaded())?];
    let mut entries = 0;
    while let Some(page) = pages.next()? {
        for (key, value) in page {
            entries += 1;
            findings.checked += 1;
            let record = std::str::from_utf8(&key)
                .ok()
                .and_then(|digits| digits.parse::<usize>().ok())
                .and_then(|line| line.checked_sub(1))
                .filter(|&record| record < seen.len());
            let Some(record) = record else {
                findings.wrong(format!("scan: {} is not a key of this run", key.escape_ascii()));
                continue;
            };
            seen[record] = true;
            if let Err(why) = records.recognize(record as u64, &value) {
                findings.wrong(format!("scan of line {}: {why}", record + 1));
            }
        }
        progress.set(entries, || format!("{entries} entries"));
    }
    let missing = seen.iter().filter(|seen| !**seen).count();
    if missing > 0 {
        findings.wrong(format!("scan: {missing} lines are missing"));
    }
    progress.finish(format!("{entries} entries, {missing} missing"));
    ensure!(entries > 0, "the store is empty");
    Ok(())
}
