//! The NIC's processing of each message.

use super::cache::{Arrival, Cache, Line, Requests};
use super::costs::Costs;
use super::pages::Pages;
use super::unit::{Unit, ns, ps};

/// One NIC: its units and caches.
#[derive(Debug, Default)]
pub(in crate::sim) struct Nic {
    mmio: Unit,
    reader: Unit,
    outbound: Unit,
    link: Unit,
    arriving: Unit,
    inbound: Unit,
    reads: Unit,
    pcie_writes: Unit,
    atomic_locks: Vec<Unit>,
    cache: Cache,
    send_queues: Cache,
    requests: Requests,
    pages: Pages,
    counters: NicCounters,
}

/// Performance counters of a NIC since its node was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NicCounters {
    /// Messages of others that were executed: requests, and responses of READs and atomics.
    pub messages_in: u64,
    /// Cache lines read over PCIe.
    pub pcie_reads: u64,
    /// Cache lines written over MMIO.
    pub mmio_lines: u64,
    /// Lines of contexts and work requests that were not in the NIC's cache.
    pub cache_misses: u64,
    /// Pages written to that were not in the last-level cache.
    pub ddio_misses: u64,
}

/// An outgoing work request.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) struct Work {
    /// Its length in cache lines.
    pub(in crate::sim) lines: u64,
    /// Whether the CPU pushed it over MMIO.
    pub(in crate::sim) pushed: bool,
    /// Whether it is the last of its doorbell.
    pub(in crate::sim) last: bool,
    /// Bytes of its message that are not inline.
    pub(in crate::sim) fetched: u64,
    pub(in crate::sim) datagram: bool,
}

/// The processing of an incoming message.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) enum Inbound {
    Write,
    /// It uses a receive.
    Receive,
    /// A READ of this many bytes.
    ReadRequest(u64),
    /// An atomic at this address.
    Atomic(u64),
    /// A response of this many bytes.
    Response(u64),
}

/// When a message has left, and when it reaches the other NIC.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) struct Sent {
    pub(in crate::sim) gone_ns: u64,
    pub(in crate::sim) arrives_ns: u64,
}

/// Cache lines of a work request in the layout of mlx4 and mlx5: a control segment of 16 bytes; for UD an
/// address of 48; a remote address of 16, and 16 more for an atomic; inline bytes with 4 bytes of length, or
/// 16 bytes that refer to memory.
pub(in crate::sim) fn wqe_lines(
    datagram: bool,
    remote: bool,
    atomic: bool,
    inline: Option<usize>,
) -> u8 {
    let segments =
        16 + 48 * usize::from(datagram) + 16 * usize::from(remote) + 16 * usize::from(atomic);
    let data = match inline {
        Some(0) => 0,
        Some(len) => 4 + len,
        None => 16,
    };
    (segments + data).div_ceil(LINE_BYTES) as u8
}

/// Lines of the binding of a memory window in the layout of mlx5: a control segment of 16 bytes, the update's of 48, the key's
/// of 64, and 64 for the memory.
pub(in crate::sim) const BIND_LINES: u8 = 3;

/// Lines of an invalidation: the same without the memory.
pub(in crate::sim) const INVALIDATE_LINES: u8 = 2;

const LINE_BYTES: usize = 64;

/// The most bytes of one read over PCIe.
const READ_BYTES: u64 = 512;

/// The most bytes of one write over PCIe.
const PCIE_PAYLOAD_BYTES: u64 = 256;

/// The fewest lines that the NIC reads for a work request: 128 bytes, the read completion boundary.
const FETCHED_LINES: u64 = 2;

impl Nic {
    /// Creates a node's NIC with its own random generator.
    pub(in crate::sim) fn new(seed: u64) -> Nic {
        Nic { cache: Cache::new(seed), send_queues: Cache::new(!seed), ..Nic::default() }
    }

    #[inline]
    pub(in crate::sim) fn count_message(&mut self) {
        self.counters.messages_in += 1;
    }

    pub(in crate::sim) fn counters(&self) -> NicCounters {
        self.counters
    }

