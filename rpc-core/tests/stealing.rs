//! Threads that give each other requests: driven by hand, in virtual time, turn by turn.
#![forbid(unsafe_code)]

mod support;

use core::sync::atomic::Ordering::SeqCst;
use farcall_core::server::ServerThread;
use farcall_core::{
    Connection, ConnectionOptions, DrivenServer, Method, PendingCall, RpcError, Server, Site,
};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use support::loopback::{Clock, Loopback};
use support::service::{Echo, Grow, Later, Panics, Refuse, Test, bytes};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_millis(1);

/// Two server threads, with a client each.
struct Bench {
    net: Loopback,
    test: Test,
    server: DrivenServer,
    threads: Vec<ServerThread>,
    clients: Vec<Connection>,
    /// How long each echo runs.
    runs_ns: Arc<AtomicU64>,
}

fn bench(steals: bool) -> Bench {
    let mut net = Loopback::new(Clock::virtual_time(), 64);
    net.max_message = 1 << 10;
    let test = Test::default();
    let runs_ns = Arc::new(AtomicU64::new(0));
    let (clock, runs) = (net.clock.clone(), runs_ns.clone());
    *test.slow.lock().unwrap() =
        Some(Arc::new(move || clock.advance(Duration::from_nanos(runs.load(SeqCst)))));
    let sites = (0..2).map(|_| Site::driven(Arc::new(net.clock.clone()))).collect();
    let builder = Server::builder().service(test.clone()).work_stealing(steals);
    let (server, threads) = builder.assemble(&[&net], sites).expect("the place is free");
    let clients = (0..2).map(|_| client(&net)).collect();
    Bench { net, test, server, threads, clients, runs_ns }
}

fn client(net: &Loopback) -> Connection {
    let site = net.site();
    let transport = Box::new(net.dial_end(&site).expect("a server listens"));
    Connection::new(transport, &site, &ConnectionOptions::default().timeout(10 * SECOND))
}

impl Bench {
    /// The client of the first thread begins a call.
    fn start<M: Method<Output = R>, R: 'static>(&mut self, payload: &[u8]) -> PendingCall<R> {
        let call = self.clients[0].start::<M, _>(&bytes(payload)).expect("room");
        self.clients[0].turn(self.net.clock.now());
        call
    }

    /// Turns of a thread, until it is idle.
    fn turn(&mut self, thread: usize) {
        while !self.threads[thread].turn(self.net.clock.now()).is_idle() {}
    }

    /// Turns of all threads, until all are idle.
    fn settle(&mut self) {
        while self.threads.iter_mut().any(|it| !it.turn(self.net.clock.now()).is_idle()) {}
    }

    fn take<R: 'static>(&mut self, call: &mut PendingCall<R>) -> Option<R> {
        self.clients[0].turn(self.net.clock.now());
        self.clients[0].take(call)
    }

    fn stolen(&self, method: &str) -> u64 {
        self.server.metrics().snapshot().method("Test", method).expect("known").stolen()
    }
}

/// Its server knows that echo runs long, and is idle.
fn bench_that_knows(steals: bool) -> Bench {
    let mut bench = bench(steals);
    bench.settle();
    bench.runs_ns.store(LONG.as_nanos() as u64, SeqCst);
    let mut call = bench.start::<Echo, _>(b"first");
    bench.settle();
    assert_eq!(bench.take(&mut call), Some(Ok(b"first".to_vec())));
    bench
}

#[test]
fn a_call_of_a_long_method_runs_on_an_idle_thread() {
    let mut bench = bench_that_knows(true);
    assert_eq!(bench.stolen("echo"), 0, "it was not known to run long");
    let mut call = bench.start::<Echo, _>(b"second");
    let begun = bench.net.clock.now();
    bench.turn(0);
    assert_eq!((bench.net.clock.now(), bench.stolen("echo")), (begun, 1));
    let mut short = bench.start::<Refuse, _>(b"short");
    bench.turn(0);
    assert!(bench.take(&mut short).is_some(), "its own thread has time for others");
    assert!(bench.take(&mut call).is_none());
    bench.turn(1);
    assert_eq!(bench.net.clock.now(), begun + LONG);
    bench.turn(0);
    assert_eq!(bench.take(&mut call), Some(Ok(b"second".to_vec())));
}

