//! The bounds of the virtual machine itself: a green run means nothing where a red one cannot be seen.

use std::panic::resume_unwind;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::rdma_vm::{self, Options};

/// Enough to boot on a busy computer.
const PATIENCE: Duration = Duration::from_secs(120);

/// A status comes back, a machine that goes off is noticed, one that hangs is ended.
pub(crate) fn check() -> Result<()> {
    // At once: they wait more than they work.
    thread::scope(|scope| {
        let off =
            scope.spawn(|| refused("poweroff -f", PATIENCE, "went off without telling a status"));
        // Short of the boot or in the middle of COMMAND: either way, it ends.
        let hang = scope.spawn(|| refused("sleep 1000", Duration::from_secs(6), "--timeout"));
        [fails(), ended(off), ended(hang)].into_iter().collect::<Result<()>>()
    })?;
    println!("  virtual machines that fail, go off or hang are noticed");
    Ok(())
}

fn ended(check: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    check.join().unwrap_or_else(|panic| resume_unwind(panic))
}

fn fails() -> Result<()> {
    let status = rdma_vm::rdma_vm(&Options::script(1, PATIENCE, "exit 23".into()))
        .context("a command that fails")?;
    if status != 23 {
        bail!("a command that ends with status 23 ended with {status}");
    }
    Ok(())
}

fn refused(command: &str, timeout: Duration, with: &str) -> Result<()> {
    match rdma_vm::rdma_vm(&Options::script(1, timeout, command.into())) {
        Ok(status) => bail!("`{command}` passed for a run that ended with status {status}"),
        Err(error) if error.to_string().contains(with) => Ok(()),
        Err(error) => Err(error.context(format!("`{command}` ended, but not as it should"))),
    }
}
