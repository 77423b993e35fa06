//! Clients of `tcp` that break the rules: the server drops them, and serves everybody else.

use farcall::{PollClient, RefusalReason};

use super::forge::{
    Arrived, End, PART_BYTES, begin, call, connect, connect_with, frame, kind, request,
};
use crate::{
    dice::Dice,
    hostile::{
        LIMIT, SLOT, assert_honest_clients_served, assert_served_before_stall_limit, serve, terms,
    },
    pattern,
    service::{ECHO, SuitePollClient, method_id},
    world::{Server, World},
};

const WINDOW: u32 = 8;

/// A hostile client that has kept the rules so far.
fn hostile_client(world: &World, server: &Server) -> End {
    let wanted = terms(WINDOW, SLOT, LIMIT);
    connect(world.raw_connection(server), SuitePollClient::DESCRIPTION, wanted).expect("welcome")
}

fn response(slot: u16, generation: u32, body: &[u8]) -> Option<Arrived> {
    let body = [&[0; 8], body].concat();
    Some(Arrived { kind: kind::WHOLE, slot, generation, body })
}

/// A client by hand that keeps the rules is served: the others are refused for what they do, not for how they connect.
pub(super) fn a_client_by_hand_that_keeps_the_rules_is_served(world: &World) {
    let (server, _honest) = serve(world, WINDOW);
    let mut client = hostile_client(world, &server);
    for generation in 1..20 {
        assert!(client.send(&request(3, generation, ECHO, b"knock")));
        assert_eq!(client.next_frame(), response(3, generation, b"knock"));
    }
    // A large request, and its large response.
    let message = call(ECHO, &pattern::make(1, 200_000));
    assert!(client.send(&begin(0, 1, message.len() as u64)));
    let grant = client.next_frame().expect("a grant");
    assert_eq!((grant.kind, grant.slot, grant.generation), (kind::GRANT, 0, 1));
    for part in message.chunks(PART_BYTES) {
        assert!(client.send(&frame(kind::PART, 0, 1, part)));
    }
    let announced = client.next_frame().expect("an announcement");
    assert_eq!((announced.kind, announced.body), (kind::BEGIN, 200_008u64.to_le_bytes().to_vec()));
    assert!(client.send(&frame(kind::GRANT, 0, 1, &[])));
    let mut answer = Vec::new();
    while answer.len() < 200_008 {
        let part = client.next_frame().expect("a part");
        assert_eq!((part.kind, part.slot, part.generation), (kind::PART, 0, 1));
        answer.extend(part.body);
    }
    pattern::assert_is(1, 200_000, &answer[8..]);
}

/// A client whose frames come byte by byte is served, as are the others.
pub(super) fn a_client_that_trickles_is_served(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut slow = hostile_client(world, &server);
    for generation in 1..4 {
        let mut bytes = request(1, generation, ECHO, b"slow");
        bytes.extend(request(2, generation, ECHO, b"too"));
        assert!(slow.trickle(&bytes));
        assert_eq!(slow.next_frame(), response(1, generation, b"slow"));
        assert_eq!(slow.next_frame(), response(2, generation, b"too"));
        assert_honest_clients_served(world, &server, &mut honest);
    }
    // Cut once, at each place.
    let bytes = request(1, 9, ECHO, b"cut");
    for cut in 1..bytes.len() {
        assert!(slow.send(&bytes[..cut]));
        std::thread::yield_now();
        assert!(slow.send(&bytes[cut..]));
        assert_eq!(slow.next_frame(), response(1, 9, b"cut"));
    }
}

