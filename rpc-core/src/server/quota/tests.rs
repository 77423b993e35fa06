//! Clients over their quotas against one server thread's dispatcher, in virtual time.

use super::accounts::{Accounts, Client, SharedAccounts};
use super::limits::ClientQuota;
use crate::error::{Backpressure, RpcError};
use crate::identity::Identity;
use crate::metrics::RefusalReason;
use crate::server::CancelPolicy;
use crate::server::tests::{Bench, bench_of, client};
use crate::support::service::{Bytes, Echo, Later};
use crate::time::Instant;
use core::sync::atomic::Ordering::SeqCst;
use core::time::Duration;
use std::sync::Arc;

const OVER_QUOTA: Bytes = Err(RpcError::Overloaded(Backpressure::Quota));

fn bench(quota: ClientQuota) -> Bench {
    let accounts = Accounts::new(SharedAccounts::new(&quota).expect("it limits something"));
    bench_of(CancelPolicy::Abort, Some(accounts))
}

/// Handlers take so long from now on.
fn be_slow(bench: &Bench, time: Duration) {
    let clock = bench.net.clock.clone();
    *bench.test.slow.lock().expect("no panic") = Some(Arc::new(move || clock.advance(time)));
}

/// Calls until one is refused. Returns how many ran.
fn calls_until_refused(bench: &mut Bench) -> u64 {
    let before = bench.test.ran.load(SeqCst);
    for _ in 0..1000 {
        match bench.call::<Echo, _>(b"one") {
            Ok(_) => {}
            refused => {
                assert_eq!(refused, OVER_QUOTA);
                assert!(!refused.unwrap_err().may_have_run());
                return bench.test.ran.load(SeqCst) - before;
            }
        }
    }
    panic!("no call was refused");
}

fn pass(bench: &mut Bench, time: Duration) {
    bench.net.clock.advance(time);
    // Where a program sleeps; it reads the clock.
    bench.client.park(Some(bench.net.clock.now()));
}

#[test]
fn a_client_that_calls_too_often_is_refused_before_its_calls_run() {
    let mut bench = bench(ClientQuota::new().calls_per_second(5));
    assert_eq!(calls_until_refused(&mut bench), 5);
    let snapshot = bench.metrics.snapshot();
    assert_eq!(snapshot.refused(RefusalReason::OverQuota), 1);
    assert_eq!(bench.errors("echo"), [("overloaded", 1)]);
    // Refused calls cost nothing of the quota.
    (0..20).for_each(|_| assert_eq!(calls_until_refused(&mut bench), 0));
    pass(&mut bench, Duration::from_millis(200));
    assert_eq!(calls_until_refused(&mut bench), 1);
    pass(&mut bench, Duration::from_secs(60));
    assert_eq!(calls_until_refused(&mut bench), 5);
    assert_eq!(bench.net.unanswered(), 0);
}

#[test]
fn a_client_over_its_quota_takes_nothing_from_another() {
    let mut bench = bench(ClientQuota::new().calls_per_second(3));
    let mut other = client(&bench.net, &bench.net.site());
    assert_eq!(calls_until_refused(&mut bench), 3);
    std::mem::swap(&mut bench.client, &mut other);
    assert_eq!(calls_until_refused(&mut bench), 3);
    std::mem::swap(&mut bench.client, &mut other);
    assert_eq!(calls_until_refused(&mut bench), 0);
}

#[test]
fn unknown_methods_count_as_calls() {
    let mut bench = bench(ClientQuota::new().calls_per_second(2));
    for _ in 0..2 {
        let unknown = bench.call::<crate::support::service::Unknown, _>(b"");
        assert!(matches!(unknown, Err(RpcError::NoSuchMethod { .. })), "{unknown:?}");
    }
    assert_eq!(bench.call::<Echo, _>(b""), OVER_QUOTA);
}

#[test]
fn a_client_whose_handlers_take_too_much_time_is_refused_until_it_has_paid() {
    let mut bench = bench(ClientQuota::new().cpu_per_second(Duration::from_millis(100)));
    be_slow(&bench, Duration::from_millis(2));
    // A second's worth is 100 ms, and while it is used up in 100 ms another 10 ms flow in: the call that takes the last of it runs.
    assert_eq!(calls_until_refused(&mut bench), 56);
    pass(&mut bench, Duration::from_millis(200));
    assert_eq!(calls_until_refused(&mut bench), 11);
    // One long call is paid off for as long as it takes.
    pass(&mut bench, Duration::from_secs(60));
    be_slow(&bench, Duration::from_secs(1));
    let mut long = bench.start::<Echo, Bytes>(b"long");
    bench.turn();
    let _ = bench.take(&mut long);
    be_slow(&bench, Duration::ZERO);
    pass(&mut bench, Duration::from_millis(8_900));
    assert_eq!(calls_until_refused(&mut bench), 0);
    pass(&mut bench, Duration::from_millis(200));
    assert_eq!(bench.call::<Echo, _>(b"paid"), Ok(b"paid".to_vec()));
}