    /// The `lines` of a doorbell, and of a work request that the CPU has pushed with it, come now if no others were before them.
    /// Returns when they do.
    ///
    /// It is called when they come and not when they are sent: a turn of a core sends them in the future, and lines of other cores
    /// may be first.
    #[inline]
    pub(in crate::sim) fn take_doorbell(&mut self, costs: &Costs, now_ns: u64, lines: u8) -> u64 {
        self.counters.mmio_lines += u64::from(lines);
        ns(self.mmio.take_arriving(ps(now_ns), u64::from(lines) * costs.mmio_line_ps))
    }

    /// Looks up what is needed to send a work request: its queue pair's context, unless the NIC has just read it, where the
    /// send queue is, unless the request was pushed, and a READ or an atomic that was. `Some`: something is missing until this
    /// time.
    #[inline]
    pub(in crate::sim) fn find_to_send(
        &mut self,
        costs: &Costs,
        now_ns: u64,
        qp: u32,
        context: Option<&mut Context>,
        pushed: bool,
        read: Option<&mut Arrival>,
    ) -> Option<u64> {
        let mut reads = 0;
        if let Some(context) = context {
            reads += self.touch_context(costs, qp, context, !pushed);
        }
        if let Some(arrival) = read
            && !self.requests.has(*arrival, costs.cached_requests)
        {
            self.requests.insert(arrival);
            self.counters.cache_misses += 1;
            self.reads.take(ps(now_ns), costs.request_miss_ps);
            reads += costs.request_miss_reads;
        }
        (reads > 0).then(|| self.load(costs, now_ns, reads))
    }

    /// The reads for the missing lines of a context, and if wanted of its send queue.
    #[inline]
    fn touch_context(
        &mut self,
        costs: &Costs,
        qp: u32,
        context: &mut Context,
        with_queue: bool,
    ) -> u64 {
        let mut missed = 0;
        for (index, line) in context.lines.iter_mut().enumerate() {
            if index < usize::from(costs.context_lines) || (with_queue && index >= SEND_QUEUE) {
                let found = self.cache.touch(line, context_name(qp, index), costs.cache_lines);
                missed += u64::from(!found);
            }
        }
        let mut reads = missed * costs.context_miss_reads;
        let send_queue = &mut context.send_queue;
        if with_queue && !self.send_queues.touch(send_queue, qp.into(), costs.cached_send_queues) {
            missed += 1;
            reads += costs.send_queue_miss_reads;
        }
        self.counters.cache_misses += missed;
        reads
    }

    /// Reads missing lines over PCIe. Returns when they are there.
    #[cold]
    fn load(&mut self, costs: &Costs, now_ns: u64, reads: u64) -> u64 {
        self.counters.pcie_reads += reads;
        ns(self.reader.take(ps(now_ns), reads * costs.pcie_read_ps)) + costs.pcie_read_ns
    }

    /// When all other queue pairs have had their turn: those that send, and, if this one waited for its context,
    /// those that wait for theirs.
    #[inline]
    pub(in crate::sim) fn next_turn(&self, now_ns: u64, context_read: bool) -> u64 {
        let now_ps = ps(now_ns);
        let mut wait_ps = self.outbound.backlog(now_ps);
        if context_read {
            wait_ps = wait_ps.max(self.reader.backlog(now_ps));
        }
        now_ns + ns(wait_ps)
    }

    /// Keeps a READ or an atomic until later ones replace it.
    #[inline]
    pub(in crate::sim) fn keep(&mut self, arrival: &mut Arrival) {
        self.requests.insert(arrival);
    }

    /// When the NIC has a work request and its bytes, and may send it.
    #[inline]
    pub(in crate::sim) fn send(&mut self, costs: &Costs, now_ns: u64, work: Work) -> u64 {
        let Work { lines, pushed, last, fetched, datagram } = work;
        let mut for_ps = match datagram {
            true => costs.outbound_datagram_ps,
            false => costs.outbound_ps,
        };
        for_ps += (lines - 1) * costs.outbound_line_ps;
        if pushed && fetched == 0 {
            return ns(self.outbound.take(ps(now_ns), for_ps));
        }
        let (mut reads, mut wait_ns) = (0, 0);
        if !pushed {
            // If more follow, the second line is the next request's.
            let read_lines = if last { lines.max(FETCHED_LINES) } else { lines };
            reads += read_lines;
            self.counters.pcie_reads += read_lines;
            wait_ns += costs.pcie_read_ns;
        }
        if fetched > 0 {
            reads += fetched.div_ceil(READ_BYTES);
            self.counters.pcie_reads += fetched.div_ceil(LINE_BYTES as u64);
            for_ps += costs.outbound_fetch_ps + fetched * costs.outbound_fetch_byte_ps;
            wait_ns += costs.pcie_read_ns;
        }
        let read_ps = self.reader.take(ps(now_ns), reads * costs.pcie_read_ps);
        ns(self.outbound.take(ps(now_ns), for_ps).max(read_ps)) + wait_ns
    }

