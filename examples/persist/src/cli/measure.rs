//! Measuring ways to append, and the disk's own limit.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use farcall_persist::{Level, Log, Options};
use hdrhistogram::Histogram;

/// A way to append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A write and an `fdatasync` in a file that was written before: what the disk can do, with so many records in each write.
    Disk { batch: usize },
    /// So many writers, each waiting for its record.
    Writers { count: usize, level: Level },
    /// One writer that waits for the oldest of so many records.
    Window { count: usize },
}

impl Way {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Disk { batch: 1 } => "disk: write + fdatasync".to_owned(),
            Self::Disk { batch } => format!("disk: write + fdatasync of {batch}"),
            Self::Writers { count, level } => {
                format!("log, {count} writers, {level:?}").to_lowercase()
            }
            Self::Window { count } => format!("log, 1 writer, {count} in flight"),
        }
    }
}

/// What was measured of a way.
pub(crate) struct Measured {
    pub(crate) nanoseconds: Histogram<u64>,
    pub(crate) records: u64,
    pub(crate) syncs: u64,
    pub(crate) took: Duration,
}

impl Measured {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { nanoseconds: histogram()?, records: 0, syncs: 0, took: Duration::ZERO })
    }

    pub(crate) fn records_per_second(&self) -> f64 {
        self.records as f64 / self.took.as_secs_f64().max(1e-9)
    }

    pub(crate) fn records_per_sync(&self) -> f64 {
        self.records as f64 / (self.syncs as f64).max(1.0)
    }

    pub(crate) fn microseconds_at(&self, quantile: f64) -> f64 {
        self.nanoseconds.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// Of nanoseconds, up to a minute.
fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).context("a histogram")
}

/// Where a way is measured: a directory on the disk, the length of payloads, for how long.
pub(crate) struct Place<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) size: usize,
    pub(crate) time: Duration,
}

/// Measures a way, and adds to what was measured of it before.
pub(crate) fn measure(way: Way, place: &Place<'_>, sum: &mut Measured) -> Result<()> {
    match way {
        Way::Disk { batch } => disk(batch, place, sum),
        Way::Writers { count, level } => {
            with_log(place, sum, |log, times| writers(log, count, level, place, times))
        }
        Way::Window { count } => {
            with_log(place, sum, |log, times| window(log, count, place, times))
        }
    }
}

/// The log's header and alignment belong to what the disk has to write for a record, too.
fn bytes_of_record(size: usize) -> usize {
    (farcall_persist::HEADER_BYTES + size).next_multiple_of(8)
}

/// The file of the disk's own limit is as long as a segment, and written before, as segments are.
const FILE_BYTES: u64 = 16 << 20;

fn disk(batch: usize, place: &Place<'_>, sum: &mut Measured) -> Result<()> {
    let path = place.dir.join("disk");
    let mut options = OpenOptions::new();
    let file: File = options.read(true).write(true).create(true).truncate(false).open(&path)?;
    if file.metadata()?.len() < FILE_BYTES {
        file.write_all_at(&vec![0; usize::try_from(FILE_BYTES)?], 0)?;
        file.sync_all()?;
    }
    let bytes = vec![0x5a; batch * bytes_of_record(place.size)];
    let (mut at, begun) = (0, Instant::now());
    while begun.elapsed() < place.time {
        if at + bytes.len() as u64 > FILE_BYTES {
            at = 0;
        }
        let from = Instant::now();
        file.write_all_at(&bytes, at)?;
        file.sync_data()?;
        record(&mut sum.nanoseconds, from.elapsed());
        at += bytes.len() as u64;
        sum.records += batch as u64;
        sum.syncs += 1;
    }
    sum.took += begun.elapsed();
    Ok(())
}

fn record(into: &mut Histogram<u64>, took: Duration) {
    into.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
}

fn with_log(
    place: &Place<'_>,
    sum: &mut Measured,
    work: impl FnOnce(&Log, &mut Histogram<u64>) -> Result<u64>,
) -> Result<()> {
    let log = Log::open(place.dir.join("log"), Options::default())?;
    let (before, begun) = (log.stats(), Instant::now());
    sum.records += work(&log, &mut sum.nanoseconds)?;
    sum.took += begun.elapsed();
    sum.syncs += log.stats().syncs - before.syncs;
    // As a program would that needs none of these records any more. The next measurement uses the same files again.
    let end = log.end();
    log.checkpoint(end, b"")?;
    log.truncate(end)?;
    log.close()?;
    Ok(())
}

fn writers(
    log: &Log,
    count: usize,
    level: Level,
    place: &Place<'_>,
    times: &mut Histogram<u64>,
) -> Result<u64> {
    let all = Mutex::new(times);
    let begun = Instant::now();
    thread::scope(|scope| {
        let one = || -> Result<u64> {
            let mut own = histogram()?;
            let payload = vec![0x5a; place.size];
            while begun.elapsed() < place.time {
                let from = Instant::now();
                log.append(&payload, level)?.wait()?;
                record(&mut own, from.elapsed());
            }
            let mut all = all.lock().map_err(|_| anyhow::anyhow!("a writer panicked"))?;
            all.add(&own)?;
            Ok(own.len())
        };
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(one)).collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(records) => records,
            Err(_) => Err(anyhow::anyhow!("a writer panicked")),
        });
        ended.sum()
    })
}

fn window(log: &Log, count: usize, place: &Place<'_>, times: &mut Histogram<u64>) -> Result<u64> {
    let payload = vec![0x5a; place.size];
    let mut waiting = std::collections::VecDeque::with_capacity(count);
    let (mut records, begun) = (0, Instant::now());
    while begun.elapsed() < place.time {
        while waiting.len() < count {
            waiting.push_back((Instant::now(), log.append(&payload, Level::Persistent)?));
        }
        if let Some((from, oldest)) = waiting.pop_front() {
            oldest.wait()?;
            record(times, from.elapsed());
            records += 1;
        }
    }
    for (_, waiter) in waiting {
        waiter.wait()?;
        records += 1;
    }
    Ok(records)
}
