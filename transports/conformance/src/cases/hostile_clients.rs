//! Clients of `write_imm` that keep no rule: the server answers them or drops them, alone.

use std::io::Write;

use farcall::PollClient;
use farcall_transports::handshake::{Frame, Hello, Reject, Terms};

use crate::{
    dice::Dice,
    hostile::{
        BreakIn, receive, terms,
        write_imm::{End, Port, break_in, kind, message, op, request, wire_region},
    },
    pattern,
    service::{ECHO, SuitePollClient},
    world::{Server, World},
};

use super::besieged::{LIMIT, SLOT, assert_untouched, serve_windows};

const WINDOW: u32 = 8;

/// A server that will be besieged, and an honest client of it.
fn serve(world: &World) -> (Server, SuitePollClient) {
    serve_windows(world, WINDOW)
}

fn intrude(world: &World, server: &Server) -> End {
    let wanted = terms(WINDOW, SLOT, LIMIT);
    break_in(world.break_in(server), SuitePollClient::DESCRIPTION, wanted).expect("welcome")
}

/// An intruder that keeps the rules is served: what follows is refused for what it does, not for who it is.
pub fn an_intruder_that_keeps_the_rules_is_served(world: &World) {
    let (server, _honest) = serve(world);
    let mut intruder = intrude(world, &server);
    for generation in 1..20 {
        assert!(intruder.send(3, &request(generation, ECHO, b"knock")));
        let (imm, answer) = intruder.next_message().expect("an answer");
        assert_eq!(imm, intruder.immediate(op::MESSAGE, 3));
        assert_eq!(answer, message(generation, kind::INLINE, b"\0\0\0\0\0\0\0\0knock"));
    }
}

/// Random bytes in random slots.
pub fn garbage_in_slots(world: &World) {
    let (server, mut honest) = serve(world);
    let mut dice = Dice::new(0x5eed);
    let mut intruder = intrude(world, &server);
    for round in 0..300 {
        let mut bytes = pattern::make(dice.roll(), dice.below(u64::from(SLOT) + 1) as usize);
        // Some begin as a message would.
        if round % 2 == 0 && bytes.len() >= 8 {
            let (generation, kind) = (round, 1 + dice.below(6) as u8);
            bytes[..8].copy_from_slice(&message(generation, kind, b""));
        }
        if !intruder.send(dice.below(WINDOW.into()) as u32, &bytes) {
            intruder = intrude(world, &server);
        }
    }
    drop(intruder);
    assert_untouched(world, &server, &mut honest);
}

/// Immediates that name other clients, slots outside the window, operations that are none.
pub fn nonsense_immediates(world: &World) {
    let (server, mut honest) = serve(world);
    let good = request(1, ECHO, b"x");
    let mut probe = intrude(world, &server);
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
        // No operation.
        5 << 29 | mine << 10,
        7 << 29 | mine << 10,
        u32::MAX,
        // Operations that nobody waits for.
        op::CHUNK << 29 | mine << 10,
        op::RELEASE << 29 | mine << 10 | 2,
    ] {
        let sent = probe.write(probe.slot_address(0), probe.theirs.rkey, &good, Some(imm));
        assert!(!sent || probe.is_dropped(), "the immediate {imm:#x} was taken");
        drop(probe);
        assert_untouched(world, &server, &mut honest);
        probe = intrude(world, &server);
        // The next intruder may have another number; the immediates above are nonsense for it too.
    }
}

/// A cancellation of nothing is no crime: it may have crossed the answer.
pub fn cancellations_of_nothing_are_ignored(world: &World) {
    let (server, mut honest) = serve(world);
    let mut intruder = intrude(world, &server);
    for slot in 0..WINDOW {
        assert!(intruder.operate(op::CANCEL, slot));
    }
    assert!(intruder.send(0, &request(1, ECHO, b"still here")));
    assert!(intruder.next_message().is_some(), "the intruder has broken no rule");
    assert_untouched(world, &server, &mut honest);
}

