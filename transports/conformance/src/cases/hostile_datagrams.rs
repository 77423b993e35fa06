//! Clients of `datagram` that keep no rule, and those who are no clients at all: nothing runs twice, nobody else is
//! disturbed, and the server keeps no memory for them.

use std::io::Write;

use farcall::PollClient;
use farcall_transports::handshake::{Frame, Reject};

use crate::{
    dice::Dice,
    hostile::{
        BreakIn,
        datagram::{
            End, EndSetup, Heard, Port, VERSION, break_in, datagram, hello, kind, message, request,
        },
        encoded, receive, terms,
    },
    pattern,
    service::{ECHO, SuitePollClient},
    world::{Server, World},
};

use super::besieged::{LIMIT, SLOT, assert_untouched, serve_windows};

const WINDOW: u16 = 8;

/// What intruders count their executions under.
const ID: u8 = 77;

/// Where their requests wait.
const GATE: u8 = 78;

/// A server that will be besieged, and an honest client of it.
fn serve(world: &World) -> (Server, SuitePollClient) {
    serve_windows(world, WINDOW.into())
}

fn intrude(world: &World, server: &Server) -> End {
    let wanted = terms(WINDOW.into(), SLOT, LIMIT);
    break_in(world.break_in(server), SuitePollClient::DESCRIPTION, wanted).expect("welcome")
}

/// The number of a method.
fn method(name: &str) -> u32 {
    let mut methods = SuitePollClient::DESCRIPTION.methods.iter();
    methods.find(|method| method.name == name).expect("the service has it").id
}

/// A request that is counted when it runs.
fn tally(slot: u16, generation: u32) -> Vec<u8> {
    request(slot, generation, method("tally"), &[ID])
}

fn goodbye() -> Vec<u8> {
    message(kind::GOODBYE, 0, 0, &[])
}

/// How many of the intruders' requests have run.
fn tallied(world: &World, honest: &mut SuitePollClient) -> u64 {
    world.call(honest, |c| c.start_tallied(ID.into())).expect("tallied")
}

/// The intruder is served, so all it has sent before has come, but for what a wire holds back.
#[track_caller]
fn assert_served(intruder: &mut End, slot: u16, generation: u32) {
    let answer = intruder.ask(&request(slot, generation, ECHO, b"knock"));
    let body = b"\0\0\0\0\0\0\0\0knock".to_vec();
    assert_eq!(answer, Heard { kind: kind::RESPONSE, slot, generation, body });
}

/// An intruder that keeps the rules is served: what follows is dropped for what it is, not for where it comes from.
pub fn an_intruder_that_keeps_the_rules_is_served(world: &World) {
    let (server, _honest) = serve(world);
    let mut intruder = intrude(world, &server);
    for generation in 1..20 {
        assert_served(&mut intruder, 3, generation);
    }
}

/// What was sent once is sent again and again, by its sender and by others.
pub fn replayed_requests_run_once(world: &World) {
    let (server, mut honest) = serve(world);
    let mut intruder = intrude(world, &server);
    let mut stranger = intruder.stranger();
    let mut sent = Vec::new();
    for generation in 1..=10 {
        let bytes = intruder.datagram(&tally(2, generation));
        for _ in 0..3 {
            intruder.send_raw(&bytes);
        }
        let answer = intruder.ask(&tally(2, generation));
        assert_eq!((answer.kind, answer.body[8]), (kind::RESPONSE, generation as u8));
        sent.push(bytes);
        for bytes in &sent {
            intruder.send_raw(bytes);
            let to = &intruder.theirs;
            stranger.send(to, to.qkey, bytes, &*intruder.pace);
        }
    }
    assert_served(&mut intruder, 0, 1);
    assert_eq!(tallied(world, &mut honest), 10);
    assert_untouched(world, &server, &mut honest);
}

/// What a session has sent comes when it is over, and another one has its number.
pub fn a_former_sessions_datagrams_are_dropped(world: &World) {
    let (server, mut honest) = serve(world);
    let mut former = intrude(world, &server);
    former.ask(&tally(0, 1));
    former.send(&goodbye());
    for _ in 0..3 {
        let mut next = intrude(world, &server);
        for number in [former.theirs.session, next.theirs.session] {
            for said in [tally(0, 1), tally(0, 2), tally(1, 1), goodbye()] {
                let bytes = datagram(number, former.epoch, &said);
                former.send_raw(&bytes);
                // The next one may even have its queue pair.
                next.send_raw(&bytes);
            }
        }
        assert_served(&mut next, 0, 1);
        assert_served(&mut next, 1, 1);
    }
    assert_eq!(tallied(world, &mut honest), 1);
    assert_untouched(world, &server, &mut honest);
}

