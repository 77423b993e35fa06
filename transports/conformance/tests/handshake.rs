//! Dialling and listening, over each kind of socket: every mismatch is its own error, and every wait has a bound.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use farcall_core::Site;
use farcall_core::error::{BindError, ConnectError};
use farcall_core::service::ServiceDescription;
use farcall_core::transport::{
    BindOptions, Binding, Bound, Dial, DialOptions, Lane, LaneReason, NewConnection,
};
use farcall_core::{Authentication, Key, MethodDescription, MethodMismatch, MissingMethod};
use farcall_transports::handshake::{Frame, Hello, Identify, Reject, SPOKEN, Versions, Welcome};
use farcall_transports::{Address, Place};
use farcall_transports_conformance::hostile::Stream;
use farcall_transports_conformance::ports;

static GET_AND_PUT: [MethodDescription; 2] =
    [MethodDescription::new("get", 1, 10), MethodDescription::new("put", 2, 20)];
static OTHER_GET: [MethodDescription; 1] = [MethodDescription::new("get", 1, 11)];
static KV: ServiceDescription =
    ServiceDescription { name: "Kv", fingerprint: 7, methods: &GET_AND_PUT };
static OTHER_KV: ServiceDescription =
    ServiceDescription { name: "Kv", fingerprint: 8, methods: &OTHER_GET };
static QUEUE: ServiceDescription =
    ServiceDescription { name: "Queue", fingerprint: 7, methods: &[] };

/// The kind of socket under the handshake.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Unix,
    Tcp,
}

impl Kind {
    /// An address that no other test has.
    fn fresh(self) -> Address {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let address = match self {
            Kind::Unix => format!("shm://handshake-{}-{next}", std::process::id()),
            Kind::Tcp => format!("rdma://127.0.0.1:{}?device=shm", ports::claim()),
        };
        address.parse().unwrap()
    }
}

fn bind(address: &Address) -> Bound {
    address.bind(&[Site::new()], &[&KV], &BindOptions::default()).unwrap()
}

fn dial(
    address: &Address,
    service: &'static ServiceDescription,
) -> Result<NewConnection, ConnectError> {
    address.dial(service, &Site::new(), &DialOptions::default())
}

fn error(outcome: Result<NewConnection, ConnectError>) -> ConnectError {
    match outcome {
        Ok(_) => panic!("it connected"),
        Err(error) => error,
    }
}

/// The name of the Unix socket behind an address.
fn socket(name: &str) -> SocketAddr {
    let user = rustix::process::geteuid().as_raw();
    SocketAddr::from_abstract_name(format!("farcall/{user}/{name}")).unwrap()
}

/// Reads are bounded, so that a server that keeps silent fails the test.
const READ_BOUND: Option<Duration> = Some(Duration::from_secs(10));

fn raw(address: &Address) -> Box<dyn Stream> {
    match address.place() {
        Place::Shm { name } => {
            let stream = UnixStream::connect_addr(&socket(name)).unwrap();
            stream.set_read_timeout(READ_BOUND).unwrap();
            Box::new(stream)
        }
        Place::Rdma(place) | Place::Tcp(place) => {
            let stream = TcpStream::connect((place.host.as_str(), place.port)).unwrap();
            stream.set_read_timeout(READ_BOUND).unwrap();
            Box::new(stream)
        }
    }
}

/// Gives the first client that connects there.
fn listen(address: &Address) -> Box<dyn FnOnce() -> Box<dyn Stream> + Send> {
    match address.place() {
        Place::Shm { name } => {
            let listener = UnixListener::bind_addr(&socket(name)).unwrap();
            Box::new(move || Box::new(listener.accept().unwrap().0))
        }
        Place::Rdma(place) | Place::Tcp(place) => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, place.port)).unwrap();
            Box::new(move || Box::new(listener.accept().unwrap().0))
        }
    }
}

fn read_frame(stream: &mut dyn Stream) -> Frame {
    farcall_transports_conformance::hostile::read_frame(stream).unwrap()
}

