//! Calls with both ends in one thread, for a profiler that counts instructions.
//!
//! `cargo xtask instructions` runs this under callgrind. The number of instructions of a call hardly varies from run to run,
//! so a change of 1 % shows on a busy machine, where no measurement of time would show it.

mod busy;
mod ordinary;
mod polling;

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use farcall::{DrivenServer, Server};
use farcall_core::server::ServerThread;
use farcall_core::site::{Clock, Site};
use farcall_core::time::Instant;
use farcall_core::transport::Binding;
use farcall_transports::hybrid::NAME as HYBRID;
use farcall_transports::{Address, registry, runs_on_stream};
use farcall_verbs::Device;

use self::ordinary::Ordinary;
use self::polling::Polling;
use crate::echo::service::{EchoServer, EchoService};

/// Outstanding calls of the cases that are counted: each call alone, and calls that share turns and doorbells.
const WINDOWS: [usize; 2] = [1, 32];

/// Calls before those that count: every slot, buffer and timer was used many times by then.
const WARMING_CALLS: usize = 4096;

/// What a round takes on the driver's clock. It is not the device's: on that, timers would fire in one run and not in another.
const ROUND: Duration = Duration::from_micros(1);

/// What a connection that moves among backends does before the calls that count, and how long its rounds are: it has tried the others by
/// then, and seldom tries one again.
const WARMINGS_OF_HYBRID: usize = 16;
const WARMING_ROUND_OF_HYBRID: Duration = Duration::from_micros(10);

/// In between, the thread that dials another backend runs: under a profiler, one thread runs at a time.
const TIME_TO_DIAL: Duration = Duration::from_millis(20);

/// Rounds in which no answer comes, after which none is expected any more: a second on the driver's clock. The first datagrams
/// are lost until the device's own threads have connected both ends.
const EMPTY_ROUNDS: usize = 1_000_000;

/// The backend under clients that do not poll.
const BACKEND_OF_ORDINARY: &str = "write_imm";

/// The backend of the address that has no clients.
const BACKEND_OF_VACANT: &str = "datagram";

/// How calls are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Client {
    /// By the polling client.
    Poll,
    /// By calls that block the thread.
    Wait,
    /// By tasks that await them.
    Await,
    /// By the polling client, of a server that also listens where it has no clients.
    Vacant,
}

/// What to run.
#[derive(Debug, Clone)]
pub struct Case {
    /// Who makes the calls.
    pub client: Client,
    /// The backend under the stubs.
    pub backend: String,
    /// Calls that the client keeps outstanding.
    pub window: usize,
}

impl Client {
    /// In arguments and in the file of bounds.
    pub fn name(self) -> &'static str {
        match self {
            Client::Poll => "poll",
            Client::Wait => "wait",
            Client::Await => "await",
            Client::Vacant => "vacant",
        }
    }
}

/// Every backend that runs on a device, and a connection that moves among them, with every window; and the other clients with one backend.
/// Most instructions of the other backends are the kernel's, which are not counted.
pub fn cases() -> Vec<Case> {
    let on_device = registry::ALL.iter().filter(|backend| !runs_on_stream(**backend));
    let names = on_device.map(|backend| backend.name()).chain([HYBRID]);
    let case = |client, backend: &str, window| Case { client, backend: backend.to_owned(), window };
    let polling =
        names.flat_map(|backend| WINDOWS.map(|window| case(Client::Poll, backend, window)));
    let ordinary = [
        (Client::Wait, 1),
        (Client::Await, WINDOWS[0]),
        (Client::Await, WINDOWS[1]),
        (Client::Vacant, 1),
    ];
    polling
        .chain(ordinary.map(|(client, window)| case(client, BACKEND_OF_ORDINARY, window)))
        .collect()
}

