//! The NIC's timing model, the only source of times for the rest of the simulator.
//!
//! # The model
//! A NIC consists of units. Each does one thing at a time, in order of arrival; work queues up if more
//! arrives than a unit can do. Everything else is a delay. The time of each unit's operations, and every
//! delay, is one of [`Costs`].
//!
//! 1. *Doorbell.* The CPU pushes a single short work request over MMIO, by the cache line (BlueFlame). For a
//!    list or a long work request, it writes a doorbell, and the NIC reads the work requests over PCIe. Both
//!    are limited by lines per second.
//! 2. *Context.* The NIC looks up the queue pair's context in its cache, and, to read its work requests from memory, its
//!    send queue in a smaller cache. What is missing, the PCIe read unit reads, at a limited number of reads per second. The
//!    waiting requests of a queue pair share one read of its context, except that few READs do.
//! 3. *Out.* The outbound unit processes the work request, and its bytes that are not inline, which it reads
//!    over PCIe. A queue pair uses only one of several processing units, so that alone it is slower than the
//!    NIC.
//! 4. *Link*, for the bytes and the headers of each packet: at the sender's port, and again at the
//!    receiver's, where many senders may meet.
//! 5. *In.* The inbound unit writes to memory (a WRITE), or to memory and the completion queue (a message
//!    that uses a receive). READs have a separate unit, as the responder's half and the requester's half
//!    exclude one another; atomics have locks. A WRITE into a page that is not in the last-level cache waits
//!    for memory (DDIO).
//! 6. *Acknowledgement*, which uses the responder's outbound unit and link, and the requester's inbound unit.
//!    For the response of a READ or an atomic, the requester looks up its context again, and the work request in a buffer.
//! 7. *Completion*, written over PCIe by the inbound unit, unless it is unsignaled.
//!
//! An incoming WRITE needs nothing that is cached: WRITEs into a server are as fast with 800 and more queue pairs
//! as with one (ScaleRPC, Fig. 1b; HERD, section 3.3). A responder to READs and atomics records each of them until
//! it is answered (mlx4 keeps these records in host memory, in the table of RDMARC entries), and therefore needs the
//! context: among FaSST's machines, which read from each other, a READ costs three times the PCIe reads of
//! ScaleRPC's WRITE.
//!
//! # Memory windows
//! A binding or an invalidation is a work request that ends in the requester's outbound unit. The queue pair starts the next one
//! when the key has changed, [`window_ns`](Costs::window_ns) later.
//!
//! # Replacement
//! A cache consists of sets of 8 lines; a line replaces a random one of its set. The buffer of READs and atomics keeps those that
//! arrived last. Both have a soft knee: the caches in the number of queue pairs, the buffer in the number of outstanding requests.
//!
//! # One state
//! A rate must not depend on how the programs happened to start. If a request costs more the more of them wait, a rate has two
//! states: requests that wait at the start, for contexts, make the NIC so slow that they wait forever. So what a WRITE or a SEND
//! costs depends on the number of queue pairs, and not on the number of requests that wait: those that the CPU has pushed stay in
//! the NIC until they are sent (HERD: 26 M/s with 300 clients that have 16 outstanding each), and all that wait are sent once the
//! context is there. Only READs of which more wait than one queue pair may have outstanding are read again (Kalia 2016, Fig. 13).
//! The figures' grid tests it for each NIC.
//!
//! The model uses picoseconds, as a small message occupies a unit for a few nanoseconds.

mod cache;
mod connect_ib;
mod connectx3;
mod connectx5;
mod costs;
mod doorbell;
mod pages;
mod unit;
mod work;

pub use costs::Costs;
pub use work::NicCounters;

pub(super) use cache::Arrival;
pub(super) use doorbell::Doorbells;
pub(super) use work::{BIND_LINES, Context, INVALIDATE_LINES, Inbound, Nic, Sent, Work, wqe_lines};
