//! Requests that come twice, late, or not at all.

use zerocopy::IntoBytes;

use super::by_hand::{Host, WINDOW, heard};
use crate::datagram::setup::part_bytes;
use crate::datagram::wire::{Kind, OverLimit, Range};

fn part(number: u32, bytes: &[u8]) -> Vec<u8> {
    [&number.to_le_bytes(), bytes].concat()
}

fn range(base: u32, mask: u64) -> Vec<u8> {
    Range::new(base, mask).as_bytes().to_vec()
}

#[test]
fn a_request_that_comes_twice_runs_once_and_is_answered_twice() {
    let mut host = Host::new();
    let mut hand = host.admit();
    for _ in 0..2 {
        let answer = hand.ask(&mut host, Kind::Request, 1, 1, b"once");
        assert_eq!(answer, heard(Kind::Response, 1, 1, b"once"));
    }
    // A copy with another body is the same request.
    let answer = hand.ask(&mut host, Kind::Request, 1, 1, b"other");
    assert_eq!(answer, heard(Kind::Response, 1, 1, b"once"));
    assert_eq!(host.handlers.requests, 1);
}

#[test]
fn a_request_that_runs_is_not_run_again() {
    let mut host = Host::new();
    host.handlers.hold = true;
    let mut hand = host.admit();
    hand.send(Kind::Request, 0, 1, b"slow");
    let said = hand.ask(&mut host, Kind::Request, 0, 1, b"slow");
    assert_eq!(said, heard(Kind::Running, 0, 1, b""));
    assert_eq!(hand.ask(&mut host, Kind::Ask, 0, 1, b""), heard(Kind::Running, 0, 1, b""));
    // The next generation cannot come before the end of this one.
    hand.send(Kind::Request, 0, 2, b"early");
    assert_eq!(hand.ask(&mut host, Kind::Ask, 0, 1, b""), heard(Kind::Running, 0, 1, b""));
    host.answer(b"done");
    assert_eq!(hand.hear(&mut host), heard(Kind::Response, 0, 1, b"done"));
    assert_eq!((host.handlers.requests, host.handlers.held.len()), (1, 0));
}

#[test]
fn a_copy_of_an_older_request_is_dropped() {
    let mut host = Host::new();
    let mut hand = host.admit();
    hand.ask(&mut host, Kind::Request, 0, 1, b"first");
    hand.ask(&mut host, Kind::Request, 0, 2, b"second");
    hand.send(Kind::Request, 0, 1, b"first");
    hand.send(Kind::Cancel, 0, 1, b"");
    let answer = hand.ask(&mut host, Kind::Request, 0, 2, b"second");
    assert_eq!(answer, heard(Kind::Response, 0, 2, b"second"));
    assert_eq!((host.handlers.requests, host.handlers.cancelled), (2, 0));
}

#[test]
fn a_request_that_its_cancellation_has_overtaken_does_not_run() {
    let mut host = Host::new();
    let mut hand = host.admit();
    assert_eq!(hand.ask(&mut host, Kind::Cancel, 2, 5, b""), heard(Kind::Dropped, 2, 5, b""));
    let said = hand.ask(&mut host, Kind::Request, 2, 5, b"late");
    assert_eq!(said, heard(Kind::Dropped, 2, 5, b""));
    assert_eq!((host.handlers.requests, host.handlers.cancelled), (0, 0));
    let answer = hand.ask(&mut host, Kind::Request, 2, 6, b"next");
    assert_eq!(answer, heard(Kind::Response, 2, 6, b"next"));
}