fn hello(address: &Address) -> Hello {
    Hello {
        backend: address.backend().name().into(),
        service: "Kv".into(),
        fingerprint: 7,
        terms: address.config().terms(),
        setup: Vec::new(),
        further: Vec::new(),
        lane: Lane::Alone,
        why: LaneReason::First,
        thread: None,
    }
}

/// Each of these is a test over each kind of socket.
macro_rules! over_each_kind_of_socket {
    ($($test:ident)*) => {
        mod unix {
            $(#[test] fn $test() { super::$test(super::Kind::Unix); })*
        }
        mod tcp {
            $(#[test] fn $test() { super::$test(super::Kind::Tcp); })*
        }
    };
}

over_each_kind_of_socket! {
    no_server_at_the_address
    a_name_in_use_is_refused_and_free_as_soon_as_its_server_stops
    what_cannot_be_served_is_said
    another_service_and_one_with_nothing_in_common
    another_backend
    another_version_at_the_client
    another_version_at_the_server
    a_server_that_is_none
    a_server_that_is_silent
    clients_that_are_stuck_in_their_handshake_delay_no_other
    a_handshake_has_a_bound_at_the_server
    garbage_is_refused_and_the_server_lives
    one_client_too_many
    silent_clients_make_room_for_others
    clients_that_do_not_prove_themselves_take_no_place
    a_server_that_asks_for_no_proof_is_refused_by_a_client_with_a_key
}

fn no_server_at_the_address(kind: Kind) {
    let address = kind.fresh();
    let error = error(dial(&address, &KV));
    assert!(matches!(error, ConnectError::NoServer { .. }), "{error}");
    assert!(error.to_string().contains(address.name()), "{error}");
}

fn a_name_in_use_is_refused_and_free_as_soon_as_its_server_stops(kind: Kind) {
    let address = kind.fresh();
    let mut first = bind(&address);
    let second = address.bind(&[Site::new()], &[&KV], &BindOptions::default()).map(|_| ());
    assert!(matches!(second, Err(BindError::InUse { .. })));
    first.acceptor.stop();
    assert!(matches!(error(dial(&address, &KV)), ConnectError::NoServer { .. }));
    let third = bind(&address);
    drop(third);
    drop(bind(&address));
}

fn what_cannot_be_served_is_said(kind: Kind) {
    let address = kind.fresh();
    let options = BindOptions::default();
    let none = address.bind(&[Site::new()], &[], &options).map(|_| ());
    assert!(matches!(none, Err(BindError::NoService)));
    let twice = address.bind(&[Site::new()], &[&KV, &QUEUE, &OTHER_KV], &options).map(|_| ());
    assert!(matches!(twice, Err(BindError::DuplicateService { service: "Kv" })));
    let nowhere = address.bind(&[], &[&KV], &options).map(|_| ());
    assert!(matches!(nowhere, Err(BindError::Threads { threads: 0, .. })));
    // A refused bind leaves the name free.
    drop(bind(&address));
}

fn another_service_and_one_with_nothing_in_common(kind: Kind) {
    let address = kind.fresh();
    let _bound = bind(&address);
    match error(dial(&address, &QUEUE)) {
        ConnectError::NoSuchService { asked, served, .. } => {
            // Strangers in a network are not told.
            let told = if matches!(kind, Kind::Unix) { vec!["Kv".to_owned()] } else { vec![] };
            assert_eq!((asked.as_str(), served), ("Queue", told));
        }
        other => panic!("{other}"),
    }
    match error(dial(&address, &OTHER_KV)) {
        ConnectError::IncompatibleService { service, methods, .. } => {
            assert_eq!(service, "Kv");
            let get = MissingMethod { method: "Kv.get".into(), why: MethodMismatch::OtherShape };
            assert_eq!(methods, [get]);
        }
        other => panic!("{other}"),
    }
    assert!(dial(&address, &KV).is_ok());
}

fn another_backend(kind: Kind) {
    let address = kind.fresh();
    let _bound = bind(&address);
    let mut client = raw(&address);
    let hello = Hello { backend: "herd".into(), ..hello(&address) };
    client.write_all(&Frame::Hello(hello).to_bytes()).unwrap();
    let answer = read_frame(&mut *client);
    assert_eq!(answer, Frame::Reject(Reject::Backend { theirs: address.backend().name().into() }));
}

fn another_version_at_the_client(kind: Kind) {
    let address = kind.fresh();
    let _bound = bind(&address);
    let mut client = raw(&address);
    let later = Versions { lowest: 98, highest: 99 };
    let bytes = Frame::Hello(hello(&address)).to_bytes_in(later);
    client.write_all(&bytes).unwrap();
    // The answer is a frame of the server's versions that names both ranges.
    match read_frame(&mut *client) {
        Frame::Reject(Reject::Malformed { what }) => {
            assert!(what.contains("98 to 99") && what.contains(&SPOKEN.to_string()), "{what}");
        }
        other => panic!("{other:?}"),
    }
}

/// A server that answers every hello with these bytes, and keeps the connection.
fn impostor(address: &Address, answer: Vec<u8>) -> std::thread::JoinHandle<()> {
    let accept = listen(address);
    std::thread::spawn(move || {
        let mut stream = accept();
        stream.write_all(&answer).unwrap();
        // Until the client has gone.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    })
}

fn another_version_at_the_server(kind: Kind) {
    let address = kind.fresh();
    let later = Versions { lowest: 98, highest: 99 };
    let answer = Frame::Reject(Reject::Refused { reason: String::new() }).to_bytes_in(later);
    let server = impostor(&address, answer);
    match error(dial(&address, &KV)) {
        ConnectError::VersionMismatch { ours, theirs, .. } => {
            assert_eq!((ours, theirs), (SPOKEN.into(), 98..=99));
        }
        other => panic!("{other}"),
    }
    server.join().unwrap();
}

fn a_server_that_is_none(kind: Kind) {
    for answer in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        Frame::Ready.to_bytes(),
        Frame::Hello(hello(&kind.fresh())).to_bytes(),
    ] {
        let address = kind.fresh();
        let server = impostor(&address, answer);
        let error = error(dial(&address, &KV));
        assert!(matches!(error, ConnectError::PeerMisbehaved { .. }), "{error}");
        server.join().unwrap();
    }
}

fn a_server_that_is_silent(kind: Kind) {
    let address = kind.fresh();
    let server = impostor(&address, Vec::new());
    let begun = Instant::now();
    let options = DialOptions { timeout: Duration::from_millis(200), ..DialOptions::default() };
    let error = error(address.dial(&KV, &Site::new(), &options));
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    let took = begun.elapsed();
    assert!((Duration::from_millis(200)..Duration::from_secs(3)).contains(&took), "{took:?}");
    server.join().unwrap();
}

fn clients_that_are_stuck_in_their_handshake_delay_no_other(kind: Kind) {
    let address = kind.fresh();
    let _bound = bind(&address);
    let mut stuck: Vec<_> = (0..20).map(|_| raw(&address)).collect();
    for (n, client) in stuck.iter_mut().enumerate() {
        client.write_all(&Frame::Hello(hello(&address)).to_bytes()[..n]).unwrap();
    }
    let begun = Instant::now();
    assert!(dial(&address, &KV).is_ok());
    assert!(begun.elapsed() < Duration::from_secs(3));
}

fn a_handshake_has_a_bound_at_the_server(kind: Kind) {
    let address = kind.fresh();
    let handshake_timeout = Duration::from_millis(100);
    let options = BindOptions { handshake_timeout, ..BindOptions::default() };
    let _bound = address.bind(&[Site::new()], &[&KV], &options).unwrap();
    let begun = Instant::now();
    let mut silent = raw(&address);
    let mut rest = Vec::new();
    // The server hangs up.
    silent.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    let took = begun.elapsed();
    assert!((options.handshake_timeout..Duration::from_secs(4)).contains(&took), "{took:?}");
}

fn garbage_is_refused_and_the_server_lives(kind: Kind) {
    let address = kind.fresh();
    let _bound = bind(&address);
    let mut bad_setup = hello(&address);
    bad_setup.setup = vec![0xff; 100];
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        Frame::Ready.to_bytes(),
        vec![0; 4096],
        Frame::Hello(bad_setup).to_bytes(),
    ] {
        let mut client = raw(&address);
        let _ = client.write_all(&bytes);
        let mut answer = Vec::new();
        // Reset or closed, but not left waiting.
        let _ = client.read_to_end(&mut answer);
    }
    assert!(dial(&address, &KV).is_ok());
}

fn one_client_too_many(kind: Kind) {
    let address = kind.fresh();
    let options = BindOptions { max_clients: 3, ..BindOptions::default() };
    let _bound = address.bind(&[Site::new(), Site::new()], &[&KV], &options).unwrap();
    let clients: Vec<_> = (0..3).map(|_| dial(&address, &KV).unwrap()).collect();
    let error = error(dial(&address, &KV));
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    drop(clients);
}

fn silent_clients_make_room_for_others(kind: Kind) {
    let address = kind.fresh();
    let _bound = bind(&address);
    // More than may shake hands at a time.
    let mut silent: Vec<_> = (0..100).map(|_| raw(&address)).collect();
    // One of them sends part of a hello.
    silent[3].write_all(&Frame::Hello(hello(&address)).to_bytes()[..9]).unwrap();
    let begun = Instant::now();
    if let Err(error) = dial(&address, &KV) {
        panic!("{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

fn key() -> Key {
    Key::new("kv", *b"sixteen or more bytes").unwrap()
}

/// Dials with the key that servers of these tests know.
fn dial_with_key(address: &Address) -> Result<NewConnection, ConnectError> {
    let options = DialOptions { key: Some(key()), ..DialOptions::default() };
    address.dial(&KV, &Site::new(), &options)
}

/// There is one place. Strangers that say hello, and then nothing, or anything but a proof, do not get it.
fn clients_that_do_not_prove_themselves_take_no_place(kind: Kind) {
    let address = kind.fresh();
    let authentication = Some(Authentication::new().key(key()));
    let options = BindOptions { max_clients: 1, authentication, ..BindOptions::default() };
    let _bound = address.bind(&[Site::new()], &[&KV], &options).unwrap();
    let mut nonces = Vec::new();
    let mut challenge = || {
        let mut stranger = raw(&address);
        stranger.write_all(&Frame::Hello(hello(&address)).to_bytes()).unwrap();
        match read_frame(&mut *stranger) {
            Frame::Challenge(nonce) => nonces.push(nonce),
            other => panic!("{other:?}"),
        }
        stranger
    };
    let silent = [challenge(), challenge()];
    let identify = Frame::Identify(Identify { key: "kv".into(), server: None, nonce: [0; 32] });
    let proof = Frame::Proof([0; 32]);
    for frames in [vec![Frame::Ready], vec![proof.clone()], vec![identify.clone(), Frame::Ready]] {
        let mut early = challenge();
        for frame in frames {
            early.write_all(&frame.to_bytes()).unwrap();
        }
        let answer = read_frame(&mut *early);
        assert!(matches!(answer, Frame::Reject(Reject::Malformed { .. })), "{answer:?}");
    }
    let mut wrong = challenge();
    for frame in [identify, proof] {
        wrong.write_all(&frame.to_bytes()).unwrap();
    }
    let answer = read_frame(&mut *wrong);
    assert!(matches!(answer, Frame::Reject(Reject::NotPermitted { .. })), "{answer:?}");
    nonces.sort_unstable();
    nonces.dedup();
    assert_eq!(nonces.len(), 6, "a nonce is for one handshake");
    let client = dial_with_key(&address).unwrap();
    drop((silent, client));
}

fn a_server_that_asks_for_no_proof_is_refused_by_a_client_with_a_key(kind: Kind) {
    let address = kind.fresh();
    let accept = listen(&address);
    let terms = address.config().terms();
    let server = std::thread::spawn(move || {
        let mut stream = accept();
        assert!(matches!(read_frame(&mut *stream), Frame::Hello(_)));
        let welcome = Frame::Welcome(Welcome { terms, setup: Vec::new(), connection: None });
        stream.write_all(&welcome.to_bytes()).unwrap();
        // The client hangs up, and says nothing more.
        stream.read(&mut [0]).unwrap_or(0)
    });
    let error = error(dial_with_key(&address));
    assert!(matches!(error, ConnectError::NotPermitted { .. }), "{error}");
    assert_eq!(server.join().unwrap(), 0);
}

/// What only a network has.
mod network {
    use super::*;

    fn dial_text(text: &str, timeout: Duration) -> ConnectError {
        let address: Address = text.parse().unwrap();
        error(address.dial(&KV, &Site::new(), &DialOptions { timeout, ..DialOptions::default() }))
    }

    fn bind_text(text: &str) -> Result<Bound, BindError> {
        let address: Address = text.parse().unwrap();
        address.bind(&[Site::new()], &[&KV], &BindOptions::default())
    }

    #[test]
    fn a_port_that_is_left_to_the_system_is_given_back() {
        for host in ["127.0.0.1", "localhost"] {
            let bound = bind_text(&format!("rdma://{host}:0?device=shm")).unwrap();
            let address: Address = bound.address.parse().unwrap();
            assert!(address.name().starts_with(host) && !address.name().ends_with(":0"));
            assert!(dial(&address, &KV).is_ok());
        }
    }

    #[test]
    fn an_address_of_ipv6_works_where_there_is_ipv6() {
        if TcpListener::bind("[::1]:0").is_err() {
            println!("skipped: this machine has no IPv6");
            return;
        }
        let bound = bind_text("rdma://[::1]:0?device=shm").unwrap();
        assert!(bound.address.starts_with("rdma://[::1]:"), "{}", bound.address);
        assert!(dial(&bound.address.parse().unwrap(), &KV).is_ok());
    }

    #[test]
    fn a_port_without_a_listener() {
        let port = ports::claim();
        let error =
            dial_text(&format!("rdma://127.0.0.1:{port}?device=shm"), Duration::from_secs(5));
        let said = error.to_string();
        assert!(matches!(error, ConnectError::NoServer { .. }), "{said}");
        assert!(said.contains(&port.to_string()) && said.contains("start the server"), "{said}");
    }

    #[test]
    fn an_unknown_host_name() {
        let text = "rdma://no-such-host.invalid:7471?device=shm";
        let error = dial_text(text, Duration::from_secs(20));
        let said = error.to_string();
        // A resolver that cannot be asked may take longer than we do.
        assert!(matches!(error, ConnectError::NoServer { .. }), "{said}");
        assert!(said.contains("no-such-host.invalid"), "{said}");
        match bind_text(text) {
            Err(error @ BindError::InvalidAddress(_)) => {
                assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
            }
            other => panic!("{:?}", other.err()),
        }
    }

    /// An address reserved for documentation: the packet is lost, or a router refuses it.
    #[test]
    fn a_host_that_cannot_be_reached() {
        let begun = Instant::now();
        let error = dial_text("rdma://192.0.2.1:7471?device=shm", Duration::from_millis(500));
        assert!(begun.elapsed() < Duration::from_secs(4));
        let in_vain = matches!(
            error,
            ConnectError::TimedOut { .. }
                | ConnectError::NoServer { .. }
                | ConnectError::PeerMisbehaved { .. }
        );
        assert!(in_vain, "{error}");
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
    }

    #[test]
    fn an_address_of_another_machine_cannot_be_listened_on() {
        match bind_text("rdma://192.0.2.1:0?device=shm") {
            Err(BindError::Unsupported { what, .. }) => {
                assert!(
                    what.contains("no address 192.0.2.1") && what.contains("0.0.0.0"),
                    "{what}"
                );
            }
            other => panic!("{:?}", other.err()),
        }
    }

    #[test]
    fn a_device_that_is_not_there() {
        let text = "rdma://127.0.0.1:0?device=nosuch0";
        let said = dial_text(text, Duration::from_secs(5)).to_string();
        assert!(said.contains("nosuch0") && said.contains("shm"), "{said}");
        let said = bind_text(text).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("nosuch0") && said.contains("shm"), "{said}");
    }
}
