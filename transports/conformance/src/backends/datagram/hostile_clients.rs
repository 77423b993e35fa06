//! Clients of `datagram` that break the rules, and senders without a session: no request runs twice, nobody else is
//! disturbed, and the server keeps no memory for them.

use farcall::{PollClient, RefusalReason};

use super::{
    NAME,
    forge::{
        End, EndSetup, Message, RawPair, VERSION, connect, datagram, epoch_of, introduce,
        introduce_as, kind, message, question, request,
    },
};
use crate::{
    dice::Dice,
    hostile::{
        LIMIT, RawConnection, SLOT, assert_honest_clients_served, assert_served_after_stall_limit,
        assert_served_before_stall_limit, encode_setup, hello, serve, shake_hands, terms,
    },
    pattern,
    service::{ECHO, SuitePollClient, method_id},
    world::{Server, World},
};

const WINDOW: u16 = 8;

/// What hostile clients count their executions under.
const ID: u8 = 77;

/// Senders that are tried until one has the number of another.
const SENDERS: usize = 8;

/// Where their requests wait.
const GATE: u8 = 78;

/// A hostile client that has kept the rules so far.
fn hostile_client(world: &World, server: &Server) -> End {
    hostile_client_with_window(world, server, WINDOW.into())
}

pub(super) fn hostile_client_with_window(world: &World, server: &Server, window: u32) -> End {
    let wanted = terms(window, SLOT, LIMIT);
    connect(world.raw_connection(server), SuitePollClient::DESCRIPTION, wanted).expect("welcome")
}

/// A request that is counted when it runs.
fn tally(slot: u16, generation: u32) -> Vec<u8> {
    request(slot, generation, method_id("tally"), &[ID])
}

fn goodbye() -> Vec<u8> {
    message(kind::GOODBYE, 0, 0, &[])
}

/// How many of the hostile clients' requests have run.
fn tallied(world: &World, honest: &mut SuitePollClient) -> u64 {
    world.call(honest, |c| c.start_tallied(ID.into())).expect("tallied")
}

/// The client is served, so what it sent before has arrived, unless the wire delays it.
#[track_caller]
fn assert_served(hostile: &mut End, slot: u16, generation: u32) {
    let answer = hostile.ask(&request(slot, generation, ECHO, b"knock"));
    let body = b"\0\0\0\0\0\0\0\0knock".to_vec();
    assert_eq!(answer, Message { kind: kind::RESPONSE, slot, generation, body });
}

/// A client by hand that keeps the rules is served: other messages are dropped for what they are, not for their sender.
pub(super) fn a_client_by_hand_that_keeps_the_rules_is_served(world: &World) {
    let (server, _honest) = serve(world, WINDOW.into());
    let mut hostile = hostile_client(world, &server);
    for generation in 1..20 {
        assert_served(&mut hostile, 3, generation);
    }
}

