use farcall_core::identity::Identity;

use super::*;

const LIFE: u64 = 77;

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// 100 bytes at 1,000 of region 5, for everyone and until revoked.
fn usual() -> Grant {
    Grant {
        region: 5,
        part: 1_000..1_100,
        rights: Rights::all(),
        borrower: Borrower::Everyone,
        until: Instant::FAR_FUTURE,
    }
}

fn lent(grant: Grant) -> (Grants, Remote) {
    lent_of(4, grant)
}

/// By an owner of at most so many lends.
fn lent_of(most: usize, grant: Grant) -> (Grants, Remote) {
    let mut grants = Grants::new(LIFE, most);
    let remote = grants.lend(grant, 99, at(0)).unwrap();
    (grants, remote)
}

fn no_such_lend() -> MemoryError {
    MemoryError::NotPermitted(Denied::NoSuchLend)
}

#[test]
fn what_is_lent_is_granted_and_nothing_around_it() {
    let (grants, remote) = lent(usual());
    let check = |offset, len| {
        grants.check(&Remote { offset, len, ..remote }, Who::default(), Rights::READ, at(1))
    };
    let granted = |offset, len| Ok(Granted { region: 5, offset, len });
    let refused = |offset: u64, len| {
        Err(MemoryError::OutOfRange { offset: offset.wrapping_sub(1_000), len, of: 100 })
    };
    for (offset, len) in [(1_000, 100), (1_000, 0), (1_099, 1), (1_100, 0), (1_050, 50)] {
        assert_eq!(check(offset, len), granted(offset, len));
    }
    for (offset, len) in [
        (999, 1),
        (0, 100),
        (1_000, 101),
        (1_100, 1),
        (1_101, 0),
        (1_050, u64::MAX),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
    ] {
        assert_eq!(check(offset, len), refused(offset, len));
    }
}

#[test]
fn each_part_of_a_guessed_value_must_be_right() {
    let (grants, remote) = lent(usual());
    let check = |remote: Remote| grants.check(&remote, Who::default(), Rights::READ, at(1));
    assert!(check(remote).is_ok());
    assert_eq!(check(Remote { life: LIFE + 1, ..remote }), Err(MemoryError::FormerLife));
    for guess in [
        Remote { lend: 1, ..remote },
        Remote { lend: u32::MAX, ..remote },
        Remote { epoch: 0, ..remote },
        Remote { epoch: 2, ..remote },
        Remote { epoch: u32::MAX, ..remote },
        Remote { key: 98, ..remote },
    ] {
        assert_eq!(check(guess), Err(no_such_lend()), "{guess:?}");
    }
}

#[test]
fn a_lend_permits_what_it_says() {
    let kinds = [
        (Rights::READ, Denied::Read),
        (Rights::WRITE, Denied::Write),
        (Rights::ATOMIC, Denied::Atomic),
    ];
    for (right, _) in kinds {
        let (grants, remote) = lent(Grant { rights: right, ..usual() });
        for (needs, denied) in kinds {
            let checked = grants.check(&remote, Who::default(), needs, at(1));
            match needs == right {
                true => assert!(checked.is_ok()),
                false => assert_eq!(checked, Err(MemoryError::NotPermitted(denied))),
            }
        }
    }
}

#[test]
fn a_lend_to_one_is_none_for_others() {
    let [borrower, other] = ["anna", "bert"].map(Identity::named);
    let (grants, remote) =
        lent(Grant { borrower: Borrower::Identity(borrower.clone()), ..usual() });
    let check = |identity: Option<&Identity>| {
        let who = Who { identity, connection: None };
        grants.check(&remote, who, Rights::READ, at(1))
    };
    assert!(check(Some(&borrower)).is_ok());
    assert_eq!(check(Some(&other)), Err(no_such_lend()));
    assert_eq!(check(None), Err(no_such_lend()));
}

#[test]
fn a_lease_ends_at_its_moment_also_if_nobody_looks() {
    let (mut grants, remote) = lent(Grant { until: at(50), ..usual() });
    assert!(grants.check(&remote, Who::default(), Rights::READ, at(49)).is_ok());
    assert_eq!(
        grants.check(&remote, Who::default(), Rights::READ, at(50)),
        Err(MemoryError::Expired)
    );
    grants.expire(at(49));
    assert_eq!(grants.len(), 1);
    grants.expire(at(50));
    assert!(grants.is_empty());
    assert_eq!(
        grants.check(&remote, Who::default(), Rights::READ, at(60)),
        Err(MemoryError::Expired)
    );
    assert!(!grants.revoke(&remote), "it has ended");
}

