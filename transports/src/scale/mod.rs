//! `scale`: requests by RC WRITE into a message pool that groups of clients use in turn, after ScaleRPC (Chen, Lu, Shu,
//! EuroSys 2019).
//!
//! A NIC keeps the contexts of few queue pairs on its chip, and the last-level cache holds few message buffers. So the
//! clients of a server thread are divided into groups, one group is served for a time slice, and all groups use the same
//! memory in turn.
//!
//! # The life of a call
//!
//! While the client's group is served, and the client knows of its place in the message pool:
//!
//! 1. The client takes a free slot of its window and makes the request in a private buffer.
//! 2. One WRITE puts it at the end of the next cell of its place. Its trailer lands last, where the server looks for it.
//! 3. The server copies the request once out of the cell, which others could still change, and runs the handler.
//! 4. The response goes back by WRITE_WITH_IMM into the client's slot, as in `write_imm`, and frees it.
//!
//! Otherwise:
//!
//! 1. The request goes into the log, a ring in the client's own memory. A WRITE_WITH_IMM of eight bytes says how far the
//!    log has grown.
//! 2. Shortly before the slice of the client's group, the server READs the log. If the group is served, it READs at once.
//! 3. When the slice has begun, the server handles these requests. The first response names the place into which the client writes
//!    from now on.
//!
//! # The switch
//!
//! A group's slice ends when its time is over and clients of another group wait. If there is only one group, or the others have
//! nothing to do, it never ends. Then:
//!
//! 1. The server tells each client that knows of its place to stop: by the next response, or by an immediate to a client that gets
//!    none soon.
//! 2. The client writes its next requests into its log. It confirms by an immediate that it has left. What it wrote into its place
//!    was posted before that on the same queue pair, so it lands, and is found, before.
//! 3. The server takes what is in the place. When the confirmation has come, the place is free.
//!
//! The threads of a server divide the clients of a group among them, and switch at different times.
//!
//! Meanwhile the next group is served in other places: the pool has two for each client of the largest group, and the one that became
//! free last is used first. A client that does not confirm keeps its place; it is dropped when another has found none for long.
//! A client that finds no place is served out of its log.
//!
//! Which clients are in a group, and how long its slice is, follows from their [priorities](priority).
//!
//! A client that is [pinned](pins) belongs to no group: when it comes in, it stays.
//!
//! While other groups wait, a look takes as many requests as fit the slice, and clients with [long calls](long_calls) are served out
//! of their logs, at the end of the slice.
//!
//! So each request goes one way, out of the log or into the place, and none is lost, doubled or taken for another's:
//! - The server READs all that was announced, in order, also when the client has come in meanwhile.
//! - Requests in a place are numbered from 1 in each stay, and stamped with the connection's key and the number of the stay.
//!   Trailers are cleared before a place is used again, and what is written there by mistake has another stamp.
//! - An operation (a cancellation, a release, the confirmation) is handled after all requests that were sent before it, and
//!   before all that were sent after it. If it arrives while announced requests are not taken yet, it is deferred. A
//!   request in a cell says how many operations were sent before it.
//!
//! Large messages go by [rendezvous](crate::rendezvous), as in `write_imm`, whichever group is served.
//!
//! # Where it differs from the paper
//!
//! A client announces its requests by an immediate and not by a WRITE into memory that the server would have to look at. The server
//! READs them into private memory and not into a second pool. The rates of priorities are measured while a client is served, and
//! groups keep to the order in which their clients began to wait. Servers that share slices take a client's group from a number that the client tells them.
//!
//! # Several servers
//!
//! A client that calls several servers in turn would wait for its slice at each. Servers with the options `groups` and `slices_of` have
//! [numbered slices](numbered): the number follows from the time of one of the servers, and says which group's turn it is. A client's group follows
//! from its `caller`, which it tells in the handshake: by default a number of its process. The others ask that server for its time apart
//! from calls, ten times a second; see [`shared_slices`](crate::contract::Backend::shared_slices).
//!
//! # Hostile clients
//!
//! All clients of a thread share its protection domain, as they share the pool. Each has a [memory window](guard) that is bound to its
//! place with the response that brings it in, and invalidated once it has left. The pool itself gives nobody access. So a client
//! writes into its own place only, as long as it has it, and whatever else it tries breaks its own connection. Each stay costs the
//! server a binding and an invalidation; a server with one group pays neither again.
//!
//! Soft-RoCE's windows reach the whole region, and processes on shared memory map all of it. There a client can write into
//! another's place, and can forge its requests: do not use it where clients do not trust each other.
//!
//! Where WRITEs land in any order or make no event, each request carries an immediate, and the server looks only when that has
//! arrived.
//!
//! # Knobs
//!
//! Those of `write_imm`; at the server `group` (clients, of all its threads together), `slice` (time), `pins` (clients of each thread) and
//! `doorbells`: one for the responses of a turn to a client, or one for each response; `groups` and `slices_of`, for slices that several servers
//! share; at a client `pinned` (`yes` or `no`) and `caller` (a number). What comes
//! with its doorbell over MMIO the NIC does not read from memory, and it needs less of its cache for that client's queue pair; but
//! each doorbell costs time of the server's core. With the cargo feature `ablation` also `without`, to measure what priorities and the
//! warm-up are worth.
//!
//! # When to use it
//!
//! Hundreds of clients that trust each other at one server. With few clients it is as fast as `write_imm`.

