//! `rfp`: requests by RC WRITE, responses by RC READ, after the remote-fetching paradigm (Su et al., EuroSys 2017).
//!
//! A NIC serves incoming WRITEs and READs much faster than it sends (five times, on the paper's). So the server sends nothing:
//! it finds requests by looking into its memory, leaves responses there, and the client fetches them.
//!
//! # The life of a call
//!
//! 1. The client takes a free slot of its window and makes the request in a private buffer.
//! 2. One WRITE puts it at the end of the next of the server's cells, which are filled in turn. Its trailer lands last, where
//!    the server looks for it.
//! 3. The server copies the request once out of the cell, which its writer could still change, runs the handler, and leaves
//!    the response in a ring of cache lines: responses of one connection stand there one behind the other.
//! 4. When the request has arrived, the client READs the ring from where it has come to. One READ brings all responses that are
//!    ready, as far as it asks for. Each line tells by its lap whether it is new, so a READ that comes too early, or
//!    while the server writes, is seen, and done again. Where a READ sees the words of a line in any order (Soft-RoCE), a response is
//!    taken from the second READ that brings its first word.
//! 5. A response too long for the ring waits in its slot's own place, and a second READ brings it.
//! 6. The response is what frees the slot: also that of a call that was given up. It carries the generation of its request.
//!
//! Messages larger than a slot go by [rendezvous](crate::rendezvous), as in `write_imm`.
//!
//! # Fetched or sent
//!
//! While a slow handler runs, the client fetches in vain. If that happens more than `retries` times in each of two calls in a
//! row, or very often in one, it asks the server to send responses, by WRITE_WITH_IMM into the client's slots as `write_imm` does,
//! and sleeps until they come. Such a response says how long the server had its request; after some quick ones the client
//! fetches again. The switch is the client's alone, and holds for the connection.
//!
//! Where WRITEs land in any order, each request carries an immediate, and the server looks only when that has arrived.
//!
//! A server that has found nothing for long sleeps. Where a device makes no event of a WRITE, the client wakes it by an
//! immediate, after `retries` fetches in vain. That also tells a server of many clients, which looks at those that call.
//!
//! # Loss
//!
//! A queue pair notices a lost packet by what comes behind it, and otherwise only when its timeout ends. A client that fetches posts nothing while
//! a READ is under way, so that nothing comes behind that. A READ that takes four times as long as the slowest of the latest is
//! therefore followed by a probe, a READ of one line whatever is there: the queue pair then repeats the one before at once (as a tail loss
//! probe does for TCP, RFC 8985). If what is repeated is lost again, the timeout has to end.
//!
//! # Knobs
//!
//! Those of `write_imm`; `fetch` (bytes, at the server: a longer response is not in the ring; how much of it one READ asks for
//! follows from the responses seen), `retries` (at the client), `responses` (at the client: `adaptive`, or always `fetched` or
//! `sent`).
//!
//! # When to use it
//!
//! Many clients with short calls at one server, whose NIC is the bottleneck, and clients with processor time to spare: a call
//! takes two round trips instead of one. Not where calls are few and slow, or thousands of clients call at a time: the server
//! [looks](lookout) into a cell of each that has called lately.

mod fetch_size;
mod fetches;
mod lines;
mod lookout;
mod reader;
mod responses;
mod service_time;
mod setup;
mod shown;
mod switch;

#[cfg(test)]
mod tests;

use farcall_core::transport::ClientTransport;
use farcall_verbs::Device;

use crate::contract::{
    Answer, Backend, Config, DeathNotice, Fabric, OptionSpec, PendingClient, Placement, ServerHalf,
    SetupError,
};
use crate::kit::clusters::Clusters;
use crate::kit::completions::Completions;
use crate::slots::accept::Serving;
use crate::slots::client::Client;
use crate::slots::wire::MAX_WINDOW;
use crate::slots::writes::setup::{Port, Sizes, check};
use fetch_size::MAX_LINES;
use lines::LINE_BYTES;
use lookout::Lookout;
use setup::Ends;
use switch::{Policy, Switch};

