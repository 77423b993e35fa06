//! One phase of a run: all clients at once, each on a thread of its own, watched from here.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use farcall_kv::link::PollLink;
use farcall_kv::ycsb::client::{Client, Counters, RunError};
use farcall_kv::ycsb::latency::human_rate;

use super::progress::Progress;

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What tells how far a phase is.
#[derive(Clone, Copy)]
pub(crate) enum Extent {
    /// So many operations.
    Operations(u64),
    /// So much time.
    Time(Duration),
    /// Nobody knows before.
    Unknown,
}

/// How a phase went: how long it took, and why a client could not go on, if one could not.
pub(crate) struct Ended {
    pub(crate) took: Duration,
    pub(crate) failures: Vec<Option<RunError>>,
}

impl Ended {
    /// How long it took, if all clients came through.
    pub(crate) fn whole(self) -> Result<Duration> {
        match self.failures.into_iter().flatten().next() {
            Some(why) => Err(why.into()),
            None => Ok(self.took),
        }
    }
}

/// Lets every client do `work`, with its index among them. When one cannot go on, the others are asked to
/// end.
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
    let tell = |operations: u64, elapsed: Duration| {
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
            progress.set(done, || tell(operations(), elapsed));
        }
        let mut ended = Ended { took: Duration::ZERO, failures: Vec::new() };
        for worker in workers {
            let (worked, took) = worker.join().map_err(|_| anyhow!("a client panicked"))?;
            ended.took = ended.took.max(took);
            ended.failures.push(worked.err());
        }
        Ok::<_, anyhow::Error>(ended)
    })?;
    progress.finish(tell(operations(), ended.took));
    Ok(ended)
}