/// Whoever has no session, or not this one: other queue pairs, epochs, numbers and keys.
pub fn strangers_are_not_heard(world: &World) {
    let (server, mut honest) = serve(world);
    let mut victim = intrude(world, &server);
    let mut stranger = victim.stranger();
    let (session, epoch) = (victim.theirs.session, victim.epoch);
    let key = victim.theirs.qkey;
    let sayings = [
        tally(0, 1),
        message(kind::CANCEL, 0, 1, &[]),
        message(kind::ANNOUNCE, 1, 1, &LIMIT.to_le_bytes()),
        goodbye(),
    ];
    for said in &sayings {
        let send = |port: &mut Port, key, bytes: &[u8]| {
            port.send(&victim.theirs, key, bytes, &*victim.pace);
        };
        // It knows everything, and has another queue pair.
        send(&mut stranger, key, &datagram(session, epoch, said));
        for wrong in [0, 1, epoch ^ 1, epoch ^ 1 << 63, !epoch, u64::MAX] {
            for number in [session, session ^ 1, session + 1, 1 << 20, u32::MAX] {
                send(&mut victim.port, key, &datagram(number, wrong, said));
            }
        }
        for number in [session ^ 1, session + 1, session + 1000, u32::MAX] {
            send(&mut victim.port, key, &datagram(number, epoch, said));
        }
        for wrong in [0, key ^ 1, key ^ 1 << 30, 0x7fff_ffff] {
            send(&mut victim.port, wrong, &datagram(session, epoch, said));
        }
    }
    assert_served(&mut victim, 0, 1);
    assert_served(&mut victim, 1, 1);
    assert_eq!(tallied(world, &mut honest), 0);
    assert_untouched(world, &server, &mut honest);
}

/// A datagram that ends anywhere.
pub fn truncated_datagrams_end_where_they_end(world: &World) {
    let (server, mut honest) = serve(world);
    let mut intruder = intrude(world, &server);
    let whole = intruder.datagram(&[request(0, 1, ECHO, b"whole"), tally(1, 1)].concat());
    for len in 0..whole.len() {
        intruder.send_raw(&whole[..len]);
    }
    assert_served(&mut intruder, 2, 1);
    assert_eq!(tallied(world, &mut honest), 0, "a request that was not whole has run");
    assert_eq!(intruder.ask(&tally(1, 1)).kind, kind::RESPONSE);
    assert_eq!(tallied(world, &mut honest), 1);
    assert_untouched(world, &server, &mut honest);
}

/// Real datagrams with bytes changed, taken out and put in, and those that were never real.
pub fn mutated_datagrams_harm_nobody(world: &World) {
    let (server, mut honest) = serve(world);
    let mut dice = Dice::new(0x5eed);
    let mut intruder = intrude(world, &server);
    for round in 0..600_u32 {
        if round % 100 == 99 {
            intruder = intrude(world, &server);
        }
        let mut said = Vec::new();
        for _ in 0..1 + dice.below(4) {
            let (slot, generation) = (dice.below(WINDOW.into()) as u16, dice.below(6) as u32);
            let body = pattern::make(dice.roll(), dice.below(40) as usize);
            said.extend(message(1 + dice.below(15) as u8, slot, generation, &body));
        }
        let mut bytes = match round % 4 {
            0 => pattern::make(dice.roll(), dice.below(4096) as usize),
            _ => intruder.datagram(&said),
        };
        for _ in 0..dice.below(4) {
            if bytes.is_empty() {
                break;
            }
            // Rarely in the header, which would end it there.
            let from = if dice.below(8) == 0 { 0 } else { 16.min(bytes.len() - 1) };
            let at = from + dice.below((bytes.len() - from) as u64) as usize;
            match dice.below(4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, dice.below(256) as u8),
                2 => drop(bytes.remove(at)),
                _ => bytes[at] ^= 1 << dice.below(8),
            }
        }
        intruder.send_raw(&bytes);
    }
    drop(intruder);
    assert_untouched(world, &server, &mut honest);
}

