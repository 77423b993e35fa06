//! Memory that a server lends to its clients, who read, write, swap and count in it without a handler of the server's.
//!
//! The owner allocates a [`Region`] from its [`Memory`], and lends parts of it: a lend has rights, a borrower, and an end. What a client
//! gets is a [`Remote`], plain data that travels in messages and says which lend it means. Each operation is checked against
//! the [table of lends](grants) at the owner's end, so a value that was guessed or that is out of date gives an error and no access.
//!
//! An operation is [executed](Memory::execute) by the owner for a client that asks for it in a call, or one-sided, on a *lane*: a queue
//! pair of each end. The owner binds a memory window for each lend that a lane's client uses, and invalidates it to end the access.

mod backing;
mod batches;
mod client_lane;
mod error;
pub mod grants;
mod host;
mod host_lanes;
mod lane;
mod local_memory;
mod opening;
mod operation;
mod planted;
mod region;
mod remote;
mod revoking;
mod rights;
mod step;
mod unflushed;

pub use batches::{BatchId, Batches, LaneEnd, Taking};
pub use client_lane::{Atomics, ClientLane, Submitted};
pub use error::{BatchError, Counted, Denied, MemoryError};
pub use host::{AllocError, Memory, MemorySnapshot, OldestLend};
pub use lane::{LaneError, Window, lane_devices};
pub use opening::{BindingWindow, OpeningLane};
pub use operation::{
    Action, MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, MAX_OPERATION_BYTES, Operation, Outcome,
};
pub use region::Region;
pub use remote::Remote;
pub use revoking::Revoking;
pub use rights::{Borrower, Rights, Until, Who};
