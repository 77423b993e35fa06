//! What it takes until bytes of persistent memory are durable.

use std::time::Duration;

/// The way of bytes to persistent memory, and which part of it keeps them when the power goes. Memory
/// controllers always do (ADR); NICs and PCIe queues never.
///
/// The default is a server of the year 2020: DDIO on, and caches that lose their lines.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Durability {
    /// What a NIC writes goes to the last-level cache (Intel's Data Direct I/O), and not to memory.
    pub ddio: bool,
    /// Caches are written back on residual energy when the power goes.
    pub eadr: bool,
    /// The longest that a write of the NIC is in the queue of the PCIe root complex, after it can be seen.
    pub queue: Duration,
    /// Lines that caches hold and memory does not have, at most: one more, and any of them is written back.
    pub dirty_lines: usize,
    /// CPU, or the NIC with a flush: writing back one line.
    pub write_back_ns: u64,
    /// CPU: waiting until all that were written back are durable.
    pub fence_ns: u64,
}

impl Default for Durability {
    fn default() -> Self {
        Durability {
            ddio: true,
            eadr: false,
            // A loaded PCIe takes microseconds.
            queue: Duration::from_micros(2),
            // 2 MiB: a tenth of a last-level cache, as DDIO may fill.
            dirty_lines: 32 << 10,
            // Optane DC on six channels: 62 ns for a store that is written back and waited for (Yang et al.,
            // FAST 2020, figure 2), some 9 GB/s for many.
            write_back_ns: 7,
            fence_ns: 55,
        }
    }
}

impl Durability {
    /// Sets [`ddio`](Durability::ddio).
    pub fn ddio(mut self, on: bool) -> Self {
        self.ddio = on;
        self
    }

    /// Sets [`eadr`](Durability::eadr).
    pub fn eadr(mut self, there: bool) -> Self {
        self.eadr = there;
        self
    }

    /// Sets [`queue`](Durability::queue).
    pub fn queue(mut self, longest: Duration) -> Self {
        self.queue = longest;
        self
    }

    /// Sets [`dirty_lines`](Durability::dirty_lines).
    pub fn dirty_lines(mut self, most: usize) -> Self {
        self.dirty_lines = most;
        self
    }

    /// Whether what a NIC writes is durable as soon as it has left the PCIe queue.
    pub(super) fn behind_the_queue(&self) -> bool {
        self.eadr || !self.ddio
    }
}
