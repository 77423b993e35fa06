//! How servers and clients poll while they wait. If there is a core for each polling thread, spinning
//! is fastest. With fewer cores, the peer may need the very core that spins.

use std::thread;
use std::time::Duration;

use farcall::IdlePolicy;

/// An answer takes as long as this many empty polls, a few microseconds; a yield costs about one.
const SPINS: u32 = 200;

/// How long a server thread looks for more requests, on a machine with few cores, before it lets the
/// clients run.
const SERVER_SPINS_SHORT_OF_CORES: Duration = Duration::from_micros(3);

/// Empty polls before a client yields its core, if `threads` poll at once.
pub(crate) fn spins_before_yield(threads: u32) -> u32 {
    if threads as usize > cores() { 0 } else { SPINS }
}

/// The idle policy of a server with `threads`, which expects at least two polling clients.
pub(crate) fn server(threads: usize) -> IdlePolicy {
    let policy = IdlePolicy::default();
    if threads + 2 > cores() { policy.spin(SERVER_SPINS_SHORT_OF_CORES) } else { policy }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