/// Makes so many calls of 32 bytes in `count_these`, after some that do not count.
///
/// # Errors
///
/// Nothing can listen or connect, or a call fails.
pub fn run(case: &Case, calls: usize) -> Result<()> {
    let Case { client, backend, window } = case;
    ensure!(*client != Client::Wait || *window == 1, "a thread that blocks makes one call");
    // At least the default, so that a small window does not also mean few slots.
    let slots = window.max(&64);
    let id = process::id();
    // Under a profiler on a busy machine, calls take so long that `rfp` would have its responses sent.
    let fixed = if backend == "rfp" { "&responses=fetched" } else { "" };
    let name = format!("farcall-instructions-{id}");
    let address = format!("shm://{name}?backend={backend}&window={slots}{fixed}");
    // A connection of hybrid tries `rfp`, which the server does not offer: what is counted is a call of one that has moved nowhere.
    let dialled = match backend == HYBRID {
        true => format!("{address}&exclude=datagram,send_recv,scale"),
        false => address.clone(),
    };
    let address = if backend == HYBRID { format!("{address}&exclude=rfp") } else { address };
    let vacant = format!("shm://{name}-vacant?backend={BACKEND_OF_VACANT}");
    let (warmings, round) = match backend == HYBRID {
        true => (WARMINGS_OF_HYBRID, WARMING_ROUND_OF_HYBRID),
        false => (1, ROUND),
    };
    let server = match client {
        Client::Vacant => OwnServer::listen(&[&address, &vacant], round)?,
        _ => OwnServer::listen(&[&address], round)?,
    };
    match client {
        Client::Poll | Client::Vacant => {
            let mut polling = Polling::connect(&dialled, server, *window)?;
            polling.calls(WARMING_CALLS)?;
            for _ in 1..warmings {
                thread::sleep(TIME_TO_DIAL);
                polling.calls(WARMING_CALLS)?;
            }
            polling.server.round = ROUND;
            count_these(|| polling.calls(calls))
        }
        Client::Wait => {
            let ordinary = Ordinary::connect(&address, server)?;
            ordinary.wait(WARMING_CALLS)?;
            count_these(|| ordinary.wait(calls))
        }
        Client::Await => {
            let ordinary = Ordinary::connect(&address, server)?;
            let mut tasks = ordinary.tasks(*window);
            tasks.run(WARMING_CALLS)?;
            count_these(|| tasks.run(calls))
        }
    }
}

/// The profiler counts from the begin of this function to its end, and finds it by its name.
#[inline(never)]
fn count_these(calls: impl FnOnce() -> Result<()>) -> Result<()> {
    calls()
}

/// A server whose only thread is the one that also makes the calls.
struct OwnServer {
    _server: DrivenServer,
    thread: ServerThread,
    now: Instant,
    round: Duration,
    clock: Arc<RoundClock>,
}

/// Shows when the round began: under a profiler, handlers would seem to run long by any other clock, and be treated so in one run and not
/// in another.
struct RoundClock(AtomicU64);

impl Clock for RoundClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl OwnServer {
    fn listen(addresses: &[&str], round: Duration) -> Result<Self> {
        let parsed: Vec<Address> =
            addresses.iter().map(|address| address.parse()).collect::<Result<_, _>>()?;
        let bindings: Vec<_> = parsed.iter().map(|address| address as &dyn Binding).collect();
        let (service, _) = EchoService::new();
        let now = Instant::from_nanos(Device::open("shm")?.now_ns());
        let clock = Arc::new(RoundClock(AtomicU64::new(now.as_nanos())));
        let (server, mut threads) = Server::builder()
            .service(EchoServer::new(service))
            .assemble(&bindings, vec![Site::with_clock(Arc::clone(&clock) as Arc<dyn Clock>)])
            .with_context(|| format!("cannot listen at {}", addresses.join(" and ")))?;
        let thread = threads.pop().context("a server without a thread")?;
        Ok(Self { _server: server, thread, now, round, clock })
    }

    /// Begins another round.
    #[inline]
    fn begin_round(&mut self) {
        self.now += self.round;
        self.clock.0.store(self.now.as_nanos(), Ordering::Relaxed);
    }

    #[inline]
    fn turn(&mut self) {
        self.thread.turn(self.now);
    }

    /// Takes turns until a client has connected, on a thread of its own: some servers have turns to take before that.
    fn accept<C: Send>(&mut self, connect: impl FnOnce() -> Result<C> + Send) -> Result<C> {
        thread::scope(|scope| {
            let connecting = scope.spawn(connect);
            while !connecting.is_finished() {
                self.turn();
                thread::yield_now();
            }
            match connecting.join() {
                Ok(connected) => connected,
                Err(_) => bail!("the thread that connects has panicked"),
            }
        })
    }
}

/// Differs from call to call.
#[inline]
fn argument(call: usize) -> [u8; 32] {
    [call as u8; 32]
}
