//! A program that may start no more threads: each thread that a client needs is refused in turn. Connecting ends with an error that says
//! so, within its time, and works when there are threads again, on the same endpoint.

use std::env;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use farcall::{ConnectError, Endpoint, Server};
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

/// What a started process does: `THREADS ADDRESS`.
const ROLE: &str = "FARCALL_NO_THREADS_ROLE";

/// The stack of each thread. Address space for so many of them is room for so many threads, for any user.
const STACK_BYTES: u64 = 1 << 30;

/// What else may be mapped meanwhile: far less than a stack.
const OTHER_BYTES: u64 = STACK_BYTES * 3 / 4;

/// A client starts fewer.
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
    let (threads, address) = role.split_once(' ').unwrap();
    let threads: u64 = threads.parse().unwrap();
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
    println!("{}", if connected.is_ok() { "connected" } else { "refused" });
}

/// Whether a process with so many threads to start connects.
fn connects(threads: u64, address: &str) -> bool {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["process", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, format!("{threads} {address}"))
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
    said.contains("connected")
}

fn each_thread_is_refused_in_turn(address: &str) {
    let server = Server::builder().service(CounterServer::new(Numbers)).listen(address).unwrap();
    let refused = (0..MOST_THREADS).take_while(|n| !connects(*n, server.address())).count();
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
