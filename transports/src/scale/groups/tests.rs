//! Clients that come, go, wait and work: which groups they are in, and when each is served.

use proptest::prelude::*;

use super::*;

fn joined(size: u32, clients: u32) -> Groups {
    let mut groups = Groups::new(size);
    (0..clients).for_each(|client| groups.join(client));
    groups
}

#[test]
fn the_only_group_grows_to_three_halves_and_is_split() {
    assert_eq!(joined(40, 60).sizes(), [60]);
    assert_eq!(joined(40, 61).sizes(), [30, 31]);
    assert_eq!(joined(1, 3).sizes(), [1, 1, 1]);
}

#[test]
fn one_of_several_groups_is_split_when_all_have_the_wanted_size() {
    assert_eq!(joined(40, 80).sizes(), [40, 40]);
    assert_eq!(joined(40, 81).sizes(), [20, 40, 21]);
    assert_eq!(joined(40, 120).sizes(), [40, 40, 40]);
    assert_eq!(joined(4, 400).sizes(), [4; 100]);
}

#[test]
fn a_group_below_half_joins_one_with_room() {
    let mut groups = joined(4, 7);
    assert_eq!(groups.sizes(), [3, 4]);
    groups.leave(0);
    assert_eq!(groups.sizes(), [2, 4]);
    groups.leave(1);
    assert_eq!(groups.sizes(), [5]);
    (2..7).for_each(|client| groups.leave(client));
    assert_eq!(groups.sizes(), [0], "one group is left when all have gone");
}

/// Serves the next group, of which each client has all its requests handled.
fn serve_next(groups: &mut Groups) -> u64 {
    let length = groups.go_on(SLICE);
    serve_members(groups);
    length
}

/// The members of the group that is served wait no more.
fn serve_members(groups: &mut Groups) {
    groups.take_waiting();
}

/// Ends the slice with this work of all that were served, and goes on.
fn work_and_go_on(groups: &mut Groups, work: impl Fn(u32) -> Work) -> u64 {
    for client in groups.groups[groups.served].members.clone() {
        groups.record(client, work(client));
    }
    serve_next(groups)
}

/// A usual slice.
const SLICE: u64 = 64_000;

fn sent(requests: u32) -> Work {
    Work { requests, bytes: 64 * u64::from(requests), nanos: SLICE }
}

#[test]
fn groups_that_wait_come_in_the_order_in_which_they_began_to() {
    let mut groups = joined(1, 4);
    assert_eq!(groups.next(), None);
    groups.wait(3);
    groups.wait(1);
    assert_eq!(groups.next(), Some(3));
    groups.go_on(SLICE);
    assert!(groups.is_served(3));
    assert!(groups.have_waiting());
    assert_eq!(groups.take_waiting(), [3]);
    assert!(!groups.have_waiting());
    assert_eq!(groups.next(), Some(1));
    // It waits again, after the other.
    groups.wait(3);
    groups.go_on(SLICE);
    assert!(groups.is_served(1));
    // Its slice was too short for it.
    groups.take_waiting();
    groups.wait_on(1);
    assert_eq!(groups.next(), Some(3));
    groups.go_on(SLICE);
    groups.wait(2);
    assert_eq!(groups.next(), Some(1));
}

#[test]
fn members_of_a_group_come_in_the_order_in_which_they_began_to_wait() {
    let mut groups = joined(4, 4);
    [2, 0, 3].into_iter().for_each(|client| groups.wait(client));
    assert_eq!(groups.take_waiting(), [2, 0, 3]);
    groups.wait(2);
    groups.wait_on(3);
    groups.wait_on(0);
    assert_eq!(groups.waiting(0).collect::<Vec<_>>(), [0, 2, 3]);
    assert_eq!(groups.take_waiting(), [0, 3, 2]);
}

#[test]
fn a_long_call_that_waits_for_others_of_its_group_does_not_bring_its_group_on_before_others() {
    // Of the first group; of the second; of the third.
    let (mut groups, of_each) = (joined(4, 12), [0, 1, 3, 2]);
    of_each.into_iter().for_each(|client| groups.wait(client));
    serve_members(&mut groups);
    // Another's call was taken.
    groups.wait_in_group(1);
    groups.wait(0);
    let order = [3, 2, 1].map(|client| {
        groups.go_on(SLICE);
        assert!(groups.is_served(client));
        groups.take_waiting().to_vec()
    });
    assert_eq!(order, [vec![3], vec![2], vec![1, 0]], "and is still before those that came later");
}

/// Slices until the groups are as they stay, while all clients wait again at once. Gives how long the slices of the served
/// groups are then, in turn.
fn settle(groups: &mut Groups, clients: u32, work: impl Fn(u32) -> Work) -> Vec<u64> {
    for _ in 0..20 * groups.groups.len() {
        (0..clients).for_each(|client| groups.wait(client));
        work_and_go_on(groups, &work);
    }
    let count = groups.groups.len();
    let slices = (0..count).map(|_| {
        (0..clients).for_each(|client| groups.wait(client));
        work_and_go_on(groups, &work)
    });
    slices.collect()
}

#[test]
fn busy_clients_come_together_and_get_more_time() {
    let mut groups = joined(40, 120);
    // One in five is busy.
    let work = |client| sent(if client % 5 == 0 { 100 } else { 1 });
    let mut slices = settle(&mut groups, 120, work);
    let busy = |members: &Vec<u32>| members.iter().filter(|it| **it % 5 == 0).count();
    let mixed = groups.groups.iter().filter(|group| {
        let busy = busy(&group.members);
        busy > 0 && busy < group.members.len()
    });
    assert_eq!(mixed.count(), 0, "{:?}", groups.sizes());
    slices.sort_unstable();
    assert_eq!((slices[0], slices.last()), (SLICE / 4, Some(&(2 * SLICE))));
    // They become like the others: their slices become the usual ones.
    let slices = settle(&mut groups, 120, |_| sent(10));
    assert!(slices.iter().all(|nanos| (SLICE / 2..=3 * SLICE / 2).contains(nanos)));
}

