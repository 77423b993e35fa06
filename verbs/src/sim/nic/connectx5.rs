//! ConnectX-5: 100 Gbit/s, PCIe 3.0 x16, in machines with Xeon Gold. The NIC of eRPC's largest figures, and of Kalia 2020 and Wei 2021.

use super::Costs;

impl Costs {
    /// ConnectX-5 at 100 Gbit/s.
    pub fn connectx5() -> Costs {
        Costs {
            // Some 10 M calls per second and core: eRPC, section 6.2.
            post_ns: 12,
            doorbell_ns: 45,
            poll_ns: 8,
            completion_ns: 8,
            post_recv_ns: 6,
            cold_pair_ns: 60,
            shared_pair_ns: 400,
            lock_ns: 120,
            lock_waiter_ns: 20,
            scan_ns: 2,

            // Doorbells, PCIe and caches of the CPU: as Connect-IB, a little faster.
            mmio_ns: 150,
            mmio_line_ps: 5_000,
            pushes_any: true,
            max_pushed_lines: 6,

            pcie_read_ns: 330,
            // As any other read.
            read_memory_ns: 330,
            read_memory_spread_ns: 0,
            pcie_write_ns: 200,
            pcie_read_ps: 3_000,
            pcie_write_byte_ps: 70,

            // The vendor's 200 M messages per second. The values below are scaled from Connect-IB by it.
            outbound_ps: 5_000,
            outbound_datagram_ps: 5_500,
            outbound_line_ps: 2_000,
            outbound_fetch_ps: 3_000,
            outbound_fetch_byte_ps: 68,
            outbound_ack_ps: 1_000,
            queue_pair_ns: 80,
            window_ns: 330, // One PCIe read.

            inbound_ps: 6_500,
            inbound_receive_ps: 6_500,
            inbound_payload_ps: 3_000,
            inbound_ack_ps: 1_000,
            completion_ps: 3_000,

            read_request_ps: 7_000,
            read_request_byte_ps: 30,
            // 43 M outgoing READs: eRPC, Fig. 1.
            read_response_ps: 22_500,
            read_response_byte_ps: 30,
            read_response_part_ps: 0,
            atomic_ps: 15_000,
            atomic_lock_ps: 400_000,
            atomic_locks: 4096,

            // 30.8 and 23 M READs with 1,120 and 4,480 queue pairs: eRPC, Fig. 1, with `pcie_read_ps`.
            cache_lines: 2_090,
            context_lines: 6,
            context_miss_reads: 2,
            // As Connect-IB; the buffer is larger, but not measured.
            cached_send_queues: 4_096,
            send_queue_miss_reads: 2,
            turn_reads: 8,
            cached_requests: 1_200,
            request_miss_reads: 2,
            request_miss_ps: 3_000,

            // As Connect-IB.
            ddio_pages: 4_300,
            ddio_miss_ps: 60_000,

            // 2.0 us for a READ: eRPC, table 2.
            wire_ns: 590,
            // 100 Gbit/s; headers of RoCEv2.
            link_byte_ps: 80,
            header_bytes: 60,
            mtu_bytes: 4096,
            landing_ns: 5,
        }
    }
}
