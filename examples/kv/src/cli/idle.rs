//! How hard a client polls while it waits.

use std::thread;

/// With a core for each polling thread a client may spin for some time before it yields: an answer
/// takes a few microseconds, a yield costs about one.
const SPINS: u32 = 200;

/// Empty polls before a client yields its core, where `threads` poll at once. On a machine with
/// fewer cores than that the answer may be waiting for the very core that the client spins on.
pub(crate) fn spins_before_yield(threads: u32) -> u32 {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if threads as usize > cores { 0 } else { SPINS }
}
