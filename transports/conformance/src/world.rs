//! What a case works with: servers, clients driven by its own thread, and bounded waits.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use farcall_core::{
    BindError, CallError, Channel, ChannelOptions, ConnectError, Connection, ConnectionOptions,
    IdlePolicy, PendingCall, PollClient, RpcError, ServiceClient,
    codec::{As, Whole},
    service::{Answer, Method},
    transport::{Dial, DialOptions},
};

use crate::{
    backends::{self, Backend},
    fixture::{Fixture, Served},
    hostile::{RawConnection, RawListener},
    inspect::Holdings,
    patience::patient,
    pattern,
    process::Peer,
    service::{SuiteClient, SuiteError, SuitePollClient},
    setup::Setup,
};

/// The bound on every wait of a case, and on every call without a shorter deadline, on a usual machine.
pub const BOUND: Duration = Duration::from_secs(20);

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
            ending.served.has_ended().then_some(())
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

    /// Waits until a server holds no more than before.
    #[track_caller]
    pub fn wait_holdings(&self, server: &Server, before: &Holdings) {
        let mut last = *before;
        let end = self.now() + self.bound;
        while self.now() < end {
            last = server.holdings();
            if last.within(before) {
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

    /// A client of the suite's service for any thread and executor.
    #[track_caller]
    pub fn channel(&self, server: &Server, mut options: ChannelOptions) -> SuiteClient {
        options.dial.timeout = patient(options.dial.timeout);
        options.deadline = patient(options.deadline);
        let address = match self.parse(&server.address) {
            Ok(address) => address,
            Err(error) => panic!("{}: {error}", server.address),
        };
        match Channel::connect(address, SuiteClient::DESCRIPTION, options) {
            Ok(channel) => SuiteClient::from_channel(channel),
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
        let usual = ConnectionOptions::default();
        let dial = usual.dial.clone();
        let timeout = patient(dial.timeout);
        usual.deadline(self.bound).dial(dial.timeout(timeout)).site(&self.fixture.site())
    }

    /// A client of any service, or the error.
    #[track_caller]
    pub fn try_connect<P: PollClient>(&self, address: &str) -> Result<P, ConnectError> {
        self.dial(address, &self.options())
    }

    /// A client of any service, or why not, with a bound on the handshake.
    #[track_caller]
    pub fn try_connect_within<P: PollClient>(
        &self,
        address: &str,
        bound: Duration,
    ) -> Result<P, ConnectError> {
        let dial = DialOptions::default().timeout(bound);
        self.dial(address, &self.options().dial(dial))
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

/// Calls.
impl World<'_> {
    /// One turn of a client, without waiting for anything.
    pub fn turn(&self, client: &mut impl PollClient) {
        client.connection().poll();
        self.fixture.turn();
    }

    /// Starts a call, as soon as there is room for it.
    #[track_caller]
    pub fn try_start<P: PollClient, R>(
        &self,
        client: &mut P,
        mut start: impl FnMut(&mut P) -> Result<PendingCall<R>, RpcError>,
    ) -> Result<PendingCall<R>, RpcError> {
        self.until("the client has room for one more call", || match start(client) {
            Err(RpcError::Overloaded(_)) => {
                client.connection().poll();
                None
            }
            other => Some(other),
        })
    }

    /// Starts a call as soon as there is room for it; it must start.
    #[track_caller]
    pub fn start<P: PollClient, R>(
        &self,
        client: &mut P,
        start: impl FnMut(&mut P) -> Result<PendingCall<R>, RpcError>,
    ) -> PendingCall<R> {
        match self.try_start(client, start) {
            Ok(pending) => pending,
            Err(error) => panic!("start a call: {error:?}"),
        }
    }

    /// The outcome of a started call.
    #[track_caller]
    pub fn finish<P: PollClient, R: 'static>(
        &self,
        client: &mut P,
        mut pending: PendingCall<R>,
    ) -> R {
        self.until("a call has ended", || {
            client.connection().poll();
            client.connection().take(&mut pending)
        })
    }

    /// The outcome of a call started by one of several clients; all are polled.
    #[track_caller]
    pub fn finish_among<P: PollClient, R: 'static>(
        &self,
        clients: &mut [P],
        which: usize,
        mut pending: PendingCall<R>,
    ) -> R {
        self.until("a call has ended", || {
            for client in &mut *clients {
                client.connection().poll();
            }
            clients[which].connection().take(&mut pending)
        })
    }

    /// Starts a call and waits for its outcome.
    #[track_caller]
    pub fn call<P: PollClient, T: 'static, E: From<RpcError> + 'static>(
        &self,
        client: &mut P,
        start: impl FnMut(&mut P) -> Result<PendingCall<Result<T, E>>, RpcError>,
    ) -> Result<T, E> {
        let pending = self.try_start(client, start)?;
        self.finish(client, pending)
    }

    /// Starts a call with a deadline of its own; it must start.
    #[track_caller]
    pub fn start_within<P: PollClient, R>(
        &self,
        client: &mut P,
        deadline: Duration,
        start: impl FnMut(&mut P) -> Result<PendingCall<R>, RpcError>,
    ) -> PendingCall<R> {
        match self.try_start_within(client, deadline, start) {
            Ok(pending) => pending,
            Err(error) => panic!("start a call: {error:?}"),
        }
    }

    /// Starts a call with a deadline of its own.
    #[track_caller]
    pub fn try_start_within<P: PollClient, R>(
        &self,
        client: &mut P,
        deadline: Duration,
        start: impl FnMut(&mut P) -> Result<PendingCall<R>, RpcError>,
    ) -> Result<PendingCall<R>, RpcError> {
        client.connection().set_deadline(deadline);
        let started = self.try_start(client, start);
        client.connection().set_deadline(self.bound);
        started
    }

    /// Starts a call with a deadline of its own, and waits for its outcome.
    #[track_caller]
    pub fn call_within<P: PollClient, T: 'static, E: From<RpcError> + 'static>(
        &self,
        client: &mut P,
        deadline: Duration,
        start: impl FnMut(&mut P) -> Result<PendingCall<Result<T, E>>, RpcError>,
    ) -> Result<T, E> {
        let pending = self.try_start_within(client, deadline, start)?;
        self.finish(client, pending)
    }

    /// Waits until as many calls as that are held at a gate; the client that made them is polled.
    #[track_caller]
    pub fn wait_held(
        &self,
        client: &mut SuitePollClient,
        helper: &mut SuitePollClient,
        gate: u64,
        count: u64,
    ) {
        self.until(&format!("{count} calls are held at gate {gate}"), || {
            client.connection().poll();
            (self.call(helper, |c| c.start_held(gate)) == Ok(count)).then_some(())
        });
    }

    /// Fills the client's window with calls and drains it, twice: every slot and credit is available.
    #[track_caller]
    pub fn assert_full_window_works(
        &self,
        client: &mut SuitePollClient,
        helper: &mut SuitePollClient,
        window: u32,
    ) {
        // Gates that neither a case nor an earlier call of this uses.
        static GATES: AtomicU64 = AtomicU64::new(1 << 60);
        for _ in 0..2 {
            let gate = GATES.fetch_add(1, Ordering::Relaxed);
            let pending: Vec<_> = (0..u64::from(window))
                .map(|value| (value, self.start(client, |c| c.start_hold(gate, value))))
                .collect();
            self.wait_held(client, helper, gate, u64::from(window));
            assert_eq!(self.call(helper, |c| c.start_open(gate)), Ok(()));
            for (value, pending) in pending {
                assert_eq!(self.finish(client, pending), Ok(value));
            }
        }
    }
}

impl World<'_> {
    /// Makes large calls from several new clients at once, more than the server's memory holds at a time: they would never
    /// end if memory had leaked.
    #[track_caller]
    pub fn assert_large_calls_get_their_memory(&self, server: &Server, len: usize) {
        let mut clients: Vec<_> = (0..4).map(|_| self.client(server)).collect();
        for round in 0..3u64 {
            let mut pending = Vec::new();
            for (which, client) in clients.iter_mut().enumerate() {
                for i in 0..4 {
                    let seed = round * 16 + which as u64 * 4 + i;
                    let message = pattern::make(seed, len);
                    pending.push((which, seed, self.start(client, |c| c.start_echo(&message))));
                }
            }
            for (which, seed, pending) in pending {
                let echoed = self.finish_among(&mut clients, which, pending).expect("echo");
                pattern::assert_is(seed, len, &echoed);
            }
        }
    }
}

/// A method by its number, with raw bytes as arguments and result, unlike any generated client.
struct Raw<const ID: u32>;

impl<const ID: u32> Method for Raw<ID> {
    const NAME: &'static str = "raw";
    const ID: u32 = ID;
    type Output = Result<Vec<u8>, RpcError>;

    fn read(answer: Answer<'_>) -> Self::Output {
        match answer {
            Answer::Value(message) => Ok(message.to_vec()),
            Answer::Service(message) => panic!("a service's own error: {message:?}"),
            Answer::Failed(error) => Err(error),
        }
    }
}

impl World<'_> {
    /// Calls method number `ID` with these bytes as arguments.
    #[track_caller]
    pub fn call_raw<const ID: u32>(
        &self,
        client: &mut SuitePollClient,
        arguments: &[u8],
    ) -> Result<Vec<u8>, RpcError> {
        let arguments = As::<Whole, _>::new(arguments);
        self.call(client, |c| c.connection().start::<Raw<ID>, _>(&arguments))
    }
}

