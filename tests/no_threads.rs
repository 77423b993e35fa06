//! A program that may start no more threads: each thread that a client or a server needs is refused in turn. Connecting and listening end
//! with an error that says so, within their time, and work when there are threads again, on the same endpoint or address.

#[path = "support/other_process.rs"]
mod other_process;

use std::env;
use std::fs;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use farcall::{BindError, ConnectError, Endpoint, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[farcall::service]
trait Counter {
    fn next(&self, number: u32) -> u32;
}

struct Numbers;

impl Counter for Numbers {
    fn next(&self, number: u32) -> u32 {
        number + 1
    }
}

/// What a started process does: `connect THREADS ADDRESS`, or `listen` or `listen-pinned` instead.
const ROLE: &str = "FARCALL_NO_THREADS_ROLE";

/// The stack of each thread. Address space for so many of them is room for so many threads, for any user.
const STACK_BYTES: u64 = 1 << 30;

/// What else may be mapped meanwhile: far less than a stack.
const OTHER_BYTES: u64 = STACK_BYTES * 3 / 4;

/// A client and a server start fewer.
const MOST_THREADS: u64 = 12;

/// Longer than the dial's timeout of 5 s.
const BOUND: Duration = Duration::from_secs(30);

fn mapped_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    size.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Runs `work` while the process may start so many threads.
fn with_threads<R>(threads: u64, work: impl FnOnce() -> R) -> R {
    let before = getrlimit(Resource::As);
    let bytes = mapped_bytes() + threads * STACK_BYTES + OTHER_BYTES;
    setrlimit(Resource::As, Rlimit { current: Some(bytes), ..before }).unwrap();
    let result = work();
    setrlimit(Resource::As, before).unwrap();
    result
}

/// Does nothing when it is not started by the test below.
#[test]
#[ignore = "the other tests start it as a process"]
fn process() {
    let Ok(role) = env::var(ROLE) else { return };
    let [does, threads, address] = role.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!() };
    let threads: u64 = threads.parse().unwrap();
    let is_done = match does {
        "connect" => connect(threads, address),
        _ => listen(threads, address, does == "listen-pinned"),
    };
    println!("{}", if is_done { "done" } else { "refused" });
}

/// Connects, if so many threads are enough for it.
fn connect(threads: u64, address: &str) -> bool {
    let endpoint = Endpoint::new();
    let connect = || CounterClient::connect(address).endpoint(&endpoint).wait();
    let connected = with_threads(threads, connect);
    match &connected {
        Ok(client) => assert_eq!(client.next(1).wait(), Ok(2)),
        Err(error) => {
            let is_told = error.to_string().contains("thread");
            assert!(is_told && !matches!(error, ConnectError::TimedOut { .. }), "{error}");
        }
    }
    let later = connect().expect("there are threads again");
    assert_eq!(later.next(1).wait(), Ok(2));
    connected.is_ok()
}

/// Listens, if so many threads are enough for it.
fn listen(threads: u64, address: &str, is_pinned: bool) -> bool {
    let builder = || Server::builder().service(CounterServer::new(Numbers)).threads(2);
    let cores = match builder().pin([usize::MAX]).listen(address) {
        Err(BindError::NoSuchCore { available, .. }) if is_pinned => available,
        _ => Vec::new(),
    };
    let listen = || builder().pin(cores.iter().copied()).listen(address);
    let listening = with_threads(threads, listen);
    if let Err(error) = &listening {
        assert!(error.to_string().contains("thread"), "{error}");
    }
    let is_done = listening.is_ok();
    drop(listening);
    let server = listen().expect("there are threads again, and the address is free");
    let client = CounterClient::connect(server.address()).wait().expect("it serves");
    assert_eq!(client.next(1).wait(), Ok(2));
    is_done
}

/// Whether a process with so many threads to start can do that: see [`ROLE`].
fn can(does: &str, threads: u64, address: &str) -> bool {
    let mut child = other_process::with_role(ROLE, format!("{does} {threads} {address}"))
        .env("RUST_MIN_STACK", STACK_BYTES.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let (ended, has_ended) = mpsc::channel();
    let id = rustix::process::Pid::from_child(&child);
    thread::spawn(move || {
        // The process is not waited for before it is told here.
        if has_ended.recv_timeout(BOUND).is_err() {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
        }
    });
    let said = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    let _ = ended.send(());
    let status = child.wait().unwrap();
    assert!(began.elapsed() < BOUND, "with {threads} threads it hangs");
    assert!(status.success(), "with {threads} threads: {status}, {said}");
    said.contains("done")
}

fn each_thread_is_refused_in_turn(address: &str) {
    let server = Server::builder().service(CounterServer::new(Numbers)).listen(address).unwrap();
    refused_in_turn("connect", server.address());
}

fn refused_in_turn(does: &str, address: &str) {
    let refused = (0..MOST_THREADS).take_while(|n| !can(does, *n, address)).count();
    assert!((1..MOST_THREADS as usize).contains(&refused), "{refused} processes were refused");
}

#[test]
fn connecting_over_shared_memory_without_threads_is_an_error() {
    each_thread_is_refused_in_turn("shm://no-threads");
}

#[test]
fn connecting_over_tcp_without_threads_is_an_error() {
    each_thread_is_refused_in_turn("tcp://127.0.0.1:0");
}

#[test]
fn looking_up_a_host_without_threads_is_an_error() {
    each_thread_is_refused_in_turn("tcp://localhost:0");
}

#[test]
fn listening_without_threads_is_an_error() {
    for does in ["listen", "listen-pinned"] {
        refused_in_turn(does, &format!("shm://no-threads-{}", std::process::id()));
        refused_in_turn(does, "tcp://127.0.0.1:0");
        refused_in_turn(does, "tcp://localhost:0");
    }
}