#[test]
fn a_large_request_comes_together_from_parts_in_any_order() {
    let mut host = Host::new();
    let mut hand = host.admit();
    let size = part_bytes(hand.peer.mtu());
    let whole: Vec<u8> = (0..2 * size + 10).map(|n| (n * 7 % 251) as u8).collect();
    let len = (whole.len() as u64).to_le_bytes();
    let mut parts = whole.chunks(size).zip(0..).map(|(bytes, number)| part(number, bytes));
    let [first, second, third] = [(); 3].map(|()| parts.next().unwrap());
    for _ in 0..2 {
        let said = hand.ask(&mut host, Kind::Announce, 0, 1, &len);
        assert_eq!(said, heard(Kind::Progress, 0, 1, &range(0, 0)));
    }
    for _ in 0..2 {
        let said = hand.ask(&mut host, Kind::Part, 0, 1, &third);
        assert_eq!(said, heard(Kind::Progress, 0, 1, &range(0, 0b100)));
    }
    let said = hand.ask(&mut host, Kind::Part, 0, 1, &first);
    assert_eq!(said, heard(Kind::Progress, 0, 1, &range(1, 0b10)));
    let said = hand.ask(&mut host, Kind::Part, 0, 1, &second);
    assert_eq!(said, heard(Kind::Lent, 0, 1, &len));
    // A copy of a part finds the request answered.
    assert_eq!(hand.ask(&mut host, Kind::Part, 0, 1, &second), heard(Kind::Lent, 0, 1, &len));
    for (number, bytes) in (0..).zip([&first, &second, &third]) {
        let wanted = range(0, 1 << number);
        assert_eq!(hand.ask(&mut host, Kind::Ask, 0, 1, &wanted), heard(Kind::Part, 0, 1, bytes));
    }
    for _ in 0..2 {
        let said = hand.ask(&mut host, Kind::Release, 0, 1, b"");
        assert_eq!(said, heard(Kind::Released, 0, 1, b""));
    }
    assert_eq!(host.handlers.requests, 1);
}

#[test]
fn a_request_over_the_limit_is_refused_as_often_as_it_comes() {
    let mut host = Host::new();
    let mut hand = host.admit();
    let len = (1u64 << 20) + 1;
    let limit = OverLimit { len: len.into(), max: (1 << 20).into() };
    for _ in 0..2 {
        let said = hand.ask(&mut host, Kind::Announce, 0, 1, &len.to_le_bytes());
        assert_eq!(said, heard(Kind::OverLimit, 0, 1, limit.as_bytes()));
    }
}

#[test]
fn parts_of_a_response_that_are_asked_for_together_all_come() {
    let mut host = Host::new();
    let mut hand = host.admit();
    host.handlers.hold = true;
    hand.send(Kind::Request, 0, 1, b"long");
    host.wait_for_request();
    host.answer(&vec![7; 2 * part_bytes(hand.peer.mtu()) + 10]);
    assert_eq!(hand.hear(&mut host)[0].kind, Kind::Lent);
    for mask in [0b001, 0b100] {
        hand.send(Kind::Ask, 0, 1, &range(0, mask));
    }
    let mut parts = Vec::new();
    while parts.len() < 2 {
        parts.extend(hand.hear(&mut host));
    }
    let numbers: Vec<_> = parts.iter().map(|part| (part.kind, part.body[0])).collect();
    assert_eq!(numbers, [(Kind::Part, 0), (Kind::Part, 2)]);
}

#[test]
fn a_large_request_that_is_cancelled_while_it_waits_gets_no_memory_later() {
    let mut host = Host::new();
    let len = (1u64 << 20).to_le_bytes();
    let mut hands = Vec::new();
    // Until there is no memory left.
    let mut waits = 'full: loop {
        let mut hand = host.admit();
        for slot in 0..WINDOW {
            let said = hand.ask(&mut host, Kind::Announce, slot, 1, &len);
            if said == heard(Kind::Wait, slot, 1, b"") {
                let said = hand.ask(&mut host, Kind::Cancel, slot, 1, b"");
                assert_eq!(said, heard(Kind::Dropped, slot, 1, b""));
                break 'full hand;
            }
        }
        hands.push(hand);
    };
    for hand in &mut hands {
        hand.ask(&mut host, Kind::Cancel, 0, 1, b"");
    }
    (0..10).for_each(|_| host.turn());
    assert_eq!(waits.poll(), [], "it was told of something that it has given up");
}

#[test]
fn a_large_request_that_is_cancelled_frees_its_memory() {
    let mut host = Host::new();
    let mut hand = host.admit();
    let len = (1u64 << 20).to_le_bytes();
    // Far more than there is memory for, one after the other.
    for generation in 1..100 {
        let said = hand.ask(&mut host, Kind::Announce, 3, generation, &len);
        assert_eq!(said, heard(Kind::Progress, 3, generation, &range(0, 0)));
        let said = hand.ask(&mut host, Kind::Cancel, 3, generation, b"");
        assert_eq!(said, heard(Kind::Dropped, 3, generation, b""));
    }
}
