//! `ycsb`: a core workload against a running server.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use farcall_kv::link::PollLink;
use farcall_kv::ycsb::client::{Client, ClientConfig};
use farcall_kv::ycsb::latency::{Latencies, human_rate};
use farcall_kv::ycsb::records::{Fields, KEY_PREFIX, Records};
use farcall_kv::ycsb::workload::Operation;

use super::args::YcsbArgs;
use super::outage::{Back, Store};
use super::pages::Pages;
use super::phase::{self, Ended, Extent};
use super::{connect_poll, exit, idle, outage};

/// The duration if neither time nor operations are given.
const SECONDS: Duration = Duration::from_secs(10);

/// The time limit if only operations are given.
const A_DAY: Duration = Duration::from_secs(86_400);

/// Loads the records, runs the workload, reads everything again, prints a table.
pub(crate) fn run(args: &YcsbArgs) -> Result<ExitCode> {
    let mut run = Run::prepare(args)?;
    let mut stage = Stage::Load;
    loop {
        let ended = run.play(stage)?;
        let next = match stage {
            Stage::Load => Some(Stage::Work),
            Stage::Work => Some(Stage::Audit),
            Stage::Audit => None,
        };
        match (ended.failures.iter().any(Option::is_some), next) {
            (true, _) => stage = run.recover(stage, ended)?,
            (false, Some(next)) => stage = next,
            (false, None) => return Ok(run.report()),
        }
    }
}

/// The stages of a run, which all clients go through together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Load,
    Work,
    Audit,
}

/// A run, including outages of its server.
struct Run<'a> {
    args: &'a YcsbArgs,
    /// Distinguishes the values of this run from others'; changes when the store was lost.
    id: u64,
    clients: Vec<Client<PollLink>>,
    window: u32,
    /// The operations that each client has left; set when the work begins.
    shares: Option<Vec<u64>>,
    /// When the work ends at the latest; set when it begins.
    until: Option<Instant>,
    load_time: Duration,
    work_time: Duration,
    outages: Outages,
}

/// Outages of the server.
#[derive(Default)]
struct Outages {
    count: u32,
    lasted: Duration,
    /// Operations that failed.
    failed: usize,
    /// Outages after which the store was empty.
    lost_stores: u32,
}

