//! An address that offers several backends: each client comes over one of them.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farcall::{ConnectError, LaneReason, MoveEvent, RunningServer, Server};
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Longer than any test, even on two busy cores.
const BOUND: Duration = Duration::from_secs(60);

#[farcall::service]
trait Adder {
    fn add(&self, left: u64, right: u64) -> u64;
}

#[derive(Clone)]
struct Sums;

impl Adder for Sums {
    fn add(&self, left: u64, right: u64) -> u64 {
        left + right
    }
}

const OFFERED: [&str; 5] = ["write_imm", "rfp", "send_recv", "datagram", "scale"];

fn address(name: &str, backend: &str) -> String {
    format!("shm://backends-{name}-{}?backend={backend}", std::process::id())
}

fn serve(name: &str, threads: usize, most: usize) -> RunningServer {
    let builder = Server::builder().service(AdderServer::new(Sums)).threads(threads);
    builder.max_clients(most).listen(address(name, &OFFERED.join(","))).unwrap()
}

#[test]
fn clients_of_each_backend_call_at_once() {
    let server = serve("each", 2, 100);
    let mut clients: Vec<_> = OFFERED
        .iter()
        .flat_map(|backend| [backend, backend])
        .map(|backend| AdderPollClient::connect(address("each", backend)).wait().unwrap())
        .collect();
    for round in 0..100 {
        for client in &mut clients {
            assert_eq!(client.add(round, 1), Ok(round + 1));
        }
    }
    // One that names several takes the first.
    let several = address("each", "rfp,write_imm");
    assert_eq!(AdderClient::connect(several).wait().unwrap().add(1, 1).wait(), Ok(2));
    drop(clients);
    let late = AdderClient::connect(address("each", "scale")).wait().unwrap();
    assert_eq!(late.add(2, 2).wait(), Ok(4), "where there were no clients any more");
    server.shutdown();
}

#[test]
fn clients_of_all_backends_count_together() {
    let server = serve("together", 1, 3);
    let connect = |backend: &str| AdderPollClient::connect(address("together", backend)).wait();
    let mut clients: Vec<_> = OFFERED[..3].iter().map(|it| connect(it).unwrap()).collect();
    for backend in OFFERED {
        let refused = connect(backend).unwrap_err();
        assert!(matches!(refused, ConnectError::Refused { .. }), "{backend}: {refused}");
        assert!(refused.to_string().contains("3 clients"), "{backend}: {refused}");
    }
    clients.iter_mut().for_each(|client| assert_eq!(client.add(1, 2), Ok(3)));
    drop(clients.pop());
    // The server notices it a moment later.
    let next = (0..1_000).find_map(|_| connect("datagram").ok());
    assert_eq!(next.expect("there is room").add(1, 2), Ok(3));
    drop(server);
}

#[test]
fn a_backend_that_is_not_offered_is_refused_with_those_that_are() {
    let server = Server::builder().service(AdderServer::new(Sums));
    let server = server.listen(address("refused", "rfp,datagram")).unwrap();
    assert!(server.address().ends_with("?backend=rfp,datagram"), "{}", server.address());
    let refused = AdderClient::connect(address("refused", "scale")).wait().unwrap_err();
    let ConnectError::BackendMismatch { ours, theirs, .. } = &refused else { panic!("{refused}") };
    assert_eq!((ours.as_str(), theirs.as_str()), ("scale", "rfp,datagram"));
}

