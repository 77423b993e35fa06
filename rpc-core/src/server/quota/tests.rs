//! Clients over their quotas against one server thread's dispatcher, in virtual time.

use super::accounts::{Accounts, SharedAccounts};
use super::limits::ClientQuota;
use crate::error::{Backpressure, RpcError};
use crate::identity::Identity;
use crate::metrics::RefusalReason;
use crate::server::CancelPolicy;
use crate::server::clients::{ClientKey, Clients};
use crate::server::tests::{Bench, bench_of, client};
use crate::support::service::{Bytes, Echo, Later};
use crate::time::Instant;
use crate::transport::{ClientId, ClientInfo, ConnectionId};
use core::sync::atomic::Ordering::SeqCst;
use core::time::Duration;
use std::sync::Arc;

const OVER_QUOTA: Bytes = Err(RpcError::Overloaded(Backpressure::Quota));

fn bench(quota: ClientQuota) -> Bench {
    let accounts = Accounts::new(SharedAccounts::new(&quota).expect("it limits something"));
    bench_of(CancelPolicy::Abort, Some(accounts))
}

/// The clients of one thread, and their accounts.
struct Thread {
    clients: Clients,
    accounts: Accounts,
}

impl Thread {
    fn new(shared: &Arc<SharedAccounts>) -> Thread {
        Thread { clients: Clients::default(), accounts: Accounts::new(Arc::clone(shared)) }
    }

    fn join(&mut self, client: ClientKey, info: ClientInfo, now: Instant) {
        self.clients.join(client, info, |identity| self.accounts.open(identity, now));
    }

    fn identify(&mut self, client: ClientKey, name: &str, now: Instant) {
        let identity = Some(Identity::named(name));
        self.join(client, ClientInfo { identity, ..ClientInfo::default() }, now);
    }

    fn admit(&mut self, client: ClientKey, now: Instant) -> bool {
        let index = self.clients.enter(client);
        self.accounts.admit(&self.clients.at(index).account, now)
    }
}

fn client_of(transport: u32, number: u32, generation: u32) -> ClientKey {
    ClientKey { transport, id: ClientId { number, generation } }
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
    let mut threads = [(); 2].map(|()| Thread::new(&shared));
    let of = |number| client_of(0, number, 9);
    let now = Instant::from_nanos(1);
    for thread in &mut threads {
        thread.identify(of(0), "quota-alice", now);
        thread.identify(of(1), "quota-alice", now);
        thread.identify(of(2), "quota-bob", now);
    }
    for (thread, number) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert!(threads[thread].admit(of(number), now));
    }
    for (thread, number) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert!(!threads[thread].admit(of(number), now));
    }
    assert!(threads[0].admit(of(2), now), "bob has a quota of his own");
    let Thread { clients, accounts } = &threads[1];
    accounts.charge(&clients.get(of(2)).expect("he is here").account, 200_000_000, now);
    assert!(!threads[0].admit(of(2), now), "and has used up his CPU time on the other thread");
    // A connection of nobody that has the number of one of hers.
    assert!(threads[0].admit(client_of(0, 0, 10), now));
    assert!(threads[0].admit(client_of(3, 0, 9), now));
}

#[test]
fn the_lanes_of_a_connection_share_its_quota() {
    let shared = SharedAccounts::new(&ClientQuota::new().calls_per_second(2)).expect("a limit");
    let mut thread = Thread::new(&shared);
    let connection = Some(ConnectionId::new([3; 16]));
    let lanes = [client_of(0, 0, 1), client_of(1, 5, 1)];
    let now = Instant::ZERO;
    for lane in lanes {
        thread.join(lane, ClientInfo { connection, ..ClientInfo::default() }, now);
    }
    assert!(thread.admit(lanes[0], now) && thread.admit(lanes[1], now));
    assert!(!thread.admit(lanes[0], now) && !thread.admit(lanes[1], now));
    assert!(thread.admit(client_of(1, 6, 1), now), "another connection has its own");
}

#[test]
fn identities_are_remembered_while_they_have_connections_or_less_than_their_quota() {
    let quota = ClientQuota::new().calls_per_second(4);
    let shared = SharedAccounts::new(&quota).expect("it limits something");
    let mut thread = Thread::new(&shared);
    let at = |millis: u64| Instant::from_nanos(1_000_000 * millis);
    let (stays, used) = (client_of(0, 0, 0), 9_000);
    thread.identify(stays, "stays", at(1));
    for number in 0..10_000 {
        let now = at(number / 100 + 1);
        let next = client_of(0, 1, number as u32);
        thread.identify(next, &format!("number {number}"), now);
        while number == used && thread.admit(next, now) {}
    }
    assert!(shared.identities() <= 3_000, "{} are remembered", shared.identities());
    let (soon, later) = (at(110), at(10_000));
    let again = client_of(0, 2, 0);
    thread.identify(again, &format!("number {used}"), soon);
    assert!(!thread.admit(again, soon), "who connects again has no more than before");
    assert!(thread.admit(again, later));
    // The other connection is still known by its name.
    while thread.admit(stays, later) {}
    thread.identify(again, "stays", later);
    assert!(!thread.admit(again, later));
}

#[test]
fn calls_of_another_thread_count_there() {
    let shared = SharedAccounts::new(&ClientQuota::new().calls_per_second(1)).expect("a limit");
    let accounts = Accounts::new(shared).counted_elsewhere(Some(2));
    assert!(accounts.count(1) && !accounts.count(2));
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
