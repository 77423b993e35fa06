//! `hybrid`: one connection that moves among backends while it is used.
//!
//! A connection has a lane, the client's end of a backend, and for a while a second one. New calls go over one of them; a call ends where
//! it began. Its choice measures how long calls take, tries other backends now and then, and stays where they take
//! least. No published system changes its RPC design while it runs; the systems among whose designs this one moves are named in the
//! modules of the backends.
//!
//! How a lane is opened is the caller's: over sockets by a thread, on a simulated rack in virtual time.

mod choice;
mod client;
mod lane;
mod planted;
#[cfg(test)]
mod tests;

pub use client::Hybrid;

use farcall_core::error::ConnectError;
use farcall_core::time::{Instant, PollAt};
use farcall_core::transport::{ClientTransport, LaneReason};

/// The name of the backends that a connection moves among, in addresses.
pub const NAME: &str = "hybrid";

/// Opens further lanes of one connection. Its ways are numbered; the client's first lane has one of them.
pub trait OpenLane: Send {
    /// The backends' names, by way.
    fn ways(&self) -> &[&'static str];

    /// Begins to open a lane, and says to the server why. The one before has been opened, or could not be.
    fn open(&mut self, way: usize, why: LaneReason);

    /// Does what can be done at `now`. When there is news without that, it wakes the thread at the site.
    fn poll(&mut self, now: Instant) -> Opening;
}

/// How far a lane is that is being opened.
#[must_use = "a lane that is not taken is lost"]
pub enum Opening {
    /// Poll again then.
    NotYet(PollAt),
    /// It has ended.
    Done(Result<Box<dyn ClientTransport>, ConnectError>),
}
