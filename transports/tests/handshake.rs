//! Dialling and listening: every mismatch is its own error, and every wait has a bound.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use farcall_core::error::{BindError, ConnectError};
use farcall_core::service::ServiceDescription;
use farcall_core::transport::{BindOptions, Binding, Bound, ClientTransport, Dial, DialOptions};
use farcall_transports::Address;
use farcall_transports::handshake::{Frame, Hello, PREFIX_BYTES, PROTOCOL_VERSION, Reject};

static KV: ServiceDescription = ServiceDescription { name: "Kv", fingerprint: 7, methods: &[] };
static OTHER_KV: ServiceDescription =
    ServiceDescription { name: "Kv", fingerprint: 8, methods: &[] };
static QUEUE: ServiceDescription =
    ServiceDescription { name: "Queue", fingerprint: 7, methods: &[] };

/// A name that no other test of this process, or other process, has.
fn fresh() -> Address {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("shm://handshake-{}-{next}", std::process::id()).parse().unwrap()
}

fn bind(address: &Address) -> Bound {
    address.bind(1, &[&KV], &BindOptions::default()).unwrap()
}

fn dial(
    address: &Address,
    service: &'static ServiceDescription,
) -> Result<Box<dyn ClientTransport>, ConnectError> {
    address.dial(service, &DialOptions::default().timeout(Duration::from_secs(5)))
}

fn error(outcome: Result<Box<dyn ClientTransport>, ConnectError>) -> ConnectError {
    match outcome {
        Ok(_) => panic!("it connected"),
        Err(error) => error,
    }
}

/// The name of the socket behind an address.
fn socket(address: &Address) -> SocketAddr {
    let user = rustix::process::geteuid().as_raw();
    SocketAddr::from_abstract_name(format!("farcall/{user}/{}", address.name())).unwrap()
}

fn raw(address: &Address) -> UnixStream {
    let stream = UnixStream::connect_addr(&socket(address)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn read_frame(stream: &mut UnixStream) -> Frame {
    let mut prefix = [0; PREFIX_BYTES];
    stream.read_exact(&mut prefix).unwrap();
    let mut body = vec![0; Frame::body_len(&prefix).unwrap()];
    stream.read_exact(&mut body).unwrap();
    Frame::from_body(&body).unwrap()
}

fn hello(address: &Address) -> Hello {
    Hello {
        backend: "write_imm".into(),
        service: "Kv".into(),
        fingerprint: 7,
        terms: address.limits().terms(),
        setup: Vec::new(),
    }
}

#[test]
fn nobody_there() {
    let address = fresh();
    let error = error(dial(&address, &KV));
    assert!(matches!(error, ConnectError::NoServer { .. }), "{error}");
    assert!(error.to_string().contains(address.name()), "{error}");
}

#[test]
fn a_name_in_use_is_refused_and_free_as_soon_as_its_server_stops() {
    let address = fresh();
    let mut first = bind(&address);
    let second = address.bind(1, &[&KV], &BindOptions::default()).map(|_| ());
    assert!(matches!(second, Err(BindError::InUse { .. })));
    first.acceptor.stop();
    assert!(matches!(error(dial(&address, &KV)), ConnectError::NoServer { .. }));
    let third = bind(&address);
    drop(third);
    drop(bind(&address));
}

#[test]
fn what_cannot_be_served_is_said() {
    let address = fresh();
    let options = BindOptions::default();
    let none = address.bind(1, &[], &options).map(|_| ());
    assert!(matches!(none, Err(BindError::NoService)));
    let twice = address.bind(1, &[&KV, &QUEUE, &OTHER_KV], &options).map(|_| ());
    assert!(matches!(twice, Err(BindError::DuplicateService { service: "Kv" })));
    let nowhere = address.bind(0, &[&KV], &options).map(|_| ());
    assert!(matches!(nowhere, Err(BindError::Threads { threads: 0, .. })));
    // A refused bind leaves the name free.
    drop(bind(&address));
}

#[test]
fn another_service_and_another_fingerprint() {
    let address = fresh();
    let _bound = bind(&address);
    match error(dial(&address, &QUEUE)) {
        ConnectError::NoSuchService { asked, served, .. } => {
            assert_eq!((asked.as_str(), served), ("Queue", vec!["Kv".to_owned()]));
        }
        other => panic!("{other}"),
    }
    match error(dial(&address, &OTHER_KV)) {
        ConnectError::FingerprintMismatch { ours: 8, theirs: 7, service, .. } => {
            assert_eq!(service, "Kv");
        }
        other => panic!("{other}"),
    }
    assert!(dial(&address, &KV).is_ok());
}

#[test]
fn another_backend() {
    let address = fresh();
    let _bound = bind(&address);
    let mut client = raw(&address);
    let hello = Hello { backend: "herd".into(), ..hello(&address) };
    client.write_all(&Frame::Hello(hello).to_bytes()).unwrap();
    let answer = read_frame(&mut client);
    assert_eq!(answer, Frame::Reject(Reject::Backend { theirs: "write_imm".into() }));
}

#[test]
fn another_version_at_the_client() {
    let address = fresh();
    let _bound = bind(&address);
    let mut client = raw(&address);
    let mut bytes = Frame::Hello(hello(&address)).to_bytes();
    bytes[8] = 99;
    client.write_all(&bytes).unwrap();
    // The answer is a frame of the server's version, which says all.
    let mut prefix = [0; PREFIX_BYTES];
    client.read_exact(&mut prefix).unwrap();
    assert_eq!(u32::from_le_bytes(*prefix[8..].first_chunk().unwrap()), PROTOCOL_VERSION);
}

/// A server that answers every hello with these bytes, and keeps the connection.
fn impostor(address: &Address, answer: Vec<u8>) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind_addr(&socket(address)).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&answer).unwrap();
        // Until the client has gone.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    })
}