/// A call whose kind of outcome does not matter.
#[derive(Debug)]
pub enum AnyPending {
    /// It gives bytes.
    Bytes(PendingCall<Result<Vec<u8>, RpcError>>),
    /// It gives a number.
    Number(PendingCall<Result<u64, RpcError>>),
    /// It gives a number, or the service's own error.
    Checked(PendingCall<Result<u64, CallError<SuiteError>>>),
}

impl From<PendingCall<Result<Vec<u8>, RpcError>>> for AnyPending {
    fn from(pending: PendingCall<Result<Vec<u8>, RpcError>>) -> Self {
        AnyPending::Bytes(pending)
    }
}

impl From<PendingCall<Result<u64, RpcError>>> for AnyPending {
    fn from(pending: PendingCall<Result<u64, RpcError>>) -> Self {
        AnyPending::Number(pending)
    }
}

impl From<PendingCall<Result<u64, CallError<SuiteError>>>> for AnyPending {
    fn from(pending: PendingCall<Result<u64, CallError<SuiteError>>>) -> Self {
        AnyPending::Checked(pending)
    }
}

impl AnyPending {
    /// Cancels the call.
    pub fn cancel(self, client: &mut impl PollClient) {
        match self {
            AnyPending::Bytes(pending) => client.connection().cancel(pending),
            AnyPending::Number(pending) => client.connection().cancel(pending),
            AnyPending::Checked(pending) => client.connection().cancel(pending),
        }
    }
}

