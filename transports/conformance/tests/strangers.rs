//! Connections that are made only to keep others out: honest clients connect all the same, over each kind of socket.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farcall::{RefusalReason, RunningServer, ServiceClient};
use farcall_core::Server;
use farcall_transports::handshake::{Frame, Hello, Reject};
use farcall_transports::{Address, Place};
use farcall_transports_conformance::backends::{self, Backend, UnconnectedEnd};
use farcall_transports_conformance::hostile::{self, Stream, read_frame, shake_hands};
use farcall_transports_conformance::patient;
use farcall_transports_conformance::service::{Handlers, SuiteClient, SuiteServer};
use farcall_verbs::Device;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Handshakes that a server has under way at a time with clients of one source.
const HANDSHAKES: usize = 64;

/// Less than a client waits by default, and than a handshake may take by default.
const SOON: Duration = Duration::from_secs(4);

/// Reads are bounded, so that a server that keeps silent fails the test.
const READ_BOUND: Duration = Duration::from_secs(10);

/// Where strangers come from; honest clients come from 127.0.0.1, or are of this process too.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A server, as strangers see it.
struct Target {
    address: Address,
    backend: &'static Backend,
    device: Device,
}

/// A stranger as far as it has come.
type Stranger = (Box<dyn UnconnectedEnd>, Box<dyn Stream>);

impl Target {
    fn serve(address: &str, max_clients: usize) -> (Target, RunningServer) {
        let address: Address = address.parse().expect("an address");
        let backend = backends::find(address.backend().name()).expect("a backend of the suite");
        let server = Server::builder().service(SuiteServer::from(Arc::new(Handlers::default())));
        let server = server.threads(1).max_clients(max_clients).serve(&address).expect("listen");
        let address = server.address().parse().expect("an address");
        (Target { address, backend, device: Device::open("shm").expect("a device") }, server)
    }

    fn unix() -> (Target, RunningServer) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Target::serve(&format!("shm://strangers-{process}-{number}?backend=datagram"), 4096)
    }

    fn tcp(max_clients: usize) -> (Target, RunningServer) {
        Target::tcp_with("", max_clients)
    }

    fn tcp_with(options: &str, max_clients: usize) -> (Target, RunningServer) {
        Target::serve(&format!("tcp://127.0.0.1:0?backend=tcp{options}"), max_clients)
    }

    /// Waits until the server has refused something that often.
    fn assert_refused(&self, server: &RunningServer, reason: RefusalReason, count: u64) {
        let begun = Instant::now();
        loop {
            let refused = server.metrics().snapshot().refused(reason);
            if refused == count {
                return;
            }
            assert!(begun.elapsed() < patient(SOON), "{reason:?}: {refused}, not {count}");
            thread::yield_now();
        }
    }

    fn stream(&self) -> Box<dyn Stream> {
        match self.address.place() {
            Place::Shm { name } => {
                let user = rustix::process::geteuid().as_raw();
                let name = SocketAddr::from_abstract_name(format!("farcall/{user}/{name}"));
                let stream = UnixStream::connect_addr(&name.expect("a name")).expect("connect");
                stream.set_read_timeout(Some(patient(READ_BOUND))).expect("bound reads");
                Box::new(stream)
            }
            Place::Rdma(place) | Place::Tcp(place) => {
                let family = AddressFamily::INET;
                let flags = SocketFlags::CLOEXEC;
                let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None);
                let socket = socket.expect("a socket");
                rustix::net::bind(&socket, &SocketAddrV4::new(ELSEWHERE, 0)).expect("bind");
                let server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, place.port);
                rustix::net::connect(&socket, &server).expect("connect");
                let stream = TcpStream::from(socket);
                stream.set_read_timeout(Some(patient(READ_BOUND))).expect("bound reads");
                Box::new(stream)
            }
        }
    }

    /// A stranger's first frame, and the end that it tells of.
    fn hello(&self) -> (Box<dyn UnconnectedEnd>, Frame) {
        let terms = hostile::terms(8, 4096, 1 << 20);
        let end = (self.backend.open_end)(&self.device, &terms);
        let hello = hostile::hello(self.backend.name, SuiteClient::DESCRIPTION, terms, end.setup());
        (end, hello)
    }

    /// Says hello and nothing more.
    fn say_hello(&self) -> Stranger {
        let ((end, hello), mut stream) = (self.hello(), self.stream());
        // The server may have hung up already.
        let _ = stream.write_all(&hello.to_bytes());
        (end, stream)
    }

    /// As an honest client, but it will not call.
    fn finish_handshake(&self) -> Stranger {
        self.try_handshake().expect("a welcome")
    }

    /// The same, unless it is refused.
    fn try_handshake(&self) -> Result<Stranger, String> {
        let ((end, hello), mut stream) = (self.hello(), self.stream());
        match shake_hands(&mut *stream, &hello) {
            Ok(_) => Ok((end, stream)),
            Err(why) => Err(format!("{why:?}")),
        }
    }

    /// A client from 127.0.0.1 that has called.
    fn connect_and_call(&self) -> SuiteClient {
        let client = SuiteClient::connect(&self.address).timeout(patient(READ_BOUND)).wait();
        let client = client.expect("connect");
        client.tally(1).wait().expect("call");
        client
    }

    /// Connects and calls once, as often as it takes.
    fn assert_honest_client_is_served_soon(&self) {
        let begun = Instant::now();
        loop {
            let client = SuiteClient::connect(&self.address).timeout(patient(READ_BOUND)).wait();
            let outcome = client.map(|client| client.tally(1).wait());
            let took = begun.elapsed();
            assert!(took < patient(SOON), "after {took:?}: {:?}", outcome.err());
            if matches!(outcome, Ok(Ok(_))) {
                return;
            }
        }
    }
}

