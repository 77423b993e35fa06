//! Peers that break the protocol: each is dropped, alone.

use farcall_core::error::FailureKind;
use farcall_core::transport::{Body, Delivery};
use farcall_verbs::{
    Access, CompletionQueue, ConnectOptions, Endpoint, ProtectionDomain, QpType, QueuePair,
    QueuePairConfig, RemoteRegion, WorkCompletion, WorkRequest,
};
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use super::WriteImm;
use crate::buffers::Buffers;
use crate::contract::Answer;
use crate::rendezvous::wire::{Announce, Here};
use crate::slots::link::stride;
use crate::slots::tests::pair::{BOUND, Caller, Host, limits, pattern};
use crate::slots::wire::{HEADER_BYTES, Immediate, Kind, Op, put_header};

/// A client that has a queue pair and the keys, and breaks the rules.
struct Rogue {
    qp: QueuePair,
    cq: CompletionQueue,
    slots: RemoteRegion,
    client: u32,
    pd: ProtectionDomain,
}

#[derive(Serialize, Deserialize)]
struct Setup {
    endpoint: Vec<u8>,
    slots: RemoteRegion,
    client: u32,
}

impl Rogue {
    /// A queue pair, and what its peer must know. The slots are gone at once: it never reads them.
    fn end(host: &Host) -> (QueuePair, CompletionQueue, ProtectionDomain, Setup) {
        let pd = host.device.alloc_pd().unwrap();
        let cq = host.device.create_cq(512, None).unwrap();
        let mut qp = pd.create_qp(QueuePairConfig::new(QpType::Rc, &cq, &cq)).unwrap();
        qp.post_recvs(0..64).unwrap();
        let slots =
            pd.alloc_shared(4 * stride(256) as usize, Access::REMOTE_WRITE).unwrap().remote();
        let setup = Setup { endpoint: qp.endpoint().to_bytes().to_vec(), slots, client: 0 };
        (qp, cq, pd, setup)
    }

    fn new(host: &Host) -> Rogue {
        let (mut qp, cq, pd, ours) = Rogue::end(host);
        let ours = postcard::to_allocvec(&ours).unwrap();
        let accepted = host.accept_bytes(&host.config.terms(), &ours).unwrap();
        let theirs: Setup = postcard::from_bytes(&accepted.setup).unwrap();
        let endpoint = Endpoint::from_bytes(&theirs.endpoint).unwrap();
        qp.connect(&endpoint, &ConnectOptions::default()).unwrap();
        Rogue { qp, cq, slots: theirs.slots, client: theirs.client, pd }
    }

    fn write(&mut self, slot: u32, bytes: &[u8], imm: u32) {
        let remote = self.slots.slice(u64::from(slot * stride(256)), bytes.len() as u64).unwrap();
        let mut buffer = self.pd.alloc_private(4096).unwrap().into_buffer();
        buffer.set_len(bytes.len());
        buffer.copy_from_slice(bytes);
        let request = WorkRequest::write(buffer, remote).imm(imm).signaled(1);
        self.qp.post_send_one(request).unwrap();
    }

    fn message(&mut self, slot: u32, kind: Kind, body: &[u8]) {
        let mut message = vec![0; HEADER_BYTES];
        put_header(&mut message, 1, kind);
        message.extend_from_slice(body);
        self.write(slot, &message, self.imm(Op::Message, slot));
    }

    fn op(&mut self, op: Op, slot: u32) {
        let imm = self.imm(op, slot);
        self.write(0, &[], imm);
    }

    fn imm(&self, op: Op, slot: u32) -> u32 {
        Immediate { op, client: self.client, slot }.to_wire()
    }

    fn poll(&mut self) {
        let mut completions: [WorkCompletion; 16] = std::array::from_fn(|_| Default::default());
        let _ = self.cq.poll(&mut completions);
    }
}

/// What the rogue does costs it its connection, and nobody else anything.
fn is_dropped_alone(attack: impl FnOnce(&mut Rogue)) {
    let mut host = Host::new(&WriteImm, limits(4, 256, 10_000));
    let mut honest = host.admit();
    assert_eq!(host.call(&mut honest, b"before"), b"before");
    let mut rogue = Rogue::new(&host);
    host.settle(&mut [&mut honest]);
    assert_eq!(host.transport.connections(), 2);
    attack(&mut rogue);
    for _ in 0..100 {
        host.poll();
        rogue.poll();
    }
    assert_eq!(host.transport.connections(), 1);
    assert_eq!(host.handlers.disconnected.len(), 1);
    assert_eq!(host.handlers.disconnected[0].0, rogue.client);
    assert_eq!(host.call(&mut honest, b"after"), b"after");
    assert!(honest.heard.closed.is_empty());
}

