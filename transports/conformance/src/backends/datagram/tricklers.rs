//! Clients that hold memory for large messages and move on in small steps, so that they never stand still.

use farcall::RefusalReason;

use super::{
    forge::{End, kind, message},
    hostile_clients::{ask_for_large_responses, hostile_client_with_window},
};
use crate::{
    hostile::{LIMIT, assert_honest_clients_served, assert_served_after_message_limit, serve},
    world::World,
};

const WINDOW: u32 = 64;

/// Hostile clients that begin with this hold all memory; they do one more step every few seconds, and are dropped when a message has
/// taken too long.
fn assert_dropped(world: &World, begin: impl Fn(&mut End), step: impl Fn(&mut End, u32)) {
    let (server, mut honest) = serve(world, WINDOW);
    // Each may hold half of the memory.
    let mut hostile = [(); 3].map(|()| hostile_client_with_window(world, &server, WINDOW));
    hostile.iter_mut().for_each(begin);
    let mut steps = 0;
    assert_served_after_message_limit(world, &mut honest, || {
        hostile.iter_mut().for_each(|end| step(end, steps));
        steps += 1;
    });
    assert!(server.refused(RefusalReason::Stalled) > 0);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Clients that send large requests part by part.
pub(super) fn clients_that_send_part_by_part_are_dropped(world: &World) {
    let announce = |end: &mut End| {
        for slot in 0..end.terms.window as u16 {
            end.send(&message(kind::ANNOUNCE, slot, 1, &LIMIT.to_le_bytes()));
        }
    };
    assert_dropped(world, announce, |end, number| {
        let part = vec![7; end.theirs.mtu as usize - 30];
        end.send(&message(kind::PART, 0, 1, &[&number.to_le_bytes()[..], &part].concat()));
    });
}

/// Clients that fetch large responses part by part.
pub(super) fn clients_that_fetch_part_by_part_are_dropped(world: &World) {
    assert_dropped(world, ask_for_large_responses, |end, number| {
        // From that part on, only that part.
        let range = [&number.to_le_bytes()[..], &1_u64.to_le_bytes()].concat();
        end.send(&message(kind::ASK, 0, 1, &range));
    });
}
