//! The state that a running server and its threads share.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

/// Shared by a server and its threads.
pub(super) struct Control {
    draining: AtomicBool,
    drain_ns: AtomicU64,
    aborted: AtomicU64,
    /// Threads that have not ended.
    threads: AtomicUsize,
    /// Connections of each thread.
    connections: Box<[AtomicUsize]>,
}

impl Control {
    pub(super) fn new(threads: usize) -> Self {
        Control {
            draining: AtomicBool::new(false),
            drain_ns: AtomicU64::new(0),
            aborted: AtomicU64::new(0),
            threads: AtomicUsize::new(threads),
            connections: (0..threads).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    /// Tells the threads to finish the calls in flight, at most for `bound`. The caller wakes them.
    pub(super) fn drain(&self, bound: Duration) {
        self.drain_ns.store(crate::time::saturating_nanos(bound), Ordering::Relaxed);
        self.draining.store(true, Ordering::SeqCst);
    }

    /// The bound in nanoseconds, once the threads must drain.
    #[inline]
    pub(super) fn draining(&self) -> Option<u64> {
        if self.draining.load(Ordering::Acquire) {
            Some(self.drain_ns.load(Ordering::Relaxed))
        } else {
            None
        }
    }

    pub(super) fn add_aborted(&self, calls: u32) {
        self.aborted.fetch_add(u64::from(calls), Ordering::Relaxed);
    }

    pub(super) fn aborted(&self) -> u64 {
        self.aborted.load(Ordering::Relaxed)
    }

    pub(super) fn thread_ended(&self) {
        self.threads.fetch_sub(1, Ordering::Release);
    }

    /// Threads that have not ended.
    pub(super) fn threads(&self) -> usize {
        self.threads.load(Ordering::Acquire)
    }

    pub(super) fn set_connections(&self, thread: usize, connections: usize) {
        self.connections[thread].store(connections, Ordering::Relaxed);
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.iter().map(|thread| thread.load(Ordering::Relaxed)).sum()
    }
}