#[test]
fn without_an_idle_thread_a_call_runs_where_it_arrived() {
    let mut bench = bench_that_knows(true);
    let mut calls: Vec<_> = (0..3_u8).map(|n| (n, bench.start::<Echo, _>(&[n]))).collect();
    bench.turn(0);
    assert_eq!(bench.stolen("echo"), 1, "there is one idle thread");
    bench.settle();
    for (n, call) in &mut calls {
        assert_eq!(bench.take(call), Some(Ok(vec![*n])));
    }
}

#[test]
fn a_thread_that_is_behind_gives_away_short_calls_too() {
    let mut bench = bench(true);
    bench.settle();
    bench.runs_ns.store(LONG.as_nanos() as u64, SeqCst);
    let mut long = bench.start::<Echo, _>(b"not known to be long");
    let mut short = bench.start::<Grow, _>(&3_u32.to_le_bytes());
    bench.turn(0);
    assert_eq!((bench.stolen("echo"), bench.stolen("grow")), (0, 1));
    bench.settle();
    assert_eq!(bench.take(&mut long), Some(Ok(b"not known to be long".to_vec())));
    assert_eq!(bench.take(&mut short), Some(Ok(vec![7; 3])));
}

#[test]
fn only_by_choice_and_only_methods_that_any_thread_may_run() {
    let mut without = bench_that_knows(false);
    let mut call = without.start::<Echo, _>(b"second");
    without.turn(0);
    assert!(without.take(&mut call).is_some());

    let mut bench = bench(true);
    bench.settle();
    bench.runs_ns.store(LONG.as_nanos() as u64, SeqCst);
    let _long = bench.start::<Echo, _>(b"holds up");
    let mut bound = bench.start::<Refuse, _>(b"bound to its thread");
    bench.turn(0);
    assert!(bench.take(&mut bound).is_some());
    assert_eq!(bench.stolen("refuse"), 0);
}

#[test]
fn a_method_that_became_short_stays_at_home_again() {
    let mut bench = bench_that_knows(true);
    bench.runs_ns.store(0, SeqCst);
    for _ in 0..100 {
        let mut call = bench.start::<Echo, _>(b"short");
        bench.settle();
        assert!(bench.take(&mut call).is_some());
    }
    let stolen = bench.stolen("echo");
    assert!((1..50).contains(&stolen), "{stolen} stolen");
}

/// Starts a call that fills the turn of the first thread, so that this gives away the next call.
fn behind(bench: &mut Bench) {
    bench.settle();
    // It must not be known to run long.
    bench.runs_ns.store(0, SeqCst);
    for _ in 0..30 {
        let mut call = bench.start::<Echo, _>(b"short");
        bench.settle();
        assert!(bench.take(&mut call).is_some());
    }
    bench.runs_ns.store(LONG.as_nanos() as u64, SeqCst);
    let _long = bench.start::<Echo, _>(b"long");
}

