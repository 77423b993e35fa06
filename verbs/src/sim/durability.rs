//! When bytes of persistent memory become durable.

use std::time::Duration;

use super::config::nanos;

/// The path of bytes to persistent memory, and which parts of it survive a power failure. Memory controllers
/// always do (ADR); NICs and PCIe queues do with a [battery](Durability::battery).
///
/// The default is a server of the year 2020: DDIO is on, and caches lose their lines.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Durability {
    /// NIC writes go to the last-level cache (Intel's Data Direct I/O) instead of memory.
    pub ddio: bool,
    /// Caches are written back on residual energy after a power failure.
    pub eadr: bool,
    /// A battery keeps the machine running until the NIC, the PCIe queues and the caches are empty. Nothing that was acknowledged is lost.
    pub battery: bool,
    /// A peer's [flush](crate::WorkRequest::flush) writes back lines of the caches, too. Otherwise it ends at the memory controller, as a READ
    /// does, and leaves dirty lines where they are.
    pub flush_through_caches: bool,
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
            battery: false,
            flush_through_caches: true,
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
    /// Memory that is mapped from a file, as it behaves towards NIC and CPU: the page cache, which a power failure empties. The system may
    /// write a part of it at any time; [`persist`](crate::PersistentRegion::persist) is `fdatasync` and takes `sync`, and a peer's flush
    /// does not reach the disk. Real disks tear files at 512 bytes or 4 KiB; here each line may be lost, which is worse.
    pub fn file(sync: Duration) -> Self {
        Durability {
            flush_through_caches: false,
            dirty_lines: usize::MAX,
            // 64 bytes at 2 GB/s.
            write_back_ns: 32,
            fence_ns: nanos(sync),
            ..Durability::default()
        }
    }

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

    /// Sets [`battery`](Durability::battery).
    pub fn battery(mut self, there: bool) -> Self {
        self.battery = there;
        self
    }

    /// Sets [`flush_through_caches`](Durability::flush_through_caches).
    pub fn flush_through_caches(mut self, does: bool) -> Self {
        self.flush_through_caches = does;
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
