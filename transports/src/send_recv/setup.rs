//! What each end makes before they are connected, and what they tell each other about it.

use std::time::Duration;

use farcall_core::transport::ClientId;
use farcall_verbs::{
    Capabilities, CompletionQueueHandle, ConnectOptions, Device, Endpoint, Operation,
    ProtectionDomain, QpType, QueuePair, QueuePairConfig,
};
use serde::{Deserialize, Serialize};

use super::carrier::Sends;
use super::receives::{Grants, RESERVE};
use crate::contract::{Answer, MAX_SLOT_BYTES, NewClient, SetupError, Terms};
use crate::kit::setup;
use crate::rendezvous::{LONGEST_CHUNK_BYTES, RING_CHUNKS};
use crate::slots::accept::{MadeEnd, MakeEnds};
use crate::slots::features::Features;
use crate::slots::link::{Link, LinkSizes, stride};
use crate::slots::operations::MOST_CREDITS;
use crate::slots::wire::{MAX_CLIENTS, MAX_WINDOW};

/// Receives of a shared queue, at least: half are for requests.
const LEAST_DEPTH: usize = 8 * RESERVE;

/// Refuses devices that cannot carry this backend.
pub(crate) fn check(caps: &Capabilities) -> Result<(), SetupError> {
    let needed =
        [Operation::SendWithImm, Operation::WriteWithImm, Operation::Write, Operation::Read];
    for operation in needed {
        if !caps.supports(QpType::Rc, operation) {
            return Err(SetupError::Unsupported(format!(
                "send_recv needs RC {operation:?}, which this device does not have"
            )));
        }
    }
    if !caps.srq {
        return Err(SetupError::Unsupported(
            "send_recv needs shared receive queues, which this device does not have; use backend=write_imm".into(),
        ));
    }
    let least = LEAST_DEPTH;
    if caps.max_send_wr < 2 || caps.max_recv_wr < least || caps.max_cqe < 2 * least {
        return Err(SetupError::Unsupported(format!(
            "send_recv needs room for 2 sends, {least} receives and {} completions; this device has {}, {} and {}",
            2 * least,
            caps.max_send_wr,
            caps.max_recv_wr,
            caps.max_cqe
        )));
    }
    let longest = LONGEST_CHUNK_BYTES.max(MAX_SLOT_BYTES.into());
    if caps.max_message < longest {
        return Err(SetupError::Unsupported(format!(
            "send_recv needs messages of {longest} bytes; the longest of this device has {}",
            caps.max_message
        )));
    }
    Ok(())
}

/// How much of everything a connection has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    link: LinkSizes,
    /// Receives of the client.
    recv_depth: u32,
    /// Receives that the client posts again at a time.
    repost_at: u32,
}

impl Sizes {
    pub(crate) fn new(terms: &Terms, caps: &Capabilities) -> Sizes {
        // A message per slot, as many whose responses have come before their acknowledgements (a completion tells of up to half
        // the queue), and a few control messages. More is not an error: the send queue makes it wait.
        let sends = 2 * terms.window as usize + 32;
        let repost_at = (terms.window / 4).clamp(1, 16);
        // A response to each slot while a batch of receives is not posted again, and the credits of two landing rings and of
        // operations.
        let credits = 2 * RING_CHUNKS as usize + MOST_CREDITS;
        let receives = terms.window as usize + repost_at as usize + credits + 4;
        let recv_depth = receives.min(caps.max_recv_wr).min(caps.max_cqe / 2);
        let send_depth = sends.min(caps.max_send_wr).min(caps.max_cqe / 4);
        let link = LinkSizes {
            window: terms.window,
            slot: terms.slot,
            send_depth: send_depth as u32,
            max_inline: caps.max_inline,
        };
        Sizes { link, recv_depth: recv_depth as u32, repost_at }
    }

    /// Messages of a client that should have room until the server polls. On shared memory a message takes one for each
    /// 48 bytes.
    fn inbox(&self, caps: &Capabilities) -> usize {
        (8 * self.link.window as usize).min(caps.max_recv_wr)
    }

