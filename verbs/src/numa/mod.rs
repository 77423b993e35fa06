//! Cores, memory and NICs of a machine whose parts are not equally far from each other (NUMA).
//!
//! A NIC is attached to one of the machine's nodes. A thread on another node reaches it, and the memory next to it, over the link between
//! the nodes: each doorbell, completion and message then takes longer. [`Layout`] says which cores and devices belong to which node,
//! and [`Pinning`] chooses cores for threads. What a device allocates for its user, which are regions, queue pairs and
//! completion queues, is placed on the device's node if the machine has several, unless the thread has a memory policy already, as under
//! `numactl`. The kernel may use another node when that one has no memory left.

mod layout;
mod memory;
mod pinning;

pub use layout::{Layout, Node};
pub(crate) use memory::PreferredNode;
pub use pinning::{Pinning, PinningError, pin_this_thread};
