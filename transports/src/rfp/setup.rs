//! What each end makes before they are connected, and what they tell each other about it.

use farcall_core::site::Site;
use farcall_core::transport::ClientId;
use farcall_verbs::{
    Access, Capabilities, CompletionQueueHandle, Device, ProtectionDomain, RemoteRegion, WriteOrder,
};
use serde::{Deserialize, Serialize};

use super::fetch_size::MAX_LINES;
use super::fetches::Fetches;
use super::lines::{LINE_BYTES, ring_lines};
use super::responses::Responses;
use super::switch::Switch;
use crate::contract::{Answer, NewClient, SetupError, Terms};
use crate::kit::device_channel::DeviceChannel;
use crate::slots::accept::{MadeEnd, MakeEnds};
use crate::slots::link::{Link, stride};
use crate::slots::writes::setup::{Port, Side, Sizes};

/// Whether a request has landed is seen in its cell: WRITEs land in order. Otherwise only a completion tells.
pub(super) fn lands_in_order(caps: &Capabilities) -> bool {
    caps.write_order == WriteOrder::LeftToRight
}

/// How a connection's responses lie in the server's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    pub(super) window: u32,
    pub(super) slot_bytes: u32,
    /// Lines of the longest response that waits in the ring.
    pub(super) most_lines: u32,
    /// A READ of the server's device sees the first word of each line no later than the rest.
    pub(super) first_word_first: bool,
}

impl Places {
    pub(super) fn new(terms: &Terms, fetch_bytes: u32, first_word_first: bool) -> Places {
        // A READ fills one buffer of a slot.
        let most = (MAX_LINES as u32).min(terms.slot / LINE_BYTES as u32);
        let most_lines = (fetch_bytes / LINE_BYTES as u32).clamp(1, most);
        Places { window: terms.window, slot_bytes: terms.slot, most_lines, first_word_first }
    }

    /// Bytes of the ring, and of a place for each slot.
    fn bytes(&self) -> u64 {
        let ring = u64::from(ring_lines(self.window, self.most_lines)) * LINE_BYTES as u64;
        ring + u64::from(self.window) * u64::from(stride(self.slot_bytes))
    }
}

/// The server's part of the handshake.
#[derive(Debug, Serialize, Deserialize)]
struct ServerSetup {
    /// That of its cells.
    cells: Vec<u8>,
    /// Where responses wait.
    responses: RemoteRegion,
    /// The longest response that waits in the ring, in lines.
    most_lines: u32,
    /// The server looks for requests; otherwise each has to come with an immediate.
    looks: bool,
}

impl ServerSetup {
    /// Behind it stands what its device does, where clients of earlier versions do not look.
    fn to_bytes(&self, first_word_first: bool) -> Vec<u8> {
        let mut bytes = postcard::to_allocvec(self).unwrap_or_default();
        bytes.push(first_word_first.into());
        bytes
    }

    /// With [`Places::first_word_first`]. A server of an earlier version does not say, so its device may do anything.
    fn from_bytes(bytes: &[u8]) -> Result<(ServerSetup, bool), SetupError> {
        let (setup, behind) = postcard::take_from_bytes(bytes)
            .map_err(|_| SetupError::Misbehaved("its setup cannot be decoded"))?;
        Ok((setup, behind.first() == Some(&1)))
    }
}

/// Connects a client to the server that gave this answer.
pub(super) fn connect(
    port: Port,
    device: &Device,
    answer: &Answer<'_>,
    switch: Switch,
) -> Result<(Link<Fetches>, ProtectionDomain), SetupError> {
    let Answer { terms, setup, timeout } = *answer;
    let (server, first_word_first) = ServerSetup::from_bytes(setup)?;
    let ServerSetup { cells, responses, most_lines, looks } = server;
    let longest = Places::new(terms, u32::MAX, first_word_first);
    let places = Places { most_lines, ..longest };
    let is_possible = (1..=longest.most_lines).contains(&most_lines);
    if !is_possible || responses.len < places.bytes() {
        return Err(SetupError::Misbehaved("its ring of responses is too small"));
    }
    let port = port.accesses(responses);
    let connected = port.connect(device, terms, &cells, Side::Client, timeout)?;
    connected.link(|writes| Fetches::new(writes, responses, &places, looks, switch))
}

/// Makes the server's ends of connections.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) device: Device,
    pub(super) site: Site,
    pub(super) fetch_bytes: u32,
}

impl MakeEnds for Ends {
    type Carrier = Responses;

    fn completions(&self, terms: &Terms) -> usize {
        Sizes::new(terms, self.device.caps()).completions()
    }

    fn make(
        &self,
        queue: &CompletionQueueHandle,
        id: ClientId,
        client: &NewClient<'_>,
    ) -> Result<MadeEnd<Responses>, SetupError> {
        let NewClient { terms, setup: theirs, timeout, .. } = *client;
        let Ends { device, site, fetch_bytes } = self;
        let pd = device.alloc_pd_for_one_qp()?;
        let bytes = Sizes::new(terms, device.caps()).slots_bytes();
        // The server looks for the end of a request, so requests land in order.
        let cells = pd.alloc_shared_on_demand(bytes as usize, Access::REMOTE_WRITE)?;
        let port = Port::open_in(pd, cells, device, queue, terms, id.number)?;
        let places = Places::new(terms, *fetch_bytes, device.caps().reads_first_word_first);
        let region =
            port.pd().alloc_shared_on_demand(places.bytes() as usize, Access::REMOTE_READ)?;
        let looks = lands_in_order(device.caps());
        let setup = ServerSetup {
            cells: port.setup(),
            responses: region.remote(),
            most_lines: places.most_lines,
            looks,
        };
        let setup = setup.to_bytes(places.first_word_first);
        let connected = port.connect(device, terms, theirs, Side::Server, timeout)?;
        if device.caps().write_events {
            let channel = DeviceChannel::at(site, device)?;
            connected.writes.slots().watch(channel.channel())?;
        }
        let (link, pd) =
            connected.link(|writes| Responses::new(writes, region, &places, looks, site))?;
        Ok(MadeEnd { link, pd, terms: *terms, setup })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::setup::decode;

    #[test]
    fn a_server_says_how_its_device_reads_and_one_of_an_earlier_version_does_not() {
        let responses = RemoteRegion::new(4096, 7, 1 << 20);
        let setup = || ServerSetup { cells: vec![1, 2, 3], responses, most_lines: 4, looks: true };
        for first_word_first in [true, false] {
            let bytes = setup().to_bytes(first_word_first);
            let (read, said) = ServerSetup::from_bytes(&bytes).unwrap();
            assert_eq!((read.cells, read.most_lines, said), (vec![1, 2, 3], 4, first_word_first));
            let by_earlier_client: ServerSetup = decode(&bytes).unwrap();
            assert_eq!(by_earlier_client.responses, responses);
        }
        let of_earlier = postcard::to_allocvec(&setup()).unwrap();
        assert!(!ServerSetup::from_bytes(&of_earlier).unwrap().1);
        assert!(ServerSetup::from_bytes(&of_earlier[..3]).is_err());
    }
}
