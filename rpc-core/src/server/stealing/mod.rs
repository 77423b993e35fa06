//! Work stealing: idle threads run requests of a thread that is behind.
//!
//! A thread answers its own clients. When it has a request that would hold the others up, because its method takes long or
//! because the turn has lasted long already, and another thread is idle, it gives the request to that thread: it copies the
//! request into the other's inbox. The other runs it as a request of its own, and gives the answer back; only the first
//! thread touches the client's connection. Answers so come in any order, and copied once more each way.
//!
//! DaRPC (SoCC 2014) lets idle threads take requests out of a loaded thread's queue. A thread here runs handlers as it finds
//! their requests, so only it knows which have not begun: it must give.

mod giver;
mod shared;
mod taker;

pub(super) use giver::{Giver, Returned};
pub(super) use shared::Shared;
pub(super) use taker::Taker;

/// A handler that runs as long as this holds up its thread: giving a request away costs some 1 us, and a thread that sleeps
/// wakes in some 10 us.
const LONG_NS: u64 = 20_000;
