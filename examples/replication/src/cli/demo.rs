//! The demo: replicas are killed, stopped and replaced while clients write; every acknowledged write is checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use farcall::Server;
use farcall_replication::client::{Client, status_of};
use farcall_replication::membership::{
    Configuration, ConfigurationService, InProcess, Membership, MembershipServer, ReplicaId,
};
use farcall_replication::record::Epoch;

use super::args::DemoArgs;
use super::bench::{percentile, scratch};
use super::children::{ReplicaProcess, Starter};
use super::workload::{self, End, Ended, SharedTold};

const REPLICAS: usize = 3;
const CLIENTS: u64 = 4;

/// How long a group may take to have the members that it should have.
const PATIENCE: Duration = Duration::from_secs(15);

/// What happens to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillPrimary,
    KillBackup,
    /// Stopped with SIGSTOP until it was replaced.
    StopPrimary,
    /// One backup is left.
    KillPrimaryAndBackup,
}

const FAULTS: [Fault; 4] =
    [Fault::KillPrimary, Fault::KillBackup, Fault::StopPrimary, Fault::KillPrimaryAndBackup];

struct Demo {
    begun: Instant,
    membership: Arc<InProcess>,
    starter: Starter,
    replicas: Vec<ReplicaProcess>,
    told: SharedTold,
    /// When a fault happened, and which.
    faults: Vec<(Instant, Fault)>,
    problems: Vec<String>,
}

pub(crate) fn run(args: &DemoArgs) -> Result<bool> {
    let scratch = scratch(args.dir.as_deref())?;
    let address = format!("shm://farcall-replication-demo-{}", std::process::id());
    let membership = Arc::new(InProcess::default());
    let service = ConfigurationService::in_memory(InProcess::clone(&membership));
    let server =
        Server::builder().service(MembershipServer::new(service)).listen(address.as_str())?;
    let starter = Starter::new(&address, args.timing.detect, Some(scratch.path()));
    let mut demo = Demo {
        begun: Instant::now(),
        membership,
        starter,
        replicas: Vec::new(),
        told: SharedTold::default(),
        faults: Vec::new(),
        problems: Vec::new(),
    };
    let is_well = demo.run(args.pause);
    server.shutdown();
    is_well
}

