//! Servers that break the rules: the client's calls end in an error, in time.

use std::thread;

use farcall::RpcError;

use super::forge::{Carrier, End, accept, kind, message, op, wire_region};
use crate::{
    hostile::{LIMIT, SLOT, setup, terms},
    pattern,
    service::SuitePollClient,
    world::World,
};

const WINDOW: u32 = 8;

/// Runs a server that answers the first request with `attack`, and gives how two concurrent calls end. The first is small,
/// or one whose request does not fit a slot; the second is small.
pub(crate) fn call_hostile_server(
    world: &World,
    large: bool,
    attack: impl FnOnce(End, u32, &[u8]) -> Option<End> + Send,
) -> [Result<(), RpcError>; 2] {
    let address = world.fresh_address(&setup(WINDOW));
    let mut listener = world.raw_listener(&address);
    let carrier = Carrier::of(world);
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let mut end = accept(carrier, &mut listener, terms(WINDOW, SLOT, LIMIT));
            let (imm, first) = end.next_message().expect("a request");
            attack(end, imm & 0x3ff, &first)
        });
        let mut client: SuitePollClient = world.try_connect(&address).expect("connect");
        let len = if large { 100_000 } else { 20 };
        let bytes = pattern::make(1, len);
        // Both are posted together: otherwise the attack may arrive before the second is posted.
        let first = world.start(&mut client, |c| c.start_echo(&bytes));
        let second = world.start(&mut client, |c| c.start_tally(1));
        client.connection().poll();
        // If the attack gives its end back, that end stays until the calls have ended.
        let _end = server.join().expect("the hostile server");
        let first = world.finish(&mut client, first).map(drop);
        let second = world.finish(&mut client, second).map(drop);
        [first, second]
    })
}

#[track_caller]
pub(crate) fn assert_misbehaved(ends: [Result<(), RpcError>; 2], what: &str) {
    for end in ends {
        assert!(matches!(end, Err(RpcError::PeerMisbehaved { .. })), "{what}: {end:?}");
    }
}

pub(crate) fn generation(message: &[u8]) -> u32 {
    u32::from_le_bytes(message[..4].try_into().expect("a header"))
}

/// Messages that match no request, or are malformed.
pub(crate) fn responses_that_no_request_waits_for(world: &World) {
    type Attack = fn(&mut End, u32, u32) -> bool;
    let attacks: [(&str, Attack); 10] = [
        ("another generation", |end, slot, generation| {
            end.send(slot, &message(generation ^ 1, kind::INLINE, &[0; 8]))
        }),
        ("a free slot", |end, slot, generation| {
            end.send((slot + 5) % WINDOW, &message(generation, kind::INLINE, &[0; 8]))
        }),
        ("an unknown kind", |end, slot, generation| {
            end.send(slot, &message(generation, 99, &[0; 8]))
        }),
        ("a client's kind", |end, slot, generation| {
            end.send(slot, &message(generation, kind::ANNOUNCE, &[0; 8]))
        }),
        ("a slot outside the window", |end, _, _| end.operate(op::MESSAGE, 0x3ff)),
        ("a credit of no operations", |end, _, _| end.operate(op::CREDIT, 0)),
        ("a credit of operations that were not sent", |end, _, _| end.operate(op::CREDIT, 1)),
        ("a credit for nothing", |end, slot, _| end.operate(op::CHUNK, slot)),
        ("a client's operation", |end, slot, _| end.operate(op::RELEASE, slot)),
        ("a message shorter than its header", |end, slot, _| end.send(slot, &[1, 2, 3])),
    ];
    for (what, attack) in attacks {
        let ends = call_hostile_server(world, false, |mut end, slot, request| {
            attack(&mut end, slot, generation(request));
            Some(end)
        });
        assert_misbehaved(ends, what);
    }
}

/// A message that is longer than a slot.
pub(crate) fn a_response_longer_than_its_slot(world: &World) {
    let ends = call_hostile_server(world, false, |mut end, _, request| {
        let long = message(generation(request), kind::INLINE, &vec![0; 2 * SLOT as usize]);
        end.send(0, &long);
        Some(end)
    });
    assert_misbehaved(ends, "a response longer than its slot");
}

