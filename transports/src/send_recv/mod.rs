//! `send_recv`: RC SEND both ways, after DaRPC (SoCC 2014).
//!
//! # The life of a call
//!
//! 1. The client takes a free slot of its window and makes the request in a private buffer.
//! 2. One SEND with an immediate carries it, inline where it fits. The immediate names operation, client and slot.
//! 3. It takes a receive of the one shared receive queue of its server thread, and completes on the completion queue of
//!    the client's cluster. The handler gets the bytes where they have arrived: no peer can write there.
//! 4. The response goes back the same way, into a receive that the client posted ahead. Responses of one turn to one
//!    client leave under one doorbell.
//! 5. The response is what frees the slot: also that of a call that was given up. It carries the generation
//!    of its request.
//!
//! Larger messages go by rendezvous, as with `write_imm`: the two share all of this
//! protocol but the way in which a message of a slot travels.
//!
//! # Credits
//!
//! A client may have as many requests outstanding as the server granted it when it came: its window, as long as the shared
//! queue has receives for that, and at least two. So requests never find the queue empty. Its other messages are counted,
//! too. A client that sends more than it may is dropped; until then, a message without a receive waits, and its sender tries again.
//!
//! # Knobs
//!
//! `window` (calls outstanding), `slot` (bytes), `max_message`, `memory` (bytes of large messages per thread).
//!
//! # When to use it
//!
//! Many clients of which few are busy at a time: an idle client costs the server a queue pair and a few send buffers, but
//! no region of slots. A handler borrows requests of any size up to a slot without a copy. Each message takes a receive
//! with a buffer, which costs a NIC more than the empty ones of `write_imm`.

mod carrier;
mod receives;
mod setup;

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
use crate::slots::wire::MAX_WINDOW;
use receives::SharedReceives;
use setup::{ClientPort, Ports, Sizes};

/// The backend `send_recv`.
#[derive(Debug)]
pub(crate) struct SendRecv;

const NAME: &str = "send_recv";

/// The longest slot on shared memory. A message there passes through the receiver's inbox, as much at a time as that takes, some KiB; what
/// does not fit waits. A rendezvous is faster long before.
const MAX_SLOT_IN_MEMORY: u32 = 16 << 10;

/// Clients of the first completion queue of a server thread.
const FIRST_CLUSTER: usize = 64;

impl Backend for SendRecv {
    fn name(&self) -> &'static str {
        NAME
    }

    fn number(&self) -> u8 {
        3
    }

    fn max_window(&self) -> u32 {
        MAX_WINDOW
    }

    fn max_slot_in_memory(&self) -> u32 {
        MAX_SLOT_IN_MEMORY
    }

    fn check(&self, fabric: &Fabric<'_>) -> Result<(), SetupError> {
        setup::check(fabric.device(NAME)?.caps())
    }

    /// A server's receives belong to no connection, so none is flushed when a client dies.
    fn death_notice(&self) -> DeathNotice {
        DeathNotice::BY_SOCKET
    }

    fn dial(
        &self,
        at: &Placement<'_>,
        config: &Config,
    ) -> Result<Box<dyn PendingClient>, SetupError> {
        self.check(&at.fabric)?;
        let device = at.fabric.device(NAME)?;
        let sizes = Sizes::new(&config.terms(), device.caps());
        let completions = Completions::new(at.site, device, sizes.of_client())?;
        let port = ClientPort::open(device, &completions.queue(), &sizes)?;
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
        let (receives, grants) = SharedReceives::new(device, config, max_clients)?;
        let each = Sizes::new(&config.terms(), device.caps()).of_server();
        let first = each * max_clients.clamp(1, FIRST_CLUSTER);
        let clusters = Clusters::new(at.site, device, receives.depth(), first)?;
        let places = at.places_for(config, max_clients);
        let serving = Serving { site: at.site, device, config, max_clients, places };
        serving.half(clusters, Ports::new(device, grants), receives)
    }
}

/// A client whose queue pair is not connected yet.
struct Pending {
    // Dropped in this order: queue pair, completion queue.
    port: ClientPort,
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
        let (end, terms) = port.connect(device.caps(), &answer)?;
        Ok(Box::new(Client::new(completions, end, &terms, memory)))
    }
}