mod ablation;
mod client_state;
mod groups;
mod guard;
mod log;
mod long_calls;
mod numbered;
mod pins;
mod places;
mod pool;
mod priority;
mod requests;
mod schedule;
mod served;
mod setup;
mod slices;
mod stamp;
mod wire;

#[cfg(test)]
mod tests;

use std::time::Duration;

use farcall_core::transport::ClientTransport;
use farcall_verbs::{Access, Device};

use crate::contract::{
    Answer, Backend, Config, DeathNotice, Fabric, OptionSpec, PendingClient, Placement, ServerHalf,
    SetupError, SharedSlices, SlicePlan,
};
use crate::kit::clusters::Clusters;
use crate::kit::completions::Completions;
use crate::kit::device_channel::DeviceChannel;
use crate::kit::shared_time::SharedTime;
use crate::slots::accept::Serving;
use crate::slots::client::Client;
use crate::slots::wire::MAX_WINDOW;
use crate::slots::writes::setup::{Sizes, check};
use ablation::Without;
use groups::most_members;
use guard::guards;
use numbered::NumberedSlices;
use pins::Pins;
use places::Places;
use pool::{Pool, PoolLayout};
use schedule::Schedule;
use setup::{ClientPort, Ends, may_look};
use slices::Slices;
use wire::MAX_PLACES;

/// The backend `scale`.
#[derive(Debug)]
pub(crate) struct Scale;

const NAME: &str = "scale";

/// Clients that a server's threads serve at a time, together, unless an address says otherwise (ScaleRPC, section 4).
const DEFAULT_GROUP: u32 = 40;

const MAX_GROUP: u32 = 160;

/// A slice, unless an address says otherwise (ScaleRPC, section 4).
const DEFAULT_SLICE: Duration = Duration::from_micros(100);

const SHORTEST_SLICE: Duration = Duration::from_micros(1);

const LONGEST_SLICE: Duration = Duration::from_secs(1);

/// Pinned clients of a thread, unless an address says otherwise: a client does not take others' time unless its server allows it.
const DEFAULT_PINS: u32 = 0;

/// Each has a place of its own in the pool, besides those of two groups.
const MAX_PINS: u32 = MAX_PLACES - 2 * most_members(MAX_GROUP);

const GROUP: OptionSpec = OptionSpec {
    name: "group",
    expected: || format!("a number of clients from 1 to {MAX_GROUP}"),
    accepts: |value| group(value).is_some(),
};

const SLICE: OptionSpec = OptionSpec {
    name: "slice",
    expected: || "a time from 1us to 1s, such as 100us".to_owned(),
    accepts: |value| slice(value).is_some(),
};

const PINS: OptionSpec = OptionSpec {
    name: "pins",
    expected: || format!("a number of clients from 0 to {MAX_PINS}"),
    accepts: |value| pins(value).is_some(),
};

