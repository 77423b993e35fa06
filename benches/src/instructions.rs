//! Calls with both ends in one thread, for a profiler that counts instructions.
//!
//! `cargo xtask instructions` runs this under callgrind. The number of instructions of a call hardly varies from run to run,
//! so a change of 1 % shows on a busy machine, where no measurement of time would show it.

use std::collections::VecDeque;
use std::process;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use farcall::Server;
use farcall_core::server::ServerThread;
use farcall_core::site::Site;
use farcall_core::time::Instant;
use farcall_transports::{Address, registry, runs_on_stream};
use farcall_verbs::Device;

use crate::echo::service::{EchoPollClient, EchoServer, EchoService};
use crate::echo::shape::Pending;

/// Outstanding calls of the cases that are counted: each call alone, and calls that share turns and doorbells.
const WINDOWS: [usize; 2] = [1, 32];

/// Calls before those that count: every slot, buffer and timer was used many times by then.
const WARMING_CALLS: usize = 4096;

/// What a round takes on the driver's clock. It is not the device's: on that, timers would fire in one run and not in another.
const ROUND: Duration = Duration::from_micros(1);

/// Rounds in which no answer comes, after which none is expected any more: a second on the driver's clock. The first datagrams
/// are lost until the device's own threads have connected both ends.
const EMPTY_ROUNDS: usize = 1_000_000;

/// What to run.
#[derive(Debug, Clone)]
pub struct Case {
    /// The backend under the stubs.
    pub backend: String,
    /// Calls that the client keeps outstanding.
    pub window: usize,
}

/// Every backend that runs on a device, with every window. Most instructions of the others are the kernel's, which are not counted.
pub fn cases() -> Vec<Case> {
    let on_device = registry::ALL.iter().filter(|backend| !runs_on_stream(**backend));
    let names = on_device.map(|backend| backend.name());
    let of = |backend: &str| WINDOWS.map(|window| Case { backend: backend.to_owned(), window });
    names.flat_map(of).collect()
}

/// Makes so many calls of 32 bytes in `count_these`, after some that do not count.
///
/// # Errors
///
/// Nothing can listen or connect, or a call fails.
pub fn run(case: &Case, calls: usize) -> Result<()> {
    let Case { backend, window } = case;
    // At least the default, so that a small window does not also mean few slots.
    let slots = window.max(&64);
    let id = process::id();
    // Under a profiler on a busy machine, calls take so long that `rfp` would have its responses sent.
    let fixed = if backend == "rfp" { "&responses=fetched" } else { "" };
    let address =
        format!("shm://farcall-instructions-{id}?backend={backend}&window={slots}{fixed}");
    let binding: Address = address.parse()?;
    let (service, _) = EchoService::new();
    let (_server, mut threads) = Server::builder()
        .service(EchoServer::new(service))
        .assemble(&[&binding], vec![Site::new()])
        .with_context(|| format!("cannot listen at {address}"))?;
    let mut server = threads.pop().context("a server without a thread")?;
    let now = Instant::from_nanos(Device::open("shm")?.now_ns());
    let client = connect(&address, &mut server, now)
        .with_context(|| format!("cannot connect to {address}"))?;
    let mut ends = Ends { server, client, now, outstanding: VecDeque::with_capacity(*window) };
    ends.calls(WARMING_CALLS, *window)?;
    count_these(&mut ends, calls, *window)
}

/// Connects, on a thread of its own: some servers have turns to take before a client is connected.
fn connect(address: &str, server: &mut ServerThread, now: Instant) -> Result<EchoPollClient> {
    thread::scope(|scope| {
        let connecting = scope.spawn(|| EchoPollClient::connect(address).wait());
        while !connecting.is_finished() {
            server.turn(now);
            thread::yield_now();
        }
        match connecting.join() {
            Ok(connected) => Ok(connected?),
            Err(_) => bail!("the thread that connects has panicked"),
        }
    })
}

/// The profiler counts from the begin of this function to its end, and finds it by its name.
#[inline(never)]
fn count_these(ends: &mut Ends, calls: usize, window: usize) -> Result<()> {
    ends.calls(calls, window)
}

/// A connection's two ends.
struct Ends {
    client: EchoPollClient,
    server: ServerThread,
    now: Instant,
    /// Oldest first.
    outstanding: VecDeque<Pending<[u8; 32]>>,
}

impl Ends {
    /// Makes so many calls, `window` of them outstanding.
    #[inline]
    fn calls(&mut self, calls: usize, window: usize) -> Result<()> {
        let (mut started, mut ended, mut empty_rounds) = (0, 0, 0);
        while ended < calls {
            while started < calls && self.outstanding.len() < window {
                self.outstanding.push_back(self.client.start_echo_32(argument(started))?);
                started += 1;
            }
            self.now += ROUND;
            self.client.connection().turn(self.now);
            self.server.turn(self.now);
            self.client.connection().turn(self.now);
            let before = ended;
            while let Some(oldest) = self.outstanding.front_mut() {
                let Some(answer) = self.client.take(oldest) else { break };
                ensure!(answer? == argument(ended), "an answer differs from what was sent");
                self.outstanding.pop_front();
                ended += 1;
            }
            if ended > before {
                empty_rounds = 0;
                continue;
            }
            empty_rounds += 1;
            if empty_rounds > EMPTY_ROUNDS {
                bail!("no answer in {EMPTY_ROUNDS} rounds; {ended} of {calls} calls have ended");
            }
            thread::yield_now();
        }
        Ok(())
    }
}

/// Differs from call to call.
#[inline]
fn argument(call: usize) -> [u8; 32] {
    [call as u8; 32]
}
