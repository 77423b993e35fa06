//! Clients that misuse the receives, which all clients of a server thread share.

pub(super) use crate::backends::slots::hostile_clients::*;
use crate::{
    backends::slots::forge::{op, request},
    hostile::{SLOT, assert_honest_clients_served, serve},
    service::ECHO,
    world::World,
};

/// An immediate that announces a message, but comes with a WRITE: the buffer of the receive holds what another client sent.
pub(super) fn writes_where_sends_are_due(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    for slot in [0, 1, WINDOW - 1] {
        let mut hostile = hostile_client(world, &server);
        let imm = hostile.immediate(op::MESSAGE, slot);
        let sent = hostile.write(0, 0, &[], Some(imm));
        assert!(!sent || hostile.is_dropped(), "a WRITE was taken for a message");
        assert!(hostile.next_message().is_none(), "another client's bytes came back");
        assert_honest_clients_served(world, &server, &mut honest);
    }
}

/// SENDs that no receive holds end their own connection, and leave the shared queue to the others.
pub(super) fn sends_longer_than_a_receive(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    // More often than there are receives in reserve.
    for _ in 0..300 {
        let mut hostile = hostile_client(world, &server);
        let long = request(1, ECHO, &vec![7; 4 * SLOT as usize]);
        let sent = hostile.send(0, &long);
        assert!(!sent || hostile.is_dropped(), "a message longer than its receive was accepted");
    }
    assert_honest_clients_served(world, &server, &mut honest);
}
