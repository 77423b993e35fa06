//! Addresses of servers on this machine.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use farcall_transports::{registry, runs_on_stream};

/// An address for a server with that backend over that device, with these options. Both ends are on this machine: a network
/// address is only used to connect, and the messages go over the device. A backend that needs none goes over loopback.
pub(crate) fn local(device: &str, backend: &str, options: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if registry::find(backend).is_some_and(runs_on_stream) {
        return format!("tcp://127.0.0.1:0?backend={backend}&{options}");
    }
    if device == "shm" {
        let (process, number) = (process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        return format!("shm://farcall-bench-{process}-{number}?backend={backend}&{options}");
    }
    format!("rdma://127.0.0.1:0?device={device}&backend={backend}&{options}")
}