/// Messages longer than a slot, which spill into the neighbours.
pub fn lengths_beyond_the_slot(world: &World) {
    let (server, mut honest) = serve(world);
    for len in [SLOT as usize + 1, 2 * SLOT as usize, (SLOT * WINDOW) as usize] {
        let mut intruder = intrude(world, &server);
        let long = request(1, ECHO, &vec![7; len - 16]);
        let sent = intruder.send(0, &long);
        assert!(!sent || intruder.is_dropped(), "a message of {len} bytes in a slot of {SLOT}");
        assert_untouched(world, &server, &mut honest);
    }
}

/// WRITEs outside of the region, under its key and under others.
pub fn writes_outside_the_region(world: &World) {
    let (server, mut honest) = serve(world);
    let probe = intrude(world, &server);
    let region = probe.theirs;
    drop(probe);
    let bytes = [0x66; 64];
    let end = region.addr + region.len;
    for (addr, rkey) in [
        (end, region.rkey),
        (end - 63, region.rkey),
        (region.addr.wrapping_sub(64), region.rkey),
        (0, region.rkey),
        (u64::MAX - 32, region.rkey),
        (region.addr, region.rkey ^ 1),
        (region.addr, 0),
        (region.addr, u32::MAX),
    ] {
        let mut intruder = intrude(world, &server);
        let offset = |addr: u64| addr.wrapping_sub(region.addr).wrapping_add(intruder.theirs.addr);
        let key = if rkey == region.rkey { intruder.theirs.rkey } else { rkey };
        let addr = if addr == 0 { 0 } else { offset(addr) };
        let sent = intruder.write(addr, key, &bytes, None);
        assert!(!sent, "a WRITE to {addr:#x} under {key:#x} was carried out");
        drop(intruder);
        assert_untouched(world, &server, &mut honest);
    }
}

/// Requests in slots that are not free, and more of them than any window has.
pub fn requests_beyond_the_credits(world: &World) {
    let (server, mut honest) = serve(world);
    let hold = SuitePollClient::DESCRIPTION.methods.iter().find(|method| method.name == "hold");
    let hold = hold.expect("the service has it").id;
    let mut intruder = intrude(world, &server);
    // One that waits at a gate, and then another one in its slot.
    assert!(intruder.send(1, &request(1, hold, &[77, 1])));
    let _ = intruder.send(1, &request(2, hold, &[77, 1]));
    assert!(intruder.is_dropped(), "a request in a slot that is not free was taken");
    let mut flood = intrude(world, &server);
    for generation in 0..5_000u32 {
        if !flood.send(generation % WINDOW, &request(generation, ECHO, &[1; 40])) {
            flood = intrude(world, &server);
        }
    }
    drop(flood);
    world.until("the dropped client's task is gone", || {
        (world.call(&mut honest, |c| c.start_held(77)) == Ok(0)).then_some(())
    });
    assert_untouched(world, &server, &mut honest);
}

