//! Children that a program forks, without exec, as pre-fork servers and Python's multiprocessing do: what they may do beside a parent
//! that is a client or a server, and that the parent notices nothing.

#[path = "support/addresses.rs"]
mod addresses;
#[path = "support/other_process.rs"]
mod other_process;

use std::cell::RefCell;
use std::env;
use std::fmt::Debug;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use addresses::each_kind_of_address;
use farcall::memory::{Carrier, Memory, MemoryError, MemoryServer, RemoteMemory, Rights, Until};
use farcall::{Endpoint, GoneReason, RpcError, RunningServer, Server};

#[farcall::service]
trait Counter {
    fn next(&self, number: u32) -> u32;
    async fn never(&self);
}

struct Numbers;

impl Counter for Numbers {
    fn next(&self, number: u32) -> u32 {
        number + 1
    }

    async fn never(&self) {
        std::future::pending().await
    }
}

fn serve(address: &str) -> RunningServer {
    Server::builder().service(CounterServer::new(Numbers)).listen(address).unwrap()
}

/// What a started process does: `SCENARIO ADDRESS`.
const ROLE: &str = "FARCALL_FORKS_ROLE";

/// A child that needs longer hangs.
const BOUND: Duration = Duration::from_secs(40);

/// What takes no call's timeout: nothing waits for a thread that is not there.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Runs `work` in a forked child, and waits until it has ended.
fn in_child(work: impl FnOnce()) {
    // SAFETY: this process has no thread that writes to what the child uses; the child runs `work` and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child");
    if child == 0 {
        let done = catch_unwind(AssertUnwindSafe(work));
        if let Err(panic) = &done {
            // Not by a macro, whose text the test's harness keeps.
            let text = panic.downcast_ref::<String>().map_or("it panicked", String::as_str);
            let _ = writeln!(io::stderr(), "in the child: {text}");
        }
        // SAFETY: it ends the process at once.
        unsafe { libc::_exit(i32::from(done.is_err())) }
    }
    let (begin, mut status) = (Instant::now(), 0);
    // SAFETY: it asks for a child of ours, and writes a status of ours.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if begin.elapsed() > BOUND {
            // SAFETY: the child has not been waited for, so that its number is its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child hangs");
        }
        thread::sleep(Duration::from_millis(5));
    }
    let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    assert_eq!(signal, None, "the child died of a signal");
    assert_eq!(libc::WEXITSTATUS(status), 0, "the child failed");
}

fn connects(address: &str) {
    let client = CounterClient::connect(address).wait().unwrap();
    assert_eq!(client.next(1).wait(), Ok(2));
    let mut polling = CounterPollClient::connect(address).wait().unwrap();
    assert_eq!(polling.next(2), Ok(3));
}

fn is_of_parent<T: Debug>(ended: Result<T, RpcError>) {
    let is_told = matches!(ended, Err(RpcError::PeerGone { why: GoneReason::Forked, .. }));
    assert!(is_told, "{ended:?}");
}

/// What the parent has. Each process takes and drops its own copy.
type Held<T> = RefCell<Option<T>>;

fn take<T>(held: &Held<T>) -> T {
    held.borrow_mut().take().unwrap()
}

