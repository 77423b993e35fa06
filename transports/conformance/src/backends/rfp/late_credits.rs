//! Credits for chunks are sent, and may come later than what is fetched.

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
