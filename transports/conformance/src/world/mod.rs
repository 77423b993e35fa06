//! What a case works with: servers, clients driven by its own thread, and bounded waits.

mod calls;
mod server;

use std::time::Duration;

use farcall_core::{
    BindError, Channel, ChannelOptions, ConnectError, Connection, ConnectionOptions, IdlePolicy,
    PollClient, ServiceClient,
    transport::{ConnectionId, Dial, DialOptions, Lane},
};

use farcall_transports::hybrid;

pub use calls::AnyPending;
pub use server::{Ending, Server};

use crate::{
    backends::{self, Backend},
    dice::Dice,
    fixture::Fixture,
    hostile::{RawConnection, RawListener},
    inspect::Holdings,
    patience::patient,
    process::Peer,
    service::{SuiteClient, SuitePollClient},
    setup::Setup,
};

/// The bound on every wait of a case, and on every call without a shorter deadline, on a usual machine.
pub const BOUND: Duration = Duration::from_secs(20);

/// What a server may hold for the clients of a case whose connections move: another lane each, and the memory for large messages of
/// another backend.
const LANES: Holdings = Holdings {
    descriptors: 8,
    shared_mappings: 12,
    threads: 0,
    queues: 4,
    regions: 16,
    clients: 1,
};

/// The surroundings of one case. Copies may go to any thread of the case.
#[derive(Clone, Copy)]
pub struct World<'f> {
    fixture: &'f dyn Fixture,
    bound: Duration,
}

impl<'f> World<'f> {
    /// On that fixture.
    pub fn new(fixture: &'f dyn Fixture) -> World<'f> {
        World { fixture, bound: patient(BOUND) }
    }

    /// The same with another bound on every wait and call.
    pub fn with_bound(self, bound: Duration) -> World<'f> {
        World { bound, ..self }
    }

    /// The suite's entry of the backend under test.
    ///
    /// # Panics
    /// The suite knows no such backend; the cases of hostile peers need one that it knows.
    pub fn backend(&self) -> &'static Backend {
        let name = self.fixture.backend();
        backends::find(name).unwrap_or_else(|| panic!("the suite has no entry for {name}"))
    }

    /// What a case draws at random: on a rack, it follows from the rack's seed.
    pub fn dice(&self) -> Dice {
        Dice::new(self.fixture.seed())
    }

    /// Waiting costs nothing, and other programs do not delay anything.
    pub fn has_virtual_time(&self) -> bool {
        self.fixture.capabilities().virtual_time
    }

    /// Messages are lost or delayed at random.
    pub fn has_random_faults(&self) -> bool {
        self.fixture.has_random_faults()
    }

    /// Time that has passed.
    pub fn now(&self) -> Duration {
        self.fixture.now()
    }

    /// Repeats `step` until it gives something; panics with `what` after the bound.
    #[track_caller]
    pub fn until<T>(&self, what: &str, mut step: impl FnMut() -> Option<T>) -> T {
        let end = self.now() + self.bound;
        loop {
            if let Some(done) = step() {
                return done;
            }
            assert!(self.now() < end, "not within {:?}: {what}", self.bound);
            self.fixture.turn();
        }
    }
}

/// Handshakes by hand.
impl World<'_> {
    /// A connection to the server, before the handshake.
    #[track_caller]
    pub fn raw_connection(&self, server: &Server) -> RawConnection {
        let connection = self.fixture.raw_connection(&server.address);
        connection.unwrap_or_else(|| panic!("no raw connection to {}", server.address))
    }

    /// A listener at that address instead of a server.
    #[track_caller]
    pub fn raw_listener(&self, address: &str) -> RawListener {
        let listener = self.fixture.raw_listener(address);
        listener.unwrap_or_else(|| panic!("no raw listener at {address}"))
    }
}

/// Servers.
impl World<'_> {
    /// An unused address.
    pub fn fresh_address(&self, setup: &Setup) -> String {
        self.fixture.fresh_address(setup)
    }

    /// The endpoint at an address, or what is wrong with the address.
    pub fn parse(&self, address: &str) -> Result<Box<dyn Dial>, String> {
        self.fixture.parse(address)
    }

    /// A server at a fresh address.
    #[track_caller]
    pub fn serve(&self, setup: Setup) -> Server {
        let address = self.fresh_address(&setup);
        match self.try_serve_at(&address, setup) {
            Ok(server) => server,
            Err(error) => panic!("serve at {address}: {error}"),
        }
    }

    /// A server at that address, or the error.
    pub fn try_serve_at(&self, address: &str, setup: Setup) -> Result<Server, BindError> {
        let served = self.fixture.serve(address, &setup)?;
        Ok(Server::new(address, served))
    }

    /// A server in a process of its own, at a fresh address.
    #[track_caller]
    pub fn serve_in_process(&self, setup: Setup) -> Server {
        let address = self.fresh_address(&setup);
        self.serve_in_process_at(&address, setup)
    }

    /// A server in a process of its own, at that address.
    #[track_caller]
    pub fn serve_in_process_at(&self, address: &str, setup: Setup) -> Server {
        match self.fixture.serve_in_process(address, &setup) {
            Ok(served) => Server::new(address, served),
            Err(error) => panic!("serve at {address} in a process: {error}"),
        }
    }

    /// A process that makes connections.
    #[track_caller]
    pub fn peer(&self) -> Peer {
        Peer::start(self.fixture.peer())
    }

    /// Waits until a shutdown has ended, and polls a client meanwhile.
    #[track_caller]
    pub fn wait_ended(&self, mut ending: Ending, client: &mut impl PollClient) {
        self.until("the server has ended", || {
            client.connection().poll();
            ending.has_ended().then_some(())
        });
        // The goodbye arrived before the end, perhaps after the last poll.
        client.connection().poll();
    }

    /// What a server holds when it has stopped changing.
    #[track_caller]
    pub fn settled_holdings(&self, server: &Server) -> Holdings {
        let mut last = server.holdings();
        let mut same = 0;
        self.until("the server's holdings have settled", || {
            self.fixture.turn();
            let now = server.holdings();
            same = if now == last { same + 1 } else { 0 };
            last = now;
            (same > 200).then_some(last)
        })
    }

    /// The most windows that a connection has at a time.
    pub fn most_windows(&self) -> usize {
        if self.fixture.backend() == hybrid::NAME { 3 } else { 1 }
    }

    /// Waits until a server holds no more than before, or than it may for clients that have moved meanwhile.
    #[track_caller]
    pub fn wait_holdings(&self, server: &Server, before: &Holdings) {
        let spare =
            if self.fixture.backend() == hybrid::NAME { LANES } else { Holdings::default() };
        let (mut last, allowed) = (*before, before.and(&spare));
        let end = self.now() + self.bound;
        while self.now() < end {
            last = server.holdings();
            if last.within(&allowed) {
                return;
            }
            self.fixture.turn();
        }
        panic!("the server held {before:?} before, and holds {last:?} afterwards");
    }
}

