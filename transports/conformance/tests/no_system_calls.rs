//! In the steady state neither end makes a system call: a seccomp filter ends the program at the first.

mod seccomp;

use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use std::env;
use std::sync::Arc;
use std::task::Wake;

use farcall_core::{
    Channel, ChannelOptions, Connection, ConnectionOptions, IdlePolicy, PollClient, Server,
    ServiceClient,
};
use farcall_transports::{Address, hybrid};
use farcall_transports_conformance::backends;

/// From now on the calling thread may only write and end the program. Any other system call traps.
fn forbid_system_calls() {
    seccomp::allow_only(&[libc::SYS_write, libc::SYS_exit_group]);
}

#[farcall::service]
trait Steady {
    /// A call that travels in one cache line.
    fn small(&self, bytes: [u8; 32]) -> [u8; 32];
    /// A call that fills half a slot.
    fn medium(&self, bytes: &[u8]) -> [u8; 2048];
    /// The server's thread makes no system call after the end of this turn.
    fn forbid(&self);
}

struct Handler;

impl Steady for Handler {
    fn small(&self, bytes: [u8; 32]) -> [u8; 32] {
        bytes
    }

    fn medium(&self, bytes: &[u8]) -> [u8; 2048] {
        bytes.try_into().unwrap_or([0; 2048])
    }

    fn forbid(&self) {
        forbid_system_calls();
    }
}

const WINDOW: usize = 32;

fn calls(client: &mut SteadyPollClient, rounds: u32) {
    for round in 0..rounds {
        let mark = round as u8;
        assert_eq!(client.small([mark; 32]), Ok([mark; 32]));
        assert_eq!(client.medium(&[mark; 2048]), Ok([mark; 2048]));
        let mut window = [const { None }; WINDOW];
        for pending in &mut window {
            *pending = Some(client.start_small([mark; 32]).expect("the window has room"));
        }
        for pending in window.iter_mut().flatten() {
            let answer = loop {
                client.poll();
                if let Some(answer) = client.take(pending) {
                    break answer;
                }
                std::hint::spin_loop();
            };
            assert_eq!(answer, Ok([mark; 32]));
        }
    }
}

/// One call after the other by callers that drive.
fn waits(client: &SteadyClient, rounds: u32) {
    for round in 0..rounds {
        let mark = round as u8;
        assert_eq!(client.small([mark; 32]).wait(), Ok([mark; 32]));
        assert_eq!(client.medium(&[mark; 2048]).wait(), Ok([mark; 2048]));
    }
}

/// A task is to be polled again.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Calls of tasks, `outstanding` at a time, on an executor that spins while no task was woken.
fn awaits<const OUTSTANDING: usize>(client: &SteadyClient, rounds: u32, woken: &Arc<Woken>) {
    let waker = Waker::from(Arc::clone(woken));
    for round in 0..rounds {
        let mark = round as u8;
        let mut calls = [const { None }; OUTSTANDING];
        for call in &mut calls {
            *call = Some(client.small([mark; 32]));
        }
        woken.0.store(true, Ordering::Relaxed);
        while calls.iter().any(Option::is_some) {
            while !woken.0.swap(false, Ordering::Acquire) {
                std::hint::spin_loop();
            }
            for place in &mut calls {
                let Some(call) = place else { continue };
                if let Poll::Ready(answer) = Pin::new(call).poll(&mut Context::from_waker(&waker)) {
                    assert_eq!(answer, Ok([mark; 32]));
                    *place = None;
                }
            }
        }
    }
}

/// How a caller of the client for any executor waits.
const CALLERS: [&str; 3] = ["wait", "await", "await 32"];

/// Steady work of such a caller: some calls for each round.
fn work(how: &str, client: &SteadyClient, rounds: u32, woken: &Arc<Woken>) {
    match how {
        "wait" => waits(client, rounds),
        "await" => awaits::<1>(client, 2 * rounds, woken),
        "await 32" => awaits::<WINDOW>(client, rounds / 2, woken),
        other => unreachable!("{other}"),
    }
}

/// The threads that this one starts, and itself, run before those of other programs, if it may ask for that: one that is not run for a
/// while finds the I/O thread in its place when it goes on.
fn run_before_others() {
    // SAFETY: a system call without memory.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
}

