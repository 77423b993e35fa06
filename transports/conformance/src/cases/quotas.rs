//! Clients that call more often than they may.

use farcall_core::{Backpressure, RpcError, metrics::RefusalReason};

use crate::{setup::Setup, world::World};

/// What a client counts its calls under.
const ID: u64 = 79;

/// Calls beyond a client's quota do not run, and take nothing from other clients.
pub fn calls_beyond_the_quota_do_not_run(world: &World) {
    const CALLS: u32 = 10;
    let start = world.now();
    let server = world.serve(Setup::default().calls_per_second(CALLS));
    let (mut greedy, mut modest) = (world.client(&server), world.client(&server));
    let mut refused = 0;
    for _ in 0..10 * CALLS {
        match world.call(&mut greedy, |c| c.start_tally(ID)) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error, RpcError::Overloaded(Backpressure::Quota));
                refused += 1;
            }
        }
    }
    let ran = world.call(&mut modest, |c| c.start_tallied(ID)).expect("another client's call");
    let passed = (world.now() - start).as_secs_f64() * f64::from(CALLS);
    let most = u64::from(CALLS) + passed as u64 + 1;
    assert!(ran <= most, "{ran} calls ran where the quota allows {most}");
    assert_eq!(ran + refused, u64::from(10 * CALLS));
    assert_eq!(server.refused(RefusalReason::OverQuota), refused);
}