fn clients_that_stop_after_their_hello_make_room((target, server): (Target, RunningServer)) -> u64 {
    let mut strangers: Vec<_> = (0..HANDSHAKES).map(|_| target.say_hello()).collect();
    for (_, stream) in &mut strangers {
        let answer = read_frame(&mut **stream);
        assert!(matches!(answer, Ok(Frame::Welcome(_))), "{answer:?}");
    }
    target.assert_honest_client_is_served_soon();
    let made_room = server.metrics().snapshot().refused(RefusalReason::Silent);
    drop(strangers);
    // Of those that had let the server wait for too long, it is counted why they left.
    let begun = Instant::now();
    let count = |reason| server.metrics().snapshot().refused(reason);
    while count(RefusalReason::Silent) + count(RefusalReason::Unfinished) < HANDSHAKES as u64 {
        assert!(begun.elapsed() < patient(SOON), "not all are counted");
        thread::yield_now();
    }
    made_room
}

#[test]
fn clients_that_stop_after_their_hello_make_room_on_unix_sockets() {
    // The honest client is of this process too, which has all handshakes that it may have.
    assert!(clients_that_stop_after_their_hello_make_room(Target::unix()) > 0);
}

#[test]
fn clients_that_stop_after_their_hello_make_room_on_tcp_sockets() {
    clients_that_stop_after_their_hello_make_room(Target::tcp(4096));
}

/// Ends another thread's loop, also when this thread panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `then` while that many strangers come back as often as the server hangs up.
fn besieged<T>(count: usize, again: impl Fn() -> Stranger + Sync, then: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    let mut strangers: Vec<_> = (0..count).map(|_| again()).collect();
    thread::scope(|scope| {
        let over = SetOnDrop(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for stranger in &mut strangers {
                    let (_, stream) = &mut *stranger;
                    if stream.is_readable() && read_frame(&mut **stream).is_err() {
                        *stranger = again();
                    }
                }
                thread::park_timeout(Duration::from_millis(1));
            }
        });
        let outcome = then();
        drop(over);
        outcome
    })
}

#[test]
fn a_source_with_more_connections_than_handshakes_keeps_no_other_source_out() {
    let (target, _server) = Target::tcp(4096);
    let assert_served = || target.assert_honest_client_is_served_soon();
    besieged(5 * HANDSHAKES, || target.say_hello(), assert_served);
}

#[test]
fn finished_handshakes_of_one_source_keep_no_other_source_out() {
    const MOST: usize = 8;
    let (target, server) = Target::tcp(MOST);
    let mut strangers: Vec<_> = (0..MOST).map(|_| target.finish_handshake()).collect();
    target.assert_honest_client_is_served_soon();
    let hung_up = strangers.iter_mut().filter(|(_, stream)| stream.is_readable()).count();
    assert!((1..MOST).contains(&hung_up), "one makes room for one, not {hung_up}");
    target.assert_refused(&server, RefusalReason::NeverCalled, hung_up as u64);
}

