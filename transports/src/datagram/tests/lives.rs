//! How a server thread's sessions end: with its queue pair, after which others begin, or with the server.

use std::time::Duration;

use super::by_hand::{Host, heard};
use crate::contract::Config;
use crate::datagram::wire::{HEADER_BYTES, Id, Kind, MESSAGE_BYTES};

#[test]
fn messages_share_a_datagram_up_to_its_last_byte() {
    let mut host = Host::new();
    let mut hand = host.admit();
    let posted = hand.port.posted();
    assert!(!hand.port.fits(&hand.peer, 0), "there is none to share");
    let first = b"the first";
    let left = hand.peer.mtu() - HEADER_BYTES - MESSAGE_BYTES - first.len();
    let last = vec![7; left - MESSAGE_BYTES];
    for (slot, body) in [(0, &first[..]), (1, &last)] {
        let id = Id { slot, generation: 1, mark: 0 };
        assert!(slot == 0 || hand.port.fits(&hand.peer, body.len()));
        assert!(!hand.port.fits(&hand.peer, last.len() + 1));
        assert!(hand.port.put(&hand.peer, Kind::Request, id, (body, &[])));
        assert_eq!(hand.port.posted(), posted, "it needs no other datagram");
    }
    assert!(!hand.port.fits(&hand.peer, 0));
    let id = Id { slot: 2, generation: 1, mark: 0 };
    assert!(hand.port.put(&hand.peer, Kind::Request, id, (b"", &[])));
    assert_eq!(hand.port.posted(), posted + 1);
}

#[test]
fn a_broken_queue_pair_ends_its_sessions_and_another_serves_new_ones() {
    let mut host = Host::new();
    for life in 1..4 {
        let mut hand = host.admit();
        let answer = hand.ask(&mut host, Kind::Request, 0, 1, b"before");
        assert_eq!(answer, heard(Kind::Response, 0, 1, b"before"));
        // Told of the queue pair while that was whole, and announced after it has broken.
        host.break_queue_pair();
        let _late = host.introduce();
        host.rest(Duration::from_secs(1));
        assert_eq!(host.connections(), 0);
        hand.send(Kind::Request, 1, 1, b"to a former life");
        let mut next = host.admit();
        assert_ne!(next.peer.qp, hand.peer.qp);
        assert_ne!(next.peer.epoch, hand.peer.epoch);
        let answer = next.ask(&mut host, Kind::Request, 0, 1, b"after");
        assert_eq!(answer, heard(Kind::Response, 0, 1, b"after"));
        assert_eq!((host.connections(), host.handlers.requests), (1, 2 * life));
    }
}

#[test]
fn requests_that_come_with_the_end_of_their_queue_pair_are_work() {
    let mut host = Host::new();
    let mut hand = host.admit();
    hand.send(Kind::Request, 0, 1, b"the last");
    host.break_queue_pair();
    host.turn();
    assert_eq!((host.connections(), host.handlers.requests), (0, 1));
}

#[test]
fn a_server_drains_until_its_clients_have_their_responses() {
    let mut host = Host::new();
    // Longer than a client waits before it asks again, shorter than it may be silent.
    let while_later = Config::default().silence / 2;
    assert!(host.is_drained(), "nobody has called");
    let mut hand = host.admit();
    hand.ask(&mut host, Kind::Request, 0, 1, b"small");
    assert!(!host.is_drained(), "its client may ask for it again");
    host.rest(while_later);
    assert!(host.is_drained());
    host.handlers.hold = true;
    hand.send(Kind::Request, 1, 1, b"long");
    host.wait_for_request();
    host.answer(&[7; 10_000]);
    assert_eq!(hand.hear(&mut host)[0].kind, Kind::Lent);
    host.rest(while_later);
    assert!(!host.is_drained(), "its client has not fetched it");
    hand.ask(&mut host, Kind::Release, 1, 1, b"");
    host.rest(while_later);
    assert!(host.is_drained());
}

/// As that of a server thread that panics.
#[test]
fn a_server_that_is_dropped_says_goodbye_unless_it_has() {
    let said = heard(Kind::Goodbye, 0, 0, b"");
    for is_closed in [false, true] {
        let mut host = Host::new();
        let mut hand = host.admit();
        hand.ask(&mut host, Kind::Request, 0, 1, b"it receives here");
        if is_closed {
            host.close();
            assert_eq!(hand.poll()[..1], said);
        }
        drop(host);
        assert_eq!(hand.poll(), if is_closed { vec![] } else { said.clone() });
    }
}
