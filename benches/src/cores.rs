//! Which thread runs where.

use std::sync::OnceLock;

use anyhow::{Result, bail};
use core_affinity::CoreId;

/// Puts the caller's thread on `core`.
pub fn pin(core: usize) -> Result<()> {
    // Asked once: a thread that is pinned hands its one core down to the threads that it starts.
    static AVAILABLE: OnceLock<Vec<usize>> = OnceLock::new();
    let available = AVAILABLE.get_or_init(|| {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        cores.into_iter().map(|core| core.id).collect()
    });
    if !available.contains(&core) {
        bail!("core {core} is not available; this process may use {available:?}");
    }
    if !core_affinity::set_for_current(CoreId { id: core }) {
        bail!("the system does not let this thread be pinned to core {core}");
    }
    Ok(())
}
