//! What each end makes before they are connected, and what they tell each other about it.

use std::time::Duration;

use farcall_core::transport::ClientId;
use farcall_verbs::{
    Access, Capabilities, CompletionQueueHandle, ConnectOptions, Device, Operation,
    ProtectionDomain, QpType, QueuePair, QueuePairConfig, RemoteRegion, SharedRegion,
};
use serde::{Deserialize, Serialize};

use super::Writes;
use crate::contract::{MAX_SLOT_BYTES, NewClient, SetupError, Terms};
use crate::kit::sender::work_id;
use crate::kit::setup;
use crate::rendezvous::LONGEST_CHUNK_BYTES;
use crate::slots::accept::{MadeEnd, MakeEnds};
use crate::slots::carrier::Carrier;
use crate::slots::features::Features;
use crate::slots::link::{Link, LinkSizes, stride};
use crate::slots::wire::MAX_CLIENTS;

/// Refuses devices that cannot carry the messages of `backend`.
///
/// They assume nothing of the order in which a WRITE's bytes land, nor that completions carry messages: a
/// message is looked at when the completion of its own WRITE_WITH_IMM has been polled, which is after all
/// of its bytes.
pub(crate) fn check(backend: &str, caps: &Capabilities) -> Result<(), SetupError> {
    for operation in [Operation::WriteWithImm, Operation::Write, Operation::Read] {
        if !caps.supports(QpType::Rc, operation) {
            return Err(SetupError::Unsupported(format!(
                "{backend} needs RC {operation:?}, which this device does not have"
            )));
        }
    }
    if caps.max_send_wr < 2 || caps.max_recv_wr < 2 || caps.max_cqe < 4 {
        return Err(SetupError::Unsupported(format!(
            "{backend} needs room for 2 work requests each way and their completions; this device has {}, {} and {}",
            caps.max_send_wr, caps.max_recv_wr, caps.max_cqe
        )));
    }
    let longest = LONGEST_CHUNK_BYTES.max(MAX_SLOT_BYTES.into());
    if caps.max_message < longest {
        return Err(SetupError::Unsupported(format!(
            "{backend} needs messages of {longest} bytes; the longest of this device has {}",
            caps.max_message
        )));
    }
    Ok(())
}

/// Receives of the smallest window: the chunks of two landing rings arrive without a pause.
const LEAST_RECEIVES: u32 = 32;

/// How much of everything a connection has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) link: LinkSizes,
    pub(crate) recv_depth: u32,
    /// Receives that are posted again at a time.
    pub(crate) replenish_at: u32,
}

impl Sizes {
    pub(crate) fn new(terms: &Terms, caps: &Capabilities) -> Sizes {
        // A message and a control message per slot, and a few. More is not an error: the send queue
        // makes it wait.
        let sends = 2 * terms.window as usize + 32;
        // What a full window sends while the last batch is not posted again; a few more for control
        // messages, of which more have to wait. Not more than that where a device has a ring of as
        // many cells: a longer one falls out of the caches.
        let replenish_at = (terms.window / 4).clamp(1, 16);
        // A device whose completions carry no messages is a NIC, for which no ring falls out of caches, but
        // a peer that meets no receive pauses, goes back and sends again, and some count that among the
        // retries after which they give up. So there is one for all that may be on its way for a slot: the
        // cancellation of an earlier call, a request, and its cancellation.
        let each_slot = if caps.completion_payload == 0 { 3 } else { 1 };
        let receives = (each_slot * terms.window + replenish_at + 4).max(LEAST_RECEIVES) as usize;
        // Fewer receives than messages slow the peer down, and lose nothing: it tries again.
        let recv_depth = receives.min(caps.max_recv_wr).min(caps.max_cqe / 2);
        let send_depth = sends.min(caps.max_send_wr).min(caps.max_cqe - recv_depth);
        let link = LinkSizes {
            window: terms.window,
            slot: terms.slot,
            send_depth: send_depth as u32,
            max_inline: caps.max_inline,
        };
        Sizes { link, recv_depth: recv_depth as u32, replenish_at }
    }

    /// Bytes of all slots of one end.
    pub(crate) fn slots_bytes(&self) -> u64 {
        u64::from(self.link.window) * u64::from(stride(self.link.slot))
    }