    /// When a message of `len` bytes leaves and arrives. Messages to the same NIC use no wire.
    #[inline]
    pub(in crate::sim) fn transmit(
        &mut self,
        costs: &Costs,
        now_ns: u64,
        len: u64,
        to_itself: bool,
    ) -> Sent {
        if to_itself {
            return Sent { gone_ns: now_ns, arrives_ns: now_ns };
        }
        let gone_ns = ns(self.link.take(ps(now_ns), costs.link_ps(len)));
        // The switch stores a packet before it forwards it.
        let stored_ns = ns(costs.link_ps(len.min(costs.mtu_bytes)));
        Sent { gone_ns, arrives_ns: gone_ns + costs.wire_ns + stored_ns }
    }

    /// When a message of `len` bytes that has just arrived is executed: its bytes are in memory, or the bytes
    /// that it requests are looked up.
    #[inline]
    pub(in crate::sim) fn deliver(
        &mut self,
        costs: &Costs,
        now_ns: u64,
        len: u64,
        what: Inbound,
        to_itself: bool,
    ) -> u64 {
        let mut now_ps = ps(now_ns);
        if !to_itself {
            now_ps = self.arriving.take_arriving(now_ps, costs.link_ps(len));
        }
        match what {
            Inbound::Write => self.write(costs, now_ps, len, costs.inbound_ps),
            Inbound::Receive => {
                let payload_ps = if len > 0 { costs.inbound_payload_ps } else { 0 };
                self.write(costs, now_ps, len, costs.inbound_receive_ps + payload_ps)
            }
            Inbound::ReadRequest(asked) => {
                let for_ps = costs.read_request_ps + asked * costs.read_request_byte_ps;
                self.counters.pcie_reads += asked.div_ceil(LINE_BYTES as u64);
                ns(self.reads.take(now_ps, for_ps))
            }
            Inbound::Atomic(address) => {
                let locks = costs.atomic_locks.max(1) as usize;
                if self.atomic_locks.len() < locks {
                    self.atomic_locks.resize(locks, Unit::default());
                }
                let lock = &mut self.atomic_locks[address as usize % locks];
                let locked_ps = lock.take(now_ps, costs.atomic_lock_ps);
                ns(self.reads.take(now_ps, costs.atomic_ps).max(locked_ps))
            }
            Inbound::Response(len) => {
                let parts = len.div_ceil(PCIE_PAYLOAD_BYTES).max(1) - 1;
                let for_ps = costs.read_response_ps
                    + parts * costs.read_response_part_ps
                    + len * costs.read_response_byte_ps;
                let unit_ps = self.reads.take(now_ps, for_ps);
                ns(unit_ps + len * costs.pcie_write_byte_ps) + costs.pcie_write_ns
            }
        }
    }

    /// When the bytes that a READ or an atomic requests now are in the NIC.
    #[inline]
    pub(in crate::sim) fn read_memory(&mut self, costs: &Costs, now_ns: u64) -> u64 {
        let spread_ns = match costs.read_memory_spread_ns as u32 {
            0 => 0,
            most_ns => self.cache.below(most_ns),
        };
        now_ns + costs.read_memory_ns + u64::from(spread_ns)
    }

    #[inline]
    fn write(&mut self, costs: &Costs, now_ps: u64, len: u64, for_ps: u64) -> u64 {
        let unit_ps = self.inbound.take(now_ps, for_ps);
        let pcie_ps = self.pcie_writes.take(now_ps, len * costs.pcie_write_byte_ps);
        ns(unit_ps.max(pcie_ps)) + costs.pcie_write_ns
    }