/// A client need not wait between the end of its handshake and its first requests: whoever reads the one may read the others.
pub(super) fn requests_that_come_with_the_end_of_the_handshake_are_served(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let wanted = || terms(WINDOW, SLOT, LIMIT);
    let to = || world.raw_connection(&server);
    for cut in [0, 1, 20] {
        let requests = [request(1, 1, ECHO, b"first"), request(2, 1, ECHO, b"second")].concat();
        let (with, after) = requests.split_at(requests.len() - cut);
        let mut client = connect_with(to(), SuitePollClient::DESCRIPTION, wanted(), with);
        assert_eq!(client.next_frame(), response(1, 1, b"first"));
        assert!(client.send(after));
        assert_eq!(client.next_frame(), response(2, 1, b"second"));
    }
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Random bytes, and requests with some bytes changed.
pub(super) fn garbage_on_the_stream(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut dice = Dice::new(0x5eed);
    for round in 0..60 {
        let mut hostile = hostile_client(world, &server);
        let bytes = match round % 2 {
            0 => pattern::make(dice.roll(), 1 + dice.below(5_000) as usize),
            _ => {
                let mut bytes = request(1, 1, ECHO, &pattern::make(round, 300)).repeat(3);
                for _ in 0..3 {
                    let at = dice.below(bytes.len() as u64) as usize;
                    bytes[at] = dice.roll() as u8;
                }
                bytes
            }
        };
        let _ = hostile.send(&bytes);
    }
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Frames that no client may send: each ends its connection.
pub(super) fn frames_that_break_a_rule(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut last_byte = frame(kind::WHOLE, 0, 1, &call(ECHO, b"x"));
    last_byte[11] = 1;
    let mut endless = frame(kind::WHOLE, 0, 1, &[]);
    endless[..4].fill(0xff);
    for (what, bytes) in [
        ("no kind", frame(0, 0, 1, &[])),
        ("an unknown kind", frame(8, 0, 1, &[])),
        ("a last byte that is not zero", last_byte),
        ("an endless frame", endless),
        ("a slot outside the window", request(WINDOW as u16, 1, ECHO, b"x")),
        ("a message longer than a slot", request(0, 1, ECHO, &[7; SLOT as usize])),
        ("a grant of nothing", frame(kind::GRANT, 0, 1, &[])),
        ("a grant with a body", frame(kind::GRANT, 0, 1, &[0])),
        ("a part of nothing", frame(kind::PART, 0, 1, &[1; 100])),
        ("an empty part", frame(kind::PART, 0, 1, &[])),
        ("a server's kind", frame(kind::DROPPED, 0, 1, &[])),
        ("an announcement without a length", frame(kind::BEGIN, 0, 1, &[1; 7])),
    ] {
        let mut hostile = hostile_client(world, &server);
        let _ = hostile.send(&bytes);
        assert!(hostile.is_dropped(), "{what}");
        assert_honest_clients_served(world, &server, &mut honest);
    }
    assert_eq!(server.refused(RefusalReason::BrokeProtocol), 12);
}

/// Cancellations of calls that have ended, or never were.
pub(super) fn cancellations_of_nothing_are_ignored(world: &World) {
    let (server, _honest) = serve(world, WINDOW);
    let mut client = hostile_client(world, &server);
    for generation in 1..50 {
        for slot in 0..WINDOW as u16 {
            assert!(client.send(&frame(kind::CANCEL, slot, generation, &[])));
        }
        assert!(client.send(&request(3, generation, ECHO, b"still")));
        assert_eq!(client.next_frame(), response(3, generation, b"still"));
    }
}

/// A request in a slot whose request is not answered.
pub(super) fn requests_beyond_the_credits(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let hold = method_id("hold");
    let mut hostile = hostile_client(world, &server);
    assert!(hostile.send(&request(1, 1, hold, &[77, 1])));
    let _ = hostile.send(&request(1, 2, hold, &[77, 1]));
    assert!(hostile.is_dropped(), "a request in a slot that is not free was accepted");
    world.until("the dropped client's task is gone", || {
        (world.call(&mut honest, |c| c.start_held(77)) == Ok(0)).then_some(())
    });
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Announcements of impossible lengths, and parts that do not fit what was announced.
pub(super) fn forged_large_requests(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    for len in [0, 1, LIMIT + 1, 1 << 40, u64::MAX] {
        let mut hostile = hostile_client(world, &server);
        let _ = hostile.send(&begin(0, 1, len));
        assert!(hostile.is_dropped(), "an announcement of {len} bytes");
    }
    for (what, part) in [
        ("more than announced", frame(kind::PART, 0, 1, &[1; 5_001])),
        ("another generation", frame(kind::PART, 0, 2, &[1; 10])),
        ("another slot", frame(kind::PART, 1, 1, &[1; 10])),
        ("a part beyond its bound", frame(kind::PART, 0, 1, &vec![1; PART_BYTES + 1])),
        ("announced again", begin(0, 1, 5_000)),
        ("a whole message instead", request(0, 1, ECHO, b"x")),
    ] {
        let mut hostile = hostile_client(world, &server);
        assert!(hostile.send(&begin(0, 1, 5_000)));
        assert_eq!(hostile.next_frame().map(|grant| grant.kind), Some(kind::GRANT));
        let _ = hostile.send(&part);
        assert!(hostile.is_dropped(), "{what}");
    }
    // Cancelled in the middle: dropped, and the slot is free.
    let mut client = hostile_client(world, &server);
    assert!(client.send(&begin(0, 1, 5_000)));
    assert_eq!(client.next_frame().map(|grant| grant.kind), Some(kind::GRANT));
    assert!(client.send(&frame(kind::PART, 0, 1, &[1; 4_000])));
    assert!(client.send(&frame(kind::CANCEL, 0, 1, &[])));
    assert_eq!(client.next_frame().map(|dropped| dropped.kind), Some(kind::DROPPED));
    assert!(client.send(&request(0, 2, ECHO, b"again")));
    assert_eq!(client.next_frame(), response(0, 2, b"again"));
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Clients that close one half of their stream, or all of it while answers are on their way.
pub(super) fn clients_that_reset_or_close_half(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let hold = method_id("hold");
    for round in 0..20 {
        let mut hostile = hostile_client(world, &server);
        assert!(hostile.send(&request(0, 1, hold, &[78, 1])));
        let whole = request(1, 1, ECHO, &[5; 500]).repeat(1 + round % 3);
        let _ = hostile.send(&whole[..whole.len() - round]);
        if round % 2 == 0 {
            hostile.close_half();
            assert!(hostile.is_dropped(), "a client that sends no more stays");
        }
        // Unread answers make this a reset.
        drop(hostile);
    }
    world.until("the tasks of the clients are gone", || {
        (world.call(&mut honest, |c| c.start_held(78)) == Ok(0)).then_some(())
    });
    assert_honest_clients_served(world, &server, &mut honest);
}

/// A client that sends and sends, and reads nothing: the server reads no more of it, and stays with the others.
pub(super) fn a_client_that_never_reads(world: &World) {
    /// More than two sockets' buffers and the server's own bound take.
    const MOST_BYTES: usize = 64 << 20;
    let (server, mut honest) = serve(world, WINDOW);
    let mut hostile = hostile_client(world, &server);
    // Each pair makes the server say that it dropped a call.
    let mut pairs = Vec::new();
    for generation in 0..1_000 {
        pairs.extend(begin(0, generation, 5_000));
        pairs.extend(frame(kind::CANCEL, 0, generation, &[]));
    }
    let mut sent = 0;
    while sent < MOST_BYTES && hostile.send(&pairs) {
        sent += pairs.len();
    }
    assert!(sent < MOST_BYTES, "the server reads on and on, and keeps what it has to say");
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Clients that announce as much as they may, and send nothing.
pub(super) fn claimed_lengths_get_no_memory_from_others(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut hostile = hostile_client(world, &server);
    for slot in 0..WINDOW as u16 {
        assert!(hostile.send(&begin(slot, 1, LIMIT)));
    }
    assert_served_before_stall_limit(world, &server, &mut honest);
}

/// A client that asks for large responses, and grants none.
pub(super) fn large_responses_that_nobody_takes(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut hostile = hostile_client(world, &server);
    for slot in 0..WINDOW as u16 {
        // Seed 1, 983,040 bytes.
        assert!(hostile.send(&request(slot, 1, method_id("make"), &[1, 0x80, 0x80, 0x3c])));
    }
    assert_served_before_stall_limit(world, &server, &mut honest);
}
