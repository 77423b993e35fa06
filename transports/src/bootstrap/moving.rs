//! Dialling a connection that moves among backends: its first lane, and then, on threads, further ones.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;

use crossbeam_channel::{Receiver, TryRecvError, bounded};
use farcall_core::error::ConnectError;
use farcall_core::service::ServiceDescription;
use farcall_core::site::Site;
use farcall_core::time::{Instant, PollAt};
use farcall_core::transport::{
    Adviser, ClientTransport, ConnectionId, DialOptions, Lane, LaneReason, NewConnection,
};

use super::dialers;
use crate::address::{Address, runs_on_stream};
use crate::contract::{Backend, Config};
use crate::hybrid::{AdvisedWay, BySharedRate, Hybrid, OpenLane, Opening, Way, Ways};

/// What is dialled, and how.
type Call<'a> = (&'static ServiceDescription, &'a Site, &'a DialOptions);

/// Dials the first of these ways that the server has, with what opens the others.
pub(super) fn dial(
    address: &Address,
    ways: Vec<Address>,
    (service, site, options): Call<'_>,
) -> Result<NewConnection, ConnectError> {
    // What dials lanes by itself moves by itself.
    let moves = ways.len() > 1 && options.lane == Lane::Alone;
    let lane = if moves { Lane::First } else { options.lane };
    let options = DialOptions { lane, ..options.clone() };
    let (home, first) = match dial_first(address, &ways, (service, site, &options)) {
        // The server may be an older one, whose connections have one lane each.
        Err(ConnectError::Unsupported { .. }) if moves => {
            let options = DialOptions { lane: Lane::Alone, ..options.clone() };
            dial_first(address, &ways, (service, site, &options))?
        }
        dialled => dialled?,
    };
    let Some(id) = first.connection.filter(|_| moves) else { return Ok(first) };
    let mut ways = ways;
    if !runs_on_stream(ways[home].backend()) {
        // With RDMA, a way without is none.
        ways.retain(|way| !runs_on_stream(way.backend()));
    }
    let moves = Arc::clone(&options.moves);
    let opener = OnThreads {
        options: DialOptions { lane: Lane::Of(id), ..options },
        address: address.clone(),
        among: ways_among(ways.iter().map(|way| (way.backend(), way.config()))),
        ways,
        service,
        site: site.clone(),
        dialled: None,
    };
    let moving = |first| -> Box<dyn ClientTransport> {
        Box::new(Hybrid::new(first, home, Box::new(opener), seed_of(&id)).counting(moves))
    };
    Ok(NewConnection { connection: None, ..first.with_layer(moving) })
}

/// The first way that can be had, and its connection.
fn dial_first(
    address: &Address,
    ways: &[Address],
    (service, site, options): Call<'_>,
) -> Result<(usize, NewConnection), ConnectError> {
    let (mut home, mut options) = (0, options.clone());
    let mut no_device = None;
    loop {
        let error = match ways[home].dial_lane(address, service, site, &options) {
            Ok(connection) => {
                if let Some(error) = no_device {
                    warn_of_stream(address, &ways[home], &error);
                }
                return Ok((home, connection));
            }
            Err(error) => error,
        };
        let Some(next) = next_way(ways, home, &error) else {
            // A server without such a way says less than why it is needed.
            let is_not_there = matches!(error, ConnectError::BackendMismatch { .. });
            return Err(no_device.filter(|_| is_not_there).unwrap_or(error));
        };
        if matches!(error, ConnectError::Device { .. }) {
            no_device = Some(error);
        }
        (home, options.why) = (next, LaneReason::Fallback);
    }
}

/// Which way to try after one that could not be had for this reason. Without its device, only one that needs none.
fn next_way(ways: &[Address], at: usize, error: &ConnectError) -> Option<usize> {
    let is_without_device = matches!(error, ConnectError::Device { .. });
    if !is_without_device && !can_go_elsewhere(error) {
        return None;
    }
    let mut rest = at + 1..ways.len();
    rest.find(|way| !is_without_device || runs_on_stream(ways[*way].backend()))
}

