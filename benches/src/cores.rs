//! Pinning of threads to cores.

use std::sync::OnceLock;

use anyhow::{Result, bail};
use core_affinity::CoreId;

/// Pins the calling thread to `core`.
pub fn pin(core: usize) -> Result<()> {
    // Queried once: threads inherit the affinity of a pinned thread.
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