#[test]
fn idle_clients_of_one_source_keep_no_other_source_out_although_they_have_called() {
    const MOST: usize = 4;
    let (target, server) = Target::tcp_with("&idle_timeout=1s", MOST);
    let clients: Vec<_> = (0..MOST).map(|_| target.connect_and_call()).collect();
    // Three are idle from now on.
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                clients[0].tally(1).wait().expect("a busy client stays");
            }
        });
        let refused = target.try_handshake().err().expect("none has been idle for long");
        let begun = Instant::now();
        // The server looks what its clients have called when another one comes.
        let _newcomer = loop {
            match target.try_handshake() {
                Ok(newcomer) => break newcomer,
                Err(why) => assert!(begun.elapsed() < patient(SOON), "{why}, first {refused}"),
            }
        };
        assert!(begun.elapsed() > Duration::from_millis(500), "the time-out is waited for");
        // The newcomer counts once the server thread has taken it over.
        while server.connections() != MOST {
            assert!(begun.elapsed() < patient(SOON), "{} clients", server.connections());
            thread::yield_now();
        }
        clients[0].tally(1).wait().expect("a busy client stays");
    });
    target.assert_refused(&server, RefusalReason::Idle, 1);
    assert!(server.metrics().snapshot().refused(RefusalReason::Full) > 0);
}

#[test]
fn a_source_takes_no_more_places_than_the_address_allows() {
    let (target, server) = Target::tcp_with("&max_clients_per_source=2", 4096);
    let _clients = [target.connect_and_call(), target.connect_and_call()];
    let refused = SuiteClient::connect(&target.address).wait().expect_err("a third one");
    assert!(refused.to_string().contains("max_clients_per_source"), "{refused}");
    let _others = [target.finish_handshake(), target.finish_handshake()];
    let refused = target.try_handshake().err().expect("a third one from there");
    assert!(refused.contains("max_clients_per_source"), "{refused}");
    target.assert_refused(&server, RefusalReason::SourceFull, 2);
}

#[test]
fn a_stranger_is_not_told_what_is_served() {
    let told = |target: &Target| {
        let Frame::Hello(hello) = target.hello().1 else { panic!("a hello") };
        let mut stream = target.stream();
        let hello = Frame::Hello(Hello { service: "Guessed".into(), ..hello });
        stream.write_all(&hello.to_bytes()).expect("send");
        match read_frame(&mut *stream) {
            Ok(Frame::Reject(Reject::Service { served })) => served,
            other => panic!("{other:?}"),
        }
    };
    let ((local, server), (remote, other)) = (Target::unix(), Target::tcp(4096));
    assert_eq!(told(&local), [SuiteClient::DESCRIPTION.name]);
    assert!(told(&remote).is_empty());
    local.assert_refused(&server, RefusalReason::Service, 1);
    remote.assert_refused(&other, RefusalReason::Service, 1);
}

#[test]
fn what_is_not_a_handshake_gets_no_answer() {
    let (target, server) = Target::tcp(4096);
    let whole = target.hello().1.to_bytes();
    let mut torn = whole.clone();
    torn.truncate(whole.len() - 1);
    let mut garbled = whole.clone();
    garbled[16..].fill(0xff);
    let mut too_long = whole.clone();
    too_long[12..16].fill(0xff);
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), torn, garbled, too_long] {
        let mut stream = target.stream();
        stream.write_all(&bytes).expect("send");
        stream.close_half();
        let mut answer = Vec::new();
        // Closed or reset.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{bytes:?}: {answer:?}");
    }
    target.assert_refused(&server, RefusalReason::NoHandshake, 4);
}

#[test]
fn more_clients_than_may_wait_are_counted() {
    /// More than may wait and have a handshake under way.
    const CROWD: usize = 2000;
    let (target, server) = Target::tcp(4096);
    let _silent: Vec<_> = (0..CROWD).map(|_| target.stream()).collect();
    let begun = Instant::now();
    while server.metrics().snapshot().refused(RefusalReason::Crowd) == 0 {
        assert!(begun.elapsed() < patient(SOON), "none of {CROWD} was too many");
        thread::yield_now();
    }
}

#[test]
fn a_client_whose_handshake_a_shutdown_interrupts_is_counted() {
    let (target, server) = Target::tcp(4096);
    let (_end, hello) = target.hello();
    let (hello, mut stream) = (hello.to_bytes(), target.stream());
    stream.write_all(&hello[..9]).expect("send");
    // Clients are accepted in order: the handshake has begun.
    drop(target.connect_and_call());
    let metrics = server.metrics();
    server.shutdown();
    stream.write_all(&hello[9..]).expect("send");
    let answer = read_frame(&mut *stream);
    assert!(matches!(answer, Ok(Frame::Reject(Reject::ShuttingDown))), "{answer:?}");
    assert_eq!(metrics.snapshot().refused(RefusalReason::ShuttingDown), 1);
}