#[test]
fn garbage_in_a_slot() {
    is_dropped_alone(|rogue| rogue.write(0, &[0xff; 40], rogue.imm(Op::Message, 0)));
}

#[test]
fn a_message_shorter_than_its_header() {
    is_dropped_alone(|rogue| rogue.write(0, &[1; 3], rogue.imm(Op::Message, 0)));
}

#[test]
fn a_message_longer_than_its_slot() {
    is_dropped_alone(|rogue| rogue.write(0, &[1; 300], rogue.imm(Op::Message, 0)));
}

#[test]
fn a_response_where_a_request_should_be() {
    is_dropped_alone(|rogue| rogue.message(0, Kind::Lent, &[0; 20]));
}

#[test]
fn an_immediate_that_names_another_client() {
    is_dropped_alone(|rogue| {
        let imm = Immediate { op: Op::Message, client: 0, slot: 0 }.to_wire();
        assert_ne!(rogue.client, 0);
        rogue.write(0, &[0; 16], imm);
    });
}

#[test]
fn an_immediate_that_names_no_operation() {
    is_dropped_alone(|rogue| rogue.write(0, &[0; 16], u32::MAX));
}

#[test]
fn a_slot_outside_the_window() {
    is_dropped_alone(|rogue| rogue.write(0, &[0; 16], rogue.imm(Op::Message, 4)));
}

#[test]
fn a_second_request_in_a_slot_that_is_lent() {
    is_dropped_alone(|rogue| {
        rogue.message(0, Kind::Announce, Announce { len: 5000.into() }.as_bytes());
        rogue.message(0, Kind::Inline, b"again");
    });
}

#[test]
fn a_chunk_that_nobody_waits_for() {
    is_dropped_alone(|rogue| rogue.op(Op::Chunk, 2));
}

#[test]
fn a_chunk_of_the_wrong_length() {
    is_dropped_alone(|rogue| {
        rogue.message(0, Kind::Announce, Announce { len: 5000.into() }.as_bytes());
        rogue.op(Op::Chunk, 0);
    });
}

#[test]
fn a_release_of_nothing() {
    is_dropped_alone(|rogue| rogue.op(Op::Release, 1));
}

#[test]
fn an_announcement_of_nothing() {
    is_dropped_alone(|rogue| {
        rogue.message(0, Kind::Announce, Announce { len: 0.into() }.as_bytes())
    });
}

#[test]
fn a_malformed_announcement() {
    is_dropped_alone(|rogue| rogue.message(0, Kind::Announce, &[1; 3]));
}

/// A request of so many bytes that is to be read with this key.
fn request_here(rogue: &mut Rogue, slot: u32, rkey: u32, len: u64) {
    let here = Here::new(&[0; 8], RemoteRegion::new(4096, rkey, len)).unwrap();
    rogue.message(slot, Kind::RequestHere, here.as_bytes());
}

#[test]
fn a_request_without_bytes_that_is_to_be_read() {
    is_dropped_alone(|rogue| request_here(rogue, 0, 7, 0));
}

#[test]
fn a_request_that_is_to_be_read_and_was_cut() {
    is_dropped_alone(|rogue| rogue.message(0, Kind::RequestHere, &[1; 20]));
}

#[test]
fn a_chunk_of_a_request_that_is_to_be_read() {
    is_dropped_alone(|rogue| {
        request_here(rogue, 0, 7, 5000);
        rogue.op(Op::Chunk, 0);
    });
}

#[test]
fn a_response_in_its_place_from_a_client() {
    is_dropped_alone(|rogue| rogue.message(0, Kind::ResponseHere, &[0; 28]));
}