    /// Completions that one connection may have outstanding: an entry for each receive, and for each
    /// signaled work request (all of them while it is flushed).
    pub(crate) fn completions(&self) -> usize {
        (self.link.send_depth + self.recv_depth) as usize
    }
}

/// One end's part of the handshake.
#[derive(Debug, Serialize, Deserialize)]
struct EndSetup {
    endpoint: Vec<u8>,
    /// Where the other end writes: `window` slots.
    slots: RemoteRegion,
    /// Which client of its server thread: in every immediate. The server says it.
    client: u32,
}

/// An end that is not connected yet.
#[derive(Debug)]
pub(crate) struct Port {
    qp: QueuePair,
    slots: SharedRegion,
    pd: ProtectionDomain,
    sizes: Sizes,
    client: u32,
    /// What it accesses at the peer besides slots.
    regions: Vec<RemoteRegion>,
}

impl Port {
    /// Makes a queue pair with all its receives, and the slots that the peer will write.
    pub(crate) fn open(
        device: &Device,
        cq: &CompletionQueueHandle,
        terms: &Terms,
        client: u32,
    ) -> Result<Port, SetupError> {
        // A domain for each connection: no client's key opens another client's memory.
        let pd = device.alloc_pd_for_one_qp()?;
        let bytes = Sizes::new(terms, device.caps()).slots_bytes();
        // Only an immediate says that a message has landed.
        let access = Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
        let slots = pd.alloc_shared_on_demand(bytes as usize, access)?;
        Port::open_in(pd, slots, device, cq, terms, client)
    }

    /// The same in this domain, where the peer writes into this region.
    pub(crate) fn open_in(
        pd: ProtectionDomain,
        slots: SharedRegion,
        device: &Device,
        cq: &CompletionQueueHandle,
        terms: &Terms,
        client: u32,
    ) -> Result<Port, SetupError> {
        let sizes = Sizes::new(terms, device.caps());
        let config = QueuePairConfig::new(QpType::Rc, cq, cq)
            .max_send_wr(sizes.link.send_depth as usize)
            .max_recv_wr(sizes.recv_depth as usize);
        let mut qp = pd.create_qp(config)?;
        let first = work_id(client, 0);
        qp.post_recvs(first..first + u64::from(sizes.recv_depth))
            .map_err(|error| SetupError::Device(error.into()))?;
        Ok(Port { qp, slots, pd, sizes, client, regions: Vec::new() })
    }

    /// The peer will write its messages into the slots, the first one soon: it does not pay for memory that is there only when it is used.
    pub(crate) fn expecting_messages(self) -> Port {
        self.slots.copy_in(0, &[0]);
        self
    }

    /// What the peer must know.
    pub(crate) fn setup(&self) -> Vec<u8> {
        let setup = EndSetup {
            endpoint: self.qp.endpoint().to_bytes().to_vec(),
            slots: self.slots.remote(),
            client: self.client,
        };
        Features::OURS.append_to(postcard::to_allocvec(&setup).unwrap_or_default())
    }

    /// It will access this region of the peer, besides its slots.
    pub(crate) fn accesses(mut self, region: RemoteRegion) -> Port {
        self.regions.push(region);
        self
    }

    /// Connects to the peer that said this. `terms` are at most what the port was opened with.
    pub(crate) fn connect(
        self,
        device: &Device,
        terms: &Terms,
        peer: &[u8],
        side: Side,
        timeout: Duration,
    ) -> Result<Connected, SetupError> {
        let bytes = Sizes::new(terms, device.caps()).slots_bytes();
        self.connect_to(device, terms, peer, side, timeout, bytes)
    }