#[test]
fn what_is_revoked_stays_so_when_its_number_is_used_again() {
    let (mut grants, first) = lent_of(1, usual());
    assert!(grants.revoke(&first));
    assert!(!grants.revoke(&first));
    let check =
        |grants: &Grants, remote| grants.check(&remote, Who::default(), Rights::READ, at(1));
    assert_eq!(check(&grants, first), Err(MemoryError::Revoked));
    let second = grants.lend(usual(), 100, at(2)).unwrap();
    assert_eq!(second.lend, first.lend);
    assert_eq!(check(&grants, first), Err(MemoryError::Revoked));
    assert!(check(&grants, second).is_ok());
    assert!(!grants.revoke(&first), "the former value ends nothing");
    assert!(check(&grants, second).is_ok());
}

#[test]
fn revoking_a_region_ends_its_lends_alone() {
    let (mut grants, first) = lent(usual());
    let second = grants.lend(Grant { until: at(9), ..usual() }, 100, at(0)).unwrap();
    let other = grants.lend(Grant { region: 6, ..usual() }, 101, at(0)).unwrap();
    assert_eq!(grants.revoke_region(5), [0, 1]);
    let check = |remote| grants.check(&remote, Who::default(), Rights::READ, at(1));
    assert_eq!(
        (check(first), check(second)),
        (Err(MemoryError::Revoked), Err(MemoryError::Revoked))
    );
    assert!(check(other).is_ok());
    assert!(grants.leases.is_empty(), "a lease of a revoked lend");
    assert_eq!(grants.revoke_region(5), [0; 0]);
}

#[test]
fn lends_are_bounded_and_leases_make_room() {
    let mut grants = Grants::new(LIFE, 2);
    let lend = |grants: &mut Grants, until, now| {
        grants.expire(at(now));
        grants.lend(Grant { until, ..usual() }, 1, at(now))
    };
    lend(&mut grants, at(10), 0).unwrap();
    lend(&mut grants, Instant::FAR_FUTURE, 0).unwrap();
    let full = Err(MemoryError::Full { what: Counted::Lends });
    assert_eq!(lend(&mut grants, Instant::FAR_FUTURE, 9), full);
    assert!(lend(&mut grants, Instant::FAR_FUTURE, 10).is_ok());
    assert_eq!(lend(&mut grants, Instant::FAR_FUTURE, 10), full);
}

#[test]
fn a_number_whose_epochs_are_used_up_is_not_used_again() {
    let mut grants = Grants::new(LIFE, 1);
    let first = grants.lend(usual(), 1, at(0)).unwrap();
    grants.slots[0].epoch = u32::MAX;
    let last = Remote { epoch: u32::MAX, ..first };
    assert!(grants.revoke(&last));
    assert_eq!(grants.lend(usual(), 2, at(0)), Err(MemoryError::Full { what: Counted::Lends }));
}

#[test]
fn a_hundred_thousand_lends_one_after_the_other_take_little_room() {
    let mut grants = Grants::new(LIFE, MAX_LENDS);
    for cycle in 0..100_000 {
        let remote =
            grants.lend(Grant { until: at(cycle + 100), ..usual() }, cycle, at(cycle)).unwrap();
        assert!(grants.revoke(&remote));
    }
    assert!(grants.slots.len() <= KEPT_ENDED + 2 && grants.leases.is_empty());
}

#[test]
fn a_lend_that_has_ended_is_told_why_also_after_a_thousand_others() {
    let mut grants = Grants::new(LIFE, MAX_LENDS);
    let expired = grants.lend(Grant { until: at(5), ..usual() }, 1, at(0)).unwrap();
    assert_eq!((grants.next_expiry(), grants.expire(at(4))), (at(5), vec![]));
    assert_eq!((grants.expire(at(6)), grants.next_expiry()), (vec![0], Instant::FAR_FUTURE));
    for key in 0..1_000 {
        let remote = grants.lend(usual(), key, at(6)).unwrap();
        grants.revoke(&remote);
    }
    assert_eq!(
        grants.check(&expired, Who::default(), Rights::READ, at(7)),
        Err(MemoryError::Expired)
    );
}