impl Run<'_> {
    fn prepare(args: &YcsbArgs) -> Result<Run<'_>> {
        let id = rand::random();
        let earlier = holds_records(args)?;
        if earlier {
            eprintln!(
                "{:>12}  the store has records of an earlier run; they are overwritten",
                "note"
            );
        }
        let mut clients = Vec::new();
        let mut window = args.window;
        for me in 1..=args.clients {
            let mut link = connect_poll(&args.server.address, args.server.timeout)?;
            window = window.min(link.window());
            let config = ClientConfig {
                workload: args.workload,
                me,
                clients: args.clients,
                window: window as usize,
                spins_before_yield: idle::spins_before_yield(args.clients + 1),
                timeout: args.server.timeout,
                inserts_are_new: !earlier,
                seed: args.seed,
            };
            clients.push(Client::new(link, records(args, id), config));
        }
        if window < args.window {
            eprintln!(
                "{:>12}  {window} in flight, the connection's window; ?window= in both ends' addresses widens it",
                "note"
            );
        }
        if args.ride_out.is_some() {
            outage::mark(&args.server, id)?;
        }
        Ok(Run {
            args,
            id,
            clients,
            window,
            shares: None,
            until: None,
            load_time: Duration::ZERO,
            work_time: Duration::ZERO,
            outages: Outages::default(),
        })
    }

    /// Runs a stage, or the rest of it, with all clients.
    fn play(&mut self, stage: Stage) -> Result<Ended> {
        let Run { args, clients, .. } = self;
        match stage {
            Stage::Load => {
                let extent = Extent::Operations(args.records);
                let ended = phase::run("load", extent, clients, |client, _, counters| {
                    client.load(counters)
                })?;
                self.load_time += ended.took;
                Ok(ended)
            }
            Stage::Work => {
                let (extent, time) = match (args.operations, args.seconds) {
                    (Some(total), time) => (Extent::Operations(total), time.unwrap_or(A_DAY)),
                    (None, time) => {
                        let time = time.unwrap_or(SECONDS);
                        (Extent::Time(time), time)
                    }
                };
                let until = *self.until.get_or_insert_with(|| Instant::now() + time);
                let shares = self.shares.get_or_insert_with(|| shares(args));
                let ended = phase::run("run", extent, clients, |client, index, counters| {
                    client.work(until, shares[index as usize], counters)
                })?;
                for (share, client) in shares.iter_mut().zip(clients) {
                    *share = client.operations_left();
                }
                self.work_time += ended.took;
                Ok(ended)
            }
            Stage::Audit => phase::run("audit", Extent::Unknown, clients, |client, _, counters| {
                client.audit(counters)
            }),
        }
    }

    /// Handles a client that cannot continue: waits for the server, if that is enabled and may help.
    /// Returns the next stage.
    fn recover(&mut self, stage: Stage, ended: Ended) -> Result<Stage> {
        let gone = ended.failures.iter().flatten().all(outage::explains);
        let Some(limit) = self.args.ride_out.filter(|_| gone) else {
            ended.whole()?;
            return Ok(stage);
        };
        for (client, why) in (1..).zip(&ended.failures) {
            if let Some(why) = why {
                eprintln!("{:>12}  client {client}: {why}", "outage");
            }
        }
        let Back { links, store, after } =
            outage::ride_out(&self.args.server, self.id, self.clients.len(), limit)?;
        self.outages.count += 1;
        self.outages.lasted += after;
        if store == Store::Same {
            for (client, link) in self.clients.iter_mut().zip(links) {
                self.outages.failed += client.reconnect(link);
            }
            return Ok(stage);
        }
        self.outages.lost_stores += 1;
        self.id = rand::random();
        outage::mark(&self.args.server, self.id)?;
        let records = records(self.args, self.id);
        for (client, link) in self.clients.iter_mut().zip(links) {
            self.outages.failed += client.start_over(link, records.clone());
        }
        Ok(Stage::Load)
    }

    fn report(&self) -> ExitCode {
        let mut latencies = Latencies::default();
        let (mut checked, mut wrong) = (0, 0);
        for found in self.clients.iter().map(Client::findings) {
            latencies.add(&found.latencies);
            checked += found.checked;
            wrong += found.wrong;
            found.reports.iter().for_each(|report| eprintln!("wrong: {report}"));
        }
        let table = latencies.table(|operation| match operation {
            Operation::Load => self.load_time,
            _ => self.work_time,
        });
        println!("{table}\n");
        println!(
            "{} answers checked, {wrong} wrong. YCSB {:?}, {} records, {} clients, {} in flight each, {:.1} s.",
            human_rate(checked as f64),
            self.args.workload,
            self.args.records,
            self.args.clients,
            self.window,
            self.work_time.as_secs_f64(),
        );
        let Outages { count, lasted, failed, lost_stores } = self.outages;
        if count > 0 {
            println!(
                "The server was gone {count} times, {:.1} s in all, {lost_stores} times with its store; {failed} operations ended in an error.",
                lasted.as_secs_f64(),
            );
        }
        if wrong == 0 { ExitCode::SUCCESS } else { exit::WRONG_ANSWER.into() }
    }
}

fn records(args: &YcsbArgs, run: u64) -> Records {
    let fields = Fields {
        count: args.fields,
        length: args.field_length,
        distribution: args.field_length_distribution,
    };
    Records::generated(run, args.records, fields)
}

/// The number of operations of each client.
fn shares(args: &YcsbArgs) -> Vec<u64> {
    let clients = u64::from(args.clients);
    let share = |index| {
        args.operations.map_or(u64::MAX, |total| {
            // The first clients run one more if the total does not divide.
            total / clients + u64::from(index < total % clients)
        })
    };
    (0..clients).map(share).collect()
}

/// Whether the store has records of an earlier run.
fn holds_records(args: &YcsbArgs) -> Result<bool> {
    let mut pages = Pages::connect(&args.server.address, args.server.timeout)?
        .starting(KEY_PREFIX.as_bytes().to_vec());
    let first = pages.next()?;
    Ok(first.is_some_and(|page| page[0].0.starts_with(KEY_PREFIX.as_bytes())))
}