/// Connections.
impl World<'_> {
    /// A client of the suite's service.
    #[track_caller]
    pub fn client(&self, server: &Server) -> SuitePollClient {
        self.connect(server)
    }

    /// A client whose waiting calls sleep at once.
    #[track_caller]
    pub fn sleepy_client(&self, server: &Server) -> SuitePollClient {
        let options = self.options().idle(IdlePolicy::PARK);
        match self.dial(&server.address, &options) {
            Ok(client) => client,
            Err(error) => panic!("connect to {}: {error}", server.address),
        }
    }

    /// A client of the suite's service for any thread and executor, whose calls may take as long as the case's bound.
    #[track_caller]
    pub fn channel(&self, server: &Server, options: ChannelOptions) -> SuiteClient {
        self.channel_of(server, options)
    }

    /// A client of any service for any thread and executor.
    #[track_caller]
    pub fn channel_of<C: ServiceClient>(&self, server: &Server, options: ChannelOptions) -> C {
        let options =
            options.dial_timeout(patient(DialOptions::default().timeout)).timeout(self.bound);
        let address = match self.parse(&server.address) {
            Ok(address) => address,
            Err(error) => panic!("{}: {error}", server.address),
        };
        match Channel::connect(address, C::DESCRIPTION, options) {
            Ok(channel) => C::from_channel(channel),
            Err(error) => panic!("connect to {}: {error}", server.address),
        }
    }

    /// A client of any service.
    #[track_caller]
    pub fn connect<P: PollClient>(&self, server: &Server) -> P {
        match self.try_connect(&server.address) {
            Ok(client) => client,
            Err(error) => panic!("connect to {}: {error}", server.address),
        }
    }

    fn options(&self) -> ConnectionOptions {
        let dial_timeout = patient(DialOptions::default().timeout);
        let usual = ConnectionOptions::default().timeout(self.bound).dial_timeout(dial_timeout);
        usual.site(&self.fixture.site())
    }

    /// A lane of a client's connection, with the connection's id, or why there is none.
    pub fn lane(
        &self,
        server: &Server,
        lane: Lane,
    ) -> Result<(SuitePollClient, Option<ConnectionId>), ConnectError> {
        let site = self.fixture.site();
        let endpoint = self.parse(&server.address).expect("a server's address");
        let timeout = patient(DialOptions::default().timeout);
        let options = DialOptions { lane, timeout, ..DialOptions::default() };
        let dialled = endpoint.dial(SuitePollClient::DESCRIPTION, &site, &options)?;
        let id = dialled.connection;
        let connection = Connection::new(dialled, &site, &self.options());
        Ok((SuitePollClient::from_connection(connection), id))
    }

    /// A client of any service, or the error.
    #[track_caller]
    pub fn try_connect<P: PollClient>(&self, address: &str) -> Result<P, ConnectError> {
        self.dial(address, &self.options())
    }

    /// A client of any service that requires these methods, or the error.
    #[track_caller]
    pub fn try_connect_requiring<P: PollClient>(
        &self,
        address: &str,
        methods: &[&'static str],
    ) -> Result<P, ConnectError> {
        self.dial(address, &self.options().require(methods))
    }

    /// A client of any service, or why not, with a bound on the handshake.
    #[track_caller]
    pub fn try_connect_within<P: PollClient>(
        &self,
        address: &str,
        bound: Duration,
    ) -> Result<P, ConnectError> {
        self.dial(address, &self.options().dial_timeout(bound))
    }

    #[track_caller]
    fn dial<P: PollClient>(
        &self,
        address: &str,
        options: &ConnectionOptions,
    ) -> Result<P, ConnectError> {
        let endpoint = match self.parse(address) {
            Ok(endpoint) => endpoint,
            Err(error) => panic!("{address}: {error}"),
        };
        Connection::connect(&*endpoint, P::DESCRIPTION, options).map(P::from_connection)
    }
}
