//! One phase of a run: all clients at once, each in its own thread, supervised from here.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use farcall_kv::link::PollLink;
use farcall_kv::ycsb::client::{Client, Counters, RunError};
use farcall_kv::ycsb::latency::human_rate;

use super::progress::Progress;

/// The interval of progress checks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The measure of a phase's progress.
#[derive(Clone, Copy)]
pub(crate) enum Extent {
    /// So many operations.
    Operations(u64),
    /// So much time.
    Time(Duration),
    /// Not known in advance.
    Unknown,
}

/// The end of a phase: its duration, and why a client could not continue, if so.
pub(crate) struct Ended {
    pub(crate) took: Duration,
    pub(crate) failures: Vec<Option<RunError>>,
}

impl Ended {
    /// The duration, if all clients finished.
    pub(crate) fn whole(self) -> Result<Duration> {
        match self.failures.into_iter().flatten().next() {
            Some(why) => Err(why.into()),
            None => Ok(self.took),
        }
    }
}

/// Runs `work` for each client, with its index. If one cannot continue, the others are stopped.
pub(crate) fn run(
    what: &'static str,
    extent: Extent,
    clients: &mut [Client<PollLink>],
    work: impl Fn(&mut Client<PollLink>, u64, &Counters) -> Result<(), RunError> + Sync,
) -> Result<Ended> {
    let total = match extent {
        Extent::Operations(total) => Some(total),
        Extent::Time(time) => Some(time.as_millis() as u64),
        Extent::Unknown => None,
    };
    let mut progress = Progress::new(what, total);
    let counters: Vec<Counters> = clients.iter().map(|_| Counters::default()).collect();
    let describe = |operations: u64, elapsed: Duration| {
        let wrong: u64 = counters.iter().map(|c| c.wrong.load(Ordering::Relaxed)).sum();
        let rate = human_rate(operations as f64 / elapsed.as_secs_f64().max(1e-6));
        format!("{operations} operations, {rate} operations/s, {wrong} wrong answers")
    };
    let operations = || counters.iter().map(|c| c.operations.load(Ordering::Relaxed)).sum();

    let started = Instant::now();
    let counters_of_all = &counters;
    let ended = thread::scope(|scope| {
        let workers: Vec<_> = (0..)
            .zip(clients.iter_mut().zip(&counters))
            .map(|(index, (client, counters))| {
                let (work, all) = (&work, counters_of_all);
                scope.spawn(move || {
                    let worked = work(client, index, counters);
                    if worked.is_err() {
                        all.iter().for_each(|other| other.halt.store(true, Ordering::Relaxed));
                    }
                    (worked, started.elapsed())
                })
            })
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            thread::sleep(LOOK_EVERY);
            let elapsed = started.elapsed();
            let done = match extent {
                Extent::Time(time) => elapsed.min(time).as_millis() as u64,
                _ => operations(),
            };
            progress.set(done, || describe(operations(), elapsed));
        }
        let mut ended = Ended { took: Duration::ZERO, failures: Vec::new() };
        for worker in workers {
            let (worked, took) = worker.join().map_err(|_| anyhow!("a client panicked"))?;
            ended.took = ended.took.max(took);
            ended.failures.push(worked.err());
        }
        Ok::<_, anyhow::Error>(ended)
    })?;
    progress.finish(describe(operations(), ended.took));
    Ok(ended)
}
