//! Connect-IB: two ports of FDR InfiniBand at 56 Gbit/s, PCIe 3.0 x16, in machines with Xeon E5 v2 and v3. The NIC of FaSST's larger
//! cluster, and of Kalia 2016.

use super::Costs;

impl Costs {
    /// Connect-IB with two ports.
    pub fn connect_ib() -> Costs {
        Costs {
            // 10.9 M READs per second of one thread with few queue pairs, one doorbell each: FaSST, section 3.3; 10.3 M in its
            // measured configurations. The sequencer of Kalia 2016 answers 7 M requests per second and core, and 27.4 M with
            // batches.
            post_ns: 12,
            doorbell_ns: 78,
            poll_ns: 8,
            completion_ns: 8,
            post_recv_ns: 6,
            // 7.3 M READs with 100 queue pairs: FaSST, section 3.3.
            cold_pair_ns: 70,
            // 2.5 M READs with two threads on 100 queue pairs: FaSST, section 3.3.
            shared_pair_ns: 360,
            lock_ns: 120,
            lock_waiter_ns: 20,
            scan_ns: 3,

            mmio_ns: 130,
            // 175 M lines/s: Kalia 2016, section 5.
            mmio_line_ps: 5_714,
            pushes_any: true,
            max_pushed_lines: 6,

            // No source: as with other NICs.
            pcie_read_ns: 330,
            // 2.6 to 3.4 us from a READ to its bytes with little load, depending on the window: FaSST's measured configurations.
            // A WRITE takes 1.7 us there.
            read_memory_ns: 560,
            read_memory_spread_ns: 1_050,
            pcie_write_ns: 150,
            // READs among 99 nodes: FaSST's measured configurations. Reads of missing requests: 82 M/s at least in Kalia 2016,
            // Fig. 13.
            pcie_read_ps: 4_500,
            // 13 GB/s of the 15.75 of PCIe 3.0 x16, with 22 bytes of header to each 128.
            pcie_write_byte_ps: 70,

            // 99 M UC WRITEs in FaSST's measured configurations; 105 M RC WRITEs: Kalia 2016, Fig. 13. What is fetched and
            // acknowledged is scaled from ConnectX-3.
            outbound_ps: 9_900,
            // 157 M SENDs without payload, 101.6 M with: Kalia 2016, table 1.
            outbound_datagram_ps: 6_370,
            outbound_line_ps: 3_470,
            outbound_fetch_ps: 4_000,
            outbound_fetch_byte_ps: 70,
            outbound_ack_ps: 1_400,
            // 16.6 M answers of one core over one queue pair per port, 27.4 M over three: Kalia 2016, section 4.
            queue_pair_ns: 120,
            window_ns: 330, // One PCIe read.

            // 121 M UC WRITEs, 122 M receives without payload, 82 M with: Kalia 2016, table 1.
            inbound_ps: 8_260,
            inbound_receive_ps: 8_200,
            inbound_payload_ps: 4_000,
            // 52 M signaled RC WRITEs out and in at once: FaSST's measured configurations.
            inbound_ack_ps: 2_100,
            completion_ps: 8_600,

            // 121.6 M incoming READs: Kalia 2016, table 1; 49.5 M of 32 B in and out at once, 22.8 M of 392 B: FaSST's measured
            // configurations, which show no step at 256 B.
            read_request_ps: 8_220,
            read_request_byte_ps: 31,
            read_response_ps: 10_500,
            read_response_byte_ps: 31,
            read_response_part_ps: 0,
            // 2.24 M atomics at one address, 52 M at many; locked by 12 bits of the address: Kalia 2016, table 1 and section 4.
            atomic_ps: 19_200,
            atomic_lock_ps: 446_000,
            atomic_locks: 4096,

            // FaSST's measured configurations, 70 to 1,260 queue pairs. Contexts have 375 bytes, of which the requester needs a
            // part.
            cache_lines: 450,
            context_lines: 3,
            context_miss_reads: 1,
            // No figure shows a limit.
            cached_send_queues: 4_096,
            send_queue_miss_reads: 1,
            turn_reads: 8,
            // With more than some 400 READs outstanding the rate falls from 49 M to 36 and less: FaSST's measured
            // configurations. Outbound alone, 62 M are left: Kalia 2016, Fig. 13.
            cached_requests: 275,
            request_miss_reads: 2,
            request_miss_ps: 9_000,

            // As ConnectX-3 in newer machines.
            ddio_pages: 4_300,
            ddio_miss_ps: 60_000,

            // As ConnectX-3: the same InfiniBand.
            wire_ns: 590,
            // Two ports.
            link_byte_ps: 77,
            header_bytes: 30,
            mtu_bytes: 4096,
            landing_ns: 5,
        }
    }
}
