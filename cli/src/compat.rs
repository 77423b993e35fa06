//! `farcall compat`: what a change of a service breaks.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use farcall::lock::{Compatibility, Lock};

/// Say what the change of a service from one lock file to another breaks.
///
/// Exit status: 0 if old clients can call all they know at new servers, so that servers can be upgraded first; 1 if not;
/// 2 if a file is no lock file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The lock file of what runs now.
    old: PathBuf,
    /// The lock file of what shall run.
    new: PathBuf,
    /// Exit with 1 also if new clients call what old servers lack.
    #[arg(long)]
    any_order: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let compatibility = Compatibility::of(&read(&args.old)?, &read(&args.new)?);
    writeln!(std::io::stdout(), "{compatibility}")?;
    let sound =
        compatibility.keeps_old_clients() && (!args.any_order || compatibility.keeps_old_servers());
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(path: &Path) -> anyhow::Result<Lock> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    Lock::parse(&text).with_context(|| format!("{} is no lock file", path.display()))
}