/// The caller's thread and the server's make no system call; the I/O thread naps.
fn drive_in_peace(backend: &str, how: &str) -> ! {
    seccomp::catch_traps();
    run_before_others();
    let name = format!("shm://no-system-calls-{}?backend={backend}", std::process::id());
    let address: Address = name.parse().expect("an address");
    let server = Server::builder().service(SteadyServer::new(Handler)).threads(1);
    let _server = server.idle(IdlePolicy::SPIN).serve(&address).expect("listen");
    let options = ChannelOptions::default().idle(IdlePolicy::SPIN);
    let channel = Channel::connect(address, SteadyClient::DESCRIPTION, options);
    let client = SteadyClient::from_channel(channel.expect("connect"));
    let woken = Arc::default();
    work(how, &client, 2000, &woken);
    client.forbid().wait().expect("the server's thread has a filter");
    // That took some time, in which the I/O thread may have gone to sleep.
    work(how, &client, 200, &woken);
    forbid_system_calls();
    // Short, so that it fits between two moments in which a busy machine runs other threads.
    work(how, &client, 200, &woken);
    // SAFETY: ends the program without a destructor: those make system calls. The server still runs.
    unsafe { libc::_exit(0) }
}

/// Set in a child of these tests, to the backend over which it calls.
const CHILD: &str = "FARCALL_NO_SYSTEM_CALLS_CHILD";

fn call_in_peace(backend: &str) -> ! {
    seccomp::catch_traps();
    let name = format!("shm://no-system-calls-{}?backend={backend}", std::process::id());
    let address: Address = name.parse().expect("an address");
    let _server = Server::builder()
        .service(SteadyServer::new(Handler))
        .threads(1)
        .idle(IdlePolicy::SPIN)
        .serve(&address)
        .expect("listen");
    let options = ConnectionOptions::default().idle(IdlePolicy::SPIN);
    let connection = Connection::connect(&address, SteadyPollClient::DESCRIPTION, &options);
    let mut client = SteadyPollClient::from_connection(connection.expect("connect"));
    calls(&mut client, 20);
    client.forbid().expect("the server's thread has a filter");
    forbid_system_calls();
    calls(&mut client, 40);
    // SAFETY: ends the program without a destructor: those make system calls. The server still runs.
    unsafe { libc::_exit(0) }
}

fn call_the_kernel() -> ! {
    seccomp::catch_traps();
    forbid_system_calls();
    std::thread::yield_now();
    // SAFETY: ends the program without a destructor.
    unsafe { libc::_exit(0) }
}

/// The backends, with options. A socket is a system call away.
fn kinds() -> Vec<&'static str> {
    // A connection that moves makes the system calls of each lane that it opens.
    let stays = |backend: &&&backends::Backend| backend.name != hybrid::NAME;
    let on_device = backends::ALL.iter().filter(|backend| !backend.runs_on_stream()).filter(stays);
    // The first response that `rfp` sends is no steady state: each way of its responses alone.
    let kinds = on_device.flat_map(|backend| match backend.name {
        "rfp" => vec!["rfp&responses=fetched", "rfp&responses=sent"],
        name => vec![name],
    });
    kinds.collect()
}

#[test]
fn calls_make_no_system_call_in_the_steady_state() {
    if let Ok(backend) = env::var(CHILD) {
        call_in_peace(&backend);
    }
    for backend in kinds() {
        let output =
            seccomp::run("calls_make_no_system_call_in_the_steady_state", (CHILD, backend));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{backend}: {}: {said}", output.status);
    }
}

/// A thread that is not run for some milliseconds finds the I/O thread asleep when it goes on, and wakes it: on a busy machine a child may
/// fail for that, if it may not [run before others](run_before_others). Calls that make system calls in the steady state fail each time.
const TRIES: u32 = 25;

#[test]
fn callers_that_drive_make_no_system_call_in_the_steady_state() {
    if let Ok(child) = env::var(CHILD) {
        let (backend, how) = child.split_once(' ').expect("a backend, and how to wait");
        drive_in_peace(backend, how);
    }
    for backend in kinds() {
        for how in CALLERS {
            let child = format!("{backend} {how}");
            let run = || {
                let test = "callers_that_drive_make_no_system_call_in_the_steady_state";
                seccomp::run(test, (CHILD, child.as_str()))
            };
            let mut output = run();
            for _ in 1..TRIES {
                if !output.status.success() {
                    output = run();
                }
            }
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{child}: {}: {said}", output.status);
        }
    }
}

#[test]
fn a_system_call_would_be_noticed() {
    if env::var_os(CHILD).is_some() {
        call_the_kernel();
    }
    let output = seccomp::run("a_system_call_would_be_noticed", (CHILD, backends::ALL[0].name));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("forbidden: {}\n", libc::SYS_sched_yield)), "{said}");
}
