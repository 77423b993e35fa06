//! Clients that hold memory and move on a few bytes at a time, over sockets and in virtual time.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use farcall_core::metrics::RefusalReason;
use farcall_core::site::{Clock, Site};
use farcall_core::time::Instant;
use farcall_core::transport::{
    CallToken, ClientInfo, Message, Replies, RequestSink, ServerTransport,
};

use super::super::server::{Server, TcpIntake};
use super::super::wire::{self, Header, Kind};
use crate::contract::{Config, Fabric, Intake, NewClient, Placement, Source, Stream};

const MIB: usize = 1 << 20;

/// Answers each request with so many bytes.
struct Answering(usize);

impl RequestSink for Answering {
    fn request(&mut self, call: CallToken, _: Message<'_>, replies: &mut dyn Replies) {
        // Without memory the core would try again; these tests do not need that answer.
        if replies.reserve(&call, self.0).is_ok() {
            replies.post(call, self.0);
        }
    }

    fn is_idempotent(&self, _: &[u8]) -> bool {
        false
    }
}

/// A server thread that is polled by hand, with memory for four messages of 1 MiB.
struct Bench {
    server: Server,
    intake: TcpIntake,
    site: Site,
    sink: Answering,
    second: u64,
}

fn config() -> Config {
    let memory = 4 * MIB as u64;
    Config { window: 4, slot: 1024, max_message: MIB as u64, memory, ..Config::default() }
}

/// Of the site; polls have their time as an argument.
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Instant {
        Instant::ZERO
    }
}

/// Of a driven site: the memory of a client that is dropped is free in the same second.
fn bench(answers: usize) -> Bench {
    let site = Site::driven(Arc::new(Stopped));
    let (server, intake) =
        Server::new(&Placement::new(&site, Fabric::Stream), &config(), 8).unwrap();
    Bench { server, intake, site, sink: Answering(answers), second: 1 }
}

/// A client by hand.
struct Peer {
    stream: UnixStream,
    generation: u32,
}

impl Bench {
    fn connect(&mut self) -> Peer {
        let (ours, stream) = UnixStream::pair().unwrap();
        for end in [&ours, &stream] {
            end.set_nonblocking(true).unwrap();
        }
        let terms = config().terms();
        let timeout = Duration::from_secs(1);
        let (setup, source) = (wire::SETUP, Source::Unknown);
        let client =
            NewClient { terms: &terms, setup, timeout, source, info: &ClientInfo::default() };
        let accepted = self.intake.accept(client).unwrap();
        accepted.take_stream.unwrap()(Stream::Socket(ours.into()));
        self.turns();
        Peer { stream, generation: 1 }
    }

    /// Some turns at the same time.
    fn turns(&mut self) {
        let now = Instant::from_nanos(self.second * 1_000_000_000);
        for _ in 0..8 {
            self.server.poll(now, &mut self.sink);
            self.server.flush();
        }
    }

    /// One second passes.
    fn pass_a_second(&mut self) {
        self.second += 1;
        self.turns();
    }

    fn stalled(&self) -> u64 {
        self.site.refusals().of(RefusalReason::Stalled)
    }
}

impl Peer {
    fn send(&mut self, kind: Kind, slot: u32, body: &[u8]) {
        let Peer { stream, generation } = self;
        let header = Header { kind, slot, generation: *generation, len: body.len() };
        // Fails when the server has hung up.
        let _ = stream.write_all(&[&header.to_bytes(), body].concat());
    }

    /// Announces a request of 1 MiB.
    fn announce(&mut self, slot: u32) {
        self.send(Kind::Begin, slot, &wire::begin_body(MIB));
    }

    /// What has arrived, at most so many bytes; nothing if the server has hung up.
    fn read(&mut self, most: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; most];
        match self.stream.read(&mut bytes) {
            Ok(0) => None,
            Ok(read) => Some(bytes[..read].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Some(Vec::new()),
            Err(_) => None,
        }
    }

    /// Whether a frame without a body has arrived that says this of the slot.
    fn has_heard(&mut self, kind: Kind, slot: u32) -> bool {
        let wanted = Header::bare(kind, slot, self.generation).to_bytes();
        self.read(4096).is_some_and(|bytes| bytes.windows(wanted.len()).any(|it| it == wanted))
    }
}

