//! In the steady state a call allocates nothing, at either end: counted by the allocator of this program.

use std::alloc::System;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::Poll;
use std::time::{Duration, Instant};

use farcall_core::{
    Call, Connection, ConnectionOptions, IdlePolicy, PendingCall, PollClient, RpcError,
    RunningServer, Server, Site,
};
use farcall_transports::{Address, hybrid};
use farcall_transports_conformance::backends::{self, Backend};
use libtest_mimic::{Arguments, Trial};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[farcall::service]
trait Steady {
    /// A call that travels in one cache line.
    fn small(&self, bytes: [u8; 32]) -> [u8; 32];
    /// A call that fills half a slot.
    fn medium(&self, bytes: &[u8]) -> [u8; 2048];
    /// A call that may run again, so the server keeps no response.
    #[rpc(idempotent)]
    fn again(&self, bytes: [u8; 32]) -> [u8; 32];
    /// A call that waits once.
    async fn later(&self, number: u64) -> u64;
    /// A call that takes so many milliseconds.
    fn long(&self, millis: u64);
}

struct Handler;

impl Steady for Handler {
    fn small(&self, bytes: [u8; 32]) -> [u8; 32] {
        bytes
    }

    fn medium(&self, bytes: &[u8]) -> [u8; 2048] {
        bytes.try_into().unwrap_or([0; 2048])
    }

    fn again(&self, bytes: [u8; 32]) -> [u8; 32] {
        bytes
    }

    async fn later(&self, number: u64) -> u64 {
        let mut yielded = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        number
    }

    fn long(&self, millis: u64) {
        std::thread::sleep(Duration::from_millis(millis));
    }
}

const WINDOW: usize = 32;

/// More calls of 2 KiB than one read takes.
const BURST: usize = 60;

/// Calls one by one, then a window at a time.
fn calls(client: &mut SteadyPollClient, rounds: u32) {
    for round in 0..rounds {
        let mark = round as u8;
        assert_eq!(client.small([mark; 32]), Ok([mark; 32]));
        assert_eq!(client.medium(&[mark; 2048]), Ok([mark; 2048]));
        assert_eq!(client.again([mark; 32]), Ok([mark; 32]));
        assert_eq!(client.later(u64::from(round)), Ok(u64::from(round)));
        let mut window = start_window(client, mark);
        take_window(client, &mut window, mark);
    }
}

/// Windows of calls of a connection that is not polled while they are answered: where two share a queue pair, the other takes
/// their responses in. On a busy machine it takes in copies of responses at any time.
fn calls_beside(client: &mut SteadyPollClient, other: &mut SteadyPollClient, rounds: u32) {
    // The other one is not polled when these are answered, unless this thread stops for longer.
    for _ in 0..3 {
        let mut long = other.start_long(3).expect("the window has room");
        other.poll();
        assert_eq!(client.small([0; 32]), Ok([0; 32]));
        assert_eq!(take(other, &mut long), Ok(()));
    }
    for round in 0..rounds {
        let mark = round as u8;
        let mut window = start_window(other, mark);
        other.poll();
        assert_eq!(client.small([mark; 32]), Ok([mark; 32]));
        assert_eq!(client.small([mark; 32]), Ok([mark; 32]));
        take_window(other, &mut window, mark);
    }
}

/// So much at a time, at both ends, that a stream cuts messages where it will: what holds their pieces is in use from the beginning.
fn burst(client: &mut SteadyPollClient) {
    let mut long = client.start_long(20).expect("the window has room");
    client.poll();
    let mut crowd: Vec<_> =
        (0..BURST).map(|_| client.start_medium(&[7; 2048]).expect("the window has room")).collect();
    client.poll();
    assert_eq!(take(client, &mut long), Ok(()));
    for pending in &mut crowd {
        assert_eq!(take(client, pending), Ok([7; 2048]));
    }
}

type Window = [Option<PendingCall<Result<[u8; 32], RpcError>>>; WINDOW];

fn start_window(client: &mut SteadyPollClient, mark: u8) -> Window {
    let mut window = [const { None }; WINDOW];
    for pending in &mut window {
        *pending = Some(client.start_small([mark; 32]).expect("the window has room"));
    }
    window
}

