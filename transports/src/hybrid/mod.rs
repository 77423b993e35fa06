//! `hybrid`: one connection that moves among backends while it is used.
//!
//! A connection has a lane, the client's end of a backend, and for a while a second one. New calls go over one of them; a call ends where
//! it began. Its choice measures how long calls take, tries other backends now and then, and stays where they take
//! least. No published system changes its RPC design while it runs; the systems among whose designs this one moves are named in the
//! modules of the backends.
//!
//! How a lane is opened is the caller's: over sockets by a thread, on a simulated rack in virtual time.

mod adviser;
mod budget;
mod choice;
mod client;
mod experience;
mod lane;
mod large;
mod meter;
mod moves;
mod noise;
mod pace;
mod planted;
mod sizes;
#[cfg(test)]
mod tests;
mod trust;

pub use adviser::{AdvisedWay, BySharedRate};
pub use client::Hybrid;

use farcall_core::error::ConnectError;
use farcall_core::time::{Instant, PollAt};
use farcall_core::transport::{ClientTransport, LaneReason};

/// The name of the backends that a connection moves among, in addresses.
pub const NAME: &str = "hybrid";

/// The ways that one connection may take, each a backend. They are numbered; the client's first lane has one of them.
#[derive(Clone, Debug, Default)]
pub struct Ways {
    ways: Vec<Way>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The name of the backend.
    pub name: &'static str,
    /// What it is called in a server's [advice](farcall_core::transport::advice_in); not 0.
    pub number: u8,
    /// Most slots that a lane of it has.
    pub slots: u32,
}

impl Ways {
    /// These.
    pub fn new(ways: Vec<Way>) -> Ways {
        Ways { ways }
    }

    fn len(&self) -> usize {
        self.ways.len()
    }

    fn name(&self, way: usize) -> &'static str {
        self.ways.get(way).map_or("?", |way| way.name)
    }

    fn most_slots(&self) -> u32 {
        self.ways.iter().map(|way| way.slots).max().unwrap_or(1)
    }

    fn advised(&self, number: u8) -> Option<usize> {
        self.ways.iter().position(|way| way.number == number)
    }
}

/// Opens further lanes of one connection.
pub trait OpenLane: Send {
    /// The ways that they may have.
    fn ways(&self) -> &Ways;

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
