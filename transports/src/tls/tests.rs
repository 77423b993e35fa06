//! Two sessions that speak with each other: by hand, then on sockets.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::net::sockopt::set_socket_send_buffer_size;

use super::*;
use crate::contract::Stream;

/// The settings of two ends that trust each other.
fn settings() -> (ServerTls, ClientTls) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let trusted = Authorities::from_pem(authority.pem()).unwrap();
    let [server, client] = ["kv.example", "client.example"].map(|name| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let chain = params.signed_by(&key, &authority).unwrap().pem();
        Certificate::from_pem(chain, key.serialize_pem()).unwrap()
    });
    (ServerTls::new(server, trusted.clone()).unwrap(), ClientTls::new(client, trusted).unwrap())
}

/// A client's and a server's session, whose handshake has ended; and what was sent for it.
fn sessions() -> (Session, Session, Vec<u8>) {
    let (server, client) = settings();
    let mut client = client_session(&client.into(), "kv.example").unwrap();
    let mut server = server_session(&server.into()).unwrap();
    let mut sent = Vec::new();
    while client.is_handshaking() || server.is_handshaking() {
        let records = client.records();
        server.take_records(&records).unwrap();
        sent.extend(records);
        let records = server.records();
        client.take_records(&records).unwrap();
        sent.extend(records);
    }
    let last = client.records();
    server.take_records(&last).unwrap();
    (client, server, sent)
}

/// The same as streams on a socket with little room.
fn streams() -> (Stream, Stream) {
    let (client, server, _) = sessions();
    let (ours, theirs) = sockets();
    (client.into_stream(ours), server.into_stream(theirs))
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    for socket in [&ours, &theirs] {
        socket.set_nonblocking(true).unwrap();
        set_socket_send_buffer_size(socket, 4096).unwrap();
    }
    (ours.into(), theirs.into())
}

