//! The server: threads that each poll their own connections and run handlers in place.
//!
//! One turn of a thread: poll the transport, which hands each request to its service's dispatcher; run the `async`
//! handlers that were woken; flush, so that all replies of the turn leave with one doorbell. A thread shares nothing
//! with the others but its counters, which it alone writes.

mod builder;
mod context;
mod control;
mod desk;
mod driven;
mod executor;
mod pool;
mod reply;
mod running;
mod table;
mod thread;
mod turn;

#[cfg(test)]
mod swarm;
#[cfg(test)]
mod tests;

pub use builder::{CancelPolicy, ReadAddress, Server, ServerBuilder};
pub use context::CallContext;
pub use driven::DrivenServer;
pub use reply::Reply;
pub use running::{Drained, RunningServer};
pub use thread::ServerThread;