/// A response that is too short for its status, in a message that is well-formed.
pub(crate) fn a_response_without_a_status(world: &World) {
    let ends = call_hostile_server(world, false, |mut end, slot, request| {
        end.send(slot, &message(generation(request), kind::INLINE, &[0; 3]));
        end.operate(op::GOODBYE, 0);
        Some(end)
    });
    assert!(matches!(ends[0], Err(RpcError::PeerMisbehaved { .. })), "{:?}", ends[0]);
    assert!(matches!(ends[1], Err(RpcError::PeerGone { .. })), "{:?}", ends[1]);
}

/// Responses lent from memory that does not exist, or is longer than allowed.
pub(crate) fn forged_leases(world: &World) {
    for (what, region) in [
        ("empty", wire_region(4096, 0, 1)),
        ("over the limit", wire_region(4096, LIMIT + 1, 1)),
        ("endless", wire_region(4096, u64::MAX, 1)),
        ("an unknown key", wire_region(4096, 5_000, 0xdead_beef)),
        ("the end of the address space", wire_region(u64::MAX - 10, 5_000, 1)),
    ] {
        let ends = call_hostile_server(world, false, |mut end, slot, request| {
            end.send(slot, &message(generation(request), kind::LENT, &region));
            Some(end)
        });
        assert_misbehaved(ends, what);
    }
}

/// Grants of memory that does not exist, or has no room.
pub(crate) fn forged_grants(world: &World) {
    for (what, region, chunk) in [
        ("empty", wire_region(4096, 0, 1), 4096u32),
        ("no chunks", wire_region(4096, 100_000, 1), 0),
        ("a chunk larger than its ring", wire_region(4096, 1_000, 1), 5_000),
        ("an unknown key", wire_region(4096, 200_000, 0xdead_beef), 4096),
        ("the end of the address space", wire_region(u64::MAX - 10, 200_000, 1), 4096),
    ] {
        let ends = call_hostile_server(world, true, |mut end, slot, request| {
            assert_eq!(request[4], kind::ANNOUNCE);
            let grant = [&region[..], &chunk.to_le_bytes()].concat();
            end.send(slot, &message(generation(request), kind::GRANT, &grant));
            Some(end)
        });
        assert_misbehaved(ends, what);
    }
}

/// A refusal with numbers that contradict each other is still a refusal.
pub(crate) fn a_refusal_of_an_announcement_arrives(world: &World) {
    let [first, _] = call_hostile_server(world, true, |mut end, slot, request| {
        let limits = [200u64.to_le_bytes(), 100u64.to_le_bytes()].concat();
        end.send(slot, &message(generation(request), kind::OVER_LIMIT, &limits));
        end.operate(op::GOODBYE, 0);
        Some(end)
    });
    assert_eq!(first, Err(RpcError::TooLarge { may_have_run: false, len: 192, max: 92 }));
}

/// A server that sends nothing after the handshake and then leaves: the calls end when it has left.
pub(crate) fn a_silent_server_that_leaves(world: &World) {
    let ends = call_hostile_server(world, true, |_, _, _| None);
    for end in ends {
        assert!(matches!(end, Err(RpcError::PeerGone { may_have_run: true, .. })), "{end:?}");
    }
}

/// A server that is killed may lose its memory before its queue pairs. That is no offence.
pub(crate) fn a_server_whose_memory_is_gone_is_gone(world: &World) {
    let address = world.fresh_address(&setup(WINDOW));
    let mut listener = world.raw_listener(&address);
    let carrier = Carrier::of(world);
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let mut end = accept(carrier, &mut listener, terms(WINDOW, SLOT, LIMIT));
            end.next_message().expect("a request");
            end.deregister_slots();
            end
        });
        let mut client: SuitePollClient = world.try_connect(&address).expect("connect");
        let first = world.start(&mut client, |c| c.start_tally(1));
        client.connection().poll();
        let _end = server.join().expect("the server");
        let second = world.start(&mut client, |c| c.start_tally(2));
        for call in [first, second] {
            let ended = world.finish(&mut client, call);
            assert!(
                matches!(ended, Err(RpcError::PeerGone { may_have_run: true, .. })),
                "{ended:?}"
            );
        }
    });
}