    /// Completions that a client may have outstanding: one for each receive, and for each work request while it is flushed.
    pub(crate) fn of_client(&self) -> usize {
        (self.link.send_depth + self.recv_depth) as usize
    }

    /// Completions that a server's end may have outstanding, besides those of the shared receives.
    pub(crate) fn of_server(&self) -> usize {
        self.link.send_depth as usize
    }
}

/// One end's part of the handshake.
#[derive(Debug, Serialize, Deserialize)]
struct EndSetup {
    endpoint: Vec<u8>,
    /// Which client of its server thread: in every immediate. The server says it.
    client: u32,
    /// Requests that the client may have outstanding. The server says it.
    credits: u32,
    /// Receives that it has beside those. The server says it.
    spare: u32,
}

impl EndSetup {
    fn encode(qp: &QueuePair, client: u32, (credits, spare): (u32, u32)) -> Vec<u8> {
        let endpoint = qp.endpoint().to_bytes().to_vec();
        let setup = EndSetup { endpoint, client, credits, spare };
        Features::OURS.append_to(postcard::to_allocvec(&setup).unwrap_or_default())
    }

    fn decode(bytes: &[u8]) -> Result<(Endpoint, EndSetup, Features), SetupError> {
        let (setup, features): (EndSetup, _) = Features::split(bytes)?;
        Ok((setup::decode_endpoint(&setup.endpoint)?, setup, features))
    }
}

fn connect(qp: &mut QueuePair, peer: &Endpoint, timeout: Duration) -> Result<(), SetupError> {
    Ok(qp.connect(peer, &ConnectOptions::default().setup_timeout(timeout))?)
}

/// A client's end that is not connected yet.
#[derive(Debug)]
pub(crate) struct ClientPort {
    qp: QueuePair,
    pd: ProtectionDomain,
    repost_at: u32,
}

impl ClientPort {
    /// Makes a queue pair with all its receives.
    pub(crate) fn open(
        device: &Device,
        queue: &CompletionQueueHandle,
        sizes: &Sizes,
    ) -> Result<ClientPort, SetupError> {
        let pd = device.alloc_pd()?;
        let config = QueuePairConfig::new(QpType::Rc, queue, queue)
            .max_send_wr(sizes.link.send_depth as usize)
            .max_recv_wr(sizes.recv_depth as usize);
        let mut qp = pd.create_qp(config)?;
        let size = stride(sizes.link.slot) as usize;
        let buffers = pd.alloc_private_on_demand(sizes.recv_depth as usize * size)?.into_pool(size);
        while let Some(buffer) = buffers.take() {
            qp.post_recv(0, Some(buffer)).map_err(|error| SetupError::Device(error.into()))?;
        }
        Ok(ClientPort { qp, pd, repost_at: sizes.repost_at })
    }

    /// What the server must know.
    pub(crate) fn setup(&self) -> Vec<u8> {
        EndSetup::encode(&self.qp, 0, (0, 0))
    }

    /// Connects to the server that gave this answer. Its terms are at most what the port was opened with.
    pub(crate) fn connect(
        mut self,
        caps: &Capabilities,
        answer: &Answer<'_>,
    ) -> Result<((Link<Sends>, ProtectionDomain), Terms), SetupError> {
        let (endpoint, setup, features) = EndSetup::decode(answer.setup)?;
        let EndSetup { client, credits, spare, .. } = setup;
        if client >= MAX_CLIENTS {
            return Err(SetupError::Misbehaved("it gave an impossible client number"));
        }
        if !(1..=answer.terms.window).contains(&credits) {
            return Err(SetupError::Misbehaved("it granted none of the window, or more than that"));
        }
        if !(1..=MAX_WINDOW).contains(&spare) {
            return Err(SetupError::Misbehaved(
                "it granted no receive for operations, or too many",
            ));
        }
        let terms = Terms { window: credits, ..*answer.terms };
        connect(&mut self.qp, &endpoint, answer.timeout)?;
        let sends = Sends::of_client(terms.slot, self.repost_at, spare);
        let (sizes, number) = (Sizes::new(&terms, caps).link, (client, features));
        let link = Link::new(self.qp, sends, &sizes, number, &self.pd)?;
        Ok(((link, self.pd), terms))
    }
}

