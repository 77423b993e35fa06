//! Servers of `datagram` that break the rules: messages that match no call are ignored, and others end the connection's
//! calls in an error, in time.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use farcall::RpcError;

use super::forge::{End, Message, accept, datagram, kind, message};
use crate::{
    hostile::{LIMIT, SLOT, setup, terms},
    pattern,
    service::{ECHO, SuitePollClient},
    world::World,
};

const WINDOW: u32 = 8;

/// The status in front of a response's value.
const STATUS: [u8; 8] = [0; 8];

/// Runs a server that runs `attack` at the first request, and then answers or does not; gives how two concurrent calls end.
/// The first is small, or one whose request does not fit a slot; the second is small.
fn call_hostile_server(
    world: &World,
    (large, answers): (bool, bool),
    attack: impl FnOnce(&mut End, &Message) + Send,
) -> [Result<(), RpcError>; 2] {
    let address = world.fresh_address(&setup(WINDOW));
    let mut listener = world.raw_listener(&address);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut end = accept(&mut listener, terms(WINDOW, SLOT, LIMIT));
            let first = end.next_message().expect("a request");
            attack(&mut end, &first);
            let mut next = Some(first);
            // It stays until the calls have ended.
            while !over.load(Ordering::Relaxed) {
                if let Some(request) = next.filter(|_| answers) {
                    answer(&mut end, &request);
                }
                next = end.try_message();
            }
        });
        let mut client: SuitePollClient = world.try_connect(&address).expect("connect");
        let bytes = pattern::make(1, if large { 100_000 } else { 20 });
        let first = world.start(&mut client, |c| c.start_echo(&bytes));
        let second = world.start(&mut client, |c| c.start_tally(1));
        let first = world.finish(&mut client, first).map(drop);
        let second = world.finish(&mut client, second).map(drop);
        over.store(true, Ordering::Relaxed);
        [first, second]
    })
}

/// Answers a request: an echo, or a count.
fn answer(end: &mut End, request: &Message) {
    let Message { kind: kind::REQUEST, slot, generation, ref body } = *request else { return };
    let (method, arguments) = body.split_at(STATUS.len());
    let result = if method[..4] == ECHO.to_le_bytes() { arguments } else { &[1] };
    end.send(&message(kind::RESPONSE, slot, generation, &[&STATUS, result].concat()));
}

/// Messages that do not come from the server, or match no waiting call, change nothing.
pub(super) fn messages_that_match_no_call_are_ignored(world: &World) {
    type Attack = fn(&mut End, &Message);
    let attacks: [(&str, Attack); 9] = [
        ("another epoch", |end, to| {
            for epoch in [0, end.epoch ^ 1, !end.epoch] {
                for messages in [forge(to), goodbye()] {
                    let bytes = datagram(end.theirs.session, epoch, &messages);
                    end.send_raw(&bytes);
                }
            }
        }),
        ("another session", |end, to| {
            for messages in [forge(to), goodbye()] {
                let bytes = datagram(end.theirs.session ^ 1, end.epoch, &messages);
                end.send_raw(&bytes);
            }
        }),
        ("another sender", |end, to| {
            let mut other = end.other_sender();
            for messages in [forge(to), goodbye()] {
                let bytes = end.datagram(&messages);
                other.send(&end.theirs, end.theirs.qkey, &bytes, &*end.clock);
            }
        }),
        ("another key", |end, to| {
            let bytes = end.datagram(&[forge(to), goodbye()].concat());
            end.pair.send(&end.theirs, end.theirs.qkey ^ 1, &bytes, &*end.clock);
        }),
        ("another generation", |end, to| {
            for generation in [0, to.generation.wrapping_sub(1), to.generation + 1, u32::MAX] {
                end.send(&forge(&Message { generation, ..to.clone() }));
            }
        }),
        ("a client's kinds, and unknown ones", |end, to| {
            for what in (1..=6).chain([0, kind::IDEMPOTENT, kind::LAST + 1, 100, 0xff]) {
                end.send(&message(what, to.slot, to.generation, &[0; 12]));
            }
        }),
        ("messages about parts of a small message", |end, to| {
            for what in [kind::PART, kind::PROGRESS, kind::RELEASE, 13, 14] {
                end.send(&message(what, to.slot, to.generation, &[0xff; 12]));
            }
        }),
        ("cut short", |end, to| {
            let whole = end.datagram(&forge(to));
            for len in 0..whole.len() {
                end.send_raw(&whole[..len]);
            }
        }),
        ("a flood", |end, to| {
            for generation in 1..2_000 {
                end.send(&forge(&Message { generation: to.generation + generation, ..to.clone() }));
            }
        }),
    ];
    for (what, attack) in attacks {
        let ends = call_hostile_server(world, (false, true), attack);
        assert_eq!(ends, [Ok(()), Ok(())], "{what}");
    }
}

