//! Quotas of clients: calls, CPU time and connections, over every backend and by identity.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farcall::{
    Authentication, Backpressure, BindError, ClientQuota, ConnectError, Key, RefusalReason,
    RpcError, RunningServer, Server, ServerBuilder,
};

const BOUND: Duration = Duration::from_secs(20);

/// Counts its calls.
#[farcall::service(any_thread)]
trait Work {
    fn small(&self) -> u64;
    /// Runs for so long.
    fn spin(&self, micros: u64) -> u64;
}

#[derive(Clone, Default)]
struct Counting(Arc<AtomicU64>);

impl Work for Counting {
    fn small(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn spin(&self, micros: u64) -> u64 {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_micros(micros) {
            std::hint::spin_loop();
        }
        self.small()
    }
}

fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("farcall-quota-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn builder(work: &Counting, quota: ClientQuota) -> ServerBuilder {
    Server::builder().service(WorkServer::new(work.clone())).client_quota(quota)
}

fn key(name: &str) -> Key {
    Key::new(name, [7; 32]).unwrap()
}

fn connect(server: &RunningServer) -> WorkPollClient {
    WorkPollClient::connect(server.address()).wait().unwrap()
}

fn connect_as(server: &RunningServer, name: &str) -> Result<WorkPollClient, ConnectError> {
    WorkPollClient::connect(server.address()).key(key(name)).wait()
}

fn over_quota<T>(result: &Result<T, RpcError>) -> bool {
    matches!(result, Err(error @ RpcError::Overloaded(Backpressure::Quota)) if !error.may_have_run())
}

/// Calls until the quota is used up. Returns how many calls ran.
fn use_up(client: &mut WorkPollClient) -> u64 {
    let deadline = Instant::now() + BOUND;
    let mut ran = 0;
    loop {
        let result = client.small();
        match &result {
            Ok(_) => ran += 1,
            refused => {
                assert!(over_quota(refused), "{refused:?}");
                return ran;
            }
        }
        assert!(Instant::now() < deadline, "no call was refused");
    }
}

/// How many calls a quota allows that begins full, after so much time.
fn most(calls_per_second: u32, time: Duration) -> u64 {
    u64::from(calls_per_second) + (time.as_secs_f64() * f64::from(calls_per_second)) as u64 + 1
}

#[test]
fn over_every_backend_calls_beyond_the_quota_do_not_run() {
    let backends = ["write_imm", "datagram", "send_recv", "rfp", "scale"];
    let shm = backends.map(|backend| format!("shm://{}?backend={backend}", unique()));
    for address in shm.into_iter().chain(["tcp://127.0.0.1:0".to_owned()]) {
        // So few that the next one is long in coming.
        const CALLS: u32 = 8;
        let work = Counting::default();
        let begin = Instant::now();
        let server =
            builder(&work, ClientQuota::new().calls_per_second(CALLS)).listen(&address).unwrap();
        let (mut greedy, mut modest) = (connect(&server), connect(&server));
        let ran = use_up(&mut greedy);
        (0..50).for_each(|_| drop(greedy.small()));
        let most = most(CALLS, begin.elapsed());
        assert!((u64::from(CALLS)..=most).contains(&ran), "{address}: {ran} ran");
        assert!(work.0.load(Ordering::Relaxed) <= most, "{address}: more than the quota ran");
        assert!(server.metrics().snapshot().refused(RefusalReason::OverQuota) > 0, "{address}");
        modest.small().unwrap_or_else(|error| panic!("{address}: {error}"));
        // It fills again.
        let deadline = Instant::now() + BOUND;
        while let Err(error) = greedy.small() {
            assert!(Instant::now() < deadline, "{address}: {error}");
        }
    }
}

#[test]
fn a_client_whose_handlers_use_too_much_time_waits_and_no_other() {
    let work = Counting::default();
    let quota = ClientQuota::new().cpu_per_second(Duration::from_millis(20));
    let server = builder(&work, quota).listen(format!("shm://{}", unique())).unwrap();
    let (mut greedy, mut modest) = (connect(&server), connect(&server));
    // Five seconds' worth.
    greedy.spin(100_000).unwrap();
    let refused = greedy.spin(1);
    assert!(over_quota(&refused), "{refused:?}");
    modest.spin(1).unwrap();
    assert_eq!(work.0.load(Ordering::Relaxed), 2);
}

#[test]
fn the_connections_of_an_identity_share_its_quota() {
    const CALLS: u32 = 12;
    let work = Counting::default();
    let keys = Authentication::new().key(key("alice")).key(key("bob"));
    let begin = Instant::now();
    let server = builder(&work, ClientQuota::new().calls_per_second(CALLS))
        .threads(2)
        .authenticate(keys)
        .listen(format!("shm://{}", unique()))
        .unwrap();
    // On both threads, and a new connection brings no new quota.
    let ran: u64 = (0..4).map(|_| use_up(&mut connect_as(&server, "alice").unwrap())).sum();
    let most = most(CALLS, begin.elapsed());
    assert!((u64::from(CALLS)..=most).contains(&ran), "{ran} ran");
    assert!(use_up(&mut connect_as(&server, "bob").unwrap()) >= u64::from(CALLS));
}

#[test]
fn an_identity_has_no_more_connections_than_its_quota() {
    let keys = Authentication::new().key(key("alice")).key(key("bob"));
    let server = builder(&Counting::default(), ClientQuota::new().connections(3))
        .threads(2)
        .authenticate(keys)
        .listen(format!("shm://{}", unique()))
        .unwrap();
    let mut alice: Vec<_> = (0..3).map(|_| connect_as(&server, "alice").unwrap()).collect();
    let error = connect_as(&server, "alice").unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("alice has as many connections"), "{error}");
    assert_eq!(server.metrics().snapshot().refused(RefusalReason::IdentityFull), 1);
    let mut bob = connect_as(&server, "bob").unwrap();
    bob.small().unwrap();
    alice.pop();
    let deadline = Instant::now() + BOUND;
    let mut again = loop {
        match connect_as(&server, "alice") {
            Ok(client) => break client,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    again.small().unwrap();
}

#[test]
fn calls_that_other_threads_run_count_once() {
    const CALLS: u32 = 200;
    let work = Counting::default();
    let keys = Authentication::new().key(key("alice"));
    let begin = Instant::now();
    let server = builder(&work, ClientQuota::new().calls_per_second(CALLS))
        .threads(2)
        .work_stealing(true)
        .authenticate(keys)
        .listen(format!("shm://{}", unique()))
        .unwrap();
    let mut client = connect_as(&server, "alice").unwrap();
    let (mut ran, mut refused) = (0, 0);
    while refused == 0 {
        let started: Vec<_> = (0..8).map(|_| client.start_spin(50).unwrap()).collect();
        for call in started {
            match client.connection().wait(call).unwrap() {
                Ok(_) => ran += 1,
                error => {
                    assert!(over_quota(&error), "{error:?}");
                    refused += 1;
                }
            }
        }
        assert!(begin.elapsed() < BOUND, "no call was refused");
    }
    let most = most(CALLS, begin.elapsed());
    assert!((u64::from(CALLS)..=most).contains(&ran), "{ran} ran");
}

#[test]
fn a_quota_of_nothing_does_not_listen() {
    let quota = ClientQuota::new().calls_per_second(0);
    let listening = builder(&Counting::default(), quota).listen(format!("shm://{}", unique()));
    let error = listening.unwrap_err();
    assert!(matches!(error, BindError::Quota { .. }), "{error}");
    assert!(error.to_string().contains("calls_per_second is 0"), "{error}");
}