/// Announcements of messages that are empty, endless, over the limit, or never sent.
pub fn forged_announcements(world: &World) {
    let (server, mut honest) = serve(world);
    let announce = |generation, len: u64| message(generation, kind::ANNOUNCE, &len.to_le_bytes());
    for len in [0, LIMIT + 1, u64::MAX, 1 << 40] {
        let mut intruder = intrude(world, &server);
        assert!(intruder.send(0, &announce(1, len)));
        match intruder.next_message() {
            Some((_, answer)) => assert_eq!(answer[4], kind::OVER_LIMIT, "{len}"),
            None => assert!(intruder.is_dropped(), "{len}: neither answered nor dropped"),
        }
    }
    // Announced, granted, and then a chunk of another length, or too many.
    for wrong in [0usize, 1, 4095, 200_000] {
        let mut intruder = intrude(world, &server);
        assert!(intruder.send(0, &announce(1, 5_000)));
        let (_, grant) = intruder.next_message().expect("a grant");
        assert_eq!(grant[4], kind::GRANT);
        let addr = u64::from_le_bytes(grant[8..16].try_into().expect("eight bytes"));
        let rkey = u32::from_le_bytes(grant[24..28].try_into().expect("four bytes"));
        let imm = intruder.immediate(op::CHUNK, 0);
        let sent = intruder.write(addr, rkey, &vec![1; wrong], Some(imm));
        assert!(!sent || intruder.is_dropped(), "a chunk of {wrong} bytes where 5000 were due");
    }
    // Announced again and again in one slot, or left alone by clients that go.
    for _ in 0..20 {
        let mut intruder = intrude(world, &server);
        for slot in 0..WINDOW {
            let _ = intruder.send(slot, &announce(1, LIMIT));
        }
        let _ = intruder.send(0, &announce(2, LIMIT));
    }
    // Bodies that are too short or too long.
    for body in [&[][..], &[1], &[1; 7], &[1; 9], &[1; 900]] {
        let mut intruder = intrude(world, &server);
        let sent = intruder.send(0, &message(1, kind::ANNOUNCE, body));
        assert!(!sent || intruder.is_dropped(), "an announcement of {} bytes", body.len());
    }
    assert_untouched(world, &server, &mut honest);
}

/// What only a server says, said by a client.
pub fn a_servers_words_from_a_client(world: &World) {
    let (server, mut honest) = serve(world);
    let forged = wire_region(0x7fff_0000, 1 << 30, 7);
    for (kind, body) in [
        (kind::GRANT, [&forged[..], &[0, 16, 0, 0]].concat()),
        (kind::LENT, forged.clone()),
        (kind::OVER_LIMIT, vec![0xff; 16]),
        (kind::DROPPED, vec![]),
        (0, vec![1; 20]),
        (0xff, vec![1; 20]),
    ] {
        let mut intruder = intrude(world, &server);
        let sent = intruder.send(0, &message(1, kind, &body));
        assert!(!sent || intruder.is_dropped(), "kind {kind} was taken from a client");
        assert_untouched(world, &server, &mut honest);
    }
}

/// A slot that changes while the server reads it.
pub fn a_slot_that_changes_under_the_reader(world: &World) {
    let (server, mut honest) = serve(world);
    let mut intruder = intrude(world, &server);
    for generation in 1..300u32 {
        let len = 100 + generation as usize % 800;
        if !intruder.send(0, &request(generation, ECHO, &vec![1; len])) {
            // What it changed the last time was the header: so it was dropped.
            intruder = intrude(world, &server);
            continue;
        }
        let (key, at) = (intruder.theirs.rkey, intruder.slot_address(0));
        for fill in 0..4u8 {
            let _ = intruder.write(at, key, &vec![fill.wrapping_mul(85); len], None);
        }
        if let Some((_, answer)) = intruder.next_message() {
            assert!(answer.len() <= SLOT as usize);
        }
    }
    assert_untouched(world, &server, &mut honest);
}

