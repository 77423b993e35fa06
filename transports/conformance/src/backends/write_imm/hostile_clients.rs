//! Clients that WRITE where or when they must not.

pub(super) use crate::backends::slots::hostile_clients::*;
use crate::{
    backends::slots::forge::request,
    hostile::{SLOT, assert_honest_clients_served, serve},
    service::ECHO,
    world::World,
};

/// WRITEs outside the region, under its key and under others.
pub(super) fn writes_outside_the_region(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let probe = hostile_client(world, &server);
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
        let mut hostile = hostile_client(world, &server);
        let offset = |addr: u64| addr.wrapping_sub(region.addr).wrapping_add(hostile.theirs.addr);
        let key = if rkey == region.rkey { hostile.theirs.rkey } else { rkey };
        let addr = if addr == 0 { 0 } else { offset(addr) };
        let sent = hostile.write(addr, key, &bytes, None);
        assert!(!sent, "a WRITE to {addr:#x} under {key:#x} succeeded");
        drop(hostile);
        assert_honest_clients_served(world, &server, &mut honest);
    }
}

/// A slot that changes while the server reads it.
pub(super) fn a_slot_that_changes_under_the_reader(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let mut hostile = hostile_client(world, &server);
    for generation in 1..300u32 {
        let len = 100 + generation as usize % 800;
        if !hostile.send(0, &request(generation, ECHO, &vec![1; len])) {
            // It was dropped: the last change hit the header.
            hostile = hostile_client(world, &server);
            continue;
        }
        let (key, at) = (hostile.theirs.rkey, hostile.slot_address(0));
        for fill in 0..4u8 {
            let _ = hostile.write(at, key, &vec![fill.wrapping_mul(85); len], None);
        }
        if let Some((_, answer)) = hostile.next_message() {
            assert!(answer.len() <= SLOT as usize);
        }
    }
    assert_honest_clients_served(world, &server, &mut honest);
}
