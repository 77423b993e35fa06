//! Clients that break the rules: the server refuses them or drops them, and serves everybody else.

use farcall::{PollClient, RefusalReason};

use super::forge::{
    Carrier, End, SEND, connect, connect_deaf, kind, message, op, request, wire_region,
};
use crate::{
    dice::Dice,
    hostile::{
        LIMIT, SLOT, assert_honest_clients_served, assert_served_after_stall_limit,
        assert_served_before_stall_limit, serve, terms,
    },
    pattern,
    service::{ECHO, SuitePollClient, method_id},
    world::{Server, World},
};

pub(crate) const WINDOW: u32 = 8;

/// A hostile client that has kept the rules so far.
pub(crate) fn hostile_client(world: &World, server: &Server) -> End {
    hostile_client_with_window(world, server, WINDOW)
}

pub(crate) fn hostile_client_with_window(world: &World, server: &Server, window: u32) -> End {
    let wanted = terms(window, SLOT, LIMIT);
    let to = world.raw_connection(server);
    connect(Carrier::of(world), to, SuitePollClient::DESCRIPTION, wanted).expect("welcome")
}

/// A client by hand that keeps the rules is served: the others are refused for what they do, not for how they connect.
pub(crate) fn a_client_by_hand_that_keeps_the_rules_is_served(world: &World) {
    let (server, _honest) = serve(world, WINDOW);
    let mut hostile = hostile_client(world, &server);
    for generation in 1..20 {
        assert!(hostile.send(3, &request(generation, ECHO, b"knock")));
        let (imm, answer) = hostile.next_message().expect("an answer");
        assert_eq!(imm, hostile.immediate(op::MESSAGE, 3));
        assert_eq!(answer, message(generation, kind::INLINE, b"\0\0\0\0\0\0\0\0knock"));
    }
}

