//! When each step of a work request is done: the one place that the rest of the simulator asks.
//!
//! # The model
//! A NIC is made of units. Each does one thing at a time, in the order of asking; work queues up where more is asked than
//! a unit can do. All else is a delay. What a unit takes for a thing, and every delay, is one of [`Costs`].
//!
//! 1. *Doorbell.* The CPU pushes a single short work request over MMIO, by the cache line (BlueFlame); for a list, or a long
//!    one, it writes a doorbell, and the NIC reads the work requests over PCIe. Either is bounded by lines per second.
//! 2. *Context.* The NIC looks for the queue pair's context in its cache, and keeps the work request there. What was replaced
//!    is read again over PCIe, by the reader, which does so many reads per second.
//! 3. *Out.* The outbound unit takes the work request, and the bytes that are not inline, which it reads over PCIe. A queue pair
//!    stays on one of several processing units, so that alone it is slower than the NIC.
//! 4. *Link*, for the bytes and the headers of each packet; there, and at the other side again, where many may meet.
//! 5. *In.* The inbound unit writes to memory (a WRITE), or to memory and to the completion queue (a message that meets
//!    a receive). READs have a unit of their own, as the responder's half and the requester's half exclude one another;
//!    atomics have locks.
//!    A WRITE into a page that is not in the last-level cache waits for memory (DDIO).
//! 6. *Acknowledgement*, which takes its share of the responder's outbound unit and link, and of the requester's inbound unit. The
//!    requester looks for the work request in its cache again, and for a READ's response for the context too.
//! 7. *Completion*, written over PCIe by the inbound unit, unless it is unsignaled.
//!
//! The responder's part of a context is never missed: WRITEs into a server are as fast with 800 and more queue pairs as with
//! one (ScaleRPC, Fig. 1b; HERD, section 3.3).
//!
//! Picoseconds inside, as a small message takes a few nanoseconds of a unit.

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

pub(super) use cache::Line;
pub(super) use doorbell::Doorbells;
pub(super) use work::{Context, Inbound, Nic, Work, wqe_lines};
