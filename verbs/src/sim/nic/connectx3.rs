//! ConnectX-3: FDR InfiniBand at 56 Gbit/s, PCIe 3.0 x8, in machines with Xeon E5 v1 and v2. The NIC of HERD, FaSST and
//! ScaleRPC; at 40 Gbit/s that of RFP.

use super::Costs;

impl Costs {
    /// ConnectX-3 at 56 Gbit/s.
    pub fn connectx3() -> Costs {
        Costs {
            // A thread of ScaleRPC posts 6.1 M WRITEs per second to one client and 4.8 M from one (Fig. 3a), one
            // doorbell each. FaSST saves 140 to 210 ns for each doorbell that a batch saves (section 4.3). HERD:
            // post_send is 150 ns.
            post_ns: 40,
            doorbell_ns: 130,
            // No source: usual costs of a poll, of a completion, of an examined cell.
            poll_ns: 10,
            completion_ns: 15,
            // FaSST's cheap RECVs save 12 ns a call (section 4.3).
            post_recv_ns: 20,
            // As measured with Connect-IB.
            cold_pair_ns: 65,
            shared_pair_ns: 500,
            // RFP, Fig. 3 and 4: threads of one process, and so of one opened device.
            lock_ns: 500,
            lock_waiter_ns: 24,
            scan_ns: 4,

            // PCIe takes some 200 ns one way, part of which the CPU waits for already. Chosen with `wire_ns` for the
            // latencies below.
            mmio_ns: 130,
            // 52.8 M lines/s: HERD, Fig. 4b, where WRITEs take 1, 2, 3, 4 lines at 38, 26.3, 17.6, 13.2 M.
            mmio_line_ps: 18_940,
            // In Kalia 2016, all single work requests are pushed, as by mlx5's driver; mlx4's own pushes only inline
            // ones.
            pushes_any: true,
            max_pushed_lines: 6,

            // 350 ns is what HERD's inlining saves (Fig. 2: 2.48 against 2.13 us); eRPC's READ leaves less room.
            pcie_read_ns: 276,
            // The same on average; memory does not always answer alike, and threads therefore do not stay in step.
            read_memory_ns: 176,
            read_memory_spread_ns: 200,
            pcie_write_ns: 150,
            // 70 M reads/s. When reads are the limit: 60 to 65 M in ScaleRPC, Fig. 3a, 58 to 82 M in Kalia 2016, Fig. 13.
            pcie_read_ps: 14_200,
            // PCIe 3.0 x8, 7.88 GB/s, 26 bytes of headers with 256.
            pcie_write_byte_ps: 140,

            // 38 M inline WRITEs of one line: HERD, Fig. 4b.
            outbound_ps: 26_300,
            // 32.1 M SENDs without payload: Kalia 2016, table 1.
            outbound_datagram_ps: 31_200,
            // 26 M SENDs of two lines: Kalia 2016, table 1.
            outbound_line_ps: 7_500,
            // WRITEs that are not inline: 21.4, 17.8, 12.3 M at 4, 64, 256 B: HERD, Fig. 4b.
            outbound_fetch_ps: 19_900,
            outbound_fetch_byte_ps: 137,
            // HERD, Fig. 5: unreliable against reliable, 59 against 64.5 ns for each ECHO.
            outbound_ack_ps: 5_500,
            // As measured with Connect-IB.
            queue_pair_ns: 120,
            window_ns: 276, // One PCIe read.

            // 34.3 M UC and 35.6 M RC WRITEs: HERD, Fig. 3b; 35.9 M: ScaleRPC, Fig. 3a; 35 M: Kalia 2016, table 1.
            inbound_ps: 29_000,
            // 34 M: Kalia 2016, table 1.
            inbound_receive_ps: 29_000,
            // 21.8 M receives with payload in Kalia 2016, table 1, some 24 M in FaSST's calls, 30.4 M in ScaleRPC, Fig. 1b.
            inbound_payload_ps: 11_500,
            // 32.7 M RC WRITEs per second leave: Kalia 2016, Fig. 13.
            inbound_ack_ps: 4_500,
            // HERD, Fig. 5: unsignaled against signaled SENDs.
            completion_ps: 24_000,

            // 25.8 M incoming READs: Kalia 2016, table 1; 20 and 18.6 M with 128 and 256 B: HERD, Fig. 3b.
            read_request_ps: 38_000,
            read_request_byte_ps: 70,
            // 21.9 and 17.9 M outgoing READs with 64 and 256 B: HERD, Fig. 4b; 11.2 M in and out at once: FaSST,
            // section 3.3.
            read_response_ps: 43_500,
            read_response_byte_ps: 53,
            // 10 M READs of 232 B, 7 M of 264: FaSST's measured configurations.
            read_response_part_ps: 40_000,
            // 2.7 M, at one address or at many: Kalia 2016, table 1. The unit is busy as for a READ.
            atomic_ps: 39_000,
            atomic_lock_ps: 370_000,
            atomic_locks: 1,

            // 256 bytes (mlx4). With the reads below: FaSST's measured configurations, 40 to 720 queue pairs; HERD, Fig. 6.
            cache_lines: 328,
            context_lines: 4,
            // 22 more reads per WRITE if all contexts miss than if all hit: ScaleRPC, Fig. 3a.
            context_miss_reads: 6,
            // 4.6 more reads per WRITE with 40 queue pairs than with 10: ScaleRPC, Fig. 3a. Ten queue pairs for datagrams, whose
            // SENDs are read from memory, lose nothing: FaSST's calls.
            cached_send_queues: 16,
            send_queue_miss_reads: 8,
            // A window of 32 is up to 1.3 times as fast as one of 8: FaSST's measured configurations.
            turn_reads: 2,
            // No figure shows a loss, with up to 512 READs outstanding and at most 16 of a queue pair.
            cached_requests: 4_096,
            // 7.5 reads per READ at 11 M, 4.5 at 13 M: Kalia 2016, Fig. 13.
            request_miss_reads: 7,
            request_miss_ps: 50_000,

            // ScaleRPC, Fig. 3b: the knee is at 17 MB of blocks.
            ddio_pages: 4_300,
            // ScaleRPC, Fig. 3b; DRAM takes 60 to 120 ns (HERD, section 2).
            ddio_miss_ps: 128_000,

            // Two NIC crossings of some 200 ns, the switch, the cables. A READ then takes 2.1 us, between HERD's 2.52
            // (Fig. 2) and eRPC's 1.7 (table 2), just within 20 % of HERD's.
            wire_ns: 595,
            // 1 KiB WRITEs at 6.2 M: HERD, Fig. 3b.
            link_byte_ps: 153,
            // The same figure: the remaining time at 256 B.
            header_bytes: 30,
            mtu_bytes: 4096,
            landing_ns: 5,
        }
    }

    /// ConnectX-3 at 40 Gbit/s (QDR), of which 32 carry data.
    pub fn connectx3_qdr() -> Costs {
        Costs { link_byte_ps: 250, ..Costs::connectx3() }
    }
}
