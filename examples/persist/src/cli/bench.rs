//! What appending costs here, next to the disk's own limit.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farcall_persist::Level;
use tempfile::TempDir;

use super::args::BenchArgs;
use super::measure::{Measured, Place, Way, measure};

/// Each way is measured in so many parts, taken in turn, so that all meet the same disk.
const PARTS: u32 = 4;

pub(crate) fn run(args: &BenchArgs) -> Result<bool> {
    if args.writers.is_empty() || args.writers.iter().any(|count| !(1..=4096).contains(count)) {
        bail!("--writers takes numbers from 1 to 4096");
    }
    let dir = scratch(args.dir.as_deref())?;
    table(dir.path(), args.size, &args.writers, args.seconds)?;
    Ok(true)
}

/// A directory that is removed at the end, on a disk rather than in memory.
pub(crate) fn scratch(on: Option<&Path>) -> Result<TempDir> {
    let on = on.map_or_else(|| Path::new("/var/tmp").to_path_buf(), Path::to_path_buf);
    let made = tempfile::Builder::new().prefix("farcall-persist-").tempdir_in(&on);
    let dir = made.with_context(|| format!("cannot make a directory in {}", on.display()))?;
    /// Of tmpfs, in `linux/magic.h`.
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    if rustix::fs::statfs(dir.path()).is_ok_and(|fs| fs.f_type as u64 == TMPFS_MAGIC) {
        println!(
            "{} is in memory (tmpfs): syncs cost nothing there; --dir names another place",
            on.display()
        );
    }
    Ok(dir)
}

/// Measures all ways, and prints them with the disk's limit.
pub(crate) fn table(dir: &Path, size: usize, writers: &[usize], time: Duration) -> Result<()> {
    let place = Place { dir, size, time: time / PARTS };
    let mut ways = vec![Way::Disk { batch: 1 }];
    ways.extend(
        writers.iter().map(|count| Way::Writers { count: *count, level: Level::Persistent }),
    );
    ways.push(Way::Window { count: WINDOW });
    ways.push(Way::Writers { count: 1, level: Level::Visible });
    let mut measured = ways.iter().map(|_| Measured::new()).collect::<Result<Vec<_>>>()?;
    let mut limits: Vec<Option<(Way, Measured)>> = ways.iter().map(|_| None).collect();
    for part in 0..PARTS {
        for (at, way) in ways.iter().enumerate() {
            measure(*way, &place, &mut measured[at])?;
            // What the disk can do with batches of the size that this way made, right after it.
            if limits[at].is_none() && has_limit(*way) {
                let batch = (measured[at].records_per_sync().round() as usize).max(1);
                limits[at] = Some((Way::Disk { batch }, Measured::new()?));
            }
            if let Some((limit, measured)) = &mut limits[at] {
                measure(*limit, &place, measured)?;
            }
        }
        print!("\rmeasured {} of {PARTS} parts", part + 1);
        io::stdout().flush()?;
    }
    println!(
        "\r{:28} {:>9} {:>9} {:>10} {:>8} {:>12} {:>10}",
        "", "p50 us", "p99 us", "records/s", "syncs/s", "records/sync", "of limit"
    );
    for ((way, measured), limit) in ways.iter().zip(&measured).zip(&limits) {
        row(*way, measured, limit.as_ref().map(|(_, limit)| limit));
        if let Some((limit, measured)) = limit
            && *limit != (Way::Disk { batch: 1 })
        {
            row(*limit, measured, None);
        }
    }
    println!(
        "{size} bytes each; the limit is the disk with batches of the same size, measured in turn with it"
    );
    Ok(())
}

/// The records that one writer has in flight.
const WINDOW: usize = 64;

fn has_limit(way: Way) -> bool {
    !matches!(way, Way::Disk { .. } | Way::Writers { level: Level::Received | Level::Visible, .. })
}

fn row(way: Way, measured: &Measured, limit: Option<&Measured>) {
    let share = limit.map_or(String::new(), |limit| {
        format!("{:.2}", measured.records_per_second() / limit.records_per_second().max(1e-9))
    });
    println!(
        "{:32} {:>9.1} {:>9.1} {:>10.0} {:>8.0} {:>12.1} {share:>10}",
        way.name(),
        measured.microseconds_at(0.5),
        measured.microseconds_at(0.99),
        measured.records_per_second(),
        measured.syncs as f64 / measured.took.as_secs_f64().max(1e-9),
        measured.records_per_sync(),
    );
}
