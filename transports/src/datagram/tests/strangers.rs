//! What somebody without a session may know and name: neither helps him to send in it, or to have others sent to.

use farcall_core::metrics::RefusalReason;
use farcall_verbs::Device;

use super::by_hand::{Host, QUESTION, epoch_of, heard};
use crate::datagram::wire::{Id, Kind};

/// What [`EndSetup`](crate::datagram::setup::EndSetup) is made of.
type Setup = (Vec<u8>, u32, u32, u64, u32, u32);

/// How epochs were made once: of both ends' endpoints, of what the client said, and of a count and a time.
fn former_epoch(ours: &Setup, theirs: &Setup, generation: u64, nanos: u64) -> u64 {
    let mix = |bytes: &[u8], salt: u64| {
        bytes.chunks(8).fold(salt, |state, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let mut z = (state ^ u64::from_le_bytes(word)).wrapping_add(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        })
    };
    mix(&ours.0, mix(&theirs.0, generation << 32 ^ nanos ^ theirs.3))
}

#[test]
fn an_epoch_does_not_follow_from_when_and_between_whom_its_session_began() {
    // The shortest time in which a session began, of some: there are fewer times to try.
    let began = (0..8).map(|_| {
        let mut host = Host::new();
        let (_port, address, _cq) = host.open_port(&Device::open("shm").unwrap());
        let before = host.site.now();
        let (client, server) = host.shake_hands(&address);
        (host.site.now() - before, before, client, server)
    });
    let (took, before, client, server) = began.min_by_key(|(took, ..)| *took).unwrap();
    let decode = |setup: &[u8]| postcard::from_bytes::<Setup>(setup).unwrap();
    let (client, server) = (decode(&client), decode(&server));
    let times = before.as_nanos()..=before.as_nanos() + took.as_nanos() as u64;
    for generation in 0..2 {
        let guessed = times
            .clone()
            .find(|&nanos| former_epoch(&server, &client, generation, nanos) == server.3);
        assert_eq!(guessed, None, "generation {generation}");
    }
}

#[test]
fn a_client_that_has_not_shown_where_it_receives_is_sent_one_answer_for_each_question() {
    let mut host = Host::new();
    let mut hand = host.introduce();
    let (first, others) = (hand.peer.epoch, host.admit().peer.epoch);
    let everything = [Kind::Request, Kind::Idempotent, Kind::Announce, Kind::Ask, Kind::Goodbye];
    for kind in everything {
        // The epoch of the server's datagrams, that of another session, and a guess.
        for epoch in [first, others, 7] {
            hand.peer.epoch = epoch;
            hand.send(kind, 0, 1, &QUESTION);
        }
    }
    // A question that is shorter than its answer, and one under an epoch that is not the session's.
    hand.peer.epoch = first;
    hand.send(Kind::Challenge, 0, 0, &QUESTION[1..]);
    hand.peer.epoch = others;
    hand.send(Kind::Challenge, 0, 0, &QUESTION);
    hand.peer.epoch = first;
    let epoch = epoch_of(&hand.ask(&mut host, Kind::Challenge, 0, 0, &QUESTION));
    assert_ne!(epoch, first);
    // The same each time, and no more than one datagram for each.
    for _ in 0..3 {
        let answer = hand.ask(&mut host, Kind::Challenge, 0, 0, &QUESTION);
        assert_eq!(epoch_of(&answer), epoch);
        host.turn();
        assert_eq!(hand.poll(), []);
    }
    assert_eq!((host.handlers.requests, host.connections()), (0, 2));
    hand.peer.epoch = epoch;
    let answer = hand.ask(&mut host, Kind::Request, 0, 1, b"echoed");
    assert_eq!(answer, heard(Kind::Response, 0, 1, b"echoed"));
    // Copies of what was sent before do nothing.
    hand.peer.epoch = first;
    hand.send(Kind::Request, 1, 1, b"late");
    assert_eq!(epoch_of(&hand.ask(&mut host, Kind::Challenge, 0, 0, &QUESTION)), epoch);
    assert_eq!(host.handlers.requests, 1);
}

#[test]
fn a_server_says_goodbye_only_where_its_client_receives() {
    let mut host = Host::new();
    let mut silent = host.introduce();
    let mut confirmed = host.admit();
    confirmed.send(Kind::Challenge, Id::OUTSIDE.slot, 0, &QUESTION);
    host.turn();
    host.close();
    let heard_at_end = confirmed.poll();
    assert!(!heard_at_end.is_empty(), "no goodbye");
    assert!(heard_at_end.iter().all(|it| it.kind == Kind::Goodbye), "{heard_at_end:?}");
    assert_eq!(silent.poll(), []);
}

#[test]
fn a_queue_pair_of_another_device_is_a_stranger_under_the_same_number() {
    let mut host = Host::new();
    let mut hand = host.admit();
    // Numbers count from the start in each device.
    let device = Device::open("shm").unwrap();
    let mut other = (0..1000)
        .map(|_| host.introduce_from(&device))
        .find(|other| other.qp == hand.qp)
        .expect("the same number");
    let own = epoch_of(&other.ask(&mut host, Kind::Challenge, 0, 0, &QUESTION));
    // It knows all of the session.
    let number = std::mem::replace(&mut other.peer.session, hand.peer.session);
    other.peer.epoch = hand.peer.epoch;
    other.send(Kind::Request, 0, 1, b"forged");
    other.send(Kind::Goodbye, 0, 0, b"");
    // What it sends later arrives later.
    (other.peer.session, other.peer.epoch) = (number, own);
    let answer = other.ask(&mut host, Kind::Request, 0, 1, b"own");
    assert_eq!(answer, heard(Kind::Response, 0, 1, b"own"));
    assert_eq!(host.handlers.requests, 1, "a forged request ran");
    assert_eq!(host.site.refusals().of(RefusalReason::WrongSource), 2);
    let answer = hand.ask(&mut host, Kind::Request, 0, 1, b"alive");
    assert_eq!(answer, heard(Kind::Response, 0, 1, b"alive"));
}