/// Requests outside of the window, in slots that are taken, and more of them than anybody reads.
pub fn floods_take_nothing_from_others(world: &World) {
    let (server, mut honest) = serve(world);
    let hold = method("hold");
    let mut intruder = intrude(world, &server);
    for slot in [WINDOW, WINDOW + 1, 1000, u16::MAX] {
        for what in [kind::REQUEST, kind::ANNOUNCE, kind::PART, kind::ASK, kind::CANCEL] {
            intruder.send(&message(what, slot, 1, &[0; 12]));
        }
        intruder.send(&tally(slot, 1));
    }
    // One that waits at a gate, and then later ones in its slot.
    let waits = request(1, 1, hold, &[GATE, 1]);
    intruder.send(&waits);
    assert_eq!(intruder.ask(&waits).kind, kind::RUNNING);
    for generation in [2, 3, 1 << 31, u32::MAX] {
        intruder.send(&tally(1, generation));
    }
    assert_eq!(intruder.ask(&waits).kind, kind::RUNNING);
    assert_eq!(tallied(world, &mut honest), 0);
    for generation in 1..5_000_u32 {
        let slot = 2 + (generation % 6) as u16;
        intruder.send(&request(slot, generation / 6 + 1, ECHO, &[1; 40]));
        if generation % 1000 == 0 {
            assert_untouched(world, &server, &mut honest);
        }
    }
    intruder.send(&goodbye());
    drop(intruder);
    world.until("the task of who has gone is gone", || {
        (world.call(&mut honest, |c| c.start_held(GATE.into())) == Ok(0)).then_some(())
    });
    assert_untouched(world, &server, &mut honest);
}

/// Announcements of messages that are empty, endless, over the limit, or never sent, and parts of none.
pub fn forged_announcements(world: &World) {
    let (server, mut honest) = serve(world);
    let mut intruder = intrude(world, &server);
    let announce =
        |slot, generation, len: u64| message(kind::ANNOUNCE, slot, generation, &len.to_le_bytes());
    for (generation, len) in (1..).zip([0, LIMIT + 1, 1 << 40, u64::MAX]) {
        let answer = intruder.ask(&announce(0, generation, len));
        assert_eq!(answer.kind, kind::OVER_LIMIT, "{len}");
    }
    // Bodies that are too short or too long: it is as if they had not come.
    for body in [&[][..], &[1], &[1; 7], &[1; 9], &[1; 900]] {
        intruder.send(&message(kind::ANNOUNCE, 1, 1, body));
    }
    // Parts that are none of the announced message, and then those that are.
    let whole = [&ECHO.to_le_bytes()[..], &[0; 4], &pattern::make(1, 5_000)].concat();
    let part = |number: u32, bytes: &[u8]| {
        message(kind::PART, 1, 1, &[&number.to_le_bytes(), bytes].concat())
    };
    intruder.send(&part(0, b"too early"));
    let announced = announce(1, 1, whole.len() as u64);
    assert_eq!(intruder.ask(&announced).kind, kind::PROGRESS);
    let (front, back) = whole.split_at(intruder.theirs.mtu as usize - 30);
    for forged in [
        message(kind::PART, 1, 1, b"abc"),
        part(0, b""),
        part(0, &front[1..]),
        part(1, &back[1..]),
        part(1, front),
        part(2, back),
        part(u32::MAX, front),
    ] {
        intruder.send(&forged);
    }
    assert_eq!(intruder.ask(&announced).body, [0; 12], "a part was taken that is none");
    world.until("the answer is offered", || {
        intruder.send(&part(1, back));
        let answer = intruder.ask(&part(0, front));
        (answer.kind == kind::OFFER && answer.body == (5_008_u64).to_le_bytes()).then_some(())
    });
    // Announced in every slot, and left alone by clients that go without a word.
    for _ in 0..12 {
        let mut intruder = intrude(world, &server);
        for slot in 0..WINDOW {
            intruder.send(&announce(slot, 1, LIMIT));
        }
    }
    assert_untouched(world, &server, &mut honest);
}

