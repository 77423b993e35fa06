//! The costs of all operations.

/// The costs of one NIC generation, and of the machines in which it was measured. The default is
/// [`connectx5`](Costs::connectx5).
///
/// One set serves all experiments: if a figure is not reproduced, the model lacks something.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Costs {
    /// CPU: building one work request.
    pub post_ns: u64,
    /// CPU: posting one receive.
    pub post_recv_ns: u64,
    /// CPU: ringing a doorbell.
    pub doorbell_ns: u64,
    /// CPU: posting to a queue pair whose state is not in the core's own cache.
    pub cold_pair_ns: u64,
    /// CPU: posting to a queue pair, or completing its work, that another core used last.
    pub shared_pair_ns: u64,
    /// CPU: passing the doorbell lock of an opened device, or a queue pair's lock, to a core that waits for it.
    pub lock_ns: u64,
    /// CPU: additional cost of that for each other waiting core.
    pub lock_waiter_ns: u64,
    /// CPU: one poll of a completion queue.
    pub poll_ns: u64,
    /// CPU: one completion taken from it.
    pub completion_ns: u64,
    /// CPU: one cell that an actor examined, as reported by its turn.
    pub scan_ns: u64,

    /// From the CPU's doorbell write to the NIC.
    pub mmio_ns: u64,
    /// MMIO: one cache line, in picoseconds.
    pub mmio_line_ps: u64,
    /// Whether the driver also pushes work requests with bytes in memory; otherwise only those with inline bytes.
    pub pushes_any: bool,
    /// The most lines of a work request that is pushed over MMIO; the NIC reads longer ones.
    pub max_pushed_lines: u8,

    /// A read over PCIe, from the request to the first bytes.
    pub pcie_read_ns: u64,
    /// A read of the bytes that an incoming READ requests, from the request to the first bytes, if memory answers at
    /// once.
    pub read_memory_ns: u64,
    /// The most that memory adds to that.
    pub read_memory_spread_ns: u64,
    /// A write over PCIe.
    pub pcie_write_ns: u64,
    /// The PCIe read unit, for one cache line, in picoseconds.
    pub pcie_read_ps: u64,
    /// PCIe, for each byte that the NIC writes, in picoseconds, headers included.
    pub pcie_write_byte_ps: u64,

    /// The outbound unit, for a work request of one line on a connected queue pair, in picoseconds.
    pub outbound_ps: u64,
    /// The outbound unit, for a work request of one line on a UD queue pair.
    pub outbound_datagram_ps: u64,
    /// The outbound unit, for each further line of a work request.
    pub outbound_line_ps: u64,
    /// The outbound unit, for fetching bytes that are not inline.
    pub outbound_fetch_ps: u64,
    /// The outbound unit, for each of these bytes.
    pub outbound_fetch_byte_ps: u64,
    /// The outbound unit, for an acknowledgement.
    pub outbound_ack_ps: u64,
    /// How long one queue pair's processing unit is busy with a work request.
    pub queue_pair_ns: u64,
    /// How much longer it is busy with the binding or the invalidation of a memory window. No measurement is published. It is
    /// assumed to be one read over PCIe: the NIC needs the region's entry of its translation table to check a binding, and the
    /// driver lets the following work request wait (a fence) until the window's entry is changed.
    pub window_ns: u64,

    /// The inbound unit, for a WRITE.
    pub inbound_ps: u64,
    /// The inbound unit, for a message without bytes that uses a receive.
    pub inbound_receive_ps: u64,
    /// The inbound unit, in addition if such a message has bytes.
    pub inbound_payload_ps: u64,
    /// The inbound unit, for an acknowledgement.
    pub inbound_ack_ps: u64,
    /// The inbound unit, for the completion of a signaled work request.
    pub completion_ps: u64,

    /// The READ unit, for an incoming request.
    pub read_request_ps: u64,
    /// The READ unit, for each byte of its response.
    pub read_request_byte_ps: u64,
    /// The READ unit, for an incoming response.
    pub read_response_ps: u64,
    /// The READ unit, for each byte of an incoming response.
    pub read_response_byte_ps: u64,
    /// The READ unit, for each 256 bytes of an incoming response after the first.
    pub read_response_part_ps: u64,
    /// The READ unit, for an atomic.
    pub atomic_ps: u64,
    /// How long an atomic holds its lock.
    pub atomic_lock_ps: u64,
    /// The number of locks of atomics; the low bits of the address select one.
    pub atomic_locks: u64,

    /// Capacity of the cache of contexts, in lines of 64 bytes.
    pub cache_lines: u32,
    /// Lines of a queue pair's context that the requester needs.
    pub context_lines: u8,
    /// Capacity of the cache of send queues: of what the NIC needs to read a queue pair's work requests from memory, one line
    /// for each queue pair.
    pub cached_send_queues: u32,
    /// PCIe reads for a missed send queue.
    pub send_queue_miss_reads: u64,
    /// The most READs and atomics that a queue pair sends after the NIC has read its context, before others have their turn.
    pub turn_reads: u32,
    /// PCIe reads for a missed line of a context, address translations included.
    pub context_miss_reads: u64,
    /// Capacity of the buffer of READs and atomics that wait for their response.
    pub cached_requests: u32,
    /// PCIe reads for a READ or an atomic that is missing there.
    pub request_miss_reads: u64,
    /// The READ unit, for such a READ or atomic.
    pub request_miss_ps: u64,

    /// Pages of 4 KiB in the last-level cache that WRITEs can use.
    pub ddio_pages: u32,
    /// The inbound unit, for a page that is not in that cache, in picoseconds.
    pub ddio_miss_ps: u64,

    /// From one NIC to the other: both NICs' pipelines, the switch, the cables.
    pub wire_ns: u64,
    /// Picoseconds of the link per byte.
    pub link_byte_ps: u64,
    /// Header bytes of each packet.
    pub header_bytes: u64,
    /// Payload bytes of a message in one packet.
    pub mtu_bytes: u64,
    /// Between two successively landing pieces of a WRITE.
    pub landing_ns: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Costs::connectx5()
    }
}

impl Costs {
    /// Link time of a message in picoseconds.
    #[inline]
    pub(in crate::sim) fn link_ps(&self, len: u64) -> u64 {
        let packets = match len <= self.mtu_bytes {
            true => 1,
            false => len.div_ceil(self.mtu_bytes.max(1)),
        };
        (len + packets * self.header_bytes) * self.link_byte_ps
    }

    /// How long a doorbell of `lines` cache lines is on its way over MMIO.
    #[inline]
    pub(in crate::sim) fn doorbell_way_ns(&self, lines: u8) -> u64 {
        self.mmio_ns + (u64::from(lines) * self.mmio_line_ps).div_ceil(1000)
    }

    /// How long a WRITE of `chunks` pieces takes to land.
    #[inline]
    pub(in crate::sim) fn landing(&self, chunks: u64) -> u64 {
        chunks * self.landing_ns
    }
}
