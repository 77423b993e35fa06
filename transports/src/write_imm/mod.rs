//! `write_imm`: RC WRITE_WITH_IMM both ways, after Octopus (ATC 2017), section 3.3.
//!
//! # The life of a call
//!
//! 1. The client takes a free slot of its window and makes the request in a private buffer.
//! 2. One WRITE_WITH_IMM puts it into that slot of the region that the server keeps for this client.
//!    The immediate names operation, client and slot, so the server finds the message by its
//!    completion, without looking at any slot that has none.
//! 3. A short message is in the completion itself (where the device says so); a longer one is copied
//!    once out of the slot, which its writer could still change, into private scratch.
//! 4. The response goes the same way back, into the same slot of the client's region. Responses of
//!    one turn to one client leave under one doorbell.
//! 5. The response is what frees the slot: also that of a call that was given up. It
//!    carries the generation of its request.
//!
//! A request larger than a slot is announced in its slot; the server grants a landing ring; the
//! client WRITEs it there in chunks, and the server takes each out while the next is written. A
//! larger response is lent: the client READs it, and releases it. The client drives all of it. Memory
//! for landing is bounded, and who must wait for it waits in a queue in which clients take turns.
//!
//! # Knobs
//!
//! `window` (calls outstanding; credits), `slot` (bytes; on `shm`, whose slots take no memory until they are used, 16 times as
//! many as elsewhere), `max_message`, `memory` (bytes of large
//! messages per thread).
//!
//! # When to use it
//!
//! A good first choice: fewest round trips at any size. Each client costs the server a queue pair and
//! a region of `window * slot` bytes, so beyond some hundreds of clients per NIC its cache of
//! queue-pair contexts and translations misses.

#[cfg(test)]
mod tests;

use farcall_core::transport::ClientTransport;
use farcall_verbs::Device;

use crate::contract::{
    Answer, Backend, Config, DeathNotice, Fabric, PendingClient, Placement, ServerHalf, SetupError,
};
use crate::kit::clusters::Clusters;
use crate::kit::completions::Completions;
use crate::slots::accept::Serving;
use crate::slots::client::Client;
use crate::slots::wire;
use crate::slots::writes::OwnReceives;
use crate::slots::writes::setup::{Port, Ports, Side, Sizes, check};

/// The backend `write_imm`.
#[derive(Debug)]
pub(crate) struct WriteImm;

const NAME: &str = "write_imm";

impl Backend for WriteImm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn number(&self) -> u8 {
        1
    }

    fn max_window(&self) -> u32 {
        wire::MAX_WINDOW
    }

    /// Arguments and results of 64 KiB: measured, a rendezvous takes a quarter longer there, and overlaps the copies of longer ones.
    fn slot_in_memory(&self) -> u32 {
        (64 << 10) + 64
    }

    fn check(&self, fabric: &Fabric<'_>) -> Result<(), SetupError> {
        check(NAME, fabric.device(NAME)?.caps())
    }

    fn death_notice(&self) -> DeathNotice {
        DeathNotice::BY_DEVICE
    }

    fn dial(
        &self,
        at: &Placement<'_>,
        config: &Config,
    ) -> Result<Box<dyn PendingClient>, SetupError> {
        self.check(&at.fabric)?;
        let device = at.fabric.device(NAME)?;
        let terms = config.terms();
        let sizes = Sizes::new(&terms, device.caps());
        let completions = Completions::new(at.site, device, sizes.completions())?;
        let port = Port::open(device, &completions.queue(), &terms, 0)?.expecting_messages();
        Ok(Box::new(Pending { port, completions, device: device.clone(), memory: config.memory }))
    }

    fn serve(
        &self,
        at: &Placement<'_>,
        config: &Config,
        max_clients: usize,
    ) -> Result<ServerHalf, SetupError> {
        self.check(&at.fabric)?;
        let device = at.fabric.device(NAME)?;
        let each = Sizes::new(&config.terms(), device.caps()).completions();
        let clusters = Clusters::new(at.site, device, 0, each.saturating_mul(max_clients))?;
        let places = at.places_for(config, max_clients);
        let serving = Serving { site: at.site, device, config, max_clients, places };
        serving.half(clusters, Ports(device.clone()), OwnReceives)
    }
}

/// A client whose queue pair is not connected yet.
struct Pending {
    // Dropped in this order: queue pair, completion queue.
    port: Port,
    completions: Completions,
    device: Device,
    memory: u64,
}

impl PendingClient for Pending {
    fn setup(&self) -> Vec<u8> {
        self.port.setup()
    }

    fn finish(self: Box<Self>, answer: Answer<'_>) -> Result<Box<dyn ClientTransport>, SetupError> {
        let Pending { port, completions, device, memory } = *self;
        let Answer { terms, setup, timeout } = answer;
        let connected = port.connect(&device, terms, setup, Side::Client, timeout)?;
        let end = connected.link(|writes| writes)?;
        Ok(Box::new(Client::new(completions, end, terms, memory)))
    }
}
