//! Servers of `write_imm` that keep no rule: the client's calls end in an error, in time, and nothing else happens.

use std::{io::Write, thread};

use farcall::{ConnectError, PollClient, RpcError};
use farcall_transports::handshake::{Frame, Reject, Terms, Welcome};

use crate::{
    hostile::{
        receive, terms,
        write_imm::{End, Port, ambush, kind, message, op, wire_region},
    },
    pattern,
    service::SuitePollClient,
    setup::Setup,
    world::World,
};

const WINDOW: u32 = 8;
const SLOT: u32 = 1024;
const LIMIT: u64 = 1 << 20;

fn setup() -> Setup {
    Setup::default().window(WINDOW).slot(SLOT as usize).max_message(LIMIT)
}

/// Runs a false server that says `lie` to the first request, and gives how two calls beside each other end: a small
/// one, or one whose request is beyond a slot, with a small one waiting.
fn call_a_liar(
    world: &World,
    large: bool,
    lie: impl FnOnce(End, u32, &[u8]) -> Option<End> + Send,
) -> [Result<(), RpcError>; 2] {
    let address = world.fresh_address(&setup());
    let mut trap = world.ambush(&address);
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let mut end = ambush(&mut trap, terms(WINDOW, SLOT, LIMIT));
            let (imm, first) = end.next_message().expect("a request");
            lie(end, imm & 0x3ff, &first)
        });
        let mut client: SuitePollClient = world.try_connect(&address).expect("connect");
        let len = if large { 100_000 } else { 20 };
        let bytes = pattern::make(1, len);
        // Both leave together: after the first, the lie may come before the second has left.
        let first = world.start(&mut client, |c| c.start_echo(&bytes));
        let second = world.start(&mut client, |c| c.start_tally(1));
        client.connection().poll();
        // A server that stays, stays until the calls have ended.
        let _end = server.join().expect("the false server");
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

fn generation(message: &[u8]) -> u32 {
    u32::from_le_bytes(message[..4].try_into().expect("a header"))
}

/// Messages that no request waits for, or that are none.
pub fn answers_that_nobody_waits_for(world: &World) {
    type Lie = fn(&mut End, u32, u32) -> bool;
    let lies: [(&str, Lie); 9] = [
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
        ("an unknown operation", |end, slot, _| end.operate(6, slot)),
        ("a credit for nothing", |end, slot, _| end.operate(op::CHUNK, slot)),
        ("a client's operation", |end, slot, _| end.operate(op::RELEASE, slot)),
        ("a message shorter than its header", |end, slot, _| end.send(slot, &[1, 2, 3])),
    ];
    for (what, lie) in lies {
        let ends = call_a_liar(world, false, |mut end, slot, request| {
            lie(&mut end, slot, generation(request));
            Some(end)
        });
        assert_misbehaved(ends, what);
    }
}

/// A message that is longer than a slot.
pub fn an_answer_longer_than_its_slot(world: &World) {
    let ends = call_a_liar(world, false, |mut end, _, request| {
        let long = message(generation(request), kind::INLINE, &vec![0; 2 * SLOT as usize]);
        end.send(0, &long);
        Some(end)
    });
    assert_misbehaved(ends, "an answer longer than its slot");
}

/// A core's answer that is too short to be one, in a message that is sound.
pub fn an_answer_without_a_status(world: &World) {
    let ends = call_a_liar(world, false, |mut end, slot, request| {
        end.send(slot, &message(generation(request), kind::INLINE, &[0; 3]));
        end.operate(op::GOODBYE, 0);
        Some(end)
    });
    assert!(matches!(ends[0], Err(RpcError::PeerMisbehaved { .. })), "{:?}", ends[0]);
    assert!(matches!(ends[1], Err(RpcError::PeerGone { .. })), "{:?}", ends[1]);
}

/// Responses lent from memory that is not there, is nobody's, or is longer than allowed.
pub fn forged_leases(world: &World) {
    for (what, region) in [
        ("empty", wire_region(4096, 0, 1)),
        ("over the limit", wire_region(4096, LIMIT + 1, 1)),
        ("endless", wire_region(4096, u64::MAX, 1)),
        ("a key of nobody", wire_region(4096, 5_000, 0xdead_beef)),
        ("the end of the address space", wire_region(u64::MAX - 10, 5_000, 1)),
    ] {
        let ends = call_a_liar(world, false, |mut end, slot, request| {
            end.send(slot, &message(generation(request), kind::LENT, &region));
            Some(end)
        });
        assert_misbehaved(ends, what);
    }
}