/// Seconds until the honest client's request has memory. Others do something in each second.
fn seconds_until_granted(bench: &mut Bench, mut each_second: impl FnMut(u64)) -> u64 {
    let mut honest = bench.connect();
    honest.announce(0);
    for second in 1..100 {
        bench.pass_a_second();
        if honest.has_heard(Kind::Grant, 0) {
            return second;
        }
        each_second(second);
    }
    panic!("it waits for ever");
}

#[test]
fn clients_that_send_large_requests_byte_by_byte_are_dropped() {
    let mut bench = bench(10);
    let mut hostile = [bench.connect(), bench.connect()];
    for peer in &mut hostile {
        (0..2).for_each(|slot| peer.announce(slot));
    }
    bench.turns();
    let took = seconds_until_granted(&mut bench, |_| {
        hostile.iter_mut().for_each(|peer| peer.send(Kind::Part, 0, &[7]));
    });
    // 30 s, and one for 1 MiB at the least rate.
    assert!((31..=33).contains(&took), "it had memory after {took} s");
    assert!(bench.stalled() >= 1);
    assert!(hostile.iter_mut().any(|peer| {
        std::iter::from_fn(|| Some(peer.read(4096)))
            .find(|it| it.as_ref().is_none_or(Vec::is_empty))
            == Some(None)
    }));
}

/// Clients with two responses of 1 MiB each, which they have granted: all memory.
fn takers(bench: &mut Bench) -> [Peer; 2] {
    let mut peers = [bench.connect(), bench.connect()];
    for peer in &mut peers {
        for slot in 0..2 {
            peer.send(Kind::Whole, slot, &[0; 8]);
        }
    }
    bench.turns();
    for peer in &mut peers {
        (0..2).for_each(|slot| peer.send(Kind::Grant, slot, &[]));
    }
    bench.turns();
    peers
}

#[test]
fn clients_that_take_large_responses_byte_by_byte_are_dropped() {
    let mut bench = bench(MIB);
    let mut hostile = takers(&mut bench);
    let took = seconds_until_granted(&mut bench, |_| {
        for peer in &mut hostile {
            // So much that the system soon says that there is room again.
            let _ = peer.read(30 << 10);
        }
    });
    assert!((31..=33).contains(&took), "it had memory after {took} s");
    assert!(bench.stalled() >= 1);
}

#[test]
fn clients_that_take_large_responses_at_a_low_rate_are_not_dropped() {
    let mut bench = bench(MIB);
    let mut slow = takers(&mut bench);
    let took = seconds_until_granted(&mut bench, |_| {
        for peer in &mut slow {
            // The system's buffers hold some of the bytes.
            let _ = peer.read(80 << 10);
        }
    });
    // A client that did not move on would be dropped after 10 s.
    assert!(took > 12, "it had memory after {took} s");
    assert_eq!(bench.stalled(), 0);
}

#[test]
fn clients_that_give_up_a_response_while_a_part_is_on_its_way_hold_no_memory() {
    let mut bench = bench(MIB);
    let mut hostile = [(); 6].map(|()| bench.connect());
    for peer in &mut hostile {
        peer.send(Kind::Whole, 0, &[0; 8]);
        bench.turns();
        peer.send(Kind::Grant, 0, &[]);
        // A part is on its way: the stream is full, and nobody reads.
        bench.turns();
        peer.send(Kind::Cancel, 0, &[]);
        bench.turns();
    }
    let took = seconds_until_granted(&mut bench, |_| {});
    assert!(took <= 2, "it had memory after {took} s");
}

#[test]
fn a_request_that_is_cancelled_while_it_waits_gets_no_memory_later() {
    let mut bench = bench(10);
    let mut others = [bench.connect(), bench.connect()];
    for peer in &mut others {
        (0..2).for_each(|slot| peer.announce(slot));
    }
    bench.turns();
    let mut fickle = bench.connect();
    fickle.announce(0);
    bench.turns();
    fickle.send(Kind::Cancel, 0, &[]);
    bench.turns();
    assert!(fickle.has_heard(Kind::Dropped, 0));
    drop(others);
    bench.turns();
    assert!(!fickle.has_heard(Kind::Grant, 0), "nobody waits any more");
    assert_eq!(seconds_until_granted(&mut bench, |_| {}), 1);
}
