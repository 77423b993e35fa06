//! Many lives of a group, each from a seed; and planted bugs, which must be found.

use super::world::World;
use crate::planted::{Bug, plant};

/// How many seeds are tried. `FARCALL_REPLICATION_SEEDS` is another number, and `FARCALL_REPLICATION_FIRST_SEED` where they begin.
const SEEDS: u64 = 150;

/// A planted bug must be found within so many.
const SEEDS_FOR_BUGS: u64 = 200;

#[test]
fn nothing_acknowledged_is_lost_or_applied_twice() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let seeds = number("FARCALL_REPLICATION_SEEDS").unwrap_or(SEEDS);
    let first = number("FARCALL_REPLICATION_FIRST_SEED").unwrap_or(0);
    let (mut acknowledged, mut kills, mut epochs) = (0, 0, 0);
    for seed in first..first + seeds {
        let world = World::run(seed).unwrap_or_else(|problem| panic!("{problem}"));
        acknowledged += world.acknowledged;
        kills += world.kills;
        epochs += world.epochs;
        assert!(world.primaries() <= 1, "seed {seed}: all is well, and there are two primaries");
    }
    println!("{seeds} seeds: {acknowledged} acknowledged, {kills} kills, {epochs} epochs");
    assert!(acknowledged > 30 * seeds && kills > seeds && epochs > 4 * seeds);
}

fn is_found(bug: Bug) {
    plant(Some(bug));
    let found = (0..SEEDS_FOR_BUGS).find_map(|seed| World::run(seed).err());
    plant(None);
    println!("{bug:?}: {}", found.unwrap_or_else(|| panic!("{bug:?} is not found")));
}

#[test]
fn an_acknowledgement_before_the_last_replica_is_found() {
    is_found(Bug::AcknowledgedBeforeLast);
}

#[test]
fn a_stale_epoch_that_is_accepted_is_found() {
    is_found(Bug::StaleEpochAccepted);
}

#[test]
fn a_ring_that_is_reused_early_is_found() {
    is_found(Bug::RingReusedEarly);
}

#[test]
fn a_torn_tail_that_is_accepted_is_found() {
    is_found(Bug::TornTailAccepted);
}

#[test]
fn a_catch_up_that_skips_a_record_is_found() {
    is_found(Bug::CatchUpSkips);
}

#[test]
fn a_retry_that_is_applied_twice_is_found() {
    is_found(Bug::RetryAppliedTwice);
}

#[test]
fn a_member_that_does_not_fence_is_found() {
    is_found(Bug::NotFenced);
}

#[test]
fn a_read_that_is_not_confirmed_is_found() {
    is_found(Bug::UnconfirmedRead);
}

#[test]
fn a_level_that_says_synced_before_the_disk_does_is_found() {
    is_found(Bug::SyncedBeforeDisk);
}