#[cold]
fn warn_of_stream(address: &Address, way: &Address, error: &ConnectError) {
    let backend = way.backend().name();
    tracing::warn!(%address, backend, %error, "no RDMA to the server: calls go without, which takes longer");
}

/// Another backend may do where this one does not.
pub fn can_go_elsewhere(error: &ConnectError) -> bool {
    matches!(error, ConnectError::BackendMismatch { .. } | ConnectError::Unsupported { .. })
}

/// What a connection that moves knows of these backends, each with what this end is ready to give.
pub fn ways_among<'a>(backends: impl Iterator<Item = (&'static dyn Backend, &'a Config)>) -> Ways {
    let way = |(backend, config): (&dyn Backend, &Config)| Way {
        name: backend.name(),
        number: backend.number(),
        slots: config.window,
    };
    Ways::new(backends.map(way).collect())
}

/// Advises the clients of a server that offers these backends in this order to clients that move, at so many threads. The seed decides when
/// ways are tried.
pub fn adviser<'a>(
    backends: impl Iterator<Item = (&'static dyn Backend, &'a Config)>,
    threads: usize,
    seed: &impl Hash,
) -> Arc<dyn Adviser> {
    let mut ways: Vec<_> = backends.map(|(backend, _)| backend).enumerate().collect();
    if ways.iter().any(|(_, backend)| !runs_on_stream(*backend)) {
        // With RDMA, a way without is for clients that have none.
        ways.retain(|(_, backend)| !runs_on_stream(*backend));
    }
    ways.sort_by_key(|(_, backend)| !backend.suits_many_clients());
    let way = |(half, backend): (_, &dyn Backend)| AdvisedWay {
        number: backend.number(),
        half,
        suits_many: backend.suits_many_clients(),
    };
    let ways = ways.into_iter().map(way).collect();
    Arc::new(BySharedRate::new(threads, ways, hash_of(seed)))
}

/// A number of its own for each connection, by which it rolls its dice.
pub fn seed_of(id: &ConnectionId) -> u64 {
    hash_of(id)
}

fn hash_of(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

type Dialled = Result<Box<dyn ClientTransport>, ConnectError>;

/// Opens lanes on threads: dialling blocks.
struct OnThreads {
    address: Address,
    ways: Vec<Address>,
    among: Ways,
    service: &'static ServiceDescription,
    site: Site,
    options: DialOptions,
    dialled: Option<Result<Receiver<Dialled>, io::Error>>,
}

impl OpenLane for OnThreads {
    fn ways(&self) -> &Ways {
        &self.among
    }

    fn open(&mut self, way: usize, why: LaneReason) {
        let (answer, dialled) = bounded(1);
        let (way, named) = (self.ways[way].clone(), self.address.clone());
        let (service, site) = (self.service, self.site.clone());
        let options = DialOptions { why, ..self.options.clone() };
        let dial = move || {
            // If the connection has ended meanwhile, this drops the lane. The sender goes before the thread is woken, also if dialling
            // panics.
            let _wake_last = WakeOnDrop(site.clone());
            let answer = answer;
            let dialled = way.dial_lane(&named, service, &site, &options);
            let _ = answer.send(dialled.map(|connection| connection.transport));
        };
        self.dialled = Some(dialers::run(dial).map(|()| dialled));
    }

    fn poll(&mut self, _: Instant) -> Opening {
        let io = |cause| ConnectError::Io {
            address: self.address.to_string(),
            doing: "starting a thread that opens a lane",
            cause,
        };
        match self.dialled.take() {
            Some(Ok(dialled)) => match dialled.try_recv() {
                Ok(answer) => Opening::Done(answer),
                Err(TryRecvError::Empty) => {
                    self.dialled = Some(Ok(dialled));
                    Opening::NotYet(PollAt::OnEvent)
                }
                Err(TryRecvError::Disconnected) => {
                    Opening::Done(Err(io(io::Error::other("it has panicked"))))
                }
            },
            Some(Err(cause)) => Opening::Done(Err(io(cause))),
            None => Opening::Done(Err(io(io::Error::other("none was asked for")))),
        }
    }
}

/// Wakes the connection's thread when the dialling one ends.
struct WakeOnDrop(Site);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}