#[test]
fn groups_of_like_clients_stay_as_they_are() {
    let mut groups = joined(8, 40);
    let members = |groups: &Groups| -> Vec<_> {
        groups.groups.iter().map(|group| group.members.clone()).collect()
    };
    let before = members(&groups);
    let mut dice = 1u32;
    for _ in 0..1000 {
        (0..40).for_each(|client| groups.wait(client));
        // Rates vary by a third.
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        work_and_go_on(&mut groups, |client| sent(100 + (dice >> (client % 16)) % 34));
    }
    assert_eq!(members(&groups), before);
}

#[test]
fn a_client_waits_for_one_slice_of_each_other_group_at_most() {
    let mut groups = joined(4, 40);
    let count = groups.groups.len();
    for late in 0..40 {
        // All others have requests at once again when they were served.
        let mut slices = 0;
        groups.wait(late);
        while groups.find(late).unwrap().waits {
            serve_next(&mut groups);
            (0..40).filter(|it| *it != late).for_each(|it| groups.wait(it));
            slices += 1;
            assert!(slices <= count, "{slices} slices");
        }
    }
}

proptest! {
    #[test]
    fn no_client_waits_for_more_slices_than_clients_waited_before_it(
        size in 1..5u32,
        steps: Vec<(u8, u8, u16)>,
    ) {
        // Each client that waits, and how many slices it will have waited at most.
        let mut bounds = std::collections::BTreeMap::new();
        let mut groups = Groups::new(size);
        for (what, client, requests) in steps {
            let client = u32::from(client % 40);
            match what % 8 {
                0 => groups.join(client),
                1 => {
                    groups.leave(client);
                    bounds.remove(&client);
                }
                2..5 if groups.contains(client) => {
                    groups.wait(client);
                    let others = bounds.len() + 1;
                    bounds.entry(client).or_insert(others);
                }
                _ => {
                    work_and_go_on(&mut groups, |it| {
                        sent(u32::from(requests).rotate_left(it) % 1000)
                    });
                    for bound in bounds.values_mut() {
                        *bound -= 1;
                    }
                }
            }
            // Also those that came into the group that is served.
            serve_members(&mut groups);
            bounds.retain(|it, _| groups.find(*it).unwrap().waits);
            for (client, bound) in &bounds {
                prop_assert!(*bound > 0, "client {} has waited for too long", client);
            }
        }
    }

    #[test]
    fn whatever_comes_goes_and_works_each_client_is_in_one_group(
        size in 1..9u32,
        steps: Vec<(u8, u8, u8)>,
    ) {
        let mut groups = Groups::new(size);
        let mut here = std::collections::BTreeMap::new();
        for (what, client, requests) in steps {
            let client = u32::from(client % 40);
            match what % 4 {
                0 | 1 => {
                    groups.join(client);
                    here.entry(client).or_insert(false);
                }
                2 => {
                    groups.leave(client);
                    here.remove(&client);
                }
                _ => {
                    let waits = what & 4 != 0;
                    if waits {
                        groups.wait(client);
                        here.entry(client).and_modify(|it| *it = true);
                    } else {
                        for client in groups.take_waiting() {
                            here.insert(*client, false);
                        }
                    }
                    groups.record(client, sent(requests.into()));
                                    let length = groups.go_on(SLICE);
                    prop_assert!((SLICE / 4..=2 * SLICE).contains(&length));
                }
            }
            let mut members: Vec<_> =
                groups.groups.iter().flat_map(|group| group.members.clone()).collect();
            members.sort_unstable();
            prop_assert_eq!(members, here.keys().copied().collect::<Vec<_>>());
            let waiting: usize = groups.groups.iter().map(|group| group.waiting).sum();
            prop_assert_eq!(waiting, here.values().filter(|waits| **waits).count());
            let priority: u64 = here.keys().map(|client| groups.priority_of(*client)).sum();
            prop_assert_eq!(groups.priority, priority);
            prop_assert!(groups.served < groups.groups.len());
            prop_assert!(groups.sizes().iter().all(|len| *len <= groups.sizes.most));
            let large_enough = |len: &usize| *len > 0 || groups.groups.len() == 1;
            prop_assert!(groups.sizes().iter().all(large_enough));
            for client in here.keys() {
                let group = groups.find(*client).unwrap().group;
                prop_assert!(groups.groups[group].members.contains(client));
            }
        }
    }
}

#[test]
fn clients_of_a_caller_are_in_the_same_group_whoever_comes_and_goes() {
    let mut groups = Groups::by_caller(3, 2);
    for client in 0..30 {
        groups.join_of(client, u64::from(client / 5));
    }
    assert_eq!(groups.sizes(), [10, 10, 10], "no group is split");
    for client in 0..5 {
        groups.wait(client);
    }
    assert_eq!((groups.served(), groups.has_waiting(0), groups.has_waiting(1)), (0, true, false));
    (10..30).for_each(|client| groups.leave(client));
    assert_eq!(groups.sizes(), [5, 5, 0], "none is merged");
    groups.wait(7);
    groups.go_on_to(1);
    assert_eq!(groups.take_waiting(), [7]);
    groups.join_of(10, u64::MAX);
    assert_eq!(groups.sizes()[(u64::MAX % 3) as usize], 6);
}
