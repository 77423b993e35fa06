//! What each end makes before they are connected, and what they tell each other about it.

use farcall_core::transport::ClientId;
use farcall_verbs::{
    Access, Capabilities, CompletionQueueHandle, Device, ProtectionDomain, RemoteRegion,
    SharedRegion, WriteOrder,
};
use serde::{Deserialize, Serialize};

use super::guard::{Guard, guards};
use super::log::{LogLayout, LogReader, LogWriter};
use super::pins::Pins;
use super::places::WatchClients;
use super::pool::PoolLayout;
use super::requests::{PoolOfServer, Requests};
use super::served::{PoolOfThread, Served};
use crate::contract::{Answer, NewClient, SetupError, Terms};
use crate::kit::setup::decode;
use crate::slots::accept::{MadeEnd, MakeEnds};
use crate::slots::link::Link;
use crate::slots::writes::setup::{Port, Side, Sizes};

/// Bytes into which a client says how far its log has grown: a word for each call of the window. The words are used in turn,
/// so that none changes before the server has seen its immediate: each tells of a further call, which is outstanding.
fn ends_bytes(terms: &Terms) -> u64 {
    8 * u64::from(terms.window)
}

/// Whether a request has landed is seen in its cell, and its landing can wake the server. Otherwise only a completion tells.
pub(super) fn may_look(caps: &Capabilities) -> bool {
    caps.write_order == WriteOrder::LeftToRight && caps.write_events
}

/// The client's part of the handshake.
#[derive(Debug, Serialize, Deserialize)]
struct ClientSetup {
    port: Vec<u8>,
    log: RemoteRegion,
    /// It wants to be served in every slice.
    wants_pin: bool,
    /// Connections of one caller are in the same group at all servers that share their slices.
    caller: u64,
}

/// The server's part of the handshake.
#[derive(Debug, Serialize, Deserialize)]
struct ServerSetup {
    port: Vec<u8>,
    pool: RemoteRegion,
    layout: PoolLayout,
    /// The connection's, in the stamps of its requests: random, so that no other client knows it.
    key: u32,
    /// The key to the client's first place, if places are guarded.
    first_rkey: Option<u32>,
    /// The server looks for requests; otherwise each has to come with an immediate.
    looks: bool,
    /// The client is served in every slice.
    is_pinned: bool,
}

/// A client's end that is not connected yet.
#[derive(Debug)]
pub(super) struct ClientPort {
    port: Port,
    log: SharedRegion,
    wants_pin: bool,
    caller: u64,
}

impl ClientPort {
    pub(super) fn open(
        device: &Device,
        queue: &CompletionQueueHandle,
        terms: &Terms,
        (wants_pin, caller): (bool, u64),
    ) -> Result<ClientPort, SetupError> {
        let port = Port::open(device, queue, terms, 0)?;
        let bytes = LogLayout::new(terms).bytes();
        let log = port.pd().alloc_shared_on_demand(bytes as usize, Access::REMOTE_READ)?;
        Ok(ClientPort { port, log, wants_pin, caller })
    }

    pub(super) fn setup(&self) -> Vec<u8> {
        let (port, log) = (self.port.setup(), self.log.remote());
        let ClientPort { wants_pin, caller, .. } = *self;
        let setup = ClientSetup { port, log, wants_pin, caller };
        postcard::to_allocvec(&setup).unwrap_or_default()
    }

    /// Connects to the server that gave this answer.
    pub(super) fn connect(
        self,
        device: &Device,
        answer: &Answer<'_>,
    ) -> Result<(Link<Requests>, ProtectionDomain), SetupError> {
        let Answer { terms, setup, timeout } = *answer;
        let ServerSetup { port, pool, layout, key, first_rkey, looks, is_pinned } = decode(setup)?;
        if !layout.is_possible(terms, pool.len) {
            return Err(SetupError::Misbehaved("its message pool is too small"));
        }
        let ClientPort { port: ours, log, wants_pin, .. } = self;
        if is_pinned && !wants_pin {
            return Err(SetupError::Misbehaved("it pins a client that does not want it"));
        }
        if wants_pin && !is_pinned {
            tracing::warn!(
                "the server does not pin this client: it has as many as its `pins` allows"
            );
        }
        let bytes = ends_bytes(terms);
        let ours = ours.accesses(pool);
        let connected = ours.connect_to(device, terms, &port, Side::Client, timeout, bytes)?;
        let server = PoolOfServer { pool, layout, key, next_rkey: first_rkey, looks };
        let log = LogWriter::new(log, LogLayout::new(terms));
        connected.link(|writes| Requests::new(writes, server, terms.window, log))
    }
}

/// Makes the server's ends of connections.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) device: Device,
    /// Of all clients of the thread: they share its pool.
    pub(super) pd: ProtectionDomain,
    pub(super) pool: SharedRegion,
    pub(super) layout: PoolLayout,
    /// The doorbell rings for each response.
    pub(super) rings_each: bool,
    pub(super) pins: Pins,
    pub(super) clients: WatchClients,
}

impl MakeEnds for Ends {
    type Carrier = Served;

    fn completions(&self, terms: &Terms) -> usize {
        Sizes::new(terms, self.device.caps()).completions()
    }

    fn make(
        &self,
        queue: &CompletionQueueHandle,
        id: ClientId,
        client: &NewClient<'_>,
    ) -> Result<MadeEnd<Served>, SetupError> {
        let NewClient { terms, setup: theirs, timeout, .. } = *client;
        let ClientSetup { port: their_port, log, wants_pin, caller } = decode(theirs)?;
        let log_layout = LogLayout::new(terms);
        if log.len < log_layout.bytes() {
            return Err(SetupError::Misbehaved("its log of requests is too small"));
        }
        let Ends { device, pd, pool, layout, rings_each, pins, clients } = self;
        // The server looks where they end, so they land in order.
        let ends = pd.alloc_shared_on_demand(ends_bytes(terms) as usize, Access::REMOTE_WRITE)?;
        let port = Port::open_in(pd.clone(), ends, device, queue, terms, id.number)?;
        let (layout, key) = (*layout, device.random()? as u32);
        let looks = may_look(device.caps());
        let guard = guards(device.caps()).then(|| Guard::new(pd)).transpose()?;
        let pin = wants_pin.then(|| pins.take()).flatten();
        let setup = ServerSetup {
            port: port.setup(),
            pool: pool.remote(),
            layout,
            key,
            first_rkey: guard.as_ref().map(Guard::next_rkey),
            looks,
            is_pinned: pin.is_some(),
        };
        let setup = postcard::to_allocvec(&setup).unwrap_or_default();
        let port = port.accesses(log);
        let connected = port.connect(device, terms, &their_port, Side::Server, timeout)?;
        let (pool, rings_each) = (pool.clone(), *rings_each);
        let tells_gone = clients.watch(id.number);
        let thread =
            PoolOfThread { pool, layout, key, guard, looks, pin, caller, rings_each, tells_gone };
        let reader = LogReader::new(log, log_layout);
        let of_client = (terms.window, terms.slot);
        let (link, pd) = connected.link(|writes| Served::new(writes, thread, of_client, reader))?;
        Ok(MadeEnd { link, pd, terms: *terms, setup })
    }
}
