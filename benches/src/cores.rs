//! Cores: pinning threads to them, and the caches that they share.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Result, bail};
use core_affinity::CoreId;

/// The cores that this process may use.
pub fn available() -> &'static [usize] {
    // Queried once: threads inherit the affinity of a pinned thread.
    static AVAILABLE: OnceLock<Vec<usize>> = OnceLock::new();
    AVAILABLE.get_or_init(|| {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        cores.into_iter().map(|core| core.id).collect()
    })
}

/// Pins the calling thread to `core`.
pub fn pin(core: usize) -> Result<()> {
    let available = available();
    if !available.contains(&core) {
        bail!("core {core} is not available; this process may use {available:?}");
    }
    pin_child(core)
}

/// Pins the calling thread of a process whose parent may be pinned to another core, and has checked that this one is available.
pub fn pin_child(core: usize) -> Result<()> {
    if !core_affinity::set_for_current(CoreId { id: core }) {
        bail!("the system does not let this thread be pinned to core {core}");
    }
    Ok(())
}

/// The level of the smallest cache that both cores use, as the kernel describes it; none if they share none or the kernel does not
/// say. In a virtual machine this is what the hypervisor declares, which may differ from the hardware.
pub fn shared_cache_level(cores: [usize; 2]) -> Option<u32> {
    let [first, second] = cores;
    let folder = format!("/sys/devices/system/cpu/cpu{first}/cache");
    let caches = fs::read_dir(Path::new(&folder)).ok()?.flatten();
    let shared = caches.filter_map(|cache| {
        let read = |file| fs::read_to_string(cache.path().join(file)).ok();
        let users = read("shared_cpu_list")?;
        in_list(users.trim(), second).then(|| read("level")?.trim().parse().ok())?
    });
    shared.min()
}

/// Whether a list of the kernel such as `0-3,8` contains `core`.
fn in_list(list: &str, core: usize) -> bool {
    list.split(',').any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bounds = first.parse().ok().zip(last.parse().ok());
        bounds.is_some_and(|(first, last): (usize, usize)| (first..=last).contains(&core))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_ranges_and_numbers() {
        for core in [0, 1, 3, 8] {
            assert!(in_list("0-3,8", core), "{core}");
        }
        assert!(!in_list("0-3,8", 4) && !in_list("", 0) && !in_list("x-3", 2));
    }
}
