//! Ten thousand sessions of one client thread at one server thread: all are served, and the memory of an idle one is bounded.
//!
//! The clients are in a process of their own, so this one's allocator counts only the server: all of a session's heap memory,
//! but not its socket in the kernel.

use std::{
    alloc::System,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use farcall_core::{RunningServer, Server};
use farcall_transports::Address;
use farcall_transports_conformance::{
    patient,
    process::Peer,
    service::{Handlers, SuiteServer},
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Calls that each session makes at once: a whole window.
const WINDOW: u32 = 64;

/// The shortest: a session that is silent for twice as long releases what it does not need.
const SILENCE: Duration = Duration::from_secs(1);

/// What an idle session costs at most.
const IDLE_BYTES: isize = 2048;

/// What a session that is over leaves at most, as the server's tables keep their length.
const LEFT_BYTES: isize = 128;

const BOUND: Duration = Duration::from_secs(60);

fn serve(sessions: usize) -> (Address, RunningServer) {
    let process = std::process::id();
    let options = format!("backend=datagram&window={WINDOW}&silence={}s", SILENCE.as_secs());
    let address: Address =
        format!("shm://sessions-{process}-{sessions}?{options}").parse().expect("an address");
    let service = SuiteServer::from(Arc::new(Handlers::default()));
    let server = Server::builder().service(service).threads(1).max_clients(sessions);
    let running = server.serve(&address).expect("listen");
    (address, running)
}

fn clients() -> Peer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backend-conformance"));
    command.args(["peer", "shm://sessions?backend=datagram"]);
    Peer::start(command)
}

/// Sessions that are opened, or make their calls, before the peer answers: on a busy machine all of them take longer than it may.
const SESSIONS_PER_ORDER: usize = 500;

/// Opens so many more sessions.
fn open(peer: &mut Peer, address: &Address, sessions: usize) {
    for opened in (0..sessions).step_by(SESSIONS_PER_ORDER) {
        let count = SESSIONS_PER_ORDER.min(sessions - opened);
        peer.ask(&format!("sessions {address} {count}"), "opened");
    }
}

/// Each session makes `calls` calls at once.
fn burst(peer: &mut Peer, calls: u32, sessions: usize) {
    for first in (0..sessions).step_by(SESSIONS_PER_ORDER) {
        let count = SESSIONS_PER_ORDER.min(sessions - first);
        peer.ask(&format!("burst {calls} {first} {count}"), "answered");
    }
}

/// Bytes in use now beyond those at the region's begin.
fn held(region: &Region<'_, System>) -> isize {
    let change = region.change();
    change.bytes_allocated as isize - change.bytes_deallocated as isize
}

/// Memory of a process that is in use, in bytes.
fn resident(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of it");
    1024 * line.trim_end_matches("kB").trim().parse::<usize>().expect("a number of kibibytes")
}

/// Polls until `done`.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(
            begin.elapsed() < patient(BOUND),
            "within {BOUND:?} it has not come about that {what}"
        );
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

// Only one test: a concurrent one's memory would be counted too.
#[test]
fn ten_thousand_sessions_are_served_and_an_idle_one_costs_less_than_two_kibibytes() {
    const SESSIONS: usize = 10_000;
    let (address, running) = serve(SESSIONS);
    let mut peer = clients();
    // The first client also allocates what all sessions share.
    open(&mut peer, &address, 1);
    burst(&mut peer, WINDOW, 1);
    let alone = resident(peer.pid());
    let region = Region::new(ALLOCATOR);
    let begin = Instant::now();
    open(&mut peer, &address, SESSIONS - 1);
    let opened = begin.elapsed();
    // The server counts a session when it has read the client's last frame.
    until("the server counts all sessions", || running.connections() == SESSIONS);
    burst(&mut peer, WINDOW, SESSIONS);
    let used = held(&region) / SESSIONS as isize;
    let answered = begin.elapsed() - opened;
    // The server visits all sessions, a few at a time; how many in a second depends on what else the machine does.
    until("the server has given back what idle sessions do not need", || {
        held(&region) < IDLE_BYTES * SESSIONS as isize
    });
    let idle = held(&region) / SESSIONS as isize;
    println!(
        "{SESSIONS} sessions: opened in {opened:.1?}, {} calls in {answered:.1?}; bytes per session: {used} just used, {idle} idle",
        SESSIONS * WINDOW as usize,
    );
    assert!(idle < IDLE_BYTES, "an idle session keeps {idle} bytes");
    let at_client = (resident(peer.pid()) - alone) / SESSIONS;
    println!("bytes per session at the client, calls and all: {at_client}");
    // A queue pair of its own would be a megabyte of buffers.
    assert!(at_client < 64 << 10, "a session costs its client {at_client} bytes");
    // All sessions still work.
    burst(&mut peer, 1, SESSIONS);
    let begin = Instant::now();
    peer.ask("leave", "left");
    until("the server knows of no session", || running.connections() == 0);
    // The last of them may still be on their way out.
    until("sessions that are over leave nothing", || {
        held(&region) < LEFT_BYTES * SESSIONS as isize
    });
    let left = held(&region) / SESSIONS as isize;
    println!("left in {:.1?}; bytes per session that was: {left}", begin.elapsed());
    peer.finish();
    running.shutdown();
}