const PINNED: OptionSpec = OptionSpec {
    name: "pinned",
    expected: || "yes or no".to_owned(),
    accepts: |value| pinned(value).is_some(),
};

/// Most groups of servers that share their slices: the last one waits for 256 slices.
const MAX_GROUPS: u32 = 256;

const GROUPS: OptionSpec = OptionSpec {
    name: "groups",
    expected: || format!("a number of groups from 2 to {MAX_GROUPS}"),
    accepts: |value| groups_of_servers(value).is_some(),
};

const SLICES_OF: OptionSpec = OptionSpec {
    name: "slices_of",
    expected: || {
        "the address of another server, without options, such as rdma://HOST:PORT".to_owned()
    },
    accepts: |value| {
        let parts = value.split_once("://");
        parts.is_some_and(|(scheme, place)| !scheme.is_empty() && !place.is_empty())
            && !value.contains('?')
    },
};

const CALLER: OptionSpec = OptionSpec {
    name: "caller",
    expected: || "a number".to_owned(),
    accepts: |value| caller(value).is_some(),
};

fn groups_of_servers(value: &str) -> Option<u32> {
    value.parse().ok().filter(|groups| (2..=MAX_GROUPS).contains(groups))
}

fn caller(value: &str) -> Option<u64> {
    value.parse().ok()
}

fn pins(value: &str) -> Option<u32> {
    value.parse().ok().filter(|clients| *clients <= MAX_PINS)
}

fn pinned(value: &str) -> Option<bool> {
    match value {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

const DOORBELLS: OptionSpec = OptionSpec {
    name: "doorbells",
    expected: || "`turn` or `response`".to_owned(),
    accepts: |value| rings_each(value).is_some(),
};

fn rings_each(value: &str) -> Option<bool> {
    match value {
        "turn" => Some(false),
        "response" => Some(true),
        _ => None,
    }
}

fn group(value: &str) -> Option<u32> {
    value.parse().ok().filter(|clients| (1..=MAX_GROUP).contains(clients))
}

fn slice(value: &str) -> Option<Duration> {
    let (number, unit): (&str, fn(u64) -> Duration) = if let Some(number) = value.strip_suffix("us")
    {
        (number, Duration::from_micros)
    } else if let Some(number) = value.strip_suffix("ms") {
        (number, Duration::from_millis)
    } else {
        (value.strip_suffix('s')?, Duration::from_secs)
    };
    let time = unit(number.parse().ok()?);
    (SHORTEST_SLICE..=LONGEST_SLICE).contains(&time).then_some(time)
}

impl Backend for Scale {
    fn name(&self) -> &'static str {
        NAME
    }

    fn number(&self) -> u8 {
        6
    }

    fn options(&self) -> &'static [OptionSpec] {
        &[
            GROUP,
            SLICE,
            PINS,
            PINNED,
            DOORBELLS,
            GROUPS,
            SLICES_OF,
            CALLER,
            #[cfg(feature = "ablation")]
            ablation::WITHOUT,
        ]
    }

    /// Arguments and results of 8 KiB: measured, a rendezvous is faster from 16 KiB on.
    fn slot_in_memory(&self) -> u32 {
        (8 << 10) + 64
    }

    fn max_window(&self) -> u32 {
        MAX_WINDOW
    }

    fn suits_many_clients(&self) -> bool {
        true
    }

    fn check(&self, fabric: &Fabric<'_>) -> Result<(), SetupError> {
        check(NAME, fabric.device(NAME)?.caps())
    }

    /// Neither end sends anything to a peer that it waits for.
    fn death_notice(&self) -> DeathNotice {
        DeathNotice::BY_SOCKET
    }

    fn shared_slices(&self, config: &Config) -> Result<Option<SharedSlices>, SetupError> {
        let of = config.options.get(SLICES_OF.name).map(str::to_owned);
        let Some(groups) = config.options.get(GROUPS.name).and_then(groups_of_servers) else {
            return match of {
                None => Ok(None),
                Some(_) => Err(SetupError::Unsupported(
                    "slices_of needs groups=N, as many as that server has".to_owned(),
                )),
            };
        };
        let slice = config.options.value_or(&SLICE, slice, DEFAULT_SLICE);
        let plan = SlicePlan { groups, slice_nanos: slice.as_nanos() as u64 };
        Ok(Some(SharedSlices { plan, of }))
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
        let wants_pin = config.options.value_or(&PINNED, pinned, false);
        let own = device.process_number();
        let caller = config.options.value_or(&CALLER, caller, own);
        let port = ClientPort::open(device, &completions.queue(), &terms, (wants_pin, caller))?;
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
        // A NIC keeps the contexts of so many clients on its chip, whichever thread serves them.
        let group =
            config.options.value_or(&GROUP, group, DEFAULT_GROUP).div_ceil(at.thread.threads);
        let numbered = self.shared_slices(config)?.map(|shared| {
            NumberedSlices::new(shared.plan, at.thread, SharedTime::new(at.clock.cloned()))
        });
        let slices = Slices::new(config.options.value_or(&SLICE, slice, DEFAULT_SLICE), at.thread)
            .share(numbered);
        let pins = config.options.value_or(&PINS, pins, DEFAULT_PINS);
        let most = u32::try_from(max_clients).unwrap_or(u32::MAX);
        // Those that are served, as many that are on their way out, and pinned ones.
        let wanted = 2 * most_members(group).min(most) + pins.min(most);
        let layout = PoolLayout::new(wanted, &config.terms());
        let pd = device.alloc_pd()?;
        let access = if guards(device.caps()) { Access::MW_BIND } else { Access::REMOTE_WRITE };
        let pool = pd.alloc_shared_on_demand(layout.bytes() as usize, access)?;
        let looks = may_look(device.caps());
        if looks {
            pool.watch(DeviceChannel::at(at.site, device)?.channel())?;
        }
        let (places, clients) = Places::new(Pool::new(pool.clone(), &layout));
        let mut shared = Schedule::new(group, slices, places, looks);
        shared.leave_out(Without::of(config));
        let pins = Pins::new(pins);
        let rings_each = config.options.value_or(&DOORBELLS, rings_each, false);
        let ends = Ends { device: device.clone(), pd, pool, layout, rings_each, pins, clients };
        let places = at.places_for(config, max_clients);
        let serving = Serving { site: at.site, device, config, max_clients, places };
        serving.half(clusters, ends, shared)
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
        let end = port.connect(&device, &answer)?;
        Ok(Box::new(Client::new(completions, end, answer.terms, memory)))
    }
}