/// The key names no memory, or the memory ends before the request does: the server learns it when it reads.
#[test]
fn a_request_in_memory_that_cannot_be_read() {
    for len in [5000, 8000] {
        let mut host = Host::new(&WriteImm, limits(4, 256, 10_000));
        let mut honest = host.admit();
        let mut rogue = Rogue::new(&host);
        let published = rogue.pd.alloc_published(8000).unwrap().into_buffer().remote().unwrap();
        // Its memory is gone, or too short.
        let rkey = if len == 5000 { published.rkey.wrapping_add(1) } else { published.rkey };
        request_here(&mut rogue, 0, rkey, len);
        host.run(&mut [&mut honest], |host, _| !host.handlers.disconnected.is_empty());
        assert_eq!(host.handlers.requests, 0, "no handler has run");
        assert_eq!(host.call(&mut honest, b"after"), b"after");
    }
}

/// Beyond some keys a request is written like any other.
#[test]
fn a_client_that_names_ever_new_memory_is_asked_to_write() {
    let mut host = Host::new(&WriteImm, limits(4, 256, 10_000));
    let mut caller = host.admit();
    for call in 0..600_u32 {
        // A pool of its own, so a key of its own.
        let pool = Buffers::with_limit(16 << 10).unwrap();
        let bytes = pattern(call, 6000);
        let body = pool.copy_of(&bytes[8..]).unwrap().freeze();
        let (front, delivery) = (&bytes[..8], Delivery::AtMostOnce);
        caller.transport.post_parts(front, Body::Shared(&body), delivery).unwrap();
        caller.transport.flush();
        host.run(&mut [&mut caller], |_, callers| !callers[0].heard.replies.is_empty());
        assert!(caller.heard.replies.pop_front().unwrap().1 == bytes, "{call}");
    }
}

/// A client of a server that sends it this message in a slot where no request waits, or in one where one does.
fn server_sends(asked: bool, kind: Kind, body: &[u8]) -> Caller {
    let host = Host::new(&WriteImm, limits(4, 256, 10_000));
    let limits = limits(4, 256, 10_000);
    let pending = host.dial(&limits);
    let theirs: Setup = postcard::from_bytes(&pending.setup()).unwrap();
    let (mut qp, _cq, pd, ours) = Rogue::end(&host);
    let endpoint = Endpoint::from_bytes(&theirs.endpoint).unwrap();
    qp.connect(&endpoint, &ConnectOptions::default()).unwrap();
    // A request lands.
    let slots = pd.alloc_shared(ours.slots.len as usize, Access::REMOTE_WRITE).unwrap();
    let ours = postcard::to_allocvec(&Setup { slots: slots.remote(), ..ours }).unwrap();
    let terms = limits.terms();
    let answer = Answer { terms: &terms, setup: &ours, timeout: BOUND };
    let mut caller = Caller::new(pending.finish(answer).unwrap());
    let (slot, generation) = match asked {
        true => {
            let id = caller.send(b"?");
            (id.index, id.generation)
        }
        false => (1, 77),
    };
    let mut message = vec![0; HEADER_BYTES];
    put_header(&mut message, generation, kind);
    message.extend_from_slice(body);
    let imm = Immediate { op: Op::Message, client: 0, slot }.to_wire();
    let at = u64::from(slot * stride(256));
    let remote = theirs.slots.slice(at, message.len() as u64).unwrap();
    qp.post_send_one(WorkRequest::write(&message[..], remote).imm(imm)).unwrap();
    for _ in 0..100 {
        caller.poll(host.now);
    }
    caller
}

#[test]
fn a_server_that_answers_what_nobody_asked_is_left() {
    let region = RemoteRegion::new(4096, 7, 5000);
    let here = Here::new(&[0; 8], region).unwrap();
    let over_limit = Here::new(&[0; 8], RemoteRegion::new(4096, 7, 9993)).unwrap();
    let empty = Here::new(&[0; 8], RemoteRegion::new(4096, 7, 0)).unwrap();
    for (asked, kind, body) in [
        (false, Kind::Inline, &[][..]),
        (false, Kind::ResponseHere, here.as_bytes()),
        (true, Kind::ResponseHere, over_limit.as_bytes()),
        (true, Kind::ResponseHere, empty.as_bytes()),
        (true, Kind::ResponseHere, &here.as_bytes()[1..]),
        (true, Kind::RequestHere, here.as_bytes()),
    ] {
        let caller = server_sends(asked, kind, body);
        assert_eq!(caller.heard.closed.len(), 1, "{kind:?}");
        assert!(matches!(caller.heard.closed[0].kind, FailureKind::PeerMisbehaved(_)), "{kind:?}");
    }
}