    /// The same to a peer in whose memory this end writes into at least so many bytes.
    pub(crate) fn connect_to(
        mut self,
        device: &Device,
        terms: &Terms,
        peer: &[u8],
        side: Side,
        timeout: Duration,
        bytes: u64,
    ) -> Result<Connected, SetupError> {
        let (peer, features): (EndSetup, _) = Features::split(peer)?;
        let endpoint = setup::decode_endpoint(&peer.endpoint)?;
        self.sizes = Sizes::new(terms, device.caps());
        if peer.slots.len < bytes {
            return Err(SetupError::Misbehaved("its slots are fewer than the window"));
        }
        if side == Side::Client {
            if peer.client >= MAX_CLIENTS {
                return Err(SetupError::Misbehaved("it gave an impossible client number"));
            }
            self.client = peer.client;
        }
        let regions = std::mem::take(&mut self.regions).into_iter();
        let options = ConnectOptions::default().setup_timeout(timeout).region(peer.slots);
        self.qp.connect(&endpoint, &regions.fold(options, ConnectOptions::region))?;
        let Port { qp, slots, pd, sizes, client, .. } = self;
        let writes = Writes::new(slots, peer.slots, &sizes, client);
        Ok(Connected { qp, writes, sizes: sizes.link, client: (client, features), pd })
    }

    /// The domain of all its memory.
    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }
}

/// An end that is connected.
#[derive(Debug)]
pub(crate) struct Connected {
    qp: QueuePair,
    pub(crate) writes: Writes,
    sizes: LinkSizes,
    /// Its number, and what the peer can do.
    client: (u32, Features),
    pd: ProtectionDomain,
}

impl Connected {
    /// Its link, with its [`Writes`] or with a carrier made of them.
    pub(crate) fn link<C: Carrier>(
        self,
        carrier: impl FnOnce(Writes) -> C,
    ) -> Result<(Link<C>, ProtectionDomain), SetupError> {
        let Connected { qp, writes, sizes, client, pd } = self;
        Ok((Link::new(qp, carrier(writes), &sizes, client, &pd)?, pd))
    }
}

/// Makes the server's ends of connections.
#[derive(Debug)]
pub(crate) struct Ports(pub(crate) Device);

impl MakeEnds for Ports {
    type Carrier = Writes;

    fn completions(&self, terms: &Terms) -> usize {
        Sizes::new(terms, self.0.caps()).completions()
    }

    fn make(
        &self,
        queue: &CompletionQueueHandle,
        id: ClientId,
        client: &NewClient<'_>,
    ) -> Result<MadeEnd<Writes>, SetupError> {
        let NewClient { terms, setup: theirs, timeout, .. } = *client;
        let port = Port::open(&self.0, queue, terms, id.number)?.expecting_messages();
        let setup = port.setup();
        let connected = port.connect(&self.0, terms, theirs, Side::Server, timeout)?;
        let (link, pd) = connected.link(|writes| writes)?;
        Ok(MadeEnd { link, pd, terms: *terms, setup })
    }
}

/// Which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps() -> Capabilities {
        Device::open("shm-plain").unwrap().caps().clone()
    }

    #[test]
    fn a_connection_fits_the_device() {
        let (mut caps, mut asked) = (caps(), Vec::new());
        for limit in [4, 5, 40, 1000, 32_767] {
            caps.max_cqe = limit;
            for window in [1, 2, 64, 1024] {
                let terms = Terms { window, slot: 4096, max_message: 1 << 20 };
                let sizes = Sizes::new(&terms, &caps);
                assert!(sizes.completions() <= limit, "{limit}, {window}: {sizes:?}");
                assert!(sizes.link.send_depth >= 2 && sizes.recv_depth >= 2, "{limit}, {window}");
                asked.push(sizes.completions());
            }
        }
        assert!(asked.iter().max() > Some(&5000), "a device with room is used");
        let usual = Terms { window: 64, slot: 4096, max_message: 1 << 20 };
        caps.completion_payload = 48;
        assert!(Sizes::new(&usual, &caps).recv_depth < 2 * 64);
        caps.completion_payload = 0;
        assert!(Sizes::new(&usual, &caps).recv_depth > 3 * 64);
    }

    #[test]
    fn what_the_device_lacks_is_told() {
        assert!(check("write_imm", &caps()).is_ok());
        let refused = |change: fn(&mut Capabilities), what: &str| {
            let mut caps = caps();
            change(&mut caps);
            let error = check("write_imm", &caps).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };
        refused(
            |caps| caps.max_message = 4096,
            "1048576 bytes; the longest of this device has 4096",
        );
        refused(|caps| caps.max_send_wr = 1, "work requests");
        refused(|caps| caps.max_cqe = 3, "completions");
    }
}
