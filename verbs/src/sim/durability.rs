//! When bytes of persistent memory become durable.

use std::time::Duration;

/// The path of bytes to persistent memory, and which parts of it survive a power failure. Memory controllers
/// always do (ADR); NICs and PCIe queues never do.
///
/// The default is a server of the year 2020: DDIO is on, and caches lose their lines.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Durability {
    /// NIC writes go to the last-level cache (Intel's Data Direct I/O) instead of memory.
    pub ddio: bool,
    /// Caches are written back on residual energy after a power failure.
    pub eadr: bool,
    /// The longest time that a NIC write stays in the queue of the PCIe root complex after becoming visible.
    pub queue: Duration,
    /// The most dirty lines in caches. One more makes any of them be written back.
    pub dirty_lines: usize,
    /// CPU, or the NIC for a flush: writing back one line.
    pub write_back_ns: u64,
    /// CPU: waiting until all written-back lines are durable.
    pub fence_ns: u64,
}

impl Default for Durability {
    fn default() -> Self {
        Durability {
            ddio: true,
            eadr: false,
            // A loaded PCIe bus takes microseconds.
            queue: Duration::from_micros(2),
            // 2 MiB, a tenth of a last-level cache, which is what DDIO may fill.
            dirty_lines: 32 << 10,
            // Optane DC on six channels: 62 ns for a store that is written back and waited for (Yang et al., FAST
            // 2020, figure 2), some 9 GB/s for many.
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

    /// Whether NIC writes are durable as soon as they leave the PCIe queue.
    pub(super) fn behind_the_queue(&self) -> bool {
        self.eadr || !self.ddio
    }
}