/// All bytes that there are now.
fn receive(stream: &mut Stream) -> io::Result<Vec<u8>> {
    let (mut first, mut second) = ([0; 100], vec![0; 64 << 10]);
    let mut received = Vec::new();
    loop {
        let into = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        match stream.receive(into) {
            Ok(0) => return Ok(received),
            Ok(read) => {
                received.extend(&first[..read.min(100)]);
                received.extend(&second[..read - read.min(100)]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(received),
            Err(error) => return Err(error),
        }
    }
}

#[test]
fn the_server_learns_who_the_client_is_and_nothing_is_said_in_the_clear() {
    let (mut client, mut server, mut sent) = sessions();
    assert_eq!(server.identity().unwrap().unwrap().name(), "client.example");
    client.write(b"queue pair 7, rkey 8").unwrap();
    let records = client.records();
    server.take_records(&records).unwrap();
    sent.extend(records);
    let mut said = [0; 64];
    let len = server.read(&mut said);
    assert_eq!(&said[..len], b"queue pair 7, rkey 8");
    assert_eq!(server.read(&mut said), 0);
    for secret in [&b"queue pair"[..], b"rkey", b"client.example"] {
        assert!(!sent.windows(secret.len()).any(|part| part == secret));
    }
}

/// A socket that is watched for its peer's end must be silent: no ticket may follow the handshake, also if a client of other make asks
/// for some.
#[test]
fn a_server_says_nothing_after_its_handshake() {
    let (server, client) = settings();
    let mut server = server_session(&server.into()).unwrap();
    let mut config = (*client.config()).clone();
    config.resumption = rustls::client::Resumption::default();
    let name = client.name_of("kv.example").unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        assert!(client.wants_write() || !server.is_handshaking());
        let mut records = Vec::new();
        client.write_tls(&mut records).unwrap();
        server.take_records(&records).unwrap();
        if client.is_handshaking() {
            client.read_tls(&mut &server.records()[..]).unwrap();
            client.process_new_packets().unwrap();
        }
    }
    assert!(server.records().is_empty());
}

#[test]
fn what_the_handshake_has_read_already_is_handed_out_though_no_socket_tells() {
    let (mut client, mut server, _) = sessions();
    client.write(b"the first call").unwrap();
    server.take_records(&client.records()).unwrap();
    let (_ours, theirs) = sockets();
    let mut server = server.into_stream(theirs);
    let Stream::Custom(stream) = &mut server else { panic!("a stream within TLS") };
    assert!(!stream.arm(false), "there is something");
    assert_eq!(receive(&mut server).unwrap(), b"the first call");
    let Stream::Custom(stream) = &mut server else { panic!("a stream within TLS") };
    assert!(stream.arm(false));
}

#[test]
fn a_changed_byte_of_a_record_ends_the_stream() {
    let (mut client, server, _) = sessions();
    let (ours, theirs) = sockets();
    let mut server = server.into_stream(theirs);
    client.write(b"a call").unwrap();
    let mut records = client.records();
    *records.last_mut().unwrap() ^= 1;
    UnixStream::from(ours).write_all(&records).unwrap();
    let error = receive(&mut server).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
}

#[test]
fn the_end_of_the_peers_socket_is_the_end() {
    let (mut client, mut server) = streams();
    assert_eq!(client.send(&[IoSlice::new(b"last words")]).unwrap(), 10);
    drop(client);
    assert_eq!(receive(&mut server).unwrap(), b"last words");
    assert_eq!(server.receive(&mut [IoSliceMut::new(&mut [0; 8])]).unwrap(), 0);
}

#[test]
fn a_record_that_is_not_whole_yet_is_nothing_yet() {
    let (mut client, server, _) = sessions();
    let (ours, theirs) = sockets();
    let (mut ours, mut server) = (UnixStream::from(ours), server.into_stream(theirs));
    client.write(b"a call").unwrap();
    let records = client.records();
    for byte in &records[..records.len() - 1] {
        ours.write_all(&[*byte]).unwrap();
        assert_eq!(receive(&mut server).unwrap(), b"");
    }
    ours.write_all(&records[records.len() - 1..]).unwrap();
    assert_eq!(receive(&mut server).unwrap(), b"a call");
}

#[test]
fn the_server_hears_of_a_refused_certificate_and_says_why() {
    let ((server, _), (_, stranger)) = (settings(), settings());
    let mut client = client_session(&stranger.into(), "kv.example").unwrap();
    let mut server = server_session(&server.into()).unwrap();
    server.take_records(&client.records()).unwrap();
    let Failure(why) = client.take_records(&server.records()).unwrap_err();
    assert!(why.contains("no authority that this end trusts"), "{why}");
    let Failure(why) = server.take_records(&client.records()).unwrap_err();
    assert!(why.contains("client") && why.contains("trusts no authority"), "{why}");
}

/// How a sender by hand keeps what was not taken: frames, which may be preceded by the rest of a large message that has begun.
#[derive(Default)]
struct Outbox {
    frames: Vec<u8>,
    /// A message that is sent after the frames, unless some of it has left.
    large: Vec<u8>,
    has_begun: bool,
    /// All bytes in the order in which they were taken.
    taken: Vec<u8>,
}

impl Outbox {
    fn send(&mut self, stream: &mut Stream) {
        let (first, second) = match self.has_begun {
            true => (&self.large, &self.frames),
            false => (&self.frames, &self.large),
        };
        let Ok(sent) = stream.send(&[IoSlice::new(first), IoSlice::new(second)]) else { return };
        self.taken.extend([&first[..], &second[..]].concat().drain(..sent));
        let of_first = sent.min(first.len());
        let of_second = sent - of_first;
        let (of_frames, of_large) =
            if self.has_begun { (of_second, of_first) } else { (of_first, of_second) };
        self.frames.drain(..of_frames);
        self.large.drain(..of_large);
        self.has_begun = !self.large.is_empty() && (self.has_begun || of_large > 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Frames that come between, in front of a message that has not begun, are no reason to lose or to repeat a byte, whenever the
    /// socket is full.
    #[test]
    fn all_bytes_arrive_in_the_order_in_which_they_were_taken(
        steps in prop::collection::vec((1usize..40_000, 0usize..90_000, any::<bool>()), 1..20),
    ) {
        let (mut client, mut server) = streams();
        let (mut outbox, mut received, mut next) = (Outbox::default(), Vec::new(), 0u32);
        let mut bytes = |len: usize| -> Vec<u8> {
            (0..len).map(|_| { next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223); (next >> 24) as u8 }).collect()
        };
        for (frames, large, reads) in steps {
            outbox.frames.extend(bytes(frames));
            if outbox.large.is_empty() && large > 1 {
                outbox.large = bytes(large);
            }
            outbox.send(&mut client);
            if reads {
                received.extend(receive(&mut server).unwrap());
            }
        }
        while !(outbox.frames.is_empty() && outbox.large.is_empty()) {
            outbox.send(&mut client);
            received.extend(receive(&mut server).unwrap());
        }
        received.extend(receive(&mut server).unwrap());
        prop_assert!(received == outbox.taken, "{} bytes of {}", received.len(), outbox.taken.len());
    }
}

#[test]
fn a_plain_reader_sees_records_only() {
    let (client, _, _) = sessions();
    let (ours, theirs) = sockets();
    let (mut client, mut sniffer) = (client.into_stream(ours), UnixStream::from(theirs));
    client.send(&[IoSlice::new(b"a secret call")]).unwrap();
    let mut seen = [0; 256];
    let len = sniffer.read(&mut seen).unwrap();
    assert_eq!(seen[..3], [0x17, 3, 3], "a record of application data");
    assert!(!seen[..len].windows(6).any(|part| part == b"secret"));
}