    /// Accounts for a WRITE to `offset` of the node's memory. It is posted, so a miss in the last-level cache
    /// only delays those behind it.
    #[inline]
    pub(in crate::sim) fn record_write(
        &mut self,
        costs: &Costs,
        now_ns: u64,
        offset: u64,
        len: u64,
    ) {
        let missed = self.pages.write(offset, len, costs.ddio_pages);
        if missed > 0 {
            self.counters.ddio_misses += missed;
            self.inbound.take(ps(now_ns), missed * costs.ddio_miss_ps);
        }
    }

    /// A READ or an atomic needs the responder's part of its queue pair's context. Returns when it is there.
    #[inline]
    pub(in crate::sim) fn find_to_respond(
        &mut self,
        costs: &Costs,
        now_ns: u64,
        qp: u32,
        context: &mut Context,
    ) -> u64 {
        let reads = self.touch_context(costs, qp, context, false);
        if reads > 0 { self.load(costs, now_ns, reads) } else { now_ns }
    }

    /// A response needs its work request and its queue pair's context. Returns when both are there.
    #[inline]
    pub(in crate::sim) fn find_for_response(
        &mut self,
        costs: &Costs,
        now_ns: u64,
        qp: u32,
        context: &mut Context,
        request: Arrival,
    ) -> u64 {
        let mut reads = self.touch_context(costs, qp, context, false);
        if !self.requests.has(request, costs.cached_requests) {
            self.counters.cache_misses += 1;
            reads += costs.request_miss_reads;
            self.reads.take(ps(now_ns), costs.request_miss_ps);
        }
        if reads > 0 { self.load(costs, now_ns, reads) } else { now_ns }
    }

    /// When an answer sent now reaches the other NIC.
    #[inline]
    pub(in crate::sim) fn answer(&mut self, costs: &Costs, now_ns: u64, to_itself: bool) -> u64 {
        let sent_ns = ns(self.outbound.take(ps(now_ns), costs.outbound_ack_ps));
        self.transmit(costs, sent_ns, 0, to_itself).arrives_ns
    }

    /// Handles an arriving answer. Returns when the inbound unit begins with it, if it was busy.
    #[inline]
    pub(in crate::sim) fn process_answer(&mut self, costs: &Costs, now_ns: u64) -> u64 {
        let wait_ps = self.inbound.backlog(ps(now_ns));
        self.inbound.take(ps(now_ns), costs.inbound_ack_ps);
        now_ns + ns(wait_ps)
    }

    /// Writes the completion of a signaled work request.
    #[inline]
    pub(in crate::sim) fn complete(&mut self, costs: &Costs, now_ns: u64) {
        self.inbound.take(ps(now_ns), costs.completion_ps);
    }
}

/// The cache locations of a queue pair's context lines, and of what the NIC needs to read its requests from memory.
#[derive(Debug, Default)]
pub(in crate::sim) struct Context {
    lines: [Line; SEND_QUEUE + SEND_QUEUE_LINES],
    /// In the cache of send queues.
    send_queue: Line,
}

/// The line after those of the context itself.
const SEND_QUEUE: usize = 6;

/// The lines among those of contexts that the NIC needs to read a queue pair's requests from memory: its doorbell record.
/// The address translation of its send queue is in the cache of send queues.
const SEND_QUEUE_LINES: usize = 1;

#[inline]
fn context_name(qp: u32, index: usize) -> u64 {
    u64::from(qp) << 32 | index as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_bounds_the_bytes_per_second() {
        let (costs, mut nic) = (Costs::connectx5(), Nic::default());
        let mut last = 0;
        for _ in 0..1000 {
            last = nic.transmit(&costs, 0, 1 << 20, false).gone_ns;
        }
        let bits_per_ns = (1000_u64 << 23) as f64 / last as f64;
        assert!((90.0..100.0).contains(&bits_per_ns), "{bits_per_ns} Gbit/s");
    }

    /// The sizes of HERD, Fig. 4b, at which one more line is pushed.
    #[test]
    fn work_requests_have_as_many_lines_as_the_published_steps() {
        let write = |len| wqe_lines(false, true, false, Some(len));
        assert_eq!([28, 29, 92, 93, 156].map(write), [1, 2, 2, 3, 3]);
        let datagram = |len| wqe_lines(true, false, false, Some(len));
        assert_eq!([0, 1, 60, 61].map(datagram), [1, 2, 2, 3]);
        assert_eq!(wqe_lines(false, true, false, None), 1, "a READ");
    }
}
