//! The client for any executor and for blocking callers: an I/O thread drives its connection.
//!
//! A call is written into a *job*, a box that travels: from the caller through a lock-free queue to the I/O thread,
//! which copies the arguments into a slot of the transport and sends them, and back through the job's *ticket* with the
//! answer. Jobs are reused, so the steady state allocates nothing. When the server is gone, the I/O thread dials again at
//! the next call.

mod block;
mod call;
mod connecting;
mod driven;
mod driver;
mod endpoint;
mod handle;
mod io;
mod job;
mod options;
mod redial;
mod shared;
mod thread;

#[cfg(test)]
mod tests;

pub use call::Call;
pub use connecting::{Connecting, Dialling};
pub use driven::ChannelDriver;
pub use endpoint::Endpoint;
pub use handle::Channel;
pub use options::{ChannelOptions, ReconnectPolicy};