#[test]
fn every_end_of_a_stolen_call_reaches_its_caller() {
    let mut bench = bench(true);
    behind(&mut bench);
    let mut call = bench.start::<Panics, _>(b"");
    bench.settle();
    assert_eq!(bench.take(&mut call), Some(Err(RpcError::HandlerPanicked)));

    behind(&mut bench);
    let mut call = bench.start::<Grow, _>(&2000_u32.to_le_bytes());
    bench.settle();
    let result = bench.take(&mut call);
    assert!(
        matches!(
            result,
            Some(Err(RpcError::TooLarge { may_have_run: true, len: 2000, max: 1016 }))
        ),
        "{result:?}"
    );

    behind(&mut bench);
    bench.net.set_reply_memory(false);
    let mut call = bench.start::<Grow, _>(&200_u32.to_le_bytes());
    bench.settle();
    assert_eq!(bench.take(&mut call), None);
    bench.net.set_reply_memory(true);
    bench.net.clock.advance(LONG);
    bench.settle();
    assert_eq!(bench.take(&mut call), Some(Ok(vec![7; 200])));

    behind(&mut bench);
    let mut call = bench.start::<Later, _>(b"async");
    bench.settle();
    assert_eq!(bench.take(&mut call), None);
    bench.test.gate.open();
    bench.settle();
    assert_eq!(bench.take(&mut call), Some(Ok(b"async".to_vec())));
    let snapshot = bench.server.metrics().snapshot();
    for method in ["panics", "grow", "later"] {
        assert!(bench.stolen(method) > 0, "{method} was not stolen");
        let counters = snapshot.method("Test", method).expect("known");
        assert_eq!(counters.in_flight(), 0, "{method}: counted once");
    }
}

#[test]
fn a_stolen_call_whose_caller_gives_up_is_dropped() {
    let mut bench = bench(true);
    behind(&mut bench);
    let given_up = bench.start::<Later, _>(b"never");
    bench.settle();
    assert_eq!((bench.stolen("later"), bench.test.gate.waiting.load(SeqCst)), (1, 1));
    bench.clients[0].cancel(given_up);
    bench.clients[0].turn(bench.net.clock.now());
    bench.settle();
    assert_eq!(bench.test.gate.dropped.load(SeqCst), 1);
    bench.clients[0].turn(bench.net.clock.now());
    assert_eq!(bench.net.unanswered(), 0);
}

#[test]
fn clients_that_leave_take_their_stolen_calls_with_them() {
    let mut bench = bench(true);
    // More than one thread can have given away at a time.
    for _ in 0..300 {
        behind(&mut bench);
        let _never = bench.start::<Later, _>(b"never");
        bench.settle();
        bench.clients = (0..2).map(|_| client(&bench.net)).collect();
        bench.settle();
    }
    assert_eq!(bench.stolen("later"), 300);
    assert_eq!(bench.test.gate.dropped.load(SeqCst), 300);
}

#[test]
fn a_shutdown_waits_for_stolen_calls() {
    let mut bench = bench(true);
    behind(&mut bench);
    let mut call = bench.start::<Later, _>(b"held");
    bench.settle();
    bench.server.shut_down(SECOND);
    bench.settle();
    assert!(!bench.threads[0].is_over());
    bench.test.gate.open();
    bench.settle();
    assert_eq!(bench.take(&mut call), Some(Ok(b"held".to_vec())));
    // They refuse their clients' calls for a while before the goodbye.
    bench.net.clock.advance(Duration::from_millis(30));
    bench.settle();
    assert!(bench.threads.iter().all(ServerThread::is_over));
    assert_eq!(bench.server.aborted_calls(), 0);
}

#[test]
fn a_shutdown_ends_stolen_calls_at_its_bound() {
    let mut bench = bench(true);
    behind(&mut bench);
    let mut call = bench.start::<Later, _>(b"held");
    bench.settle();
    bench.server.shut_down(SECOND);
    bench.settle();
    bench.net.clock.advance(SECOND);
    bench.settle();
    assert_eq!(bench.take(&mut call), Some(Err(RpcError::Cancelled)));
    assert_eq!(bench.test.gate.dropped.load(SeqCst), 1);
}

#[test]
fn a_thread_that_has_left_gives_back_what_was_on_its_way() {
    let mut bench = bench_that_knows(true);
    let mut call = bench.start::<Echo, _>(b"given back");
    bench.turn(0);
    assert_eq!(bench.stolen("echo"), 1);
    drop(bench.threads.pop());
    bench.settle();
    assert_eq!(bench.take(&mut call), Some(Ok(b"given back".to_vec())));
    let mut call = bench.start::<Echo, _>(b"at home");
    bench.settle();
    assert_eq!(bench.take(&mut call), Some(Ok(b"at home".to_vec())));
}
