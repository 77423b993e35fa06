//! How both ends begin: what [`BackendKind`](crate::BackendKind) calls.

use std::time::Duration;

use farcall_core::transport::{ClientThread, ClientTransport};
use farcall_verbs::Device;

use super::calls::Calls;
use super::client::{Client, Line};
use super::server::Server;
use super::setup::{CREDITS, EndSetup, Sizes, max_whole, part_bytes};
use super::shared::{Seat, Shared, SharingClient};
use super::transfers::Transfers;
use crate::address::Limits;
use crate::backend::{PendingClient, ServerHalf, SetupError};
use crate::handshake::Terms;

/// A client's number of the only session of its queue pair.
const ONLY_SESSION: u32 = 0;

/// A client's queue pair, before its session begins.
enum Place {
    Own(Box<Line>),
    /// One that sessions share.
    Shared(Seat),
}

struct Pending {
    place: Place,
    limits: Limits,
    setup: Vec<u8>,
}

pub(crate) fn prepare(
    device: &Device,
    limits: &Limits,
    thread: Option<&ClientThread>,
) -> Result<Box<dyn PendingClient>, SetupError> {
    let without = limits.without;
    let (place, setup) = match thread {
        None => {
            let sizes = Sizes::of_client(limits.window, device.caps(), without);
            let line = Line::open(device, &sizes)?;
            let setup = line.setup(ONLY_SESSION, device.now_ns());
            (Place::Own(Box::new(line)), setup)
        }
        Some(thread) => {
            let fits = |shared: &Shared| shared.fits(device, without);
            let seat = Seat::take(thread.share(fits, || Shared::open(device, without))?);
            let setup = seat.shared.lock().line.setup(seat.number, device.now_ns());
            (Place::Shared(seat), setup)
        }
    };
    Ok(Box::new(Pending { place, limits: *limits, setup }))
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
        let Pending { place, limits, .. } = *self;
        Ok(match place {
            Place::Own(line) => {
                let calls = calls(&line, ONLY_SESSION, terms, setup, &limits)?;
                Box::new(Client::new(*line, calls))
            }
            Place::Shared(seat) => {
                let calls = calls(&seat.shared.lock().line, seat.number, terms, setup, &limits)?;
                Box::new(SharingClient::new(seat, calls))
            }
        })
    }
}

/// The calls of a session of that number, with a server that has said this.
fn calls(
    line: &Line,
    session: u32,
    terms: &Terms,
    setup: &[u8],
    limits: &Limits,
) -> Result<Calls, SetupError> {
    let theirs = EndSetup::from_bytes(setup)?;
    let way = theirs.way(&line.pd, theirs.epoch, line.mtu)?;
    let part = part_bytes(way.mtu);
    // No more than we have receives for.
    let credits = theirs.credits.min(CREDITS);
    let transfers = Transfers::new(terms.window, &line.pd, limits.memory, part, credits);
    let longest = (terms.max_message, max_whole(terms, way.mtu));
    Ok(Calls::new(way, session, terms.window, longest, transfers, limits, line.has_network))
}

pub(crate) fn serve(
    device: &Device,
    limits: &Limits,
    max_clients: usize,
) -> Result<ServerHalf, SetupError> {
    let (server, intake) = Server::new(device, limits, max_clients)?;
    Ok(ServerHalf { transport: Box::new(server), intake: Box::new(intake) })
}
