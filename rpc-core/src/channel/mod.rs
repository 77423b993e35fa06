//! The client for any executor, and for blocking callers: a connection driven by a thread of its own.
//!
//! A call is written into a *job*, a box that travels: from the caller through a lock-free queue to the I/O thread,
//! which sends it, and back through the job's *ticket* with the answer. Jobs are used again, so that the steady state
//! allocates nothing. When the server is gone the I/O thread dials again at the next call.

mod block;
mod call;
mod driven;
mod driver;
mod handle;
mod job;
mod options;
mod redial;
mod shared;
mod thread;

#[cfg(test)]
mod tests;

pub use call::Call;
pub use driven::ChannelDriver;
pub use handle::Channel;
pub use options::{ChannelOptions, ReconnectPolicy};
