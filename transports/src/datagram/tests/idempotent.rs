//! Calls that may run again, and answers that are not kept for ever.

use std::time::Duration;

use super::by_hand::{Host, WINDOW, heard};
use crate::contract::Config;
use crate::datagram::wire::Kind;

#[test]
fn an_idempotent_call_runs_again_and_a_plain_one_does_not() {
    let mut host = Host::new();
    let mut hand = host.admit();
    for _ in 0..3 {
        let answer = hand.ask(&mut host, Kind::Idempotent, 0, 1, b"again");
        assert_eq!(answer, heard(Kind::Response, 0, 1, b"again"));
    }
    assert_eq!(host.handlers.requests, 3);
    for _ in 0..3 {
        let answer = hand.ask(&mut host, Kind::Request, 0, 2, b"once");
        assert_eq!(answer, heard(Kind::Response, 0, 2, b"once"));
    }
    assert_eq!(host.handlers.requests, 4);
}

#[test]
fn a_call_that_only_its_client_calls_idempotent_runs_once() {
    let mut host = Host::new();
    let mut hand = host.admit();
    host.handlers.idempotent = false;
    for generation in 1..4 {
        for kind in [Kind::Idempotent, Kind::Idempotent, Kind::Request] {
            let answer = hand.ask(&mut host, kind, 0, generation, b"once");
            assert_eq!(answer, heard(Kind::Response, 0, generation, b"once"), "{kind:?}");
        }
        assert_eq!(host.handlers.requests, generation as usize);
    }
    // The server declares it now, as after an upgrade; the client's word alone does not count either.
    host.handlers.idempotent = true;
    for kind in [Kind::Request, Kind::Request, Kind::Idempotent] {
        let answer = hand.ask(&mut host, kind, 0, 4, b"plain");
        assert_eq!(answer, heard(Kind::Response, 0, 4, b"plain"), "{kind:?}");
    }
    assert_eq!(host.handlers.requests, 4);
}

#[test]
fn an_idempotent_call_that_runs_is_not_started_again() {
    let mut host = Host::new();
    let mut hand = host.admit();
    host.handlers.hold = true;
    hand.send(Kind::Idempotent, 0, 1, b"slow");
    host.wait_for_request();
    for _ in 0..3 {
        let state = hand.ask(&mut host, Kind::Idempotent, 0, 1, b"slow");
        assert_eq!(state, heard(Kind::Running, 0, 1, b""));
    }
    assert_eq!(host.handlers.requests, 1);
    host.answer(b"answer");
    assert_eq!(hand.hear(&mut host), heard(Kind::Response, 0, 1, b"answer"));
    // Had the answer been lost: it is not kept, and the call runs again.
    assert_eq!(hand.ask(&mut host, Kind::Ask, 0, 1, b""), heard(Kind::Dropped, 0, 1, b""));
    host.handlers.hold = false;
    let answer = hand.ask(&mut host, Kind::Idempotent, 0, 1, b"slow");
    assert_eq!(answer, heard(Kind::Response, 0, 1, b"slow"));
    assert_eq!(host.handlers.requests, 2);
}

#[test]
fn a_late_copy_of_a_plain_call_does_not_run_after_an_idempotent_one() {
    let mut host = Host::new();
    let mut hand = host.admit();
    hand.ask(&mut host, Kind::Request, 0, 1, b"plain");
    hand.ask(&mut host, Kind::Idempotent, 0, 2, b"idempotent");
    hand.ask(&mut host, Kind::Request, 0, 1, b"plain");
    assert_eq!(host.handlers.requests, 2);
    hand.ask(&mut host, Kind::Request, 0, 3, b"plain");
    hand.send(Kind::Request, 0, 1, b"plain");
    hand.send(Kind::Idempotent, 0, 2, b"idempotent");
    hand.ask(&mut host, Kind::Request, 1, 1, b"last");
    assert_eq!(host.handlers.requests, 4, "the third and the last");
}