/// Grants to land in memory that is not there, or has no room.
pub fn forged_grants(world: &World) {
    for (what, region, chunk) in [
        ("empty", wire_region(4096, 0, 1), 4096u32),
        ("no chunks", wire_region(4096, 100_000, 1), 0),
        ("a chunk larger than its ring", wire_region(4096, 1_000, 1), 5_000),
        ("a key of nobody", wire_region(4096, 200_000, 0xdead_beef), 4096),
        ("the end of the address space", wire_region(u64::MAX - 10, 200_000, 1), 4096),
    ] {
        let ends = call_a_liar(world, true, |mut end, slot, request| {
            assert_eq!(request[4], kind::ANNOUNCE);
            let grant = [&region[..], &chunk.to_le_bytes()].concat();
            end.send(slot, &message(generation(request), kind::GRANT, &grant));
            Some(end)
        });
        assert_misbehaved(ends, what);
    }
}

/// A refusal with numbers that make no sense is still a refusal.
pub fn a_refusal_of_an_announcement_arrives(world: &World) {
    let [first, _] = call_a_liar(world, true, |mut end, slot, request| {
        let limits = [200u64.to_le_bytes(), 100u64.to_le_bytes()].concat();
        end.send(slot, &message(generation(request), kind::OVER_LIMIT, &limits));
        end.operate(op::GOODBYE, 0);
        Some(end)
    });
    assert_eq!(first, Err(RpcError::TooLarge { len: 200, max: 100 }));
}

/// A server that says nothing at all after the handshake and then goes: the calls end by its end.
pub fn a_silent_server_that_goes(world: &World) {
    let ends = call_a_liar(world, true, |_, _, _| None);
    for end in ends {
        assert!(matches!(end, Err(RpcError::PeerGone { may_have_run: true })), "{end:?}");
    }
}

/// Handshakes of servers that are garbage, lie, or do not come.
pub fn broken_handshakes(world: &World) {
    type Answer = Box<dyn Fn(&Port) -> Vec<u8> + Send>;
    let good = terms(WINDOW, SLOT, LIMIT);
    let welcome = |terms: Terms| -> Answer {
        Box::new(move |port| Frame::Welcome(Welcome { terms, setup: port.setup(1) }).to_bytes())
    };
    let bytes = |bytes: Vec<u8>| -> Answer { Box::new(move |_| bytes.clone()) };
    let mut version = Frame::Ready.to_bytes();
    version[8] ^= 0x40;
    let setup_of = |setup: &[u8]| {
        bytes(Frame::Welcome(Welcome { terms: good, setup: setup.to_vec() }).to_bytes())
    };
    let refused = Frame::Reject(Reject::Refused { reason: "not today".to_owned() });
    let other_backend = Reject::Backend { theirs: "another backend".to_owned() };
    let answers: Vec<(&str, Answer)> = vec![
        ("garbage", bytes(pattern::make(1, 500))),
        ("nothing", bytes(vec![])),
        ("version", bytes(version)),
        ("a client's frame", bytes(Frame::Ready.to_bytes())),
        ("a larger window", welcome(terms(WINDOW + 1, SLOT, LIMIT))),
        ("a larger slot", welcome(terms(WINDOW, SLOT * 2, LIMIT))),
        ("a larger limit", welcome(terms(WINDOW, SLOT, LIMIT + 1))),
        ("no window", welcome(terms(0, SLOT, LIMIT))),
        ("no slot", welcome(terms(WINDOW, 0, LIMIT))),
        ("no setup", setup_of(&[])),
        ("a setup of garbage", setup_of(&pattern::make(2, 150))),
        ("not today", bytes(refused.to_bytes())),
        ("another backend", bytes(Frame::Reject(other_backend).to_bytes())),
    ];
    for (what, answer) in answers {
        let address = world.fresh_address(&setup());
        let mut trap = world.ambush(&address);
        let error = thread::scope(|scope| {
            scope.spawn(move || {
                let port = Port::open(&trap.device, &good);
                let mut stream = (trap.accept)().expect("a client");
                let _ = receive(&mut *stream);
                // The client may have closed already.
                let _ = stream.write_all(&answer(&port));
            });
            world.try_connect::<SuitePollClient>(&address).err().map(|error| {
                let named = error.to_string();
                (error, named)
            })
        });
        let Some((error, named)) = error else { panic!("{what}: connected") };
        let fits = match what {
            "version" => matches!(error, ConnectError::VersionMismatch { .. }),
            "another backend" => {
                matches!(error, ConnectError::BackendMismatch { .. }) && named.contains(what)
            }
            "not today" => matches!(error, ConnectError::Refused { .. }) && named.contains(what),
            _ => matches!(error, ConnectError::PeerMisbehaved { .. }),
        };
        assert!(fits, "{what}: {error:?}");
    }
}