#[cfg(test)]
mod option_tests {
    use super::*;

    #[test]
    fn options_have_units_and_bounds() {
        assert_eq!(slice("100us"), Some(DEFAULT_SLICE));
        assert_eq!(slice("2ms"), Some(Duration::from_millis(2)));
        assert_eq!(slice("1s"), Some(LONGEST_SLICE));
        for wrong in ["", "100", "0us", "2s", "-1us", "1.5ms", "us", "99999999999999999999s"] {
            assert_eq!(slice(wrong), None, "{wrong}");
        }
        assert_eq!(
            (rings_each("turn"), rings_each("response"), rings_each("")),
            (Some(false), Some(true), None)
        );
        assert_eq!(
            (group("1"), group("160"), group("0"), group("161")),
            (Some(1), Some(160), None, None)
        );
        assert_eq!(
            (pins("0"), pins("32"), pins("33"), pins("-1")),
            (Some(0), Some(32), None, None)
        );
        assert_eq!((pinned("yes"), pinned("no"), pinned("")), (Some(true), Some(false), None));
        let groups = ["2", "256", "1", "257", "x"].map(groups_of_servers);
        assert_eq!(groups, [Some(2), Some(256), None, None, None]);
        assert_eq!((caller("0"), caller("-1"), caller("x")), (Some(0), None, None));
        for (of, is_address) in [
            ("rdma://10.0.0.1:7471", true),
            ("shm://kv", true),
            ("kv", false),
            ("shm://", false),
            ("shm://kv?slice=1us", false),
        ] {
            assert_eq!((SLICES_OF.accepts)(of), is_address, "{of}");
        }
    }
}