/// Answers in place leave no trace in their slot, which compares generations with that of its last plain call.
#[test]
fn a_slot_serves_any_number_of_idempotent_calls() {
    let mut host = Host::new();
    let mut client = host.admit();
    let mut generation = 7_u32;
    assert_eq!(client.ask(&mut host, Kind::Request, 0, generation, b"plain").len(), 1);
    for kind in [Kind::Idempotent, Kind::Idempotent, Kind::Idempotent, Kind::Request] {
        generation = generation.wrapping_add(3 << 29);
        let answer = client.ask(&mut host, kind, 0, generation, b"later");
        assert_eq!(answer, heard(Kind::Response, 0, generation, b"later"), "{kind:?}");
    }
}

#[test]
fn answers_that_are_not_kept_go_to_whom_they_belong() {
    let mut host = Host::new();
    let (mut one, mut other) = (host.admit(), host.admit());
    for round in 1..50 {
        for slot in 0..2 {
            one.send(Kind::Idempotent, slot, round, b"one");
            other.send(Kind::Idempotent, slot, round, b"other");
            one.send(Kind::Request, slot + 2, round, b"plain");
        }
        let mut ones = Vec::new();
        while ones.len() < 4 {
            ones.extend(one.hear(&mut host));
        }
        ones.sort_by_key(|heard| heard.slot);
        let mut others = other.poll();
        while others.len() < 2 {
            others.extend(other.hear(&mut host));
        }
        for (heard, body) in ones.iter().zip([&b"one"[..], b"one", b"plain", b"plain"]) {
            assert_eq!((heard.kind, heard.generation), (Kind::Response, round));
            assert_eq!(heard.body, body);
        }
        assert!(others.iter().all(|heard| heard.body == b"other"), "{others:?}");
    }
}

#[test]
fn a_large_response_of_an_idempotent_call_is_kept_until_it_is_released() {
    let mut host = Host::new();
    let mut hand = host.admit();
    host.handlers.hold = true;
    hand.send(Kind::Idempotent, 0, 1, b"long");
    host.wait_for_request();
    host.answer(&[7; 10_000]);
    let offered = hand.hear(&mut host);
    assert_eq!(offered[0].kind, Kind::Lent);
    assert_eq!(hand.ask(&mut host, Kind::Ask, 0, 1, b""), offered);
    // However long the client is silent: memory that it holds is given back only with the response.
    let silence = Config::default().silence;
    for _ in 0..3 {
        host.rest(2 * silence);
        host.rest(silence / 10);
    }
    assert_eq!(hand.ask(&mut host, Kind::Ask, 0, 1, b""), offered);
}

#[test]
fn an_idempotent_call_outside_the_window_does_not_run() {
    let mut host = Host::new();
    let mut hand = host.admit();
    for slot in [WINDOW, WINDOW + 1, 1000] {
        hand.send(Kind::Idempotent, slot, 1, b"outside");
    }
    let inside = hand.ask(&mut host, Kind::Idempotent, WINDOW - 1, 1, b"inside");
    assert_eq!(inside, heard(Kind::Response, WINDOW - 1, 1, b"inside"));
    assert_eq!(host.handlers.requests, 1);
}

#[test]
fn answers_are_forgotten_when_their_client_has_long_been_silent() {
    let mut host = Host::new();
    let (mut hand, mut talks) = (host.admit(), host.admit());
    let kept = hand.ask(&mut host, Kind::Request, 0, 1, b"kept");
    assert_eq!(kept, heard(Kind::Response, 0, 1, b"kept"));
    let silence = Config::default().silence;
    for generation in 1..20 {
        talks.ask(&mut host, Kind::Request, 0, generation, b"talk");
        host.rest(silence / 10);
    }
    // Nearly twice the silence: it is there yet, and the client has said something.
    assert_eq!(hand.ask(&mut host, Kind::Ask, 0, 1, b""), kept);
    host.rest(2 * silence - Duration::from_millis(1));
    assert_eq!(hand.ask(&mut host, Kind::Ask, 0, 1, b""), kept);
    host.rest(2 * silence);
    host.rest(silence / 10);
    for kind in [Kind::Ask, Kind::Request] {
        let gone = hand.ask(&mut host, kind, 0, 1, b"");
        assert_eq!(gone, heard(Kind::Forgotten, 0, 1, b""));
    }
    let next = hand.ask(&mut host, Kind::Request, 0, 2, b"next");
    assert_eq!(next, heard(Kind::Response, 0, 2, b"next"));
    assert_eq!(host.handlers.requests, 21);
}
