//! The fixture for every backend that an [`Address`] can name.

use std::{
    cell::Cell,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{self, UnixListener, UnixStream},
    },
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use farcall_core::{
    BindError, ClientQuota, ConnectError, IdlePolicy, RunningServer, Server, ServerBuilder,
    ServiceDescription, Site,
    transport::{BindOptions, BindTls, Dial, DialOptions, DialTls, NewConnection},
};
use farcall_transports::{Address, AddressError, NetworkPlace, Place};
use farcall_verbs::Device;

use crate::{
    backends,
    evolving::{v1, v2},
    fixture::{Capabilities, Fixture, Served},
    hostile::{RawConnection, RawListener, RealClock, Stream},
    inspect::Holdings,
    patience::{patience, patient},
    ports,
    process::{Peer, pid_namespace},
    service::{Handlers, OtherServer, SuiteServer},
    setup::Setup,
};

/// Set to anything, lets the cases with messages of 1 GiB run.
pub const GIGABYTES_VARIABLE: &str = "FARCALL_CONFORMANCE_GIGABYTES";

/// Where the servers of the cases are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Threads of the test's own process.
    SameProcess,
    /// Each in a process of its own.
    OtherProcess,
    /// Each in a process and a pid namespace of its own, as are the processes of clients: no process has a number for another.
    OtherPidNamespace,
    /// Each in a process of its own, on the machine where [`process::serve`](crate::process::serve) listens.
    OtherMachine(SocketAddr),
}

/// Servers and clients on this machine, at addresses made of a template.
pub struct AddressFixture {
    template: Address,
    placement: Placement,
    /// The program that runs [`process::main`](crate::process::main).
    peer: Option<PathBuf>,
    within: Option<Arc<dyn Within>>,
    start: Instant,
}

/// TLS around all sockets of a fixture.
pub trait Within: Send + Sync {
    /// What servers are given.
    fn server(&self) -> BindTls;

    /// What clients are given.
    fn client(&self) -> DialTls;

    /// A socket to a server, in the hands of a test.
    fn greet(&self, socket: TcpStream) -> io::Result<Box<dyn Stream>>;

    /// A socket from a client, in the hands of a test.
    fn accept(&self, socket: TcpStream) -> io::Result<Box<dyn Stream>>;
}

/// An address that is dialled within TLS.
struct DialWithin {
    address: Address,
    tls: DialTls,
}

impl Dial for DialWithin {
    fn dial(
        &self,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        let tls = Some(self.tls.clone());
        self.address.dial(service, site, &DialOptions { tls, ..options.clone() })
    }
}

/// Turns of a waiting thread per yield of its core.
const TURNS_PER_YIELD: u32 = 64;

/// Makes addresses of one process differ.
static ADDRESSES: AtomicU64 = AtomicU64::new(0);

impl AddressFixture {
    /// Addresses like that one, with other names or ports; servers in the test's own process.
    pub fn new(template: &str) -> Result<AddressFixture, AddressError> {
        Ok(AddressFixture {
            template: template.parse()?,
            placement: Placement::SameProcess,
            peer: None,
            within: None,
            start: Instant::now(),
        })
    }

    /// Gives the program for other processes: `PROGRAM peer TEMPLATE` must run [`process::main`](crate::process::main).
    pub fn peer(mut self, program: impl Into<PathBuf>) -> AddressFixture {
        self.peer = Some(program.into());
        self
    }

    /// Puts all handshakes within TLS. Servers and clients are then threads of the test.
    pub fn within(mut self, tls: Arc<dyn Within>) -> AddressFixture {
        self.within = Some(tls);
        self
    }

    /// Says where servers are.
    pub fn placement(mut self, placement: Placement) -> AddressFixture {
        self.placement = placement;
        self
    }
}