/// What only a server says, said by a client, and what nobody says.
pub fn a_servers_words_from_a_client(world: &World) {
    let (server, mut honest) = serve(world);
    let mut intruder = intrude(world, &server);
    for body in [&[][..], &[0xff; 8], &[0xff; 12], &[1; 16], &[1; 100]] {
        for what in (8..=15).chain([0, 100, 0xff]) {
            for slot in 0..2 {
                intruder.send(&message(what, slot, 1, body));
            }
        }
        for (place, value) in [(0, 0), (0, 0xff), (2, 1)] {
            let mut bytes = intruder.datagram(&tally(0, 1));
            bytes[place] = value;
            assert_ne!(bytes[..4], VERSION.to_le_bytes());
            intruder.send_raw(&bytes);
        }
    }
    assert_served(&mut intruder, 0, 1);
    assert_served(&mut intruder, 1, 1);
    assert_eq!(tallied(world, &mut honest), 0);
    assert_untouched(world, &server, &mut honest);
}

/// Responses that nobody fetches keep their memory from nobody else.
pub fn responses_that_nobody_fetches(world: &World) {
    let (server, mut honest) = serve_windows(world, 64);
    let make = method("make");
    let wanted = terms(64, SLOT, LIMIT);
    let mut intruder =
        break_in(world.break_in(&server), SuitePollClient::DESCRIPTION, wanted).expect("welcome");
    for slot in 0..intruder.terms.window {
        // Seed 1, 983,040 bytes.
        intruder.send(&request(slot as u16, 1, make, &[1, 0x80, 0x80, 0x3c]));
    }
    let start = world.now();
    for _ in 0..4 {
        assert_untouched(world, &server, &mut honest);
    }
    let took = world.now() - start;
    assert!(took.as_secs() < 8, "others waited {took:?} for memory that nobody reads");
}

/// Clients that are welcome and then leave before they are ready leave nothing behind.
pub fn handshakes_that_stop_in_the_middle(world: &World) {
    let (server, mut honest) = serve(world);
    let wanted = terms(WINDOW.into(), SLOT, LIMIT);
    let leave = |times: u32| {
        for _ in 0..times {
            let BreakIn { device, mut stream, .. } = world.break_in(&server);
            let setup = encoded(&Port::open(&device).setup());
            let hello = hello(SuitePollClient::DESCRIPTION, wanted, setup);
            stream.write_all(&hello.to_bytes()).expect("say hello");
            assert!(matches!(receive(&mut *stream), Ok(Frame::Welcome(_))));
        }
    };
    leave(2);
    world.settle(&server);
    let before = server.holdings();
    leave(25);
    if let Some(before) = before {
        world.wait_holdings(&server, before);
    }
    assert_untouched(world, &server, &mut honest);
}

/// Setups that are none, of nobody, or of datagrams that carry nothing.
pub fn broken_setups(world: &World) {
    let (server, mut honest) = serve(world);
    let wanted = terms(WINDOW.into(), SLOT, LIMIT);
    let answer = |setup: Vec<u8>| {
        let BreakIn { mut stream, .. } = world.break_in(&server);
        let hello = hello(SuitePollClient::DESCRIPTION, wanted, setup);
        stream.write_all(&hello.to_bytes()).expect("say hello");
        receive(&mut *stream)
    };
    let BreakIn { device, .. } = world.break_in(&server);
    let good = Port::open(&device).setup();
    let forged = [
        EndSetup { endpoint: vec![], ..good.clone() },
        EndSetup { endpoint: vec![0xff; 64], ..good.clone() },
        EndSetup { endpoint: pattern::make(1, 1000), ..good.clone() },
        EndSetup { mtu: 0, ..good.clone() },
        EndSetup { mtu: 60, ..good.clone() },
        EndSetup { credits: 0, ..good.clone() },
    ];
    let bytes = [vec![], vec![0; 3], vec![0xff; 100], pattern::make(1, 200)];
    for setup in forged.iter().map(encoded).chain(bytes) {
        match answer(setup.clone()) {
            Ok(Frame::Reject(Reject::Malformed { .. } | Reject::Refused { .. })) => {}
            other => panic!("{setup:x?}: {other:?}"),
        }
    }
    // More than anybody has: no more is taken than there is.
    let endless = EndSetup { mtu: u32::MAX, credits: u32::MAX, session: u32::MAX, ..good };
    match answer(encoded(&endless)) {
        Ok(Frame::Welcome(_)) => {}
        other => panic!("{other:?}"),
    }
    assert_untouched(world, &server, &mut honest);
}
