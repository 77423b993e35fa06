//! Servers of `datagram` that keep no rule: what is not for a call is ignored, and what no server says ends the
//! connection's calls in an error, in time.

use std::{
    io::Write,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use farcall::{ConnectError, RpcError};
use farcall_transports::handshake::{Frame, Welcome};

use crate::{
    hostile::{
        datagram::{End, EndSetup, Heard, Port, ambush, datagram, kind, message},
        encoded, receive, terms,
    },
    pattern,
    service::{ECHO, SuitePollClient},
    setup::Setup,
    world::World,
};

const WINDOW: u32 = 8;
const SLOT: u32 = 1024;
const LIMIT: u64 = 1 << 20;

/// Bytes of the status in front of a core's answer.
const STATUS: [u8; 8] = [0; 8];

fn setup() -> Setup {
    Setup::default().window(WINDOW).slot(SLOT as usize).max_message(LIMIT)
}

/// Runs a false server that says `lie` when it has heard the first request, and then answers or does not; gives how two
/// calls beside each other end: a small one, or one whose request is beyond a slot, with a small one waiting.
fn call_a_liar(
    world: &World,
    (large, answers): (bool, bool),
    lie: impl FnOnce(&mut End, &Heard) + Send,
) -> [Result<(), RpcError>; 2] {
    let address = world.fresh_address(&setup());
    let mut trap = world.ambush(&address);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut end = ambush(&mut trap, terms(WINDOW, SLOT, LIMIT));
            let first = end.next_message().expect("a request");
            lie(&mut end, &first);
            let mut heard = Some(first);
            // It stays until the calls have ended.
            while !over.load(Ordering::Relaxed) {
                if let Some(request) = heard.filter(|_| answers) {
                    answer(&mut end, &request);
                }
                heard = end.try_message();
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
fn answer(end: &mut End, request: &Heard) {
    let Heard { kind: kind::REQUEST, slot, generation, ref body } = *request else { return };
    let (method, arguments) = body.split_at(STATUS.len());
    let result = if method[..4] == ECHO.to_le_bytes() { arguments } else { &[1] };
    end.send(&message(kind::RESPONSE, slot, generation, &[&STATUS, result].concat()));
}

/// What does not come from the server, or not for a call that waits, is as if it had not come.
pub fn words_that_are_not_for_a_call_are_ignored(world: &World) {
    type Lie = fn(&mut End, &Heard);
    let lies: [(&str, Lie); 9] = [
        ("another epoch", |end, to| {
            for epoch in [0, end.epoch ^ 1, !end.epoch] {
                for said in [forge(to), goodbye()] {
                    let bytes = datagram(end.theirs.session, epoch, &said);
                    end.send_raw(&bytes);
                }
            }
        }),
        ("another session", |end, to| {
            for said in [forge(to), goodbye()] {
                let bytes = datagram(end.theirs.session ^ 1, end.epoch, &said);
                end.send_raw(&bytes);
            }
        }),
        ("somebody else", |end, to| {
            let mut stranger = end.stranger();
            for said in [forge(to), goodbye()] {
                let bytes = end.datagram(&said);
                stranger.send(&end.theirs, end.theirs.qkey, &bytes, &*end.pace);
            }
        }),
        ("another key", |end, to| {
            let bytes = end.datagram(&[forge(to), goodbye()].concat());
            end.port.send(&end.theirs, end.theirs.qkey ^ 1, &bytes, &*end.pace);
        }),
        ("another generation", |end, to| {
            for generation in [0, to.generation.wrapping_sub(1), to.generation + 1, u32::MAX] {
                end.send(&forge(&Heard { generation, ..to.clone() }));
            }
        }),
        ("a client's kinds, and unknown ones", |end, to| {
            for what in (1..=6).chain([0, 100, 0xff]) {
                end.send(&message(what, to.slot, to.generation, &[0; 12]));
            }
        }),
        ("words about parts, of which there are none", |end, to| {
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
                end.send(&forge(&Heard { generation: to.generation + generation, ..to.clone() }));
            }
        }),
    ];
    for (what, lie) in lies {
        let ends = call_a_liar(world, (false, true), lie);
        assert_eq!(ends, [Ok(()), Ok(())], "{what}");
    }
}

/// An answer that would be noticed.
fn forge(to: &Heard) -> Vec<u8> {
    message(kind::RESPONSE, to.slot, to.generation, &[0xff; 20])
}

fn goodbye() -> Vec<u8> {
    message(kind::GOODBYE, 0, 0, &[])
}

/// What no server says in a session of its own.
pub fn nonsense_ends_the_session(world: &World) {
    type Lie = fn(&mut End, &Heard);
    let lies: [(&str, bool, Lie); 6] = [
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
        ("parts have come that there are not", true, |end, to| {
            assert_eq!(to.kind, kind::ANNOUNCE);
            end.send(&message(kind::PROGRESS, to.slot, to.generation, &[0; 12]));
            end.send(&message(kind::PROGRESS, to.slot, to.generation, &[0xff; 12]));
        }),
        ("progress without a range", true, |end, to| {
            end.send(&message(kind::PROGRESS, to.slot, to.generation, &[0; 12]));
            end.send(&message(kind::PROGRESS, to.slot, to.generation, &[0; 5]));
        }),
    ];
    for (what, large, lie) in lies {
        let ends = call_a_liar(world, (large, false), lie);
        for end in ends {
            assert!(matches!(end, Err(RpcError::PeerMisbehaved { .. })), "{what}: {end:?}");
        }
    }
}

/// A core's answer that is too short to be one, in a message that is sound.
pub fn an_answer_without_a_status(world: &World) {
    let ends = call_a_liar(world, (false, false), |end, to| {
        let short = message(kind::RESPONSE, to.slot, to.generation, &[0; 3]);
        end.send(&[short, goodbye()].concat());
    });
    assert!(matches!(ends[0], Err(RpcError::PeerMisbehaved { .. })), "{:?}", ends[0]);
    assert!(matches!(ends[1], Err(RpcError::PeerGone { .. })), "{:?}", ends[1]);
}

/// A refusal with numbers that make no sense is still a refusal.
pub fn a_refusal_of_an_announcement_arrives(world: &World) {
    let [first, _] = call_a_liar(world, (true, false), |end, to| {
        let limits = [200_u64.to_le_bytes(), 100_u64.to_le_bytes()].concat();
        end.send(&message(kind::OVER_LIMIT, to.slot, to.generation, &limits));
        end.send(&goodbye());
    });
    assert_eq!(first, Err(RpcError::TooLarge { len: 200, max: 100 }));
}

/// Welcomes whose setups are none.
pub fn broken_setups(world: &World) {
    type Forge = fn(EndSetup) -> Vec<u8>;
    let forged: [Forge; 7] = [
        |_| vec![],
        |_| pattern::make(2, 150),
        |good| encoded(&EndSetup { endpoint: vec![], ..good }),
        |good| encoded(&EndSetup { endpoint: vec![0xff; 64], ..good }),
        |good| encoded(&EndSetup { mtu: 0, ..good }),
        |good| encoded(&EndSetup { mtu: 200, ..good }),
        |good| encoded(&EndSetup { credits: 0, ..good }),
    ];
    for (number, forge) in forged.into_iter().enumerate() {
        let address = world.fresh_address(&setup());
        let mut trap = world.ambush(&address);
        let error = thread::scope(|scope| {
            scope.spawn(move || {
                let setup = forge(Port::open(&trap.device).setup());
                let mut stream = (trap.accept)().expect("a client");
                let _ = receive(&mut *stream);
                let terms = terms(WINDOW, SLOT, LIMIT);
                // The client may have closed already.
                let _ = stream.write_all(&Frame::Welcome(Welcome { terms, setup }).to_bytes());
            });
            world.try_connect::<SuitePollClient>(&address).err()
        });
        let fits = matches!(error, Some(ConnectError::PeerMisbehaved { .. }));
        assert!(fits, "setup {number}: {error:?}");
    }
}