/// Responses that are lent and never read keep their memory from nobody else.
pub fn lent_responses_that_nobody_reads(world: &World) {
    let (server, mut honest) = serve_windows(world, 64);
    let make = SuitePollClient::DESCRIPTION.methods.iter().find(|method| method.name == "make");
    let make = make.expect("the service has it").id;
    let wanted = terms(64, SLOT, LIMIT);
    let mut intruder =
        break_in(world.break_in(&server), SuitePollClient::DESCRIPTION, wanted).expect("welcome");
    for slot in 0..intruder.terms.window {
        // Seed 1, 983,040 bytes.
        assert!(intruder.send(slot, &request(1, make, &[1, 0x80, 0x80, 0x3c])));
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
    let wanted = terms(WINDOW, SLOT, LIMIT);
    let description = SuitePollClient::DESCRIPTION;
    let leave = |times: u32| {
        for _ in 0..times {
            let BreakIn { device, mut stream, .. } = world.break_in(&server);
            let port = Port::open(&device, &wanted);
            let hello = Frame::Hello(Hello {
                backend: "write_imm".to_owned(),
                service: description.name.to_owned(),
                fingerprint: description.fingerprint,
                terms: wanted,
                setup: port.setup(0),
            });
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

/// Handshakes that are garbage, stop in the middle, or lie.
pub fn broken_handshakes(world: &World) {
    let (server, mut honest) = serve(world);
    let hello = |backend: &str, service: &str, fingerprint: u64, terms: Terms, setup: Vec<u8>| {
        let (backend, service) = (backend.to_owned(), service.to_owned());
        Frame::Hello(Hello { backend, service, fingerprint, terms, setup })
    };
    let description = SuitePollClient::DESCRIPTION;
    let good = terms(WINDOW, SLOT, LIMIT);
    let hi = |backend: &str, terms: Terms, setup: &[u8]| {
        hello(backend, description.name, description.fingerprint, terms, setup.to_vec())
    };
    // Bytes that are no frames; some streams stay open while the others go on.
    let mut open = Vec::new();
    let mut version = hi("write_imm", good, &[]).to_bytes();
    version[8] ^= 0x40;
    let mut endless = version.clone();
    endless[8] ^= 0x40;
    endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let whole = hi("write_imm", good, &[1, 2, 3]).to_bytes();
    let garbage = pattern::make(3, 5_000);
    for bytes in [&[][..], b"GET / HTTP/1.1\r\n\r\n", &garbage, &endless, &whole[..9], &whole[..40]]
    {
        let BreakIn { mut stream, .. } = world.break_in(&server);
        // The server may close before all of it is written.
        let _ = stream.write_all(bytes);
        open.push(stream);
        assert_untouched(world, &server, &mut honest);
    }
    let answer = |bytes: &[u8]| {
        let BreakIn { mut stream, .. } = world.break_in(&server);
        stream.write_all(bytes).expect("say hello");
        receive(&mut *stream)
    };
    // Frames of another version are answered in ours, so that the other end can tell.
    match answer(&version) {
        Ok(Frame::Reject(Reject::Malformed { what })) => {
            assert!(what.contains("version"), "{what}")
        }
        other => panic!("{other:?}"),
    }
    match answer(&hi("rfp", good, &[]).to_bytes()) {
        Ok(Frame::Reject(Reject::Backend { theirs })) => assert_eq!(theirs, "write_imm"),
        other => panic!("{other:?}"),
    }
    match answer(&Frame::Ready.to_bytes()) {
        Ok(Frame::Reject(Reject::Malformed { .. })) => {}
        other => panic!("{other:?}"),
    }
    for wrong in [
        terms(0, SLOT, LIMIT),
        terms(u32::MAX, SLOT, LIMIT),
        terms(WINDOW, 0, LIMIT),
        terms(WINDOW, 63, LIMIT),
        terms(WINDOW, u32::MAX, LIMIT),
        terms(WINDOW, SLOT, 0),
    ] {
        match answer(&hi("write_imm", wrong, &[]).to_bytes()) {
            Ok(Frame::Reject(Reject::Malformed { .. })) => {}
            other => panic!("{wrong:?}: {other:?}"),
        }
    }
    // Setups that are none, and endpoints of nobody.
    for setup in [vec![], vec![0; 3], vec![0xff; 100], pattern::make(1, 200)] {
        match answer(&hi("write_imm", good, &setup).to_bytes()) {
            Ok(Frame::Reject(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    // A client that is welcome and does not say that it is ready.
    for _ in 0..3 {
        let BreakIn { device, mut stream, .. } = world.break_in(&server);
        let port = Port::open(&device, &good);
        let bytes = hi("write_imm", good, &port.setup(0)).to_bytes();
        stream.write_all(&bytes).expect("say hello");
        assert!(matches!(receive(&mut *stream), Ok(Frame::Welcome(_))));
    }
    assert_untouched(world, &server, &mut honest);
}
