//! Clients and their streams arrive at the server thread from other threads, one after the other.

use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use farcall_core::site::Site;
use farcall_core::time::Instant;
use farcall_core::transport::{
    CallToken, ClientEvent, ClientId, ClientInfo, Message, Replies, RequestSink, ServerTransport,
};

use super::super::server::{Server, TcpIntake};
use super::super::wire::{self, Header, Kind};
use crate::contract::{Config, Fabric, Intake, NewClient, Placement, Source, Stream};

fn accept(intake: &TcpIntake, stream: Stream) {
    let terms = Config::default().terms();
    let timeout = Duration::from_secs(1);
    let client = NewClient {
        terms: &terms,
        setup: wire::SETUP,
        timeout,
        source: Source::Unknown,
        info: &ClientInfo::default(),
    };
    let accepted = intake.accept(client).unwrap();
    accepted.take_stream.unwrap()(stream);
}

/// Another client comes at the moment when the server thread drops one.
struct ComesMeanwhile<'a>(&'a TcpIntake, Option<Stream>);

impl RequestSink for ComesMeanwhile<'_> {
    fn request(&mut self, _: CallToken, _: Message<'_>, _: &mut dyn Replies) {}

    fn is_idempotent(&self, _: &[u8]) -> bool {
        false
    }

    fn client(&mut self, _: ClientId, event: ClientEvent) {
        if let ClientEvent::Left = event {
            accept(self.0, self.1.take().expect("one client is dropped"));
        }
    }
}

#[test]
fn a_client_that_comes_while_streams_are_taken_keeps_its_own() {
    let (mut server, intake) =
        Server::new(&Placement::new(&Site::new(), Fabric::Stream), &Config::default(), 4).unwrap();
    // The system refuses to watch a file: the server thread drops this client while it takes streams.
    accept(&intake, Stream::Socket(File::open("/proc/self/exe").unwrap().into()));
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut sink = ComesMeanwhile(&intake, Some(Stream::Socket(ours.into())));
    server.poll(Instant::ZERO, &mut sink);
    assert!(sink.1.is_none(), "the first client was dropped");
    assert_eq!(server.connections(), 1);
    theirs.set_nonblocking(true).unwrap();
    let read = std::io::Read::read(&mut theirs, &mut [0]).map_err(|error| error.kind());
    assert_eq!(read, Err(std::io::ErrorKind::WouldBlock), "the second one's stream is open");
}

/// Counts requests.
#[derive(Default)]
struct Counting(u32);

impl RequestSink for Counting {
    fn request(&mut self, _: CallToken, _: Message<'_>, _: &mut dyn Replies) {
        self.0 += 1;
    }

    fn is_idempotent(&self, _: &[u8]) -> bool {
        false
    }
}

/// Otherwise the server thread would take the turn for an empty one, and date its next request to this one's arrival.
#[test]
fn a_request_that_is_there_when_the_stream_is_taken_is_work() {
    let (mut server, intake) =
        Server::new(&Placement::new(&Site::new(), Fabric::Stream), &Config::default(), 4).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let request = Header { kind: Kind::Whole, slot: 0, generation: 1, len: 8 };
    theirs.write_all(&[&request.to_bytes()[..], &[0; 8]].concat()).unwrap();
    accept(&intake, Stream::Socket(ours.into()));
    let mut sink = Counting::default();
    let progress = server.poll(Instant::ZERO, &mut sink);
    assert_eq!((sink.0, progress.worked), (1, 1));
}
