//! The memory and the descriptors of this process.

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

/// The memory of this process, where a page that is mapped several times counts once.
pub fn proportional_bytes() -> Result<u64> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .context("/proc/self/smaps_rollup does not say Pss")?;
    Ok(kib << 10)
}

/// The open descriptors of this process.
pub fn descriptors() -> Result<usize> {
    // One of them reads the directory.
    Ok(fs::read_dir("/proc/self/fd")?.count() - 1)
}
