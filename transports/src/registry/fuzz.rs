//! Fuzz targets of what the two ends of each backend say of themselves in the handshake, between ends on shared memory that connect
//! to it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bolero::check;
use farcall_core::error::TransportFailure;
use farcall_core::site::Site;
use farcall_core::transport::{
    CallToken, ClientInfo, Message, Replies, ReplySink, RequestSink, SlotId,
};
use farcall_verbs::Device;

use super::ALL;
use crate::contract::{
    Accepted, Answer, Backend, Config, Fabric, NewClient, PendingClient, Placement, ServerHalf,
    SetupError, Source, Terms,
};

/// Longer than an end takes to connect on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Gets what a transport tells in its first turns, before any call.
struct NoCalls;

impl RequestSink for NoCalls {
    fn request(&mut self, _: CallToken, _: Message<'_>, _: &mut dyn Replies) {
        panic!("nobody has called");
    }

    fn is_idempotent(&self, _: &[u8]) -> bool {
        false
    }

    fn device_lost(&mut self) {
        panic!("the device is there");
    }
}

impl ReplySink for NoCalls {
    fn reply(&mut self, _: SlotId, _: Message<'_>) {
        panic!("nobody has called");
    }

    fn failed(&mut self, _: SlotId, _: TransportFailure) {
        panic!("nobody has called");
    }

    fn lane_lost(&mut self, _: core::ops::Range<u32>, _: TransportFailure) {
        panic!("it has one lane");
    }

    fn closed(&mut self, _: TransportFailure) {}
}

/// A server of one backend, for clients in this test.
struct Server {
    backend: &'static dyn Backend,
    device: Device,
    site: Site,
    config: Config,
    half: ServerHalf,
}

impl Server {
    /// One for each backend that needs a device.
    fn of_each_backend() -> Vec<Server> {
        let device = Device::open("shm-plain").expect("shared memory");
        let of_backend = |backend: &&'static dyn Backend| {
            let fabric = Fabric::Verbs(&device);
            backend.check(&fabric).ok()?;
            let site = Site::new();
            let config = Config { window: 2, slot: 256, ..Config::default() };
            let half = backend.serve(&Placement::new(&site, fabric), &config, 16);
            let half = half.expect("the device fits");
            Some(Server { backend: *backend, device: device.clone(), site, config, half })
        };
        let servers: Vec<_> = ALL.iter().filter_map(of_backend).collect();
        assert!(servers.len() >= 5, "all but `tcp`");
        servers
    }

    fn terms(&self) -> Terms {
        self.config.terms()
    }

    fn dial(&self) -> Box<dyn PendingClient> {
        let placement = Placement::new(&self.site, Fabric::Verbs(&self.device));
        self.backend.dial(&placement, &self.config).expect("the device fits")
    }

    fn accept(&self, setup: &[u8]) -> Result<Accepted, SetupError> {
        let source = Source::Unknown;
        let terms = &self.terms();
        let client =
            NewClient { terms, setup, timeout: TIMEOUT, source, info: &ClientInfo::default() };
        match self.half.intake.accept(client) {
            // Clients that have left keep their places until they are torn down.
            Err(SetupError::Full(_)) if self.half.intake.make_room(source, TIMEOUT) => {
                self.half.intake.accept(client)
            }
            outcome => outcome,
        }
    }

    /// Connects a client to what is left of `setup`, and gives it a turn.
    fn finish(&self, pending: Box<dyn PendingClient>, setup: &[u8]) {
        let answer = Answer { terms: &self.terms(), setup, timeout: TIMEOUT };
        if let Ok(mut client) = pending.finish(answer) {
            client.poll(self.site.now(), &mut NoCalls);
        }
    }

    /// A client leaves, if there is one; and the server goes on.
    fn dismiss(&mut self, client: Option<Accepted>) {
        if let Some(client) = client {
            (client.withdraw)();
        }
        for _ in 0..3 {
            self.half.transport.poll(self.site.now(), &mut NoCalls);
            self.half.transport.flush();
        }
    }
}

/// Changes `setup` as `changes` says: each pair of bytes replaces one byte, and what is left over cuts the end off.
fn changed(mut setup: Vec<u8>, changes: &[u8]) -> Vec<u8> {
    let (pairs, rest) = changes.as_chunks::<2>();
    for [at, value] in pairs {
        let at = usize::from(*at) % setup.len();
        setup[at] = *value;
    }
    if let [keep] = rest {
        setup.truncate(usize::from(*keep) % setup.len());
    }
    setup
}

/// The first byte selects a server; the others are the changes.
fn choose<'a>(servers: &'a mut [Server], input: &'a [u8]) -> Option<(&'a mut Server, &'a [u8])> {
    let (which, changes) = input.split_first()?;
    let count = servers.len();
    Some((&mut servers[usize::from(*which) % count], changes))
}

/// The server connects to a client with any setup, or refuses it, and the next client is served.
#[test]
fn any_setup_of_a_client_is_connected_to_or_refused() {
    let servers = Mutex::new(Server::of_each_backend());
    check!().with_max_len(9).for_each(|input: &[u8]| {
        let mut servers = servers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((server, changes)) = choose(&mut servers, input) else { return };
        let pending = server.dial();
        let accepted = server.accept(&changed(pending.setup(), changes));
        server.dismiss(accepted.ok());
        let accepted = server.accept(&server.dial().setup());
        if let Err(error) = &accepted {
            panic!("{}: the next client: {error}", server.backend.name());
        }
        server.dismiss(accepted.ok());
    });
}

/// The client connects to a server with any setup, or not, and the next client does.
#[test]
fn any_setup_of_a_server_is_connected_to_or_refused() {
    let servers = Mutex::new(Server::of_each_backend());
    check!().with_max_len(9).for_each(|input: &[u8]| {
        let mut servers = servers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((server, changes)) = choose(&mut servers, input) else { return };
        let pending = server.dial();
        let accepted = server.accept(&pending.setup()).expect("a client as it should be");
        server.finish(pending, &changed(accepted.setup.clone(), changes));
        server.dismiss(Some(accepted));
    });
}
