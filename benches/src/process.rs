//! The memory and the descriptors of processes.

use std::fs;

use anyhow::{Context, Result};

/// The resident memory of this process.
pub fn resident_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .context("/proc/self/status does not say VmRSS")?;
    Ok(kib << 10)
}

/// The memory of a process, where each page is shared out among those that map it: of all processes together, it counts once.
pub fn proportional_bytes(process: u32) -> Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .context("the kernel does not say Pss in smaps_rollup")?;
    Ok(kib << 10)
}

/// The open descriptors of a process.
pub fn descriptors(process: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{process}/fd"))?.count())
}
