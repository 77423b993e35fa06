//! Clients that misuse cells, the ring of responses, and the ways of responses.

pub(super) use crate::backends::slots::hostile_clients::*;
use crate::{
    backends::slots::forge::{op, request},
    dice::Dice,
    hostile::{SLOT, assert_honest_clients_served, serve},
    service::ECHO,
    world::World,
};

/// Trailers with lengths beyond the cell, slots outside the window, and any bits.
pub(super) fn nonsense_in_trailers(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut dice = Dice::new(0x7a11);
    // The first request, after one operation.
    let first = 1 | 1 << 16;
    let long = |slot: u32, len: u32| u64::from(slot | len << 10) << 32 | first;
    let nonsense =
        [long(0, SLOT), long(0, 0x3f_ffff), long(WINDOW, 20), long(0x3ff, 0), long(0, 0)];
    for word in nonsense.into_iter().chain((0..20).map(|_| dice.roll() << 32 | first)) {
        let mut hostile = hostile_client(world, &server);
        let message = request(1, ECHO, b"x");
        let bytes = [&message[..16], &word.to_le_bytes()].concat();
        let at = hostile.slot_address(1) - bytes.len() as u64;
        let imm = hostile.immediate(op::MESSAGE, 0);
        let sent = hostile.write(at, hostile.theirs.rkey, &bytes, Some(imm));
        assert!(!sent || hostile.is_dropped(), "the trailer {word:#x} was accepted");
        assert_honest_clients_served(world, &server, &mut honest);
    }
}

/// Modes that there are not, and all that there are in any order.
pub(super) fn modes_that_there_are_not(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    for argument in [4, 5, 0x3ff] {
        let mut hostile = hostile_client(world, &server);
        let sent = hostile.operate(op::MODE, argument);
        assert!(!sent || hostile.is_dropped(), "mode {argument} was accepted");
    }
    let mut dice = Dice::new(0x0de);
    let mut restless = hostile_client(world, &server);
    for generation in 0..300 {
        restless.operate(op::MODE, dice.below(4) as u32);
        restless.send(generation % WINDOW, &request(generation, ECHO, b"x"));
    }
    drop(restless);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// The ring of responses can be read, and not written.
pub(super) fn responses_cannot_be_written(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut hostile = hostile_client(world, &server);
    let ring = hostile.responses.expect("a ring");
    assert!(!hostile.write(ring.addr, ring.rkey, &[1; 64], None), "a response was overwritten");
    assert_honest_clients_served(world, &server, &mut honest);
}