fn poll<T>(call: &mut Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// The parent has clients of every kind.
fn clients(address: &str) {
    let endpoint = Endpoint::new();
    let client = CounterClient::connect(address).endpoint(&endpoint).wait().unwrap();
    let mut polling = CounterPollClient::connect(address).wait().unwrap();
    assert_eq!((client.next(1).wait(), polling.next(1)), (Ok(2), Ok(2)));
    let mut pending = Box::pin(client.never().into_future());
    assert!(poll(&mut pending).is_pending());
    let started = polling.start_next(7).unwrap();
    let prepared = client.next(5);
    let held: Held<_> = RefCell::new(Some((client, polling, endpoint, prepared, pending, started)));
    in_child(|| {
        connects(address);
        let (client, mut polling, endpoint, prepared, mut pending, started) = take(&held);
        let begin = Instant::now();
        is_of_parent(client.next(1).wait());
        is_of_parent(prepared.wait());
        match poll(&mut pending) {
            Poll::Ready(ended) => is_of_parent(ended),
            Poll::Pending => panic!("nothing ends it"),
        }
        let mut later = Box::pin(client.next(1).into_future());
        match poll(&mut later) {
            Poll::Ready(ended) => is_of_parent(ended),
            Poll::Pending => panic!("nothing ends it"),
        }
        is_of_parent(polling.connection().wait(started).unwrap());
        is_of_parent(polling.next(1));
        is_of_parent(polling.start_next(1));
        let refused = CounterClient::connect(address).endpoint(&endpoint).wait();
        let text = refused.map(drop).unwrap_err().to_string();
        assert!(text.contains("forked this one"), "{text}");
        client.channel().clone().close();
        drop((client, polling, endpoint, pending, later));
        assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
        connects(address);
    });
    let (client, mut polling, _endpoint, prepared, _pending, started) = take(&held);
    assert_eq!((prepared.wait(), client.next(1).wait()), (Ok(6), Ok(2)));
    assert_eq!(polling.connection().wait(started), Some(Ok(8)));
    assert_eq!(polling.next(1), Ok(2));
    // A child's connections are not those of the next one, nor of its own children.
    in_child(|| {
        connects(address);
        in_child(|| connects(address));
    });
}

/// The child is the first to touch what the parent has.
fn untouched(address: &str) {
    let client = CounterClient::connect(address).wait().unwrap();
    let polling = CounterPollClient::connect(address).wait().unwrap();
    let held: Held<_> = RefCell::new(Some((client, polling)));
    in_child(|| drop(take(&held)));
    in_child(|| is_of_parent(take(&held).0.next(1).wait()));
    in_child(|| is_of_parent(take(&held).1.next(1)));
    let (client, mut polling) = take(&held);
    assert_eq!((client.next(1).wait(), polling.next(1)), (Ok(2), Ok(2)));
}

/// The parent had a client, and has dropped it.
fn dropped(address: &str) {
    connects(address);
    in_child(|| connects(address));
    connects(address);
}

/// The parent has a server, to which it and the child are clients.
fn server(address: &str) {
    let server = serve(address);
    let at = server.address().to_owned();
    connects(&at);
    let held: Held<_> = RefCell::new(Some(server));
    in_child(|| {
        connects(&at);
        let begin = Instant::now();
        drop(take(&held));
        assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
        connects(&at);
        let own = match address.strip_prefix("shm://") {
            Some(name) => serve(&format!("shm://{name}-child")),
            None => serve(address),
        };
        connects(own.address());
        assert_eq!(own.shutdown(), Default::default());
    });
    connects(&at);
    in_child(|| assert_eq!(take(&held).shutdown(), Default::default()));
    connects(&at);
    assert_eq!(take(&held).shutdown(), Default::default());
}

/// The parent has a client with one-sided operations.
fn lane(address: &str) {
    let memory = Memory::new().unwrap();
    let word = memory.region(64).unwrap();
    let lent = word.lend(0..8, Rights::ATOMIC, Until::REVOKED).unwrap();
    let server = Server::builder().service(MemoryServer::new(memory)).listen(address).unwrap();
    let remote = RemoteMemory::connect(server.address()).wait().unwrap().one_sided();
    assert_eq!([(); 2].map(|()| remote.fetch_add(&lent, 1).wait()), [Ok(0), Ok(1)]);
    assert_eq!(remote.caps().carrier, Carrier::OneSided);
    let held: Held<_> = RefCell::new(Some(remote));
    in_child(|| drop(take(&held)));
    in_child(|| {
        let ended = take(&held).fetch_add(&lent, 1).wait();
        assert!(matches!(ended, Err(MemoryError::Gone { .. })), "{ended:?}");
    });
    let remote = take(&held);
    assert_eq!(remote.fetch_add(&lent, 1).wait(), Ok(2));
    assert_eq!(remote.caps().carrier, Carrier::OneSided, "the parent's lane is as it was");
}

/// Does nothing when it is not started by the test below.
#[test]
#[ignore = "the other tests start it as a process"]
fn process() {
    let Ok(role) = env::var(ROLE) else { return };
    let (scenario, address) = role.split_once(' ').unwrap();
    match scenario {
        "clients" => clients(address),
        "untouched" => untouched(address),
        "dropped" => dropped(address),
        "lane" => lane(address),
        _ => server(address),
    }
}

/// A process of its own, so that no other test has threads that a fork could stop in the middle of something.
fn run(scenario: &str, address: &str) {
    let done = other_process::with_role(ROLE, format!("{scenario} {address}")).output().unwrap();
    let says = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(done.status.success(), "{} {}", says(&done.stdout), says(&done.stderr));
}

fn beside_a_parent(scenario: &str) {
    for address in each_kind_of_address(&format!("forks-{scenario}")) {
        let server = serve(&address);
        run(scenario, server.address());
    }
}

#[test]
fn a_child_connects_while_its_parent_has_clients_which_it_cannot_use() {
    beside_a_parent("clients");
}

#[test]
fn what_a_child_touches_first_of_its_parents_is_an_error_and_no_fault() {
    beside_a_parent("untouched");
}

#[test]
fn a_child_connects_when_its_parent_was_a_client() {
    beside_a_parent("dropped");
}

#[test]
fn a_child_calls_its_parents_server_and_has_a_server_of_its_own() {
    run("server", &format!("shm://forks-{}-server", std::process::id()));
    run("server", "tcp://127.0.0.1:0");
}

#[test]
fn a_child_leaves_its_parents_one_sided_operations_alone() {
    run("lane", &format!("shm://forks-{}-lane", std::process::id()));
}
