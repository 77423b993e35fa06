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
//! 2. *Context.* The NIC looks up the queue pair's context in its cache, and keeps the work request in a
//!    buffer. What is missing, the PCIe read unit reads again, at a limited number of reads per second. Several
//!    waiting requests of a queue pair share one read of its context.
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
//!    The requester looks up the work request in its buffer again, and for a READ's response also the context.
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
//! The context cache consists of sets of 8 lines; a line replaces a random one of its set. The buffer of work
//! requests keeps those that arrived last. It has a sharp knee, in the number of outstanding requests; the cache of
//! contexts has a soft one, in the number of queue pairs.
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
pub(super) use work::{BIND_LINES, Context, INVALIDATE_LINES, Inbound, Nic, Work, wqe_lines};
