//! How both ends begin: what [`BackendKind`](crate::BackendKind) calls.

use std::time::Duration;

use farcall_core::transport::ClientTransport;
use farcall_verbs::{CompletionChannel, CompletionQueue, Device};

use super::client::Client;
use super::intake::WriteImmIntake;
use super::server::Server;
use super::setup::{Port, Side, Sizes};
use crate::address::Limits;
use crate::backend::{PendingClient, ServerHalf, SetupError};
use crate::handshake::Terms;

struct Pending {
    // Dropped in this order: queue pair, completion queue, channel, device.
    port: Port,
    cq: CompletionQueue,
    channel: CompletionChannel,
    device: Device,
    memory: u64,
}

pub(crate) fn prepare(
    device: &Device,
    limits: &Limits,
) -> Result<Box<dyn PendingClient>, SetupError> {
    let terms = limits.terms();
    let channel = device.create_completion_channel()?;
    let completions = Sizes::new(&terms, device.caps()).completions();
    let cq = device.create_cq(completions, Some(&channel))?;
    let port = Port::open(device, &cq.handle(), &terms, 0)?;
    let device = device.clone();
    Ok(Box::new(Pending { port, cq, channel, device, memory: limits.memory }))
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
        let Pending { port, cq, channel, device, memory } = *self;
        let end = port.connect(&device, terms, setup, Side::Client, timeout)?;
        Ok(Box::new(Client::new(device, cq, channel, end, terms, memory)))
    }
}

pub(crate) fn serve(
    device: &Device,
    limits: &Limits,
    max_clients: usize,
) -> Result<ServerHalf, SetupError> {
    let completions = Sizes::new(&limits.terms(), device.caps()).completions();
    let (server, door) = Server::new(device, limits, completions, max_clients)?;
    Ok(ServerHalf { transport: Box::new(server), intake: Box::new(WriteImmIntake(door)) })
}
