//! Tests the virtual machine runner itself: a success only means something if a failure would be detected.

use std::panic::resume_unwind;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::rdma_vm::{self, Options};

/// Enough to boot on a busy computer.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Checks that an exit status is returned, and that a machine that powers off or hangs is detected.
pub(crate) fn check() -> Result<()> {
    // In parallel, because they mostly wait.
    thread::scope(|scope| {
        let off = scope
            .spawn(|| refused("poweroff -f", TIMEOUT, "powered off without reporting a status"));
        // It ends in any case, whether before the boot or while COMMAND runs.
        let hang = scope.spawn(|| refused("sleep 1000", Duration::from_secs(6), "--timeout"));
        [fails(), ended(off), ended(hang)].into_iter().collect::<Result<()>>()
    })?;
    println!("  virtual machines that fail, power off or hang are detected");
    Ok(())
}

fn ended(check: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    check.join().unwrap_or_else(|panic| resume_unwind(panic))
}

fn fails() -> Result<()> {
    let status = rdma_vm::rdma_vm(&Options::script(1, TIMEOUT, "exit 23".into()))
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
