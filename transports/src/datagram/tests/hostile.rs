//! Datagrams that no client of ours sends: they are dropped, and nobody else notices.

use std::collections::HashSet;

use farcall_core::metrics::RefusalReason;
use proptest::prelude::*;

use super::by_hand::{Hand, Host, WINDOW, heard};
use crate::datagram::wire::Kind;

/// The server answers, and has run so many requests besides.
fn still_serves(host: &mut Host, hand: &mut Hand, generation: u32, others: usize) {
    let answer = hand.ask(host, Kind::Request, 0, generation, b"alive");
    assert_eq!(answer, heard(Kind::Response, 0, generation, b"alive"));
    assert_eq!(host.handlers.requests, others + 1);
}

#[test]
fn a_datagram_of_a_former_life_is_dropped() {
    let mut host = Host::new();
    let mut hand = host.admit();
    hand.peer.epoch ^= 1;
    hand.send(Kind::Request, 0, 1, b"old");
    hand.send(Kind::Goodbye, 0, 0, b"");
    hand.peer.epoch ^= 1;
    still_serves(&mut host, &mut hand, 1, 0);
    assert_eq!(host.site.refusals().of(RefusalReason::UnknownSession), 2);
}

#[test]
fn a_datagram_of_somebody_else_is_dropped() {
    let mut host = Host::new();
    let (mut hand, mut other) = (host.admit(), host.admit());
    // It knows all but has another queue pair.
    (other.peer.session, other.peer.epoch) = (hand.peer.session, hand.peer.epoch);
    other.send(Kind::Request, 0, 1, b"forged");
    other.send(Kind::Goodbye, 0, 0, b"");
    host.turn();
    still_serves(&mut host, &mut hand, 1, 0);
    assert_eq!(host.connections(), 2);
}

#[test]
fn a_session_that_has_ended_is_not_answered() {
    let mut host = Host::new();
    let mut hand = host.admit();
    hand.ask(&mut host, Kind::Request, 0, 1, b"first");
    hand.send(Kind::Goodbye, 0, 0, b"");
    hand.send(Kind::Request, 0, 2, b"late");
    let mut next = host.admit();
    still_serves(&mut host, &mut next, 1, 1);
    assert_eq!((host.connections(), host.handlers.disconnected), (1, 1));
    assert_eq!(hand.poll(), []);
}

#[test]
fn a_message_for_a_slot_outside_the_window_is_dropped() {
    let mut host = Host::new();
    let mut hand = host.admit();
    for slot in [WINDOW, 1000, 65_535] {
        for kind in [Kind::Request, Kind::Announce, Kind::Cancel, Kind::Part, Kind::Ask] {
            hand.send(kind, slot, 1, &[0; 12]);
        }
    }
    still_serves(&mut host, &mut hand, 1, 0);
}

pub(super) fn any_kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![
        Kind::Request,
        Kind::Announce,
        Kind::Part,
        Kind::Ask,
        Kind::Cancel,
        Kind::Release,
        Kind::Response,
        Kind::Lent,
        Kind::Progress,
        Kind::Wait,
        Kind::Running,
        Kind::Dropped,
        Kind::Released,
        Kind::OverLimit,
        Kind::Idempotent,
        Kind::Forgotten,
        Kind::Challenge,
    ])
}

/// Lengths, numbers and masks that mean something, and those that do not.
pub(super) fn any_body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        (0u64..1 << 21).prop_map(|len| len.to_le_bytes().to_vec()),
        (0u32..70, any::<u64>()).prop_map(|(base, mask)| [
            &base.to_le_bytes()[..],
            &mask.to_le_bytes()
        ]
        .concat()),
        (any::<u32>(), any::<u64>()).prop_map(|(base, mask)| [
            &base.to_le_bytes()[..],
            &mask.to_le_bytes()
        ]
        .concat()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a client says, its own calls run at most once per generation, and others are served.
    #[test]
    fn any_messages_harm_nobody_else(
        said in prop::collection::vec((any_kind(), 0..WINDOW, 0u32..4, any_body()), 1..60),
    ) {
        let mut host = Host::new();
        host.handlers.idempotent = false;
        let (mut mad, mut other) = (host.admit(), host.admit());
        let mut asked = HashSet::new();
        for (number, (kind, slot, generation, body)) in said.into_iter().enumerate() {
            // What only its client calls idempotent is a request like any other.
            if matches!(kind, Kind::Request | Kind::Idempotent | Kind::Announce) {
                asked.insert((slot, generation));
            }
            mad.send(kind, slot, generation, &body);
            if number % 8 == 7 {
                host.turn();
                mad.poll();
            }
        }
        host.turn();
        let ran = host.handlers.requests;
        prop_assert!(ran <= asked.len(), "{ran} of {} requests ran", asked.len());
        let answer = other.ask(&mut host, Kind::Request, 0, 1, b"alive");
        prop_assert_eq!(answer, heard(Kind::Response, 0, 1, b"alive"));
    }
}