impl Demo {
    fn run(&mut self, pause: Duration) -> Result<bool> {
        let stop = Arc::new(AtomicBool::new(false));
        let watcher = self.spawn_watcher(&stop)?;
        self.grow()?;
        self.say(&format!("{CLIENTS} clients begin to write, read and check"));
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| self.spawn_client(number, &stop)).collect::<Result<_>>()?;
        let mut result = Ok(());
        for fault in FAULTS {
            std::thread::sleep(pause);
            result = self.inject(fault);
            if result.is_err() {
                break;
            }
        }
        std::thread::sleep(pause);
        stop.store(true, Ordering::Relaxed);
        for thread in clients.into_iter().chain([watcher]) {
            thread.join().map_err(|_| anyhow!("a thread panicked"))?;
        }
        result?;
        self.report()
    }

    fn say(&self, what: &str) {
        say(self.begun, what);
    }

    fn spawn_watcher(&self, stop: &Arc<AtomicBool>) -> Result<JoinHandle<()>> {
        let (begun, membership, stop) = (self.begun, self.membership.clone(), Arc::clone(stop));
        let watcher = std::thread::Builder::new().name("watcher".into());
        Ok(watcher.spawn(move || watch(begun, &membership, &stop))?)
    }

    fn spawn_client(&self, number: u64, stop: &Arc<AtomicBool>) -> Result<JoinHandle<()>> {
        let (membership, told) = (self.membership.clone(), Arc::clone(&self.told));
        let stop = Arc::clone(stop);
        let client = std::thread::Builder::new().name(format!("client-{number}"));
        Ok(client.spawn(move || workload::run(number, membership, &told, &stop))?)
    }

    /// Starts replicas until there are enough processes, and waits until all of them are members.
    fn grow(&mut self) -> Result<()> {
        while self.replicas.len() < REPLICAS {
            let replica = self.starter.start()?;
            self.say(&format!("a replica starts at {}", replica.address));
            self.replicas.push(replica);
        }
        let until = Instant::now() + PATIENCE;
        while !self.all_are_members() {
            if Instant::now() > until {
                bail!("not all replicas became members: {:?}", self.membership.newest());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn all_are_members(&self) -> bool {
        let newest = self.membership.newest();
        let is_member = |replica: &ReplicaProcess| {
            newest.members.iter().any(|member| member.address == replica.address)
        };
        newest.members.len() == REPLICAS && self.replicas.iter().all(is_member)
    }

    /// Takes a replica out of the list: the primary, or a backup.
    fn take(&mut self, is_primary: bool) -> Result<ReplicaProcess> {
        let newest = self.membership.newest();
        let primary = newest.member(newest.primary).context("there is no primary")?;
        let fits = |it: &ReplicaProcess| (it.address == primary.address) == is_primary;
        let at = self.replicas.iter().position(fits).context("there is no such replica")?;
        Ok(self.replicas.remove(at))
    }

    fn inject(&mut self, fault: Fault) -> Result<()> {
        self.faults.push((Instant::now(), fault));
        match fault {
            Fault::KillPrimary => self.kill(true)?,
            Fault::KillBackup => self.kill(false)?,
            Fault::KillPrimaryAndBackup => {
                let (primary, backup) = (self.take(true)?, self.take(false)?);
                self.say(&format!("kill -9 {} and {}", primary.address, backup.address));
                primary.kill();
                backup.kill();
                self.wait_for_epoch(|_| true)?;
            }
            Fault::StopPrimary => self.stop_primary()?,
        }
        self.grow()
    }

    fn kill(&mut self, is_primary: bool) -> Result<()> {
        let replica = self.take(is_primary)?;
        let what = if is_primary { "the primary" } else { "a backup" };
        self.say(&format!("kill -9 {}, {what}", replica.address));
        replica.kill();
        self.wait_for_epoch(|_| true)
    }

    /// Waits until the members that are no processes any more are excluded.
    fn wait_for_epoch(&self, fits: impl Fn(&Configuration) -> bool) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let newest = self.membership.newest();
            let runs = |address: &String| self.replicas.iter().any(|it| it.address == *address);
            if newest.members.iter().all(|member| runs(&member.address)) && fits(&newest) {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("no other epoch began: {newest:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops the primary, and sends it a write, which it finds when it goes on: as a former primary.
    fn stop_primary(&mut self) -> Result<()> {
        let replica = self.take(true)?;
        let before = self.membership.newest();
        self.say(&format!("kill -STOP {}, the primary", replica.address));
        replica.stop()?;
        // A client that knows only the old configuration writes to the stopped primary.
        let old = before.clone();
        let late = std::thread::Builder::new().name("late".into());
        let late = late.spawn(move || workload::write_late(&old))?;
        self.wait_for_epoch(|newest| newest.epoch > before.epoch)?;
        std::thread::sleep(Duration::from_millis(500));
        self.say(&format!(
            "kill -CONT {}, which still takes itself for the primary",
            replica.address
        ));
        replica.go_on()?;
        let end = late.join().map_err(|_| anyhow!("the late writer panicked"))?;
        self.say(&format!("a write that was sent to it meanwhile: {end}"));
        if end.is_acknowledged {
            self.problems.push("a former primary acknowledged a write".to_owned());
        }
        let id = self.wait_until_it_joins(&replica, before.primary)?;
        self.say(&format!("{} was fenced, and joins as replica {id}", replica.address));
        self.replicas.push(replica);
        Ok(())
    }

    /// A former primary joins as a new replica.
    fn wait_until_it_joins(
        &self,
        replica: &ReplicaProcess,
        former: ReplicaId,
    ) -> Result<ReplicaId> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let status = status_of(&replica.address, Duration::from_secs(1)).ok().flatten();
            if let Some(status) = status.filter(|status| status.id != former) {
                return Ok(status.id);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("the former primary at {} does not join again", replica.address);
    }

    /// Checks all that was acknowledged. Gives whether all is well.
    fn report(&mut self) -> Result<bool> {
        let mut client = Client::new(self.membership.clone());
        let (entries, extra) = workload::check(&mut client, &self.told)?;
        let told = self.told.lock().map_err(|_| anyhow!("a client panicked"))?;
        let count = |end| told.ended.iter().filter(|it| it.end == end).count();
        println!(
            "{} calls ran, {} did not run, {} unknown; {entries} entries in the log, {extra} of them without an acknowledgement",
            count(End::Ran),
            count(End::DidNotRun),
            count(End::Unknown),
        );
        println!("{:<24} {:>22}", "fault", "writes stood still");
        for (at, fault) in &self.faults {
            let still = longest_gap(&told.ended, *at);
            println!("{:<24} {:>19.0} ms", name(*fault), still.as_secs_f64() * 1e3);
        }
        let mut times: Vec<_> = told.ended.iter().map(|it| it.took).collect();
        times.sort_unstable();
        println!(
            "a call took {:.2} ms in the middle, {:.1} ms at the 99th percentile",
            percentile(&times, 0.5).as_secs_f64() * 1e3,
            percentile(&times, 0.99).as_secs_f64() * 1e3,
        );
        let problems: Vec<_> = told.problems.iter().chain(&self.problems).collect();
        for problem in problems.iter().take(10) {
            println!("PROBLEM: {problem}");
        }
        if problems.is_empty() {
            println!("nothing acknowledged is lost, nothing was applied twice");
        }
        Ok(problems.is_empty() && count(End::Ran) > 0)
    }
}

fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::KillPrimary => "primary killed",
        Fault::KillBackup => "backup killed",
        Fault::StopPrimary => "primary stopped",
        Fault::KillPrimaryAndBackup => "primary, backup killed",
    }
}

/// For how long no call was acknowledged, after a fault and before the next one.
fn longest_gap(ended: &[Ended], from: Instant) -> Duration {
    let mut last = from;
    let mut longest = Duration::ZERO;
    let mut acknowledged: Vec<_> =
        ended.iter().filter(|it| it.end == End::Ran && it.at >= from).map(|it| it.at).collect();
    acknowledged.sort_unstable();
    for at in acknowledged.into_iter().take_while(|at| *at < from + GAP_WINDOW) {
        longest = longest.max(at - last);
        last = at;
    }
    longest
}

/// A gap that begins later after a fault is not due to it.
const GAP_WINDOW: Duration = Duration::from_secs(4);

fn say(begun: Instant, what: &str) {
    println!("{:7.3} s  {what}", begun.elapsed().as_secs_f64());
}

/// Prints each configuration.
fn watch(begun: Instant, membership: &InProcess, stop: &AtomicBool) {
    let mut epoch = Epoch(0);
    while !stop.load(Ordering::Relaxed) {
        let Ok(newest) = membership.watch(epoch, Duration::from_millis(50)) else { return };
        if newest.epoch > epoch {
            epoch = newest.epoch;
            let names = newest.members.iter().map(|member| short(&member.address));
            let leads = newest.member(newest.primary).map_or("nobody", |it| short(&it.address));
            let names = names.collect::<Vec<_>>().join(", ");
            say(begun, &format!("epoch {}: {leads} leads; members {names}", epoch.0));
        }
    }
}

/// The last part of an address.
fn short(address: &str) -> &str {
    address
        .rsplit_once("-demo-")
        .map_or(address, |(_, name)| name.split_once('-').map_or(name, |(_, name)| name))
}