#[test]
fn polls_of_async_handlers_take_time_and_waiting_takes_none() {
    let mut bench = bench(ClientQuota::new().cpu_per_second(Duration::from_millis(100)));
    let mut call = bench.start::<Later, Bytes>(b"later");
    bench.turn();
    // Longer than the quota gives in a minute.
    bench.net.clock.advance(Duration::from_millis(9));
    assert_eq!(bench.call::<Echo, _>(b"meanwhile"), Ok(b"meanwhile".to_vec()));
    be_slow(&bench, Duration::from_millis(500));
    bench.test.gate.open();
    bench.turn();
    let _ = bench.take(&mut call);
    be_slow(&bench, Duration::ZERO);
    pass(&mut bench, Duration::from_millis(3_900));
    assert_eq!(calls_until_refused(&mut bench), 0);
    pass(&mut bench, Duration::from_millis(200));
    assert_eq!(bench.call::<Echo, _>(b"paid"), Ok(b"paid".to_vec()));
}

#[test]
fn the_connections_of_an_identity_share_its_quota_on_all_threads() {
    let quota = ClientQuota::new().calls_per_second(4).cpu_per_second(Duration::from_millis(100));
    let shared = SharedAccounts::new(&quota).expect("it limits something");
    let mut threads = [(); 2].map(|()| Accounts::new(Arc::clone(&shared)));
    let of = |index| Client { transport: 0, index, generation: 9 };
    let now = Instant::from_nanos(1);
    for thread in &mut threads {
        thread.identify(of(0), Some(&Identity::named("quota-alice")), now);
        thread.identify(of(1), Some(&Identity::named("quota-alice")), now);
        thread.identify(of(2), Some(&Identity::named("quota-bob")), now);
    }
    for (thread, index) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert!(threads[thread].admit(of(index), now));
    }
    for (thread, index) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert!(!threads[thread].admit(of(index), now));
    }
    assert!(threads[0].admit(of(2), now), "bob has a quota of his own");
    threads[1].charge(of(2), 200_000_000, now);
    assert!(!threads[0].admit(of(2), now), "and has used up his CPU time on the other thread");
    // A connection of nobody that has the index of one of hers.
    let next = Client { generation: 10, ..of(0) };
    assert!(threads[0].admit(next, now));
    assert!(threads[0].admit(Client { transport: 3, ..of(0) }, now));
}

#[test]
fn identities_are_remembered_while_they_have_connections_or_less_than_their_quota() {
    let quota = ClientQuota::new().calls_per_second(4);
    let shared = SharedAccounts::new(&quota).expect("it limits something");
    let mut accounts = Accounts::new(Arc::clone(&shared));
    let client = |index, generation| Client { transport: 0, index, generation };
    let at = |millis: u64| Instant::from_nanos(1_000_000 * millis);
    let (stays, used) = (client(0, 0), 9_000);
    accounts.identify(stays, Some(&Identity::named("stays")), at(1));
    for number in 0..10_000 {
        let now = at(number / 100 + 1);
        let next = client(1, number as u32);
        accounts.identify(next, Some(&Identity::named(&format!("number {number}"))), now);
        while number == used && accounts.admit(next, now) {}
    }
    assert!(shared.identities() <= 3_000, "{} are remembered", shared.identities());
    let (soon, later) = (at(110), at(10_000));
    let again = client(2, 0);
    accounts.identify(again, Some(&Identity::named(&format!("number {used}"))), soon);
    assert!(!accounts.admit(again, soon), "who connects again has no more than before");
    assert!(accounts.admit(again, later));
    // The other connection is still known by its name.
    while accounts.admit(stays, later) {}
    accounts.identify(again, Some(&Identity::named("stays")), later);
    assert!(!accounts.admit(again, later));
}

#[test]
fn what_other_threads_have_counted_is_not_counted_again() {
    let shared = SharedAccounts::new(&ClientQuota::new().calls_per_second(1)).expect("a limit");
    let mut accounts = Accounts::new(shared).counted_elsewhere(Some(2));
    let of = |transport| Client { transport, index: 0, generation: 0 };
    for _ in 0..10 {
        assert!(accounts.admit(of(2), Instant::ZERO));
    }
    assert!(accounts.admit(of(1), Instant::ZERO) && !accounts.admit(of(1), Instant::ZERO));
}

#[test]
fn quotas_of_nothing_are_refused() {
    for quota in [
        ClientQuota::new().calls_per_second(0),
        ClientQuota::new().cpu_per_second(Duration::ZERO),
        ClientQuota::new().connections(0),
    ] {
        assert!(quota.problem().is_some(), "{quota:?}");
    }
    let sound = ClientQuota::new().calls_per_second(1).connections(1);
    assert_eq!(sound.cpu_per_second(Duration::from_nanos(1)).problem(), None);
    assert!(SharedAccounts::new(&ClientQuota::new().connections(1)).is_none());
}
