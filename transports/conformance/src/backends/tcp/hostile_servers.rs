//! Servers of `tcp` that break the rules: the client's calls end in an error, in time.

use std::thread;

use farcall::RpcError;

use super::forge::{Arrived, End, accept, begin, frame, kind};
use crate::{
    hostile::{LIMIT, SLOT, setup, terms},
    pattern,
    service::SuitePollClient,
    world::World,
};

const WINDOW: u32 = 8;

/// Runs a server that answers the first frame with `attack`, and gives how two concurrent calls end. The first is small, or one
/// whose request does not fit a slot; the second is small.
fn call_hostile_server(
    world: &World,
    large: bool,
    attack: impl FnOnce(End, Arrived) -> Option<End> + Send,
) -> [Result<(), RpcError>; 2] {
    let address = world.fresh_address(&setup(WINDOW));
    let mut listener = world.raw_listener(&address);
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let mut end = accept(&mut listener, terms(WINDOW, SLOT, LIMIT));
            let first = end.next_frame().expect("a request");
            attack(end, first)
        });
        let mut client: SuitePollClient = world.try_connect(&address).expect("connect");
        let len = if large { 100_000 } else { 20 };
        let bytes = pattern::make(1, len);
        // Both are posted together: otherwise the attack may arrive before the second is posted.
        let first = world.start(&mut client, |c| c.start_echo(&bytes));
        let second = world.start(&mut client, |c| c.start_tally(1));
        // An attack may wait for what the client answers.
        world.until("the attack is over", || {
            client.connection().poll();
            server.is_finished().then_some(())
        });
        // If the attack gives its end back, that end stays until the calls have ended.
        let _end = server.join().expect("the hostile server");
        let first = world.finish(&mut client, first).map(drop);
        let second = world.finish(&mut client, second).map(drop);
        [first, second]
    })
}

#[track_caller]
fn assert_misbehaved(ends: [Result<(), RpcError>; 2], what: &str) {
    for end in ends {
        assert!(matches!(end, Err(RpcError::PeerMisbehaved { .. })), "{what}: {end:?}");
    }
}

/// Answers that come byte by byte are answers.
pub(super) fn a_server_that_trickles_is_understood(world: &World) {
    let ends = call_hostile_server(world, false, |mut end, request| {
        // The echo of no bytes, and then nothing more.
        let answer = frame(kind::WHOLE, request.slot, request.generation, &[0; 9]);
        assert!(end.trickle(&answer) && end.trickle(&frame(kind::GOODBYE, 0, 0, &[])));
        Some(end)
    });
    assert!(matches!(ends[0], Ok(()) | Err(RpcError::Malformed { .. })), "{:?}", ends[0]);
    assert!(matches!(ends[1], Err(RpcError::PeerGone { .. })), "{:?}", ends[1]);
}

/// Frames that match no request, or are malformed.
pub(super) fn frames_that_no_request_waits_for(world: &World) {
    type Attack = fn(u16, u32) -> Vec<u8>;
    let attacks: [(&str, Attack); 12] = [
        ("another generation", |slot, generation| {
            frame(kind::WHOLE, slot, generation ^ 1, &[0; 8])
        }),
        ("a free slot", |slot, generation| frame(kind::WHOLE, (slot + 5) % 8, generation, &[0; 8])),
        ("an unknown kind", |slot, generation| frame(99, slot, generation, &[])),
        ("a client's kind", |slot, generation| frame(kind::CANCEL, slot, generation, &[])),
        ("a slot outside the window", |_, generation| frame(kind::WHOLE, 8, generation, &[0; 8])),
        ("a response longer than a slot", |slot, generation| {
            frame(kind::WHOLE, slot, generation, &[0; SLOT as usize])
        }),
        ("a grant of nothing", |slot, generation| frame(kind::GRANT, slot, generation, &[])),
        ("a part of nothing", |slot, generation| frame(kind::PART, slot, generation, &[0; 9])),
        ("the end of a call that was not cancelled", |slot, generation| {
            frame(kind::DROPPED, slot, generation, &[])
        }),
        ("a response of no bytes at all", |slot, generation| begin(slot, generation, 0)),
        ("a response over the limit", |slot, generation| begin(slot, generation, LIMIT + 1)),
        ("an endless response", |slot, generation| begin(slot, generation, u64::MAX)),
    ];
    for (what, attack) in attacks {
        let ends = call_hostile_server(world, false, |mut end, request| {
            end.send(&attack(request.slot, request.generation));
            Some(end)
        });
        assert_misbehaved(ends, what);
    }
}

/// Large responses with more bytes than were announced, or those of another call.
pub(super) fn forged_large_responses(world: &World) {
    for (what, generation, len) in [("too long", 0, 5_001), ("another generation", 1, 10)] {
        let ends = call_hostile_server(world, false, |mut end, request| {
            end.send(&begin(request.slot, request.generation, 5_000));
            let granted = std::iter::from_fn(|| end.next_frame()).find(|it| it.kind == kind::GRANT);
            assert!(granted.is_some(), "a response that fits is granted");
            let part = vec![0; len];
            end.send(&frame(kind::PART, request.slot, request.generation ^ generation, &part));
            Some(end)
        });
        assert_misbehaved(ends, what);
    }
    // An answer while the request is still announced.
    let ends = call_hostile_server(world, true, |mut end, request| {
        assert_eq!(request.kind, kind::BEGIN);
        end.send(&frame(kind::WHOLE, request.slot, request.generation, &[0; 8]));
        Some(end)
    });
    assert_misbehaved(ends, "an answer to an announcement");
}

/// A response that is too short for its status, in a frame that is well-formed.
pub(super) fn a_response_without_a_status(world: &World) {
    let ends = call_hostile_server(world, false, |mut end, request| {
        end.send(&frame(kind::WHOLE, request.slot, request.generation, &[0; 3]));
        end.send(&frame(kind::GOODBYE, 0, 0, &[]));
        Some(end)
    });
    assert!(matches!(ends[0], Err(RpcError::PeerMisbehaved { .. })), "{:?}", ends[0]);
    assert!(matches!(ends[1], Err(RpcError::PeerGone { .. })), "{:?}", ends[1]);
}

/// A server that sends no more, or goes in the middle of a frame: the calls end when it has.
pub(super) fn a_server_that_closes_half_or_stops_in_a_frame(world: &World) {
    for (large, stays) in [(false, true), (true, true), (false, false), (true, false)] {
        let ends = call_hostile_server(world, large, |mut end, request| {
            let answer = frame(kind::WHOLE, request.slot, request.generation, &[0; 40]);
            end.send(&answer[..30]);
            end.close_half();
            stays.then_some(end)
        });
        for end in ends {
            assert!(matches!(end, Err(RpcError::PeerGone { may_have_run: true, .. })), "{end:?}");
        }
    }
}

/// A server that grants a large request, reads nothing of it, and leaves.
pub(super) fn a_server_that_grants_and_leaves(world: &World) {
    let ends = call_hostile_server(world, true, |mut end, request| {
        end.send(&frame(kind::GRANT, request.slot, request.generation, &[]));
        end.send(&frame(kind::GOODBYE, 0, 0, &[]));
        Some(end)
    });
    for end in ends {
        assert!(matches!(end, Err(RpcError::PeerGone { may_have_run: true, .. })), "{end:?}");
    }
}
