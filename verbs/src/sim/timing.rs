//! When each step of a work request is done: the one place that the rest of the simulator asks.
//!
//! The model is a simple one. Every node has an outbound unit, an inbound unit and a link, each of which does
//! one thing at a time, in the order of asking; all else is a constant delay. A work request takes
//!
//! 1. `mmio_ns` from the doorbell to the NIC,
//! 2. the outbound unit, and `pcie_read_ns` if its bytes are not inline,
//! 3. the link of its node, for its bytes and the headers of its packets, then `wire_ns`,
//! 4. the inbound unit of the other node, and `pcie_write_ns` to memory and completion queue (a READ:
//!    `pcie_read_ns` from memory, and the link back),
//! 5. `wire_ns` for the acknowledgement, and `pcie_write_ns` for the initiator's completion.
//!
//! Picoseconds inside, as a small message takes a few nanoseconds of a unit.

/// What things cost. The default is in the range of a 100 Gbit/s RoCE NIC of the year 2017 on PCIe 3.0 x16;
/// it is not calibrated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Costs {
    /// CPU: building one work request.
    pub post_ns: u64,
    /// CPU: ringing a doorbell.
    pub doorbell_ns: u64,
    /// CPU: one poll of a completion queue.
    pub poll_ns: u64,
    /// CPU: one completion taken from it.
    pub completion_ns: u64,
    /// CPU: one cell looked at by an actor, as its turn tells.
    pub scan_ns: u64,
    /// From the CPU's doorbell to the NIC.
    pub mmio_ns: u64,
    /// A read over PCIe.
    pub pcie_read_ns: u64,
    /// A write over PCIe.
    pub pcie_write_ns: u64,
    /// Picoseconds of PCIe for each byte, either way.
    pub pcie_byte_ps: u64,
    /// The outbound unit, for one work request, in picoseconds.
    pub outbound_ps: u64,
    /// The inbound unit, for one message, in picoseconds.
    pub inbound_ps: u64,
    /// From one NIC to the other.
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
        Costs {
            post_ns: 20,
            doorbell_ns: 40,
            poll_ns: 10,
            completion_ns: 10,
            scan_ns: 2,
            mmio_ns: 150,
            pcie_read_ns: 400,
            pcie_write_ns: 200,
            pcie_byte_ps: 80,
            outbound_ps: 15_000,
            inbound_ps: 10_000,
            wire_ns: 250,
            link_byte_ps: 80,
            header_bytes: 60,
            mtu_bytes: 4096,
            landing_ns: 5,
        }
    }
}

/// One NIC's units: until when each is taken, in picoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nic {
    outbound_ps: u64,
    inbound_ps: u64,
    link_ps: u64,
}

/// When a message has left, and when it comes to the other NIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) gone_ns: u64,
    pub(super) arrives_ns: u64,
}

/// Takes a unit from `from_ns` on for `for_ps`, as soon as it is free; when it is free again.
#[inline]
fn take(free_ps: &mut u64, from_ns: u64, for_ps: u64) -> u64 {
    *free_ps = (*free_ps).max(from_ns.saturating_mul(1000)) + for_ps;
    free_ps.div_ceil(1000)
}

impl Costs {
    /// When the NIC hears of a doorbell that the CPU rings now.
    #[inline]
    pub(super) fn doorbell(&self, now_ns: u64) -> u64 {
        now_ns + self.mmio_ns
    }

    /// When the NIC has a work request, and the `fetched` bytes of its message that were not inline.
    #[inline]
    pub(super) fn fetch(&self, nic: &mut Nic, now_ns: u64, fetched: u64) -> u64 {
        let for_ps = self.outbound_ps + fetched * self.pcie_byte_ps;
        let done_ns = take(&mut nic.outbound_ps, now_ns, for_ps);
        if fetched > 0 { done_ns + self.pcie_read_ns } else { done_ns }
    }

    /// Nanoseconds of the link for a message.
    #[inline]
    pub(super) fn link_ns(&self, len: u64) -> u64 {
        (self.link_ps(len)).div_ceil(1000)
    }

    #[inline]
    fn link_ps(&self, len: u64) -> u64 {
        let packets = len.div_ceil(self.mtu_bytes.max(1)).max(1);
        (len + packets * self.header_bytes) * self.link_byte_ps
    }

    /// When a message of `len` bytes leaves, and comes; to the NIC itself it needs no wire.
    #[inline]
    pub(super) fn transmit(&self, nic: &mut Nic, now_ns: u64, len: u64, to_itself: bool) -> Sent {
        if to_itself {
            return Sent { gone_ns: now_ns, arrives_ns: now_ns };
        }
        let gone_ns = take(&mut nic.link_ps, now_ns, self.link_ps(len));
        Sent { gone_ns, arrives_ns: gone_ns + self.wire_ns }
    }

    /// When a message of `len` bytes that has just come is carried out: its bytes are in memory.
    #[inline]
    pub(super) fn deliver(&self, nic: &mut Nic, now_ns: u64, len: u64) -> u64 {
        let for_ps = self.inbound_ps + len * self.pcie_byte_ps;
        take(&mut nic.inbound_ps, now_ns, for_ps) + self.pcie_write_ns
    }

    /// When the NIC has the first bytes of memory that a READ or an atomic asks for; the others come as
    /// fast as the link takes them.
    #[inline]
    pub(super) fn look_up(&self, now_ns: u64) -> u64 {
        now_ns + self.pcie_read_ns
    }

    /// When an answer given now is known at the other side, in its completion queue if it is about that.
    /// Answers are so short that they take no unit.
    #[inline]
    pub(super) fn answer(&self, now_ns: u64, to_itself: bool) -> u64 {
        now_ns + if to_itself { 0 } else { self.wire_ns } + self.pcie_write_ns
    }

    /// When the completion of an unreliable message that leaves at `gone_ns` is in its queue.
    #[inline]
    pub(super) fn completion(&self, gone_ns: u64) -> u64 {
        gone_ns + self.pcie_write_ns
    }

    /// How long a WRITE that lands in `chunks` pieces takes to land.
    #[inline]
    pub(super) fn landing(&self, chunks: u64) -> u64 {
        chunks * self.landing_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_does_one_thing_at_a_time() {
        let (costs, mut nic) = (Costs::default(), Nic::default());
        let first = costs.fetch(&mut nic, 1000, 0);
        let second = costs.fetch(&mut nic, 1000, 0);
        assert_eq!(second - first, costs.outbound_ps / 1000);
        assert_eq!(costs.fetch(&mut nic, 5000, 0), 5000 + costs.outbound_ps / 1000, "free again");
    }

    #[test]
    fn the_link_bounds_the_bytes_per_second() {
        let (costs, mut nic) = (Costs::default(), Nic::default());
        let mut last = 0;
        for _ in 0..1000 {
            last = costs.transmit(&mut nic, 0, 1 << 20, false).gone_ns;
        }
        let bits_per_ns = (1000_u64 << 23) as f64 / last as f64;
        assert!((90.0..100.0).contains(&bits_per_ns), "{bits_per_ns} Gbit/s");
    }
}
