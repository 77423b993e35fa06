//! The memory use of this process.

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