/// Requests are repeated many times, by their sender and by others.
pub(super) fn replayed_requests_run_once(world: &World) {
    let (server, mut honest) = serve(world, WINDOW.into());
    let mut hostile = hostile_client(world, &server);
    let mut other = hostile.other_sender();
    let mut sent = Vec::new();
    for generation in 1..=10 {
        let bytes = hostile.datagram(&tally(2, generation));
        for _ in 0..3 {
            hostile.send_raw(&bytes);
        }
        let answer = hostile.ask(&tally(2, generation));
        assert_eq!((answer.kind, answer.body[8]), (kind::RESPONSE, generation as u8));
        sent.push(bytes);
        for bytes in &sent {
            hostile.send_raw(bytes);
            let to = &hostile.theirs;
            other.send(to, to.qkey, bytes, &*hostile.clock);
        }
    }
    assert_served(&mut hostile, 0, 1);
    assert_eq!(tallied(world, &mut honest), 10);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Requests are sent as those of an idempotent method, which the server does not declare to be one.
pub(super) fn requests_that_only_their_client_calls_idempotent_run_once(world: &World) {
    let (server, mut honest) = serve(world, WINDOW.into());
    let mut hostile = hostile_client(world, &server);
    for generation in 1..=10 {
        let mut lie = tally(2, generation);
        lie[0] = kind::IDEMPOTENT;
        for _ in 0..3 {
            let answer = hostile.ask(&lie);
            assert_eq!((answer.kind, answer.body[8]), (kind::RESPONSE, generation as u8));
        }
        // The same request under its right name is one more copy.
        let answer = hostile.ask(&tally(2, generation));
        assert_eq!((answer.kind, answer.body[8]), (kind::RESPONSE, generation as u8));
    }
    assert_eq!(tallied(world, &mut honest), 10);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Datagrams of an ended session arrive when another session has its number.
pub(super) fn datagrams_of_an_ended_session_are_dropped(world: &World) {
    let (server, mut honest) = serve(world, WINDOW.into());
    let mut former = hostile_client(world, &server);
    former.ask(&tally(0, 1));
    former.send(&goodbye());
    for _ in 0..3 {
        let mut next = hostile_client(world, &server);
        for number in [former.theirs.session, next.theirs.session] {
            for messages in [tally(0, 1), tally(0, 2), tally(1, 1), goodbye()] {
                let bytes = datagram(number, former.epoch, &messages);
                former.send_raw(&bytes);
                // The next session may even use the same queue pair.
                next.send_raw(&bytes);
            }
        }
        assert_served(&mut next, 0, 1);
        assert_served(&mut next, 1, 1);
    }
    assert_eq!(tallied(world, &mut honest), 1);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Senders without this session: other queue pairs, epochs, numbers and keys.
pub(super) fn datagrams_of_other_senders_are_dropped(world: &World) {
    let (server, mut honest) = serve(world, WINDOW.into());
    let mut victim = hostile_client(world, &server);
    let mut other = victim.other_sender();
    let (session, epoch) = (victim.theirs.session, victim.epoch);
    let key = victim.theirs.qkey;
    let attacks = [
        tally(0, 1),
        message(kind::CANCEL, 0, 1, &[]),
        message(kind::ANNOUNCE, 1, 1, &LIMIT.to_le_bytes()),
        goodbye(),
    ];
    for messages in &attacks {
        let send = |pair: &mut RawPair, key, bytes: &[u8]| {
            pair.send(&victim.theirs, key, bytes, &*victim.clock);
        };
        // It knows the session's secret, but has another queue pair.
        send(&mut other, key, &datagram(session, epoch, messages));
        for wrong in [0, 1, epoch ^ 1, epoch ^ 1 << 63, !epoch, u64::MAX] {
            for number in [session, session ^ 1, session + 1, 1 << 20, u32::MAX] {
                send(&mut victim.pair, key, &datagram(number, wrong, messages));
            }
        }
        for number in [session ^ 1, session + 1, session + 1000, u32::MAX] {
            send(&mut victim.pair, key, &datagram(number, epoch, messages));
        }
        for wrong in [0, key ^ 1, key ^ 1 << 30, 0x7fff_ffff] {
            send(&mut victim.pair, wrong, &datagram(session, epoch, messages));
        }
    }
    assert_served(&mut victim, 0, 1);
    assert_served(&mut victim, 1, 1);
    assert_eq!(tallied(world, &mut honest), 0);
    for reason in [RefusalReason::WrongSource, RefusalReason::UnknownSession] {
        world.until("datagrams of others are counted", || {
            (server.refused(reason) > 0).then_some(())
        });
    }
    assert_honest_clients_served(world, &server, &mut honest);
}

/// A client that named the address of another could have that flooded with responses: nothing runs, and nothing is sent there
/// but answers to its questions, before it has told what only the address is sent.
pub(super) fn nothing_runs_for_a_client_that_does_not_know_what_it_was_sent(world: &World) {
    let (server, mut honest) = serve(world, WINDOW.into());
    let wanted = terms(WINDOW.into(), SLOT, LIMIT);
    let introduce = || {
        let to = world.raw_connection(&server);
        introduce(to, SuitePollClient::DESCRIPTION, wanted).expect("welcome")
    };
    let (mut hostile, mut other) = (introduce(), introduce());
    let (first, others) = (hostile.epoch, epoch_of(&other.ask(&question())));
    // What the handshake has told, what another session was sent, and a guess.
    for epoch in [first, others, 7] {
        hostile.epoch = epoch;
        for slot in 0..WINDOW {
            let idempotent = [&[kind::IDEMPOTENT], &tally(slot, 1)[1..]].concat();
            let large = message(kind::ANNOUNCE, slot, 1, &LIMIT.to_le_bytes());
            for messages in [tally(slot, 1), idempotent, large, goodbye()] {
                hostile.send(&messages);
            }
        }
    }
    assert_eq!(hostile.next_message(), None);
    hostile.epoch = first;
    // An answer would be longer than that.
    hostile.send(&message(kind::CHALLENGE, 0, 0, &[0; 7]));
    assert_eq!(hostile.next_message(), None);
    let epoch = epoch_of(&hostile.ask(&question()));
    hostile.epoch = epoch;
    assert_served(&mut hostile, 0, 1);
    assert_eq!(tallied(world, &mut honest), 0);
    // What is repeated under the first epoch is not run either.
    hostile.epoch = first;
    hostile.send(&tally(1, 1));
    hostile.epoch = epoch;
    assert_served(&mut hostile, 0, 2);
    assert_eq!(tallied(world, &mut honest), 0);
    // Nor what an earlier session of this client was sent.
    let mut next = introduce();
    let first = next.epoch;
    next.epoch = epoch;
    next.send(&tally(0, 1));
    next.epoch = first;
    next.epoch = epoch_of(&next.ask(&question()));
    assert_served(&mut next, 0, 1);
    assert_eq!(tallied(world, &mut honest), 0);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// A client names the queue pair of another as its own, and asks for all that it can: nothing goes there.
pub(super) fn nothing_is_sent_to_a_queue_pair_that_another_has_named(world: &World) {
    let (server, mut honest) = serve(world, WINDOW.into());
    let wanted = terms(WINDOW.into(), SLOT, LIMIT);
    let to = world.raw_connection(&server);
    let (mut victim, own) = (RawPair::open(&to.device), RawPair::open(&to.device));
    let setup = encode_setup(&victim.end_setup());
    let mut hostile =
        introduce_as(setup, own, to, SuitePollClient::DESCRIPTION, wanted).expect("welcome");
    for slot in 0..WINDOW {
        let large = message(kind::ANNOUNCE, slot, 1, &LIMIT.to_le_bytes());
        let ask = message(kind::ASK, slot, 1, &[]);
        for messages in [question(), tally(slot, 1), large, ask, goodbye()] {
            hostile.send(&messages);
        }
    }
    assert_eq!(hostile.next_message(), None);
    assert_eq!(tallied(world, &mut honest), 0);
    assert_honest_clients_served(world, &server, &mut honest);
    // Nor is it told that the server ends.
    server.shutdown(world);
    assert_eq!(hostile.next_message(), None);
    assert_eq!(victim.take_received(), []);
}

/// A sender at another device, or node, that knows all of the session and has a queue pair of the same number, if its device
/// gives it one.
pub(super) fn a_sender_at_another_device_is_a_stranger(world: &World) {
    let (server, mut honest) = serve(world, WINDOW.into());
    let mut victim = hostile_client(world, &server);
    let mut pairs = Vec::new();
    let mut other = hostile_client(world, &server);
    for _ in 0..SENDERS {
        if other.pair.number() == victim.pair.number() {
            break;
        }
        let next = hostile_client(world, &server);
        pairs.push(std::mem::replace(&mut other, next));
    }
    for messages in [tally(0, 1), message(kind::CANCEL, 0, 1, &[]), goodbye()] {
        other.send_raw(&victim.datagram(&messages));
    }
    // What it sends later arrives later, or the network reorders it.
    assert_served(&mut other, 0, 1);
    assert_served(&mut victim, 0, 1);
    assert_eq!(tallied(world, &mut honest), 0);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Datagrams cut at every length.
pub(super) fn truncated_datagrams_run_nothing(world: &World) {
    let (server, mut honest) = serve(world, WINDOW.into());
    let mut hostile = hostile_client(world, &server);
    let whole = hostile.datagram(&[request(0, 1, ECHO, b"whole"), tally(1, 1)].concat());
    for len in 0..whole.len() {
        hostile.send_raw(&whole[..len]);
    }
    assert_served(&mut hostile, 2, 1);
    assert_eq!(tallied(world, &mut honest), 0, "a truncated request has run");
    assert!(server.refused(RefusalReason::BadDatagram) > 0);
    assert_eq!(hostile.ask(&tally(1, 1)).kind, kind::RESPONSE);
    assert_eq!(tallied(world, &mut honest), 1);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Valid datagrams with bytes changed, removed and inserted, and random bytes.
pub(super) fn mutated_datagrams_disturb_nobody(world: &World) {
    let (server, mut honest) = serve(world, WINDOW.into());
    let mut dice = Dice::new(0x5eed);
    let mut hostile = hostile_client(world, &server);
    for round in 0..600_u32 {
        if round % 100 == 99 {
            hostile = hostile_client(world, &server);
        }
        let mut messages = Vec::new();
        for _ in 0..1 + dice.below(4) {
            let (slot, generation) = (dice.below(WINDOW.into()) as u16, dice.below(6) as u32);
            let body = pattern::make(dice.roll(), dice.below(40) as usize);
            messages.extend(message(
                1 + dice.below(u64::from(kind::LAST) + 1) as u8,
                slot,
                generation,
                &body,
            ));
        }
        let mut bytes = match round % 4 {
            0 => pattern::make(dice.roll(), dice.below(4096) as usize),
            _ => hostile.datagram(&messages),
        };
        for _ in 0..dice.below(4) {
            if bytes.is_empty() {
                break;
            }
            // Rarely in the header: the server looks no further then.
            let from = if dice.below(8) == 0 { 0 } else { 16.min(bytes.len() - 1) };
            let at = from + dice.below((bytes.len() - from) as u64) as usize;
            match dice.below(4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, dice.below(256) as u8),
                2 => drop(bytes.remove(at)),
                _ => bytes[at] ^= 1 << dice.below(8),
            }
        }
        hostile.send_raw(&bytes);
    }
    drop(hostile);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Requests outside the window, in slots that are in use, and thousands of requests whose responses are not read.
pub(super) fn floods_take_nothing_from_others(world: &World) {
    let (server, mut honest) = serve(world, WINDOW.into());
    let hold = method_id("hold");
    let mut hostile = hostile_client(world, &server);
    for slot in [WINDOW, WINDOW + 1, 1000, u16::MAX] {
        for what in
            [kind::REQUEST, kind::ANNOUNCE, kind::PART, kind::ASK, kind::CANCEL, kind::IDEMPOTENT]
        {
            hostile.send(&message(what, slot, 1, &[0; 12]));
        }
        hostile.send(&tally(slot, 1));
    }
    // A request that waits at a gate, and then later ones in its slot.
    let waits = request(1, 1, hold, &[GATE, 1]);
    hostile.send(&waits);
    assert_eq!(hostile.ask_once(&waits).kind, kind::RUNNING);
    for generation in [2, 3, 1 << 31, u32::MAX] {
        hostile.send(&tally(1, generation));
    }
    assert_eq!(hostile.ask_once(&waits).kind, kind::RUNNING);
    assert_eq!(tallied(world, &mut honest), 0);
    for generation in 1..5_000_u32 {
        let slot = 2 + (generation % 6) as u16;
        hostile.send(&request(slot, generation / 6 + 1, ECHO, &[1; 40]));
        if generation % 1000 == 0 {
            assert_honest_clients_served(world, &server, &mut honest);
        }
    }
    hostile.send(&goodbye());
    drop(hostile);
    world.until("the task of the client that left is gone", || {
        (world.call(&mut honest, |c| c.start_held(GATE.into())) == Ok(0)).then_some(())
    });
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Announcements of messages that are empty, endless, over the limit, or never sent, and parts of other messages.
pub(super) fn forged_announcements(world: &World) {
    let (server, mut honest) = serve(world, WINDOW.into());
    let mut hostile = hostile_client(world, &server);
    let announce =
        |slot, generation, len: u64| message(kind::ANNOUNCE, slot, generation, &len.to_le_bytes());
    for (generation, len) in (1..).zip([0, LIMIT + 1, 1 << 40, u64::MAX]) {
        let answer = hostile.ask(&announce(0, generation, len));
        assert_eq!(answer.kind, kind::OVER_LIMIT, "{len}");
    }
    // Bodies that are too short or too long are ignored.
    for body in [&[][..], &[1], &[1; 7], &[1; 9], &[1; 900]] {
        hostile.send(&message(kind::ANNOUNCE, 1, 1, body));
    }
    // Parts that do not belong to the announced message, and then those that do.
    let whole = [&ECHO.to_le_bytes()[..], &[0; 4], &pattern::make(1, 5_000)].concat();
    let part = |number: u32, bytes: &[u8]| {
        message(kind::PART, 1, 1, &[&number.to_le_bytes(), bytes].concat())
    };
    hostile.send(&part(0, b"too early"));
    let announced = announce(1, 1, whole.len() as u64);
    assert_eq!(hostile.ask(&announced).kind, kind::PROGRESS);
    let (front, back) = whole.split_at(hostile.theirs.mtu as usize - 30);
    for forged in [
        message(kind::PART, 1, 1, b"abc"),
        part(0, b""),
        part(0, &front[1..]),
        part(1, &back[1..]),
        part(1, front),
        part(2, back),
        part(u32::MAX, front),
    ] {
        hostile.send(&forged);
    }
    assert_eq!(hostile.ask(&announced).body, [0; 12], "a part that does not fit was accepted");
    world.until("the response is offered", || {
        hostile.send(&part(1, back));
        let answer = hostile.ask(&part(0, front));
        (answer.kind == kind::OFFER && answer.body == (5_008_u64).to_le_bytes()).then_some(())
    });
    // Announced in every slot, and abandoned by clients that leave without a goodbye.
    for _ in 0..12 {
        let mut hostile = hostile_client(world, &server);
        for slot in 0..WINDOW {
            hostile.send(&announce(slot, 1, LIMIT));
        }
    }
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Message kinds that only a server sends, and unknown ones.
pub(super) fn message_kinds_of_a_server(world: &World) {
    let (server, mut honest) = serve(world, WINDOW.into());
    let mut hostile = hostile_client(world, &server);
    for body in [&[][..], &[0xff; 8], &[0xff; 12], &[1; 16], &[1; 100]] {
        for what in (8..=15).chain([0, kind::FORGOTTEN, kind::CHALLENGE, kind::LAST + 1, 100, 0xff])
        {
            for slot in 0..2 {
                hostile.send(&message(what, slot, 1, body));
            }
        }
        for (place, value) in [(0, 0), (0, 0xff), (2, 1)] {
            let mut bytes = hostile.datagram(&tally(0, 1));
            bytes[place] = value;
            assert_ne!(bytes[..4], VERSION.to_le_bytes());
            hostile.send_raw(&bytes);
        }
    }
    assert_served(&mut hostile, 0, 1);
    assert_served(&mut hostile, 1, 1);
    assert_eq!(tallied(world, &mut honest), 0);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Requests whose responses are so long that the server keeps them until they are fetched, one in each slot.
pub(super) fn ask_for_large_responses(client: &mut End) {
    for slot in 0..client.terms.window {
        // Seed 1, 983,040 bytes.
        client.send(&request(slot as u16, 1, method_id("make"), &[1, 0x80, 0x80, 0x3c]));
    }
}

/// One client cannot take all memory for large messages: others are served long before it is dropped.
pub(super) fn large_responses_that_nobody_fetches(world: &World) {
    let (server, mut honest) = serve(world, 64);
    let mut hostile = hostile_client_with_window(world, &server, 64);
    ask_for_large_responses(&mut hostile);
    assert_served_before_stall_limit(world, &server, &mut honest);
}

/// Clients that hold all memory for large messages and fetch nothing are dropped after the stall limit.
pub(super) fn clients_that_hold_all_memory_are_dropped(world: &World) {
    let (server, mut honest) = serve(world, 64);
    // Each may hold half of it.
    let mut hostile = [(); 3].map(|()| hostile_client_with_window(world, &server, 64));
    hostile.iter_mut().for_each(ask_for_large_responses);
    assert_served_after_stall_limit(world, &mut honest);
    assert!(server.refused(RefusalReason::Stalled) > 0);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// A client that claims to take more than any end does: it is welcome, and no more than the limits is used.
pub(super) fn a_setup_beyond_all_limits_is_capped(world: &World) {
    let (server, mut honest) = serve(world, WINDOW.into());
    let RawConnection { device, mut stream, .. } = world.raw_connection(&server);
    let pair = RawPair::open(&device);
    let endless =
        EndSetup { mtu: u32::MAX, credits: u32::MAX, session: u32::MAX, ..pair.end_setup() };
    let wanted = terms(WINDOW.into(), SLOT, LIMIT);
    let hello = hello(NAME, SuitePollClient::DESCRIPTION, wanted, encode_setup(&endless));
    shake_hands(&mut *stream, &hello).expect("welcome");
    assert_honest_clients_served(world, &server, &mut honest);
}