/// Makes the server's ends of connections.
#[derive(Debug)]
pub(crate) struct Ports {
    device: Device,
    grants: Grants,
}

impl Ports {
    pub(crate) fn new(device: &Device, grants: Grants) -> Ports {
        Ports { device: device.clone(), grants }
    }
}

impl MakeEnds for Ports {
    type Carrier = Sends;

    fn completions(&self, terms: &Terms) -> usize {
        Sizes::new(terms, self.device.caps()).of_server()
    }

    fn make(
        &self,
        queue: &CompletionQueueHandle,
        id: ClientId,
        client: &NewClient<'_>,
    ) -> Result<MadeEnd<Sends>, SetupError> {
        let (endpoint, _, features) = EndSetup::decode(client.setup)?;
        let grant = self.grants.grant(client.terms.window);
        let (credits, spare) = (grant.credits, grant.spare);
        self.grants.back()?;
        let terms = Terms { window: credits, ..*client.terms };
        let sizes = Sizes::new(&terms, self.device.caps());
        // A domain for each connection, as far as the device allows: no client's key opens another client's memory.
        let pd = match self.device.caps().srq_of_other_domain {
            true => self.device.alloc_pd()?,
            false => self.grants.pd.clone(),
        };
        let config = QueuePairConfig::new(QpType::Rc, queue, queue)
            .max_send_wr(sizes.link.send_depth as usize)
            .max_recv_wr(sizes.inbox(self.device.caps()))
            .srq(&self.grants.queue);
        let mut qp = pd.create_qp(config)?;
        let setup = EndSetup::encode(&qp, id.number, (credits, spare));
        connect(&mut qp, &endpoint, client.timeout)?;
        let sends = Sends::of_server(terms.slot, grant);
        let link = Link::new(qp, sends, &sizes.link, (id.number, features), &pd)?;
        Ok(MadeEnd { link, pd, terms, setup })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps() -> Capabilities {
        Device::open("shm-plain").unwrap().caps().clone()
    }

    #[test]
    fn a_connection_fits_the_device() {
        let mut caps = caps();
        for limit in [LEAST_DEPTH, 4096, 32_767] {
            (caps.max_cqe, caps.max_recv_wr) = (2 * limit, limit);
            for window in [1, 2, 64, 1024] {
                let sizes = Sizes::new(&Terms { window, slot: 4096, max_message: 1 << 20 }, &caps);
                assert!(sizes.of_client() <= caps.max_cqe, "{limit}, {window}: {sizes:?}");
                assert!(sizes.of_server() <= caps.max_cqe / 4, "{limit}, {window}: {sizes:?}");
            }
        }
    }

    #[test]
    fn a_full_window_has_room_beside_requests_that_are_not_acknowledged_yet() {
        for window in [1, 32, 64, 1024] {
            let sizes = Sizes::new(&Terms { window, slot: 4096, max_message: 1 << 20 }, &caps());
            assert!(sizes.link.send_depth >= 2 * window, "{window}: {sizes:?}");
        }
    }

    #[test]
    fn what_the_device_lacks_is_told() {
        assert!(check(&caps()).is_ok());
        let refused = |change: fn(&mut Capabilities), what: &str| {
            let mut caps = caps();
            change(&mut caps);
            let error = check(&caps).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };
        refused(|caps| caps.srq = false, "shared receive queues");
        refused(|caps| caps.max_recv_wr = 100, "512 receives");
        refused(|caps| caps.max_message = 4096, "1048576 bytes");
    }
}
