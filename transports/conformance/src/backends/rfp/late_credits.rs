//! Requests that are given up on their way: what the server has sent and what it has left for them comes in any order.

use std::time::Duration;

use crate::{cases::deadlines::echo_or_miss, pattern, setup::Setup, world::World};

/// A call that is given up while its request is on its way leaves no credit behind that its slot's next call would take.
pub(super) fn late_credits_disturb_no_later_call(world: &World) {
    let server = world.serve(Setup::default().window(4));
    let mut client = world.client(&server);
    let message = pattern::make(3, 3 << 20);
    for step in 0..1200 {
        echo_or_miss(world, &mut client, &message, Duration::from_nanos(step * 500));
    }
}

/// What the server has left for calls that are given up is fetched before their slots are used again, however late a READ comes: the
/// ring has room for so much, and no more.
pub(super) fn calls_that_are_given_up_leave_room_in_the_ring(world: &World) {
    // Calls that are quick, so that the client goes on fetching.
    let server = world.serve(Setup::default().window(2).slot(64));
    let mut client = world.client(&server);
    let message = pattern::make(3, 400);
    for _ in 0..400 {
        for step in 0..100 {
            echo_or_miss(world, &mut client, &message, Duration::from_nanos(step * 50));
        }
        let echoed = world.call(&mut client, |c| c.start_echo(&message));
        assert!(echoed.is_ok_and(|echoed| echoed == message));
    }
}
