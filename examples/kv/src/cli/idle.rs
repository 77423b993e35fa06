//! How hard servers and clients poll while they wait: with a core for each thread that polls,
//! spinning answers fastest; with fewer, what is waited for may need the very core that spins.

use std::thread;
use std::time::Duration;

use farcall::IdlePolicy;

/// An answer takes a few microseconds, as long as this many empty polls; a yield costs about one.
const SPINS: u32 = 200;

/// On a machine that is short of cores a server thread looks this long for the requests that
/// follow the last ones, then lets the clients run that would send them.
const SERVER_SPINS_SHORT_OF_CORES: Duration = Duration::from_micros(3);

/// Empty polls before a client yields its core, where `threads` poll at once.
pub(crate) fn spins_before_yield(threads: u32) -> u32 {
    if threads as usize > cores() { 0 } else { SPINS }
}

/// How a server of `threads` idles: it expects two clients or more to poll.
pub(crate) fn server(threads: usize) -> IdlePolicy {
    let policy = IdlePolicy::default();
    if threads + 2 > cores() { policy.spin(SERVER_SPINS_SHORT_OF_CORES) } else { policy }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
