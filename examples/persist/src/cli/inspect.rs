//! Looking at a log that is not open.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use farcall_persist::storage::{Directory, Storage};
use farcall_persist::{Error, Report};

use super::args::DirArgs;

/// The storage in a directory that exists.
pub(crate) fn storage(dir: &Path) -> Result<Arc<dyn Storage>> {
    let directory = Directory::existing(dir);
    Ok(Arc::new(directory.with_context(|| format!("cannot read {}", dir.display()))?))
}

pub(crate) fn verify(args: &DirArgs) -> Result<bool> {
    let report = farcall_persist::verify(&storage(&args.dir)?, |_| Ok(()))?;
    let mut out = io::stdout().lock();
    write_report(&mut out, &report)?;
    Ok(report.is_sound())
}

fn write_report(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let Report { first, end, records, bytes, epoch, .. } = report;
    writeln!(
        out,
        "whole    lsn {first} to {end}: {records} records, {bytes} bytes, opened {epoch} times"
    )?;
    for damage in &report.damaged {
        writeln!(out, "damaged  {damage}")?;
    }
    for lost in &report.lost {
        writeln!(out, "lost     lsn {} to {}: given up by a repair", lost.start, lost.end)?;
    }
    if let Some((from, to)) = report.missing {
        writeln!(out, "missing  segments {from} to {to}")?;
    }
    match report.torn {
        Some(why) => {
            writeln!(out, "torn     lsn {end}: {why}; it will be cut when the log is opened")
        }
        None => Ok(()),
    }
}

pub(crate) fn dump(args: &DirArgs) -> Result<bool> {
    let mut out = BufWriter::new(io::stdout().lock());
    let report = farcall_persist::verify(&storage(&args.dir)?, |record| {
        let header = &record.header;
        let line = writeln!(
            out,
            "{}\t{:?}\t{}\t{}\t{}\t{}",
            header.lsn,
            header.kind,
            header.transaction,
            header.epoch,
            record.payload.len(),
            record.payload.escape_ascii()
        );
        line.map_err(|source| Error::Io {
            doing: "write to",
            file: "standard output".to_owned(),
            source: Arc::new(source),
        })
    });
    let report = match report {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => {
            return Ok(true);
        }
        other => other?,
    };
    out.flush()?;
    write_report(&mut io::stderr().lock(), &report)?;
    Ok(report.is_sound())
}

pub(crate) fn repair(args: &DirArgs) -> Result<bool> {
    let given_up = farcall_persist::repair(&storage(&args.dir)?)?;
    for damage in &given_up {
        println!("given up  lsn {} to {} ({})", damage.from, damage.until, damage.file);
    }
    println!("{} damaged parts; the log can be opened again", given_up.len());
    Ok(true)
}