#[test]
fn options_go_to_the_backends_that_have_them() {
    let listen = |options: &str| {
        let server = Server::builder().service(AdderServer::new(Sums));
        server.listen(address("options", options)).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(listen("write_imm,scale&group=8&window=16"), Ok(()));
    let wrong = listen("write_imm,rfp&group=8").unwrap_err();
    assert!(wrong.contains("`group` belongs to backend=scale"), "{wrong}");
    let twice = listen("rfp,rfp").unwrap_err();
    assert!(twice.contains("each backend once"), "{twice}");
    let unknown = listen("rfp,scael").unwrap_err();
    assert!(unknown.contains("unknown backend `scael`"), "{unknown}");
    let stream = listen("rfp,tcp").unwrap_err();
    assert!(stream.contains("tcp://HOST:PORT"), "{stream}");
}

/// The warnings of farcall, each with its fields.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().starts_with("farcall")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut |_: &Field, value: &dyn Debug| text += &format!("{value:?} "));
        self.0.lock().unwrap().push(text);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A server that has RDMA, and the address of a client whose machine has none.
fn serve_with_rdma(exclude: &str) -> (RunningServer, String) {
    let builder = Server::builder().service(AdderServer::new(Sums));
    let address = format!("rdma://127.0.0.1:0?device=shm&backend=hybrid{exclude}");
    let server = builder.listen(&*address).unwrap();
    let without = server.address().replace("device=shm", "device=nosuch0");
    (server, without)
}

/// Over which backends clients have come so far.
fn lanes(server: &RunningServer) -> Vec<(&'static str, LaneReason)> {
    server.metrics().lanes_opened().into_keys().collect()
}

#[test]
fn a_client_without_rdma_goes_on_over_tcp_and_looks_for_rdma_now_and_then() {
    let (server, without) = serve_with_rdma("");
    let warnings = Warnings::default();
    let connect = || AdderClient::connect(&*without).wait().unwrap();
    let client = tracing::subscriber::with_default(warnings.clone(), connect);
    let told = warnings.0.lock().unwrap().join("\n");
    assert!(told.contains("no RDMA to the server") && told.contains("nosuch0"), "{told}");
    // The server thread has noticed a client by the time that it answers it.
    assert_eq!(client.add(1, 2).wait(), Ok(3));
    assert_eq!(lanes(&server), [("tcp", LaneReason::Fallback)]);
    let metrics = client.channel().metrics();
    let deadline = Instant::now() + BOUND;
    while metrics.moves(MoveEvent::NotOpened) < 3 {
        assert!(Instant::now() < deadline, "it does not look for RDMA");
        assert_eq!(client.add(1, 2).wait(), Ok(3));
    }
    assert_eq!((metrics.moves(MoveEvent::Tried), metrics.moves(MoveEvent::LaneLost)), (0, 0));
    assert_eq!(
        server.metrics().connections_by_backend().into_iter().collect::<Vec<_>>(),
        [("tcp", 1)]
    );
    server.shutdown();
}

#[test]
fn without_rdma_and_without_tcp_the_error_is_that_of_the_device() {
    let (server, without) = serve_with_rdma("&exclude=tcp");
    for address in [without.replace("&exclude=tcp", ""), without] {
        let error = AdderClient::connect(&*address).wait().unwrap_err();
        assert!(matches!(error, ConnectError::Device { .. }), "{address}: {error}");
        assert!(error.to_string().contains("nosuch0"), "{error}");
    }
    server.shutdown();
    let error = AdderClient::connect("rdma://127.0.0.1:9?device=nosuch0&backend=hybrid&pin=rfp");
    let error = error.wait().unwrap_err();
    assert!(matches!(error, ConnectError::Device { .. }), "it stays where it is pinned: {error}");
}

#[test]
fn a_client_with_rdma_does_not_try_tcp() {
    let (server, _) = serve_with_rdma("&exclude=scale,rfp");
    let client = AdderClient::connect(server.address()).wait().unwrap();
    let metrics = client.channel().metrics();
    let deadline = Instant::now() + BOUND;
    while metrics.moves(MoveEvent::Tried) < 4 {
        assert!(Instant::now() < deadline, "it tries nothing");
        assert_eq!(client.add(1, 2).wait(), Ok(3));
    }
    assert!(lanes(&server).iter().all(|(backend, _)| *backend != "tcp"), "{:?}", lanes(&server));
    let tcp = server.address().replace("device=shm", "device=nosuch0") + "&pin=tcp";
    assert_eq!(
        AdderPollClient::connect(&*tcp).wait().unwrap().add(1, 2),
        Ok(3),
        "it may ask for it"
    );
    server.shutdown();
}
