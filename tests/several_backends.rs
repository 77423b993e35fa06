//! An address that offers several backends: each client comes over one of them.

use farcall::{ConnectError, RunningServer, Server};

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
