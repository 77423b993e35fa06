//! How both ends begin: what [`BackendKind`](crate::BackendKind) calls.

use std::time::Duration;

use farcall_core::transport::ClientTransport;
use farcall_verbs::{Device, ProtectionDomain};

use super::calls::Calls;
use super::client::Client;
use super::port::Port;
use super::server::Server;
use super::setup::{EndSetup, Sizes, max_whole, mix, part_bytes, qkey};
use super::transfers::Transfers;
use crate::address::Limits;
use crate::backend::{PendingClient, ServerHalf, SetupError};
use crate::completions::Completions;
use crate::handshake::Terms;

/// A client's number of the only session of its queue pair.
const SESSION: u32 = 0;

struct Pending {
    // Dropped in this order: queue pair, completion queue.
    port: Port,
    completions: Completions,
    pd: ProtectionDomain,
    limits: Limits,
    mtu: usize,
    setup: Vec<u8>,
}

pub(crate) fn prepare(
    device: &Device,
    limits: &Limits,
) -> Result<Box<dyn PendingClient>, SetupError> {
    let sizes = Sizes::of_client(limits.window, device.caps(), limits.without);
    let completions = Completions::in_batches(device, sizes.completions(), sizes.batch)?;
    let pd = device.alloc_pd()?;
    let mut port = Port::open(device, &pd, &completions.queue(), &sizes)?;
    let (endpoint, now_ns) = (port.qp().endpoint(), device.now_ns());
    let qkey = qkey(&endpoint, now_ns);
    port.activate(qkey)?;
    let salt = mix(endpoint.to_bytes(), now_ns.wrapping_add(1));
    let setup = EndSetup::new(&endpoint, qkey, SESSION, salt, sizes.mtu).to_bytes();
    let (limits, mtu) = (*limits, sizes.mtu);
    Ok(Box::new(Pending { port, completions, pd, limits, mtu, setup }))
}

impl PendingClient for Pending {
    fn setup(&self) -> Vec<u8> {
        self.setup.clone()
    }

    fn finish(
        self: Box<Self>,
        terms: &Terms,
        setup: &[u8],
        _timeout: Duration,
    ) -> Result<Box<dyn ClientTransport>, SetupError> {
        let Pending { port, completions, pd, limits, mtu, .. } = *self;
        let theirs = EndSetup::from_bytes(setup)?;
        let way = theirs.way(&pd, theirs.epoch, mtu)?;
        let part = part_bytes(way.mtu);
        // No more than we have receives for.
        let credits = theirs.credits.min(super::setup::CREDITS);
        let transfers = Transfers::new(terms.window, &pd, limits.memory, part, credits);
        let longest = (terms.max_message, max_whole(terms, way.mtu));
        let calls = Calls::new(way, SESSION, terms.window, longest, transfers, &limits);
        Ok(Box::new(Client::new(completions, port, calls)))
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