/// A response that the caller would notice.
fn forge(to: &Message) -> Vec<u8> {
    message(kind::RESPONSE, to.slot, to.generation, &[0xff; 20])
}

fn goodbye() -> Vec<u8> {
    message(kind::GOODBYE, 0, 0, &[])
}

/// Messages that no server sends in a session of its own.
pub(super) fn nonsense_ends_the_session(world: &World) {
    type Attack = fn(&mut End, &Message);
    let attacks: [(&str, bool, Attack); 6] = [
        ("a slot outside the window", false, |end, to| {
            end.send(&message(kind::RESPONSE, 1000, to.generation, &[0; 20]));
        }),
        ("an offer over the limit", false, |end, to| {
            let len = (LIMIT + 1).to_le_bytes();
            end.send(&message(kind::OFFER, to.slot, to.generation, &len));
        }),
        ("an endless offer", false, |end, to| {
            end.send(&message(kind::OFFER, to.slot, to.generation, &[0xff; 8]));
        }),
        ("an offer without a length", false, |end, to| {
            end.send(&message(kind::OFFER, to.slot, to.generation, &[1; 3]));
        }),
        ("parts beyond the last have arrived", true, |end, to| {
            assert_eq!(to.kind, kind::ANNOUNCE);
            end.send(&message(kind::PROGRESS, to.slot, to.generation, &[0; 12]));
            end.send(&message(kind::PROGRESS, to.slot, to.generation, &[0xff; 12]));
        }),
        ("progress without a range", true, |end, to| {
            end.send(&message(kind::PROGRESS, to.slot, to.generation, &[0; 12]));
            end.send(&message(kind::PROGRESS, to.slot, to.generation, &[0; 5]));
        }),
    ];
    for (what, large, attack) in attacks {
        let ends = call_hostile_server(world, (large, false), attack);
        for end in ends {
            assert!(matches!(end, Err(RpcError::PeerMisbehaved { .. })), "{what}: {end:?}");
        }
    }
}

/// A server that has forgotten the request may have run it.
pub(super) fn a_forgotten_request_may_have_run(world: &World) {
    let [first, second] = call_hostile_server(world, (false, true), |end, to| {
        end.send(&message(kind::FORGOTTEN, to.slot, to.generation, &[]));
    });
    assert!(matches!(first, Err(RpcError::PeerGone { may_have_run: true, .. })), "{first:?}");
    assert_eq!(second, Ok(()));
}

/// A response that is too short for its status, in a message that is well-formed.
pub(super) fn a_response_without_a_status(world: &World) {
    let ends = call_hostile_server(world, (false, false), |end, to| {
        let short = message(kind::RESPONSE, to.slot, to.generation, &[0; 3]);
        end.send(&[short, goodbye()].concat());
    });
    assert!(matches!(ends[0], Err(RpcError::PeerMisbehaved { .. })), "{:?}", ends[0]);
    assert!(matches!(ends[1], Err(RpcError::PeerGone { .. })), "{:?}", ends[1]);
}

/// A refusal with numbers that contradict each other is still a refusal.
pub(super) fn a_refusal_of_an_announcement_arrives(world: &World) {
    let [first, _] = call_hostile_server(world, (true, false), |end, to| {
        let limits = [200_u64.to_le_bytes(), 100_u64.to_le_bytes()].concat();
        end.send(&message(kind::OVER_LIMIT, to.slot, to.generation, &limits));
        end.send(&goodbye());
    });
    assert_eq!(first, Err(RpcError::TooLarge { may_have_run: false, len: 192, max: 92 }));
}
