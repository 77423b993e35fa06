//! Dropping a server never blocks for long, whatever its handlers and clients do.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use farcall::{RpcError, RunningServer, Server};

/// No test waits as long unless it fails.
const BOUND: Duration = Duration::from_secs(30);

/// Well above the 0.25 s that a drop may take on a usual machine, and well below what a graceful shutdown takes.
const SOON: Duration = Duration::from_secs(1);

/// Methods that do not end.
#[farcall::service]
trait Endless {
    /// Never ends.
    async fn wait(&self);
    /// Keeps its thread until the test lets it go.
    fn block(&self) -> bool;
    /// So many bytes.
    fn make(&self, len: u32) -> Bytes;
}

#[derive(Default)]
struct Handlers {
    is_blocked: AtomicBool,
    gate: Mutex<()>,
}

impl Endless for Arc<Handlers> {
    async fn wait(&self) {
        std::future::pending().await
    }

    fn block(&self) -> bool {
        self.is_blocked.store(true, Ordering::SeqCst);
        self.gate.lock().is_ok()
    }

    fn make(&self, len: u32) -> Bytes {
        vec![7; len as usize].into()
    }
}

/// A server on each backend, at an address of its own.
fn servers(handlers: &Arc<Handlers>) -> impl Iterator<Item = (RunningServer, String)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    ["write_imm", "datagram", "send_recv", "rfp", "scale"].into_iter().map(|backend| {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("farcall-dropping-{}-{next}", std::process::id());
        let address = format!("shm://{name}?backend={backend}&window=8");
        let server = Server::builder().service(EndlessServer::new(handlers.clone())).threads(2);
        (server.listen(&address).unwrap(), address)
    })
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < BOUND, "never: {what}");
        std::thread::yield_now();
    }
}

fn in_flight(server: &RunningServer) -> u64 {
    let snapshot = server.metrics().snapshot();
    snapshot.methods.iter().map(|method| method.in_flight()).sum()
}

/// Drops the server, and checks how long that takes.
fn drop_soon(server: RunningServer) {
    let begin = Instant::now();
    drop(server);
    assert!(begin.elapsed() < SOON, "the drop took {:?}", begin.elapsed());
}

#[test]
fn a_handler_that_never_ends_is_dropped_and_its_caller_is_told_at_once() {
    for (server, address) in servers(&Arc::default()) {
        let mut client = EndlessPollClient::connect(&address).timeout(BOUND).wait().unwrap();
        let waiting = client.start_wait().unwrap();
        client.poll();
        until("the handler runs", || in_flight(&server) == 1);
        drop_soon(server);
        let begin = Instant::now();
        let ended = client.connection().wait(waiting).unwrap();
        assert_eq!(ended, Err(RpcError::Cancelled), "{address}");
        let gone = client.block();
        assert!(matches!(gone, Err(RpcError::PeerGone { .. })), "{address}: {gone:?}");
        assert!(begin.elapsed() < SOON, "{address}: {:?}", begin.elapsed());
    }
}

#[test]
fn a_handler_that_does_not_return_keeps_neither_the_drop_nor_the_address() {
    let handlers = Arc::new(Handlers::default());
    for (server, address) in servers(&handlers) {
        let held = handlers.gate.lock().unwrap();
        handlers.is_blocked.store(false, Ordering::SeqCst);
        let mut blocked = EndlessPollClient::connect(&address).timeout(BOUND).wait().unwrap();
        let mut other = EndlessPollClient::connect(&address).timeout(BOUND).wait().unwrap();
        let call = blocked.start_block().unwrap();
        blocked.poll();
        until("the handler runs", || handlers.is_blocked.load(Ordering::SeqCst));
        drop_soon(server);
        // The other thread has said goodbye, and the address is free.
        let gone = other.make(1);
        assert!(matches!(gone, Err(RpcError::PeerGone { .. })), "{address}: {gone:?}");
        let again = Server::builder().service(EndlessServer::new(handlers.clone()));
        drop_soon(again.listen(&address).unwrap());
        // When the handler returns, its client is told as well.
        drop(held);
        let ended = blocked.connection().wait(call).unwrap();
        assert!(matches!(ended, Ok(true) | Err(RpcError::PeerGone { .. })), "{address}: {ended:?}");
        let gone = blocked.make(1);
        assert!(matches!(gone, Err(RpcError::PeerGone { .. })), "{address}: {gone:?}");
    }
}

#[test]
fn a_client_that_never_reads_delays_nothing() {
    for (server, address) in servers(&Arc::default()) {
        let mut client = EndlessPollClient::connect(&address).timeout(BOUND).wait().unwrap();
        let window = client.connection().window();
        // The responses are too long for a slot: the client would have to fetch them.
        let calls: Vec<_> = (0..window).map(|_| client.start_make(3 << 20).unwrap()).collect();
        client.poll();
        let answered = || {
            let snapshot = server.metrics().snapshot();
            let calls: u64 = snapshot.methods.iter().map(|method| method.calls()).sum();
            calls > 0
        };
        until("the requests are there", answered);
        drop_soon(server);
        drop(calls);
    }
}

#[test]
fn a_server_that_never_had_a_client_stops_at_once() {
    for (server, _) in servers(&Arc::default()) {
        drop_soon(server);
    }
}