impl World<'_> {
    /// Waits for the end of a call, whatever it gives.
    #[track_caller]
    pub fn finish_any(
        &self,
        client: &mut impl PollClient,
        pending: AnyPending,
    ) -> Result<(), RpcError> {
        match pending {
            AnyPending::Bytes(pending) => self.finish(client, pending).map(drop),
            AnyPending::Number(pending) => self.finish(client, pending).map(drop),
            AnyPending::Checked(pending) => match self.finish(client, pending) {
                Ok(_) => Ok(()),
                Err(CallError::Rpc(error)) => Err(error),
                Err(CallError::Service(error)) => panic!("{error}"),
            },
        }
    }
}

/// A server of the suite's services.
pub struct Server {
    /// Where it listens, with the options that the case asked for.
    pub address: String,
    served: Mutex<Box<dyn Served>>,
}

impl Server {
    fn new(address: &str, served: Box<dyn Served>) -> Server {
        Server { address: address.to_owned(), served: Mutex::new(served) }
    }

    fn served(&self) -> MutexGuard<'_, Box<dyn Served>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn into_served(self) -> Box<dyn Served> {
        self.served.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a gate without a call.
    pub fn open(&self, gate: u64) {
        self.served().open(gate);
    }

    /// The server's metrics, in Prometheus text.
    pub fn metrics(&self) -> String {
        self.served().metrics()
    }

    /// What the server holds.
    ///
    /// # Panics
    /// The fixture cannot count it.
    #[track_caller]
    pub fn holdings(&self) -> Holdings {
        self.served().holdings().expect("holdings that can be counted")
    }

    /// Begins a shutdown.
    pub fn begin_shutdown(self) -> Ending {
        let mut served = self.into_served();
        served.begin_shutdown();
        Ending { served }
    }

    /// Shuts down and waits for the end. No call may be in flight.
    #[track_caller]
    pub fn shutdown(self, world: &World<'_>) {
        let mut ending = self.begin_shutdown();
        world.until("the server has ended", || ending.served.has_ended().then_some(()));
    }

    /// Ends it without warning.
    pub fn kill(self) {
        self.into_served().kill();
    }
}

/// A server that is shutting down.
pub struct Ending {
    served: Box<dyn Served>,
}

impl Ending {
    /// Opens a gate without a call.
    pub fn open(&mut self, gate: u64) {
        self.served.open(gate);
    }
}