/// The backend `rfp`.
#[derive(Debug)]
pub(crate) struct Rfp;

const NAME: &str = "rfp";

/// The longest response in the ring, in bytes, unless an address says otherwise (RFP, section 4.1: F).
const DEFAULT_FETCH_BYTES: u32 = 256;

/// Fetches in vain of a call that is not slow, unless an address says otherwise (RFP, section 4.1: R).
const DEFAULT_RETRIES: u32 = 5;

const MAX_RETRIES: u32 = 1_000_000;

const FETCH: OptionSpec = OptionSpec {
    name: "fetch",
    expected: || format!("bytes from {LINE_BYTES} to {}", MAX_LINES * LINE_BYTES),
    accepts: |value| fetch_bytes(value).is_some(),
};

const RETRIES: OptionSpec = OptionSpec {
    name: "retries",
    expected: || format!("a number from 1 to {MAX_RETRIES}"),
    accepts: |value| retries(value).is_some(),
};

const RESPONSES: OptionSpec = OptionSpec {
    name: "responses",
    expected: || "adaptive, fetched or sent".to_owned(),
    accepts: |value| policy(value).is_some(),
};

fn fetch_bytes(value: &str) -> Option<u32> {
    let range = LINE_BYTES as u32..=(MAX_LINES * LINE_BYTES) as u32;
    value.parse().ok().filter(|bytes| range.contains(bytes))
}

fn retries(value: &str) -> Option<u32> {
    value.parse().ok().filter(|count| (1..=MAX_RETRIES).contains(count))
}

fn policy(value: &str) -> Option<Policy> {
    match value {
        "adaptive" => Some(Policy::Adaptive),
        "fetched" => Some(Policy::Fetched),
        "sent" => Some(Policy::Sent),
        _ => None,
    }
}

impl Backend for Rfp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn number(&self) -> u8 {
        5
    }

    fn options(&self) -> &'static [OptionSpec] {
        &[FETCH, RETRIES, RESPONSES]
    }

    /// Arguments and results of 8 KiB: measured, a rendezvous is faster from 16 KiB on.
    fn slot_in_memory(&self) -> u32 {
        (8 << 10) + 64
    }

    fn max_window(&self) -> u32 {
        MAX_WINDOW
    }

    fn check(&self, fabric: &Fabric<'_>) -> Result<(), SetupError> {
        check(NAME, fabric.device(NAME)?.caps())
    }

    /// Neither end sends anything to a peer that it waits for.
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
        let terms = config.terms();
        let sizes = Sizes::new(&terms, device.caps());
        let completions = Completions::new(at.site, device, sizes.completions())?;
        let port = Port::open(device, &completions.queue(), &terms, 0)?;
        let policy = config.options.value_or(&RESPONSES, policy, Policy::Adaptive);
        let switch =
            Switch::new(policy, config.options.value_or(&RETRIES, retries, DEFAULT_RETRIES));
        let (device, memory) = (device.clone(), config.memory);
        Ok(Box::new(Pending { port, completions, device, switch, memory }))
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
        let fetch_bytes = config.options.value_or(&FETCH, fetch_bytes, DEFAULT_FETCH_BYTES);
        let ends = Ends { device: device.clone(), site: at.site.clone(), fetch_bytes };
        serving.half(clusters, ends, Lookout::default())
    }
}

/// A client whose queue pair is not connected yet.
struct Pending {
    // Dropped in this order: queue pair, completion queue.
    port: Port,
    completions: Completions,
    device: Device,
    switch: Switch,
    memory: u64,
}

impl PendingClient for Pending {
    fn setup(&self) -> Vec<u8> {
        self.port.setup()
    }

    fn finish(self: Box<Self>, answer: Answer<'_>) -> Result<Box<dyn ClientTransport>, SetupError> {
        let Pending { port, completions, device, switch, memory } = *self;
        let end = setup::connect(port, &device, &answer, switch)?;
        Ok(Box::new(Client::new(completions, end, answer.terms, memory)))
    }
}
