//! What things cost.

/// What things cost on one generation of NIC, and on the machines that it was measured in. The default is
/// [`connectx5`](Costs::connectx5).
///
/// One set serves all experiments: where a figure is not met, the model lacks something.
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
    /// CPU: posting to a queue pair, or completing its work, that another core has used last.
    pub shared_pair_ns: u64,
    /// CPU: the doorbell lock of an opened device, or a queue pair's, goes to a core that waits for it.
    pub lock_ns: u64,
    /// CPU: the same, more for each other core that waits.
    pub lock_waiter_ns: u64,
    /// CPU: one poll of a completion queue.
    pub poll_ns: u64,
    /// CPU: one completion taken from it.
    pub completion_ns: u64,
    /// CPU: one cell looked at by an actor, as its turn tells.
    pub scan_ns: u64,

    /// From the CPU's doorbell to the NIC.
    pub mmio_ns: u64,
    /// MMIO: one cache line, in picoseconds.
    pub mmio_line_ps: u64,
    /// The driver pushes also work requests that name bytes; if not, only those that carry them all.
    pub pushes_any: bool,
    /// Lines of a work request that is pushed over MMIO, at most; longer ones are read by the NIC.
    pub max_pushed_lines: u8,

    /// A read over PCIe, from asking to the first bytes.
    pub pcie_read_ns: u64,
    /// A write over PCIe.
    pub pcie_write_ns: u64,
    /// The reader, for one read of a cache line over PCIe, in picoseconds.
    pub pcie_read_ps: u64,
    /// PCIe for each byte that the NIC writes, in picoseconds, headers included.
    pub pcie_write_byte_ps: u64,

    /// The outbound unit, for a work request of a connected queue pair with one line, in picoseconds.
    pub outbound_ps: u64,
    /// The outbound unit, for one of a UD queue pair.
    pub outbound_datagram_ps: u64,
    /// The outbound unit, for each further line of a work request.
    pub outbound_line_ps: u64,
    /// The outbound unit, for fetching bytes that are not inline.
    pub outbound_fetch_ps: u64,
    /// The outbound unit, for each of these bytes.
    pub outbound_fetch_byte_ps: u64,
    /// The outbound unit, for an acknowledgement.
    pub outbound_ack_ps: u64,
    /// One queue pair alone, for a work request: so long its processing unit is busy.
    pub queue_pair_ns: u64,

    /// The inbound unit, for a WRITE.
    pub inbound_ps: u64,
    /// The inbound unit, for a message without bytes that meets a receive.
    pub inbound_receive_ps: u64,
    /// The inbound unit, more where such a message has bytes.
    pub inbound_payload_ps: u64,
    /// The inbound unit, for an acknowledgement.
    pub inbound_ack_ps: u64,
    /// The inbound unit, for the completion of a signaled work request.
    pub completion_ps: u64,

    /// The unit for READs, for a request that is answered.
    pub read_request_ps: u64,
    /// The unit for READs, for each byte of that answer.
    pub read_request_byte_ps: u64,
    /// The unit for READs, for an answer that comes.
    pub read_response_ps: u64,
    /// The unit for READs, for each byte of that.
    pub read_response_byte_ps: u64,
    /// The unit for READs, for an atomic.
    pub atomic_ps: u64,
    /// An atomic's lock, which is held for so long.
    pub atomic_lock_ps: u64,
    /// How many locks there are; the low bits of the address say which is an atomic's.
    pub atomic_locks: u64,

    /// Lines of 64 bytes that the cache of contexts and work requests holds.
    pub cache_lines: u32,
    /// Lines of a queue pair's context that the requester needs.
    pub context_lines: u8,
    /// Reads over PCIe for one line of a context that was missed, address translations included.
    pub context_miss_reads: u64,
    /// Reads over PCIe for a work request that was missed.
    pub request_miss_reads: u64,

    /// Pages of 4 KiB that WRITEs find in the last-level cache.
    pub ddio_pages: u32,
    /// The inbound unit, for a page that is not there, in picoseconds.
    pub ddio_miss_ps: u64,

    /// From one NIC to the other: both NICs' pipelines, the switch, the cables.
    pub wire_ns: u64,
    /// Picoseconds of the link for each byte.
    pub link_byte_ps: u64,
    /// Bytes of headers with each packet.
    pub header_bytes: u64,
    /// Bytes of a message in one packet.
    pub mtu_bytes: u64,
    /// Between two pieces of a WRITE that land one after the other.
    pub landing_ns: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Costs::connectx5()
    }
}

impl Costs {
    /// Picoseconds of the link for a message.
    #[inline]
    pub(in crate::sim) fn link_ps(&self, len: u64) -> u64 {
        let packets = match len <= self.mtu_bytes {
            true => 1,
            false => len.div_ceil(self.mtu_bytes.max(1)),
        };
        (len + packets * self.header_bytes) * self.link_byte_ps
    }

    /// How long a WRITE that lands in `chunks` pieces takes to land.
    #[inline]
    pub(in crate::sim) fn landing(&self, chunks: u64) -> u64 {
        chunks * self.landing_ns
    }
}
