//! Which thread runs where.

use core_affinity::CoreId;

/// Puts the caller's thread on `core`; tells whether the system did.
pub fn pin(core: usize) -> bool {
    core_affinity::set_for_current(CoreId { id: core })
}

/// The cores that this process may use.
pub fn available() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}
