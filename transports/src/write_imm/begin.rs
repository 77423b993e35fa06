//! How both ends begin: what [`BackendKind`](crate::BackendKind) calls.

use std::time::Duration;

use farcall_core::transport::ClientTransport;
use farcall_verbs::Device;

use super::client::Client;
use super::server::Server;
use super::setup::{Port, Side, Sizes};
use crate::address::Limits;
use crate::backend::{PendingClient, ServerHalf, SetupError};
use crate::completions::Completions;
use crate::handshake::Terms;

struct Pending {
    // Dropped in this order: queue pair, completion queue.
    port: Port,
    completions: Completions,
    device: Device,
    memory: u64,
}

pub(crate) fn prepare(
    device: &Device,
    limits: &Limits,
) -> Result<Box<dyn PendingClient>, SetupError> {
    let terms = limits.terms();
    let sizes = Sizes::new(&terms, device.caps());
    let completions = Completions::new(device, sizes.completions())?;
    let port = Port::open(device, &completions.queue(), &terms, 0)?;
    let device = device.clone();
    Ok(Box::new(Pending { port, completions, device, memory: limits.memory }))
}

impl PendingClient for Pending {
    fn setup(&self) -> Vec<u8> {
        self.port.setup()
    }

    fn finish(
        self: Box<Self>,
        terms: &Terms,
        setup: &[u8],
        timeout: Duration,
    ) -> Result<Box<dyn ClientTransport>, SetupError> {
        let Pending { port, completions, device, memory } = *self;
        let end = port.connect(&device, terms, setup, Side::Client, timeout)?;
        Ok(Box::new(Client::new(completions, end, terms, memory)))
    }
}

pub(crate) fn serve(
    device: &Device,
    limits: &Limits,
    max_clients: usize,
) -> Result<ServerHalf, SetupError> {
    let (server, intake) = Server::new(device, limits, max_clients)?;
    Ok(ServerHalf { transport: Box::new(server), intake: Box::new(intake) })
}
