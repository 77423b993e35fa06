//! A server thread whose queue pair breaks: its sessions end, and others begin.

use std::time::Duration;

use super::by_hand::{Host, heard};
use crate::datagram::wire::Kind;

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
