//! A server thread that panics outside of a handler: here in a subscriber of the log, as a program's own may.

mod support;

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farcall::{ConnectError, RpcError, Server};
use support::shapes::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const BOUND: Duration = Duration::from_secs(20);

/// The next event that tells of the end of a client is to panic. The other thread may tell of something else meanwhile.
static ARMED: AtomicBool = AtomicBool::new(false);

/// Whether an event tells of the end of a client, as a backend puts it.
struct EndOfClient(bool);

impl Visit for EndOfClient {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let ends = ["lost a client", "a client said goodbye", "a client left", "a session ended"];
        if field.name() == "message" {
            self.0 = ends.contains(&&*format!("{value:?}"));
        }
    }
}

struct Fragile;

impl Subscriber for Fragile {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let thread = thread::current();
        let is_server = thread.name().is_some_and(|name| name.starts_with("farcall-server"));
        let mut end = EndOfClient(false);
        event.record(&mut end);
        if is_server && end.0 && ARMED.swap(false, Ordering::SeqCst) {
            panic!("a panic of the log, as asked");
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Connects. A client that comes at the moment of the panic may be refused, and tries again.
fn connect<C>(dial: impl Fn() -> Result<C, ConnectError>) -> C {
    let began = Instant::now();
    loop {
        match dial() {
            Ok(client) => return client,
            Err(error) => assert!(began.elapsed() < BOUND, "{error}"),
        }
    }
}

/// Has the thread of this client panic, while it handles the client's end.
fn panic_thread_of(client: ShapesPollClient) {
    ARMED.store(true, Ordering::SeqCst);
    drop(client);
    let began = Instant::now();
    while ARMED.load(Ordering::SeqCst) {
        assert!(began.elapsed() < BOUND, "the thread has nothing to log");
        thread::yield_now();
    }
}

/// One thread of two panics, again and again.
fn a_thread_panics_and_serves_again(address: &str) {
    let service = ShapesServer::new(Implementation::default());
    let server = Server::builder().service(service).threads(2).listen(address).unwrap();
    for round in 0..3 {
        // Threads take clients in turn.
        let dial = || ShapesPollClient::connect(server.address()).wait();
        let mut clients: Vec<_> = (0..4).map(|_| connect(dial)).collect();
        for client in &mut clients {
            let began = Instant::now();
            // The thread that has panicked may have taken one with it that came just before.
            while client.one(1) != Ok(2) {
                assert!(round > 0 && began.elapsed() < BOUND, "{address}, round {round}");
                *client = connect(dial);
            }
        }
        let roaming = connect(|| ShapesClient::connect(server.address()).wait());
        assert_eq!(roaming.one(1).wait(), Ok(2));
        panic_thread_of(clients.remove(0));
        let answers: Vec<_> = clients.iter_mut().map(|client| client.one(1)).collect();
        let is_gone = |answer: &_| matches!(answer, Err(RpcError::PeerGone { .. }));
        assert!(answers.iter().all(|it| *it == Ok(2) || is_gone(it)), "{address}: {answers:?}");
        // Later clients may have passed a thread that was about to start again.
        if round == 0 {
            let gone: Vec<_> = answers.iter().map(is_gone).collect();
            assert_eq!(gone, [false, true, false], "{address}: those of the other thread go on");
        }
        // Whichever thread has it: a call may find the connection gone, and the next one dials again.
        let began = Instant::now();
        while roaming.one(1).wait() != Ok(2) {
            assert!(began.elapsed() < BOUND, "{address}: an async client connects again");
        }
    }
    let began = Instant::now();
    let in_flight = || {
        let snapshot = server.metrics().snapshot();
        snapshot.method("Shapes", "one").expect("a method of the service").in_flight()
    };
    while in_flight() > 0 {
        assert!(began.elapsed() < BOUND, "{address}: {} calls never end", in_flight());
        thread::yield_now();
    }
    assert_eq!(server.shutdown().stuck_threads, 0);
}

#[test]
fn a_thread_that_panics_drops_its_clients_and_takes_new_ones() {
    tracing::subscriber::set_global_default(Fragile).unwrap();
    for backend in ["write_imm", "datagram", "send_recv", "rfp", "scale"] {
        let name = format!("panics-{}-{backend}", std::process::id());
        a_thread_panics_and_serves_again(&format!("shm://{name}?backend={backend}"));
    }
    a_thread_panics_and_serves_again("tcp://127.0.0.1:0");
}
