//! The server: threads that each poll their own connections and run handlers in place.
//!
//! One turn of a thread: poll its transports, which hand each request to the dispatcher of its service; run the `async`
//! handlers that were woken; flush, so that all replies of the turn leave with one doorbell. Threads share nothing but
//! counters, and each counter is written by one thread only; except in a server whose threads
//! [steal](ServerBuilder::work_stealing).

mod advising;
mod backlog;
mod buffers;
mod builder;
mod call_index;
mod clients;
mod context;
mod control;
mod deferred;
mod dispatcher;
mod driven;
mod executor;
mod health;
mod lost;
mod panics;
mod paths;
mod pool;
mod quota;
mod recovery;
mod reply;
mod run_times;
mod running;
mod settings;
mod stealing;
mod table;
mod thread;
mod turn;

#[cfg(test)]
mod cancel_floods;
#[cfg(test)]
mod idempotence;
#[cfg(test)]
mod swarm;
#[cfg(test)]
mod tests;

pub use builder::{CancelPolicy, Server, ServerBuilder};
pub use context::CallContext;
pub use driven::DrivenServer;
pub use quota::ClientQuota;
pub use reply::Reply;
pub use running::{Drained, RunningServer};
pub use thread::ServerThread;
