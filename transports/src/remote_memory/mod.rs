//! Memory that a server lends to its clients, who read, write, swap and count in it without a handler of the server's.
//!
//! The owner allocates a [`Region`] from its [`Memory`], and lends parts of it: a lend has rights, a borrower, and an end. What a client
//! gets is a [`Remote`], plain data that travels in messages and says which lend it means. Each operation is checked against
//! the [table of lends](grants) at the owner's end, so a value that was guessed or that is out of date gives an error and no access.
//!
//! This module has the owner's end, and the errors that both ends share. How an operation travels is not its concern.

mod error;
pub mod grants;
mod host;
mod operation;
mod region;
mod remote;
mod rights;

pub use error::{BatchError, Counted, Denied, MemoryError};
pub use host::{AllocError, Memory, MemorySnapshot};
pub use operation::{
    Action, MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, MAX_OPERATION_BYTES, Operation, Outcome,
};
pub use region::Region;
pub use remote::Remote;
pub use rights::{Borrower, Rights, Until};