impl Fixture for AddressFixture {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            threads: true,
            processes: self.peer.is_some(),
            one_machine: !matches!(
                self.placement,
                Placement::OtherPidNamespace | Placement::OtherMachine(_)
            ),
            holdings: self.placement != Placement::SameProcess,
            virtual_time: false,
            raw_handshakes: true,
            strangers: self.within.is_none(),
            gigabytes: std::env::var_os(GIGABYTES_VARIABLE).is_some(),
        }
    }

    fn fresh_address(&self, setup: &Setup) -> String {
        let template = self.template.to_string();
        let (_, options) = template.split_once('?').unwrap_or((&template, ""));
        let address = match self.template.place() {
            Place::Shm { name } => {
                let number = ADDRESSES.fetch_add(1, Ordering::Relaxed);
                format!("shm://{name}-{}-{number}?{options}", std::process::id())
            }
            Place::Rdma(place) => format!("rdma://{}?{options}", with_free_port(place)),
            Place::Tcp(place) => format!("tcp://{}?{options}", with_free_port(place)),
        };
        with_options(address, Fixture::backend(self), setup)
    }

    fn parse(&self, address: &str) -> Result<Box<dyn Dial>, String> {
        match address.parse::<Address>() {
            Ok(address) => Ok(match &self.within {
                None => Box::new(address),
                Some(tls) => Box::new(DialWithin { address, tls: tls.client() }),
            }),
            Err(error) => Err(error.to_string()),
        }
    }

    fn serve(&self, address: &str, setup: &Setup) -> Result<Box<dyn Served>, BindError> {
        match self.placement {
            Placement::SameProcess => {
                let tls = self.within.as_ref().map(|tls| tls.server());
                Ok(Box::new(Local::start(address, setup, tls)?))
            }
            Placement::OtherProcess | Placement::OtherPidNamespace | Placement::OtherMachine(_) => {
                self.serve_in_process(address, setup)
            }
        }
    }

    fn serve_in_process(&self, address: &str, setup: &Setup) -> Result<Box<dyn Served>, BindError> {
        let mut peer = match self.placement {
            Placement::OtherMachine(daemon) => Peer::start_far(daemon, &self.template.to_string()),
            _ => Peer::start(Fixture::peer(self)),
        };
        peer.order(&format!("serve {address} {}", setup.to_words()));
        let answer = peer.answer();
        if answer == "listening" {
            return Ok(Box::new(Remote { peer, ended: false }));
        }
        Err(match answer.split_once(' ') {
            Some(("in-use", named)) => BindError::InUse { address: named.to_owned() },
            _ => BindError::Unsupported { address: address.to_owned(), what: answer },
        })
    }

    fn peer(&self) -> Command {
        let program = self.peer.as_ref().expect("a case that needs processes runs where they are");
        let mut command = match self.placement {
            Placement::OtherPidNamespace => pid_namespace::command(program),
            _ => Command::new(program),
        };
        command.args(["peer", &self.template.to_string()]);
        command
    }

    fn backend(&self) -> &str {
        self.template.backend_name()
    }

    fn raw_connection(&self, address: &str) -> Option<RawConnection> {
        let address: Address = address.parse().ok()?;
        let stream: Box<dyn Stream> = match address.place() {
            Place::Shm { name } => {
                let stream = UnixStream::connect_addr(&socket(name)?).ok()?;
                stream.set_read_timeout(Some(patient(HANDSHAKE_BOUND))).ok()?;
                Box::new(stream)
            }
            Place::Rdma(NetworkPlace { host, port, .. })
            | Place::Tcp(NetworkPlace { host, port, .. }) => {
                let stream = TcpStream::connect((host.as_str(), *port)).ok()?;
                stream.set_read_timeout(Some(patient(HANDSHAKE_BOUND))).ok()?;
                stream.set_write_timeout(Some(patient(WRITE_BOUND))).ok()?;
                match &self.within {
                    None => Box::new(stream),
                    Some(tls) => tls.greet(stream).ok()?,
                }
            }
        };
        let is_liveness_socket = address.place().in_network().is_some();
        let (device, clock) = (device_of(&address)?, Box::new(RealClock(self.start)));
        Some(RawConnection { device, stream, is_liveness_socket, clock })
    }

    fn raw_listener(&self, address: &str) -> Option<RawListener> {
        let address: Address = address.parse().ok()?;
        let accept: Box<dyn FnMut() -> io::Result<Box<dyn Stream>> + Send> = match address.place() {
            Place::Shm { name } => {
                let listener = UnixListener::bind_addr(&socket(name)?).ok()?;
                Box::new(move || {
                    let (stream, _) = listener.accept()?;
                    stream.set_read_timeout(Some(patient(HANDSHAKE_BOUND)))?;
                    Ok(Box::new(stream))
                })
            }
            Place::Rdma(NetworkPlace { host, port, .. })
            | Place::Tcp(NetworkPlace { host, port, .. }) => {
                let listener = TcpListener::bind((host.as_str(), *port)).ok()?;
                let within = self.within.clone();
                Box::new(move || {
                    let (stream, _) = listener.accept()?;
                    stream.set_read_timeout(Some(patient(HANDSHAKE_BOUND)))?;
                    match &within {
                        None => Ok(Box::new(stream)),
                        Some(tls) => tls.accept(stream),
                    }
                })
            }
        };
        Some(RawListener { device: device_of(&address)?, accept })
    }

    fn turn(&self) {
        thread_local! {
            static TURNS: Cell<u32> = const { Cell::new(0) };
        }
        // A yield costs a whole time slice on a busy machine. But on a slow one with few cores the kernel may need the core
        // of the waiting thread to deliver the message.
        let turn = TURNS.get().wrapping_add(1);
        TURNS.set(turn);
        if patience() > 1 || turn.is_multiple_of(TURNS_PER_YIELD) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// The bound on each read of a handshake by hand.
const HANDSHAKE_BOUND: Duration = Duration::from_secs(10);

/// How long a hostile client waits for a server that reads nothing of it.
const WRITE_BOUND: Duration = Duration::from_secs(1);

/// The host, and a port that nobody else uses.
fn with_free_port(NetworkPlace { host, .. }: &NetworkPlace) -> String {
    let port = ports::claim();
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The device of an address; where there is none, one that neither end uses.
fn device_of(address: &Address) -> Option<Device> {
    match address.place() {
        Place::Tcp(_) => Device::open("shm").ok(),
        Place::Shm { .. } | Place::Rdma(_) => address.open_device().ok(),
    }
}

/// The Unix socket of the handshake for a name.
fn socket(name: &str) -> Option<net::SocketAddr> {
    let user = rustix::process::geteuid().as_raw();
    net::SocketAddr::from_abstract_name(format!("farcall/{user}/{name}")).ok()
}

/// A builder for a server of the suite's services.
pub(crate) fn builder(handlers: &Arc<Handlers>, setup: &Setup) -> ServerBuilder {
    let mut builder = Server::builder()
        .service(SuiteServer::from(handlers.clone()))
        .threads(setup.threads.unwrap_or(1));
    if setup.other {
        builder = builder.service(OtherServer::from(handlers.clone()));
    }
    builder = match setup.evolving {
        None => builder,
        Some(1) => builder.service(v1::EvolvingServer::from(handlers.clone())),
        Some(_) => builder.service(v2::EvolvingServer::from(handlers.clone())),
    };
    builder = builder.handshake_timeout(patient(BindOptions::default().handshake_timeout));
    if let Some(clients) = setup.max_clients {
        builder = builder.max_clients(clients);
    }
    if let Some(calls) = setup.calls_per_second {
        builder = builder.client_quota(ClientQuota::new().calls_per_second(calls));
    }
    if setup.sleepy {
        builder = builder.idle(IdlePolicy::PARK);
    }
    builder.work_stealing(setup.steals)
}

/// The address with those of the case's options that the backend has.
pub(crate) fn with_options(mut address: String, backend: &str, setup: &Setup) -> String {
    let options = [
        ("window", setup.window.map(|window| window.to_string())),
        ("slot", setup.slot.map(|slot| slot.to_string())),
        ("max_message", setup.max_message.map(|bytes| bytes.to_string())),
        ("memory", setup.memory.map(|bytes| bytes.to_string())),
        ("silence", setup.silence.map(|seconds| format!("{seconds}s"))),
    ];
    let has = |key| backends::find(backend).is_none_or(|known| known.options.contains(&key));
    for (key, value) in options {
        if let Some(value) = value.filter(|_| has(key)) {
            address.push_str(&format!("&{key}={value}"));
        }
    }
    address
}

/// A server of this process.
struct Local {
    handlers: Arc<Handlers>,
    running: Option<RunningServer>,
    ending: Option<JoinHandle<()>>,
}

impl Local {
    fn start(address: &str, setup: &Setup, tls: Option<BindTls>) -> Result<Local, BindError> {
        let address: Address = match address.parse() {
            Ok(address) => address,
            Err(error) => return Err(BindError::InvalidAddress(Box::new(error))),
        };
        let handlers = Arc::new(Handlers::default());
        let mut builder = builder(&handlers, setup);
        if let Some(tls) = tls {
            builder = builder.tls(tls);
        }
        let running = Some(builder.serve(&address)?);
        Ok(Local { handlers, running, ending: None })
    }
}

impl Served for Local {
    fn open(&mut self, gate: u64) {
        self.handlers.open_gate(gate);
    }

    fn metrics(&mut self) -> String {
        self.running.as_ref().expect("the server runs").metrics().prometheus()
    }

    fn begin_shutdown(&mut self) {
        let running = self.running.take().expect("the server runs");
        self.ending = Some(std::thread::spawn(move || {
            running.shutdown();
        }));
    }

    fn has_ended(&mut self) -> bool {
        self.ending.as_ref().is_some_and(JoinHandle::is_finished)
    }

    fn holdings(&mut self) -> Option<Holdings> {
        None // It shares the test's process.
    }

    fn kill(self: Box<Self>) {
        // The nearest that threads can get to it.
        if let Some(running) = self.running {
            running.shutdown_within(Duration::ZERO);
        }
    }
}

/// A server in a process of its own.
struct Remote {
    peer: Peer,
    ended: bool,
}

impl Served for Remote {
    fn open(&mut self, gate: u64) {
        self.peer.ask(&format!("open {gate}"), "opened");
    }

    fn metrics(&mut self) -> String {
        let quoted = self.peer.ask("metrics", "metrics");
        quoted.trim_matches('"').replace("\\n", "\n").replace("\\\"", "\"")
    }

    fn begin_shutdown(&mut self) {
        self.peer.ask("shutdown", "ending");
    }

    fn has_ended(&mut self) -> bool {
        self.ended = self.ended || self.peer.ask("ended", "ended") == "true";
        self.ended
    }

    fn holdings(&mut self) -> Option<Holdings> {
        match self.peer.is_near() {
            true => Holdings::of(self.peer.pid()).ok(),
            false => Holdings::parse(&self.peer.ask("holdings", "holdings")),
        }
    }

    fn kill(mut self: Box<Self>) {
        self.peer.kill();
    }
}