fn take_window(client: &mut SteadyPollClient, window: &mut Window, mark: u8) {
    for pending in window.iter_mut().flatten() {
        assert_eq!(take(client, pending), Ok([mark; 32]));
    }
}

fn take<R: 'static>(client: &mut SteadyPollClient, pending: &mut PendingCall<R>) -> R {
    loop {
        client.poll();
        if let Some(answer) = client.take(pending) {
            return answer;
        }
        std::thread::yield_now();
    }
}

fn main() -> ExitCode {
    // The allocations of a concurrent test would be counted too.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let mut trials = Vec::new();
    for backend in backends::ALL {
        for (kind, share, options) in kinds(backend) {
            let name =
                format!("{}::{kind}::calls_allocate_nothing_in_the_steady_state", backend.name);
            trials.push(Trial::test(name, move || {
                count_allocations(backend, share, options);
                Ok(())
            }));
        }
        for kind in [Kind::Wait, Kind::Await] {
            let name =
                format!("{}::{kind:?}::calls_allocate_nothing_in_the_steady_state", backend.name);
            trials.push(Trial::test(name, move || {
                count_allocations_of_callers(backend, kind);
                Ok(())
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// How connections of a backend are made: their name, whether they share what they can, and options.
fn kinds(backend: &Backend) -> [(&'static str, bool, &'static str); 2] {
    match backend.name {
        // On its own it chooses, and when it first has a response sent, the device maps where that goes.
        "rfp" => [("fetched", false, "&responses=fetched"), ("sent", false, "&responses=sent")],
        "scale" => [("one_group", false, ""), ("switching", false, "&group=1&slice=20us")],
        _ => [("alone", false, ""), ("shared", true, "")],
    }
}

/// How a caller of the client for any executor waits.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Blocked.
    Wait,
    /// On a runtime, alone and many at once.
    Await,
}

/// The caller drives the connection, and the I/O thread naps or sleeps.
fn count_allocations_of_callers(backend: &Backend, kind: Kind) {
    let name = backend.name;
    let unique = format!("no-allocation-{}-{kind:?}", std::process::id());
    let address = backend.local_template().replace("conformance", &unique);
    let address: Address = address.parse().expect("an address");
    let server = serve(&address);
    let client = SteadyClient::connect(server.address()).wait().expect("connect");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    // On a busy machine any caller sleeps now and then, so here each does.
    let all = || match kind {
        Kind::Wait => {
            for _ in 0..3 {
                assert_eq!(client.long(3).wait(), Ok(()));
            }
            for round in 0..500 {
                let mark = round as u8;
                assert_eq!(client.small([mark; 32]).wait(), Ok([mark; 32]));
                assert_eq!(client.medium(&[mark; 2048]).wait(), Ok([mark; 2048]));
                assert_eq!(client.later(round).wait(), Ok(round));
            }
        }
        Kind::Await => runtime.block_on(async {
            for _ in 0..3 {
                assert_eq!(client.long(3).await, Ok(()));
            }
            for round in 0..200 {
                let mark = round as u8;
                assert_eq!(client.small([mark; 32]).await, Ok([mark; 32]));
                let mut window: [_; WINDOW] =
                    core::array::from_fn(|_| Some(client.small([mark; 32])));
                all_of(&mut window, |answer| assert_eq!(answer, Ok([mark; 32]))).await;
            }
        }),
    };
    // When a message is late, calls take slots that no call has used before.
    let mut crowd: Vec<_> = (0..4 * WINDOW).map(|_| Some(client.small([0; 32]))).collect();
    runtime.block_on(all_of(&mut crowd, |answer| assert_eq!(answer, Ok([0; 32]))));
    // As in `burst`, of the polling client.
    for _ in 0..3 {
        let mut crowd: Vec<_> = (0..BURST).map(|_| Some(client.medium(&[7; 2048]))).collect();
        runtime.block_on(async {
            // It leaves when it is polled, and the server takes nothing in meanwhile.
            let mut long = std::pin::pin!(client.long(20));
            let sent = std::future::poll_fn(|context| {
                Poll::Ready(long.as_mut().poll(context).is_pending())
            });
            assert!(sent.await, "it takes 20 ms");
            all_of(&mut crowd, |answer| assert_eq!(answer, Ok([7; 2048]))).await;
            assert_eq!(long.await, Ok(()));
        });
    }
    // A thread that blocks for the first time has its waker made. This one does, however busy the machine is.
    assert_eq!(client.long(100).wait(), Ok(()));
    all();
    wait_for_others_to_sleep();
    let allocations = least_allocations(backend, all);
    assert_eq!(allocations, 0, "{name}, {kind:?}: allocations of both ends in the second half");
    drop(client);
    server.shutdown();
}

/// How often a connection that moves may be counted. Opening a lane allocates, and that is no steady state; lanes are opened less and less.
const TRIES: u32 = 100;

/// How much is allocated in a run of `all`, at least.
fn least_allocations(backend: &Backend, mut all: impl FnMut()) -> usize {
    let tries = if backend.name == hybrid::NAME { TRIES } else { 1 };
    let mut least = usize::MAX;
    for _ in 0..tries {
        let counted = Region::new(ALLOCATOR);
        all();
        let change = counted.change();
        least = least.min(change.allocations + change.reallocations);
        if least == 0 {
            break;
        }
    }
    least
}

/// What the other threads do once, when a server or a client comes or goes, is done before allocations are counted.
fn wait_for_others_to_sleep() {
    let own = std::fs::read_link("/proc/thread-self").expect("the directory of this thread");
    let is_awake = |task: std::io::Result<std::fs::DirEntry>| {
        let task = task.expect("a thread");
        // One that has ended meanwhile has no state.
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('S'));
        own.file_name() != Some(&*task.file_name()) && state == Some(false)
    };
    let until = Instant::now() + Duration::from_secs(30);
    while std::fs::read_dir("/proc/self/task").expect("the threads").any(is_awake) {
        assert!(Instant::now() < until, "the other threads have work without end");
        std::thread::yield_now();
    }
}

/// Awaits these calls together, without an allocation of its own.
async fn all_of<R>(calls: &mut [Option<Call<R>>], mut check: impl FnMut(R)) {
    std::future::poll_fn(|cx| {
        for slot in calls.iter_mut() {
            if let Some(call) = slot
                && let Poll::Ready(answer) = Pin::new(call).poll(cx)
            {
                check(answer);
                *slot = None;
            }
        }
        if calls.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// A server that sleeps whenever it has nothing to do, as each does now and then on a busy machine: what it takes to wake one is in use from
/// the beginning.
fn serve(address: &Address) -> RunningServer {
    let server = Server::builder().service(SteadyServer::new(Handler)).threads(1);
    server.idle(IdlePolicy::PARK).serve(address).expect("listen")
}

fn count_allocations(backend: &Backend, share: bool, options: &str) {
    let (name, number) = (backend.name, std::process::id());
    let unique = format!("no-allocation-{number}-{share}");
    let address = backend.local_template().replace("conformance", &unique) + options;
    let address: Address = address.parse().expect("an address");
    let server = serve(&address);
    let address: Address = server.address().parse().expect("the address that it listens at");
    let options = ConnectionOptions::default()
        .idle(IdlePolicy::default().park(false))
        .share(share)
        .site(&Site::new());
    // Shares what the backend can share, so that each may take in the other's responses.
    let other = Connection::connect(&address, SteadyPollClient::DESCRIPTION, &options);
    let mut other = SteadyPollClient::from_connection(other.expect("connect"));
    let connection = Connection::connect(&address, SteadyPollClient::DESCRIPTION, &options);
    let mut client = SteadyPollClient::from_connection(connection.expect("connect"));
    let all = |client: &mut _, other: &mut _| {
        calls_beside(client, other, 400);
        calls(client, 400);
        calls(other, 400);
    };
    burst(&mut client);
    burst(&mut other);
    all(&mut client, &mut other);
    wait_for_others_to_sleep();
    let allocations = least_allocations(backend, || all(&mut client, &mut other));
    assert_eq!(allocations, 0, "{name}: allocations of both ends in 42,000 calls");
    drop(client);
    server.shutdown();
}