#[test]
fn another_version_at_the_server() {
    let address = fresh();
    let mut answer = Frame::Reject(Reject::Refused { reason: String::new() }).to_bytes();
    answer[8] = 99;
    let server = impostor(&address, answer);
    match error(dial(&address, &KV)) {
        ConnectError::VersionMismatch { ours: PROTOCOL_VERSION, theirs: 99, .. } => {}
        other => panic!("{other}"),
    }
    server.join().unwrap();
}

#[test]
fn a_server_that_is_none() {
    for answer in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        Frame::Ready.to_bytes(),
        Frame::Hello(hello(&fresh())).to_bytes(),
    ] {
        let address = fresh();
        let server = impostor(&address, answer);
        let error = error(dial(&address, &KV));
        assert!(matches!(error, ConnectError::PeerMisbehaved { .. }), "{error}");
        server.join().unwrap();
    }
}

#[test]
fn a_server_that_is_silent() {
    let address = fresh();
    let server = impostor(&address, Vec::new());
    let begun = Instant::now();
    let options = DialOptions::default().timeout(Duration::from_millis(200));
    let error = error(address.dial(&KV, &options));
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(3));
    server.join().unwrap();
}

#[test]
fn clients_that_are_stuck_in_their_handshake_delay_nobody() {
    let address = fresh();
    let _bound = bind(&address);
    let mut stuck: Vec<_> = (0..20).map(|_| raw(&address)).collect();
    for (n, client) in stuck.iter_mut().enumerate() {
        client.write_all(&Frame::Hello(hello(&address)).to_bytes()[..n]).unwrap();
    }
    let begun = Instant::now();
    assert!(dial(&address, &KV).is_ok());
    assert!(begun.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_handshake_has_a_bound_at_the_server() {
    let address = fresh();
    let mut options = BindOptions::default();
    options.handshake_timeout = Duration::from_millis(100);
    let _bound = address.bind(1, &[&KV], &options).unwrap();
    let mut silent = raw(&address);
    let mut rest = Vec::new();
    // The server hangs up.
    silent.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}

#[test]
fn garbage_is_refused_and_the_server_lives() {
    let address = fresh();
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

#[test]
fn one_client_too_many() {
    let address = fresh();
    let mut options = BindOptions::default();
    options.max_clients = 3;
    let _bound = address.bind(2, &[&KV], &options).unwrap();
    let clients: Vec<_> = (0..3).map(|_| dial(&address, &KV).unwrap()).collect();
    let error = error(dial(&address, &KV));
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    drop(clients);
}
