//! Clients that misuse the log, the message pool, and the switch.

pub(super) use crate::backends::slots::hostile_clients::*;
use crate::{
    backends::slots::{
        forge::{End, kind, message, op, request, stride},
        forge_pool::GROWN,
    },
    dice::Dice,
    hostile::{SLOT, assert_honest_clients_served, serve},
    service::ECHO,
    world::{Server, World},
};

/// Logs that grow beyond their memory, back, or by an unknown length, and logs whose words are nonsense.
pub(super) fn logs_that_grow_impossibly(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let all = u64::from((WINDOW + 2) * stride(SLOT));
    for end in [all + 8, 4, u64::MAX, u64::MAX - 7, 1 << 40] {
        let mut hostile = hostile_client(world, &server);
        let sent = hostile.grow(&end.to_le_bytes());
        assert!(!sent || hostile.is_dropped(), "a log of {end} bytes was accepted");
    }
    for len in [0, 1, 7, 9, 64] {
        let mut hostile = hostile_client(world, &server);
        let sent = hostile.grow(&vec![8; len]);
        assert!(!sent || hostile.is_dropped(), "an end of {len} bytes was accepted");
    }
    // The log is empty, so its first word says that the rest of the page is.
    let mut empty = hostile_client(world, &server);
    assert!(empty.grow(&64u64.to_le_bytes()));
    assert!(!empty.grow(&8u64.to_le_bytes()) || empty.is_dropped(), "it went back");
    assert_honest_clients_served(world, &server, &mut honest);
}

/// A client that has a place in the pool.
fn client_with_place(world: &World, server: &Server) -> End {
    let mut client = hostile_client(world, server);
    // In a short slice the first answers may come too late to bring it in.
    for generation in 1..1000 {
        assert!(client.send(0, &request(generation, ECHO, b"knock")));
        let (_, answer) = client.next_message().expect("an answer");
        assert_eq!(answer, message(generation, kind::INLINE, b"\0\0\0\0\0\0\0\0knock"));
        if client.place.is_some() {
            return client;
        }
    }
    panic!("a client that is served never gets a place");
}

/// Trailers with lengths beyond the cell, slots outside the window, and any bits; and stamps of others, which are ignored.
pub(super) fn nonsense_in_cells(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut dice = Dice::new(0x7a11);
    let first = 1;
    let long = |slot: u32, len: u32| u64::from(slot | len << 10) << 32 | first;
    let nonsense =
        [long(0, SLOT), long(0, 0x3f_ffff), long(WINDOW, 20), long(0x3ff, 0), long(0, 0)];
    for word in nonsense.into_iter().chain((0..20).map(|_| dice.roll() << 32 | first)) {
        let mut hostile = client_with_place(world, &server);
        let sent = write_cell(&mut hostile, 0, word);
        // It may have been told to leave before.
        let has_left = hostile.place.is_none();
        assert!(!sent || has_left || hostile.is_dropped(), "the trailer {word:#x} was accepted");
        let mut other = client_with_place(world, &server);
        if write_cell(&mut other, 1, word) && other.place.is_some() {
            assert!(other.send(1, &request(1, ECHO, b"still here")));
            assert!(other.next_message().is_some(), "a foreign stamp was taken for its own");
        }
        assert_honest_clients_served(world, &server, &mut honest);
    }
}

/// Writes a request into the first cell of the client's place, with a stamp that is wrong by so much.
fn write_cell(client: &mut End, wrong: u64, word: u64) -> bool {
    let Some(place) = client.place else { return true };
    let pool = client.pool.clone().expect("a pool");
    let stamp = (u64::from(pool.key) << 32 | u64::from(client.stays)).wrapping_add(wrong);
    let request = request(1, ECHO, b"");
    let bytes = [&request[..], &stamp.to_le_bytes(), &word.to_le_bytes()].concat();
    let at = pool.first_cell_end(place) - bytes.len() as u64;
    let imm = client.immediate(op::MESSAGE, 0);
    client.write(at, pool.rkey, &bytes, Some(imm))
}

/// A place that the client has left, where the device keeps clients apart. Whether it is told to leave depends on groups and
/// slices.
pub(super) fn a_place_that_was_left(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut hostile = client_with_place(world, &server);
    let (place, pool) = (hostile.place, hostile.pool.clone().expect("a pool"));
    for generation in 1..100 {
        let mut other = hostile_client(world, &server);
        assert!(other.send(0, &request(generation, ECHO, b"knock")));
        assert!(other.next_message().is_some(), "a client of another group is not served");
        if hostile.has_failed() || hostile.place.is_none() {
            break;
        }
    }
    if let (Some(place), None, Some(_)) = (place, hostile.place, pool.next_rkey) {
        // The server hears of it, and takes the key back, before it answers this.
        assert!(hostile.send(1, &request(1, ECHO, b"out of the log")));
        assert!(hostile.next_message().is_some(), "it is not served any more");
        let is_written = hostile.write(pool.first_cell_end(place) - 8, pool.rkey, &[0xff; 8], None);
        assert!(!is_written, "the place was written");
    }
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Places of others, under each key that a client knows or can guess, where the device keeps clients apart.
pub(super) fn places_of_others(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut other = client_with_place(world, &server);
    let theirs = other.pool.clone().expect("a pool");
    if theirs.next_rkey.is_none() {
        return;
    }
    for key in ["its own", "the other's", "the other's next", "the pool's"] {
        let mut hostile = client_with_place(world, &server);
        let pool = hostile.pool.clone().expect("a pool");
        let rkey = match key {
            "its own" => pool.rkey,
            "the other's" => theirs.rkey,
            "the other's next" => theirs.next_rkey.unwrap_or_default(),
            _ => pool.region.rkey,
        };
        let Some(place) = other.place else { return };
        let end = pool.first_cell_end(place);
        let is_written = hostile.write(end - 8, rkey, &[0xff; 8], None);
        assert!(!is_written, "place {place} was written under {key} key");
    }
    assert!(other.send(0, &request(9, ECHO, b"still here")));
    assert!(other.next_message().is_some(), "a client is not served any more");
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Modes that there are not, and a place left that nobody wanted back.
pub(super) fn modes_that_there_are_not(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    for argument in [0, 2, 3, 0x3ff] {
        let mut hostile = hostile_client(world, &server);
        let sent = hostile.operate(op::MODE, argument);
        assert!(!sent || hostile.is_dropped(), "mode {argument} was accepted");
    }
    // Its end of the log is where it was: nothing.
    let mut hostile = hostile_client(world, &server);
    for _ in 0..300 {
        assert!(hostile.grow(&0u64.to_le_bytes()), "a log that has not grown breaks no rule");
    }
    assert_ne!(GROWN, 0);
    drop(hostile);
    assert_honest_clients_served(world, &server, &mut honest);
}