/// Random bytes in random slots.
pub(crate) fn garbage_in_slots(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut dice = Dice::new(0x5eed);
    let mut hostile = hostile_client(world, &server);
    for round in 0..300 {
        let mut bytes = pattern::make(dice.roll(), dice.below(u64::from(SLOT) + 1) as usize);
        // Some begin as a message would.
        if round % 2 == 0 && bytes.len() >= 8 {
            let (generation, kind) = (round, 1 + dice.below(6) as u8);
            bytes[..8].copy_from_slice(&message(generation, kind, b""));
        }
        if !hostile.send(dice.below(WINDOW.into()) as u32, &bytes) {
            hostile = hostile_client(world, &server);
        }
    }
    drop(hostile);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Immediates that name other clients, slots outside the window, or unknown operations.
pub(crate) fn nonsense_immediates(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let good = request(1, ECHO, b"x");
    let mut probe = hostile_client(world, &server);
    let mine = probe.client;
    for imm in [
        // Another client's.
        (mine ^ 1) << 10,
        (mine + 1000) << 10,
        0x1fff_fc00 | 1,
        // Outside the window.
        mine << 10 | WINDOW,
        mine << 10 | 0x3ff,
        op::CANCEL << 29 | mine << 10 | 0x3ff,
        // Operations of a server.
        5 << 29 | mine << 10,
        op::CREDIT << 29 | mine << 10,
        op::CREDIT << 29 | mine << 10 | 1,
        u32::MAX,
        // Operations that do not fit the slot's state.
        op::CHUNK << 29 | mine << 10,
        op::RELEASE << 29 | mine << 10 | 2,
    ] {
        let sent = probe.send_as(imm, 0, &good);
        assert!(!sent || probe.is_dropped(), "the immediate {imm:#x} was accepted");
        drop(probe);
        assert_honest_clients_served(world, &server, &mut honest);
        probe = hostile_client(world, &server);
        // The next client may have another number; the immediates are nonsense for it too.
    }
    assert!(server.refused(RefusalReason::BrokeProtocol) > 0);
}

/// A cancellation of nothing is allowed: it may have crossed the response.
pub(crate) fn cancellations_of_nothing_are_ignored(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut hostile = hostile_client(world, &server);
    for slot in 0..WINDOW {
        assert!(hostile.operate(op::CANCEL, slot));
    }
    assert!(hostile.send(0, &request(1, ECHO, b"still here")));
    assert!(hostile.next_message().is_some(), "the client broke no rule");
    assert_honest_clients_served(world, &server, &mut honest);
}

/// A request that is cancelled over and over: nothing bounds how many messages that takes.
pub(crate) fn requests_that_are_cancelled_twice(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    // While its handler waits, when it has been answered, and when there was none.
    for method in [Some(method_id("hold")), Some(ECHO), None] {
        let mut hostile = hostile_client(world, &server);
        if let Some(method) = method {
            assert!(hostile.send(3, &request(1, method, &[78, 1])));
        }
        assert!(hostile.operate(op::CANCEL, 3));
        let sent = hostile.operate(op::CANCEL, 3);
        assert!(!sent || hostile.is_dropped(), "a second cancellation was accepted: {method:?}");
    }
    assert!(server.refused(RefusalReason::BrokeProtocol) >= 3);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Messages longer than a slot, which spill into the neighbours.
pub(crate) fn lengths_beyond_the_slot(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    for len in [SLOT as usize + 1, 2 * SLOT as usize, (SLOT * WINDOW) as usize] {
        let mut hostile = hostile_client(world, &server);
        let long = request(1, ECHO, &vec![7; len - 16]);
        let sent = hostile.send(0, &long);
        assert!(!sent || hostile.is_dropped(), "a message of {len} bytes in a slot of {SLOT}");
        assert_honest_clients_served(world, &server, &mut honest);
    }
}

/// Requests in slots that are not free, and more requests than any window has.
pub(crate) fn requests_beyond_the_credits(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let hold = method_id("hold");
    let mut hostile = hostile_client(world, &server);
    // A request that waits at a gate, and then another one in its slot.
    assert!(hostile.send(1, &request(1, hold, &[77, 1])));
    let _ = hostile.send(1, &request(2, hold, &[77, 1]));
    assert!(hostile.is_dropped(), "a request in a slot that is not free was accepted");
    let mut flood = hostile_client(world, &server);
    for generation in 0..5_000u32 {
        if !flood.send(generation % WINDOW, &request(generation, ECHO, &[1; 40])) {
            flood = hostile_client(world, &server);
        }
    }
    drop(flood);
    world.until("the dropped client's task is gone", || {
        (world.call(&mut honest, |c| c.start_held(77)) == Ok(0)).then_some(())
    });
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Announcements of messages that are empty, endless, over the limit, or never sent.
pub(crate) fn forged_announcements(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let announce = |generation, len: u64| message(generation, kind::ANNOUNCE, &len.to_le_bytes());
    for len in [0, LIMIT + 1, u64::MAX, 1 << 40] {
        let mut hostile = hostile_client(world, &server);
        assert!(hostile.send(0, &announce(1, len)));
        match hostile.next_message() {
            Some((_, answer)) => assert_eq!(answer[4], kind::OVER_LIMIT, "{len}"),
            None => assert!(hostile.is_dropped(), "{len}: neither refused nor dropped"),
        }
    }
    // Announced, granted, and then a chunk of another length, or too many.
    for wrong in [0usize, 1, 4095, 200_000] {
        let mut hostile = hostile_client(world, &server);
        assert!(hostile.send(0, &announce(1, 5_000)));
        let (_, grant) = hostile.next_message().expect("a grant");
        assert_eq!(grant[4], kind::GRANT);
        let addr = u64::from_le_bytes(grant[8..16].try_into().expect("eight bytes"));
        let rkey = u32::from_le_bytes(grant[24..28].try_into().expect("four bytes"));
        let imm = hostile.immediate(op::CHUNK, 0);
        let sent = hostile.write(addr, rkey, &vec![1; wrong], Some(imm));
        assert!(!sent || hostile.is_dropped(), "a chunk of {wrong} bytes where 5000 were due");
    }
    // Announced repeatedly in one slot, and abandoned by clients that leave.
    for _ in 0..20 {
        let mut hostile = hostile_client(world, &server);
        for slot in 0..WINDOW {
            let _ = hostile.send(slot, &announce(1, LIMIT));
        }
        let _ = hostile.send(0, &announce(2, LIMIT));
    }
    // Bodies that are too short or too long.
    for body in [&[][..], &[1], &[1; 7], &[1; 9], &[1; 900]] {
        let mut hostile = hostile_client(world, &server);
        let sent = hostile.send(0, &message(1, kind::ANNOUNCE, body));
        assert!(!sent || hostile.is_dropped(), "an announcement of {} bytes", body.len());
    }
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Message kinds that only a server sends.
pub(crate) fn message_kinds_of_a_server(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let forged = wire_region(0x7fff_0000, 1 << 30, 7);
    for (kind, body) in [
        (kind::GRANT, [&forged[..], &[0, 16, 0, 0]].concat()),
        (kind::LENT, forged.clone()),
        (kind::OVER_LIMIT, vec![0xff; 16]),
        (0, vec![1; 20]),
        (0xff, vec![1; 20]),
    ] {
        let mut hostile = hostile_client(world, &server);
        let sent = hostile.send(0, &message(1, kind, &body));
        assert!(!sent || hostile.is_dropped(), "kind {kind} was accepted from a client");
        assert_honest_clients_served(world, &server, &mut honest);
    }
}

/// Requests whose responses are so long that the server lends them, one in each slot.
pub(crate) fn ask_for_large_responses(client: &mut End) {
    for slot in 0..client.terms.window {
        // Seed 1, 983,040 bytes.
        assert!(client.send(slot, &request(1, method_id("make"), &[1, 0x80, 0x80, 0x3c])));
    }
}

/// One client cannot take all memory for large messages: others are served long before it is dropped.
pub(crate) fn large_responses_that_nobody_reads(world: &World) {
    let (server, mut honest) = serve(world, 64);
    let mut hostile = hostile_client_with_window(world, &server, 64);
    ask_for_large_responses(&mut hostile);
    assert_served_before_stall_limit(world, &server, &mut honest);
}

/// Clients that hold all memory for large messages and read nothing are dropped after the stall limit.
pub(crate) fn clients_that_hold_all_memory_are_dropped(world: &World) {
    let (server, mut honest) = serve(world, 64);
    // Each may hold half of it.
    let mut hostile = [(); 3].map(|()| hostile_client_with_window(world, &server, 64));
    hostile.iter_mut().for_each(ask_for_large_responses);
    assert_served_after_stall_limit(world, &mut honest);
    assert!(hostile[0].has_failed(), "the server has not dropped it");
    assert!(server.refused(RefusalReason::Stalled) > 0);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Clients that ask on and on and take no answers: what the server keeps for each is bounded. Whatever makes the server send is tried.
pub(crate) fn answers_that_a_client_never_takes(world: &World) {
    /// More than a server may keep: for each slot, in its send queue, and what the client takes before it stops. Of a client with a
    /// log, the server reads nothing as long as answers to it wait: more than the log holds.
    const MOST_KEPT: u32 = 1000;
    let (server, mut honest) = serve(world, WINDOW);
    let carrier = Carrier::of(world);
    let announce = |generation, len: u64| message(generation, kind::ANNOUNCE, &len.to_le_bytes());
    type Ask<'a> = &'a dyn Fn(&mut End, u32) -> bool;
    let asks: [(&str, Ask<'_>); 4] = [
        ("calls", &|end, n| end.send(0, &request(n, ECHO, b"x"))),
        ("announcements over the limit", &|end, n| end.send(0, &announce(n, LIMIT + 1))),
        ("announcements that are cancelled", &|end, n| {
            end.send(0, &announce(n, 5_000)) && end.operate(op::CANCEL, 0)
        }),
        ("modes", &|end, _| end.operate(op::MODE, SEND)),
    ];
    // Other backends have no mode that is answered.
    let asks = if carrier == Carrier::Cells { &asks[..] } else { &asks[..3] };
    for (what, ask) in asks {
        let to = world.raw_connection(&server);
        let wanted = terms(WINDOW, SLOT, LIMIT);
        let mut deaf = connect_deaf(carrier, to, SuitePollClient::DESCRIPTION, wanted);
        let before = server.refused(RefusalReason::BrokeProtocol);
        let is_dropped = (0..MOST_KEPT).any(|n| {
            let sent = ask(&mut deaf, n);
            // The server has handled what came before this call.
            let echoed = world.call(&mut honest, |c| c.start_echo(b"honest")).expect("echo");
            assert_eq!(echoed, b"honest");
            !sent
        });
        assert!(is_dropped || deaf.is_dropped(), "{what}: the server keeps {MOST_KEPT} answers");
        assert!(
            server.refused(RefusalReason::BrokeProtocol) > before,
            "{what}: why was it dropped?"
        );
    }
    assert_honest_clients_served(world, &server, &mut honest);
}
