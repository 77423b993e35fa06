//! What a backend runs on, and where.

use std::sync::Arc;

use farcall_core::site::Site;
use farcall_verbs::Device;

use super::{ClientLimits, Config, SetupError, SharedClock, ThreadPlaces};

/// What a backend runs on.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Fabric<'a> {
    /// A verbs device.
    Verbs(&'a Device),
    /// A byte stream, and no device at all.
    Stream,
}

impl<'a> Fabric<'a> {
    /// The device.
    ///
    /// # Errors
    /// [`SetupError::Unsupported`] if the fabric is a stream; `backend` names who asks.
    pub fn device(&self, backend: &str) -> Result<&'a Device, SetupError> {
        match self {
            Fabric::Verbs(device) => Ok(device),
            Fabric::Stream => Err(SetupError::Unsupported(format!(
                "{backend} needs an RDMA device, and this address has none; use shm:// or rdma://"
            ))),
        }
    }
}

/// Where a transport is made: its thread's site, and what it runs on.
#[derive(Debug, Clone, Copy)]
pub struct Placement<'a> {
    /// The site of the thread that drives the transport.
    pub site: &'a Site,
    /// What it runs on.
    pub fabric: Fabric<'a>,
    /// Share with the other connections of the site what the backend can share: a queue pair, say.
    pub share: bool,
    /// Which of the endpoint's threads it is made for.
    pub thread: ThreadOf,
    /// The time of another server, whose [slices](super::Backend::shared_slices) a server shares.
    pub clock: Option<&'a SharedClock>,
    /// The places of a server thread's clients, if it may have others than those of one backend.
    pub places: Option<&'a Arc<ThreadPlaces>>,
}

/// One of the threads that serve an endpoint together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadOf {
    /// Its number, from 0.
    pub number: u32,
    /// How many there are, at least 1.
    pub threads: u32,
}

impl ThreadOf {
    /// The only thread.
    pub const ONE: ThreadOf = ThreadOf { number: 0, threads: 1 };
}

impl<'a> Placement<'a> {
    /// A transport of its own on that fabric.
    pub fn new(site: &'a Site, fabric: Fabric<'a>) -> Placement<'a> {
        Placement { site, fabric, share: false, thread: ThreadOf::ONE, clock: None, places: None }
    }

    /// The places of a server thread's clients: its own, for so many, if it has none yet.
    pub(crate) fn places_for(&self, config: &Config, max_clients: usize) -> Arc<ThreadPlaces> {
        let own = || ThreadPlaces::new(self.site, ClientLimits::new(config, max_clients));
        self.places.map_or_else(own, Arc::clone)
    }
}
