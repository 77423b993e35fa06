//! Server threads and channels as programs run them: real threads, real time, every wait bounded.
#![forbid(unsafe_code)]

mod support;

use farcall_core::transport::{Dial, DialOptions};
use farcall_core::{
    BindError, Call, Channel, ChannelOptions, ConnectError, Connection, ConnectionOptions,
    GoneReason, IdlePolicy, ReconnectPolicy, RpcError, RunningServer, Server, Site,
};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use support::bounds::{BOUND, until};
use support::loopback::{Clock, Loopback};
use support::service::{Bytes, Echo, Grow, Later, Panics, TEST, Test, bytes};

fn net() -> Loopback {
    Loopback::new(Clock::real(), 16)
}

fn serve(net: &Loopback, test: &Test) -> RunningServer {
    Server::builder().service(test.clone()).serve(net).expect("the place is free")
}

fn channel(net: &Loopback) -> Channel {
    let options = ChannelOptions::default().timeout(BOUND);
    Channel::connect(net.clone(), &TEST, options).expect("a server listens")
}

fn echo(channel: &Channel, payload: &[u8]) -> Call<Bytes> {
    channel.call::<Echo, _>(&bytes(payload))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_share_a_channel_under_tokio() {
    let (net, test) = (net(), Test::default());
    let server = serve(&net, &test);
    let channel = channel(&net);
    let tasks: Vec<_> = (0..1000_u32)
        .map(|n| {
            let channel = channel.clone();
            tokio::spawn(async move { echo(&channel, &n.to_le_bytes()).await })
        })
        .collect();
    for (n, task) in tasks.into_iter().enumerate() {
        let answer = task.await.expect("no panic").expect("an answer");
        assert_eq!(answer, (n as u32).to_le_bytes());
    }
    let snapshot = channel.metrics().snapshot();
    assert_eq!(snapshot.method("Test", "echo").expect("known").ok(), 1000);
    assert_eq!(server.metrics().snapshot().calls(), 1000);
    assert_eq!(server.shutdown().aborted_calls, 0);
}

#[tokio::test]
async fn select_drops_the_loser_and_its_handler() {
    let (net, test) = (net(), Test::default());
    let _server = serve(&net, &test);
    let channel = channel(&net);
    {
        let loser = channel.call::<Later, _>(&bytes(b"never"));
        let winner = async {
            while test.gate.waiting.load(SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            _ = loser => panic!("the gate is closed"),
            () = winner => {}
        }
    }
    until("the handler is dropped", || test.gate.dropped.load(SeqCst) == 1);
    assert_eq!(echo(&channel, b"alive").await, Ok(b"alive".to_vec()));
}

#[test]
fn blocking_calls_wait_without_an_executor() {
    let (net, test) = (net(), Test::default());
    let _server = serve(&net, &test);
    let channel = channel(&net);
    std::thread::scope(|scope| {
        for n in 0..4_u8 {
            let channel = &channel;
            scope.spawn(move || {
                for round in 0..100 {
                    assert_eq!(echo(channel, &[n, round]).wait(), Ok(vec![n, round]));
                }
            });
        }
    });
    assert_eq!(channel.call::<Panics, _>(&bytes(b"")).wait(), Err(RpcError::HandlerPanicked));
}

#[test]
fn a_call_to_a_slow_handler_ends_at_its_deadline() {
    let (net, test) = (net(), Test::default());
    let _server = serve(&net, &test);
    let channel = channel(&net);
    let start = Instant::now();
    let late = channel.call::<Later, _>(&bytes(b"x")).timeout(Duration::from_millis(30)).wait();
    assert!(matches!(late, Err(RpcError::DeadlineExceeded { may_have_run: true, .. })), "{late:?}");
    assert!(start.elapsed() >= Duration::from_millis(30));
    until("the handler is dropped", || test.gate.dropped.load(SeqCst) == 1);
    let past = channel.call::<Later, _>(&bytes(b"x")).timeout(Duration::ZERO).wait();
    assert!(
        matches!(past, Err(RpcError::DeadlineExceeded { may_have_run: false, .. })),
        "{past:?}"
    );
}

#[test]
fn a_sleeping_server_wakes_for_a_call_and_for_a_waker() {
    let (net, test) = (net(), Test::default());
    let server = Server::builder().service(test.clone()).idle(IdlePolicy::PARK);
    let _server = server.serve(&net).expect("the place is free");
    let options = ConnectionOptions::default().timeout(BOUND);
    let mut connection = Connection::connect(&net, &TEST, &options).expect("a server listens");
    for n in 0..200_u8 {
        let sleeps = net.server_sleeps();
        assert_eq!(connection.call::<Echo, _>(&bytes(&[n])), Ok(vec![n]));
        if n % 10 == 0 {
            until("the server sleeps again", || net.server_sleeps() > sleeps);
        }
    }
    for n in 1..100 {
        let call = connection.start::<Later, _>(&bytes(b"x")).expect("room");
        connection.poll();
        until("the handler waits", || test.gate.waiting.load(SeqCst) == n);
        // From this thread, while the server's is falling asleep or asleep.
        test.gate.pass();
        assert_eq!(connection.wait(call), Some(Ok(b"x".to_vec())));
    }
}

#[test]
fn a_sleeping_io_thread_wakes_for_a_call() {
    let (net, test) = (net(), Test::default());
    let _server = serve(&net, &test);
    let options = ChannelOptions::default().timeout(BOUND).idle(IdlePolicy::PARK);
    let channel = Channel::connect(net.clone(), &TEST, options).expect("a server listens");
    for n in 0..500_u32 {
        assert_eq!(echo(&channel, &n.to_le_bytes()).wait(), Ok(n.to_le_bytes().to_vec()));
    }
}

#[test]
fn a_shutdown_answers_what_is_in_flight_and_frees_the_place() {
    let (net, test) = (net(), Test::default());
    let server = serve(&net, &test);
    let channel = channel(&net);
    let waiting = channel.clone();
    let call = std::thread::spawn(move || waiting.call::<Later, _>(&bytes(b"kept")).wait());
    until("the handler waits", || test.gate.waiting.load(SeqCst) == 1);
    let down = std::thread::spawn(move || server.shutdown_within(BOUND));
    until("no server listens", || !net.has_server());
    test.gate.open();
    assert_eq!(call.join().expect("no panic"), Ok(b"kept".to_vec()));
    let drained = down.join().expect("no panic");
    assert_eq!((drained.aborted_calls, drained.stuck_threads), (0, 0));
    drop(serve(&net, &test));
}

#[test]
fn a_shutdown_is_bounded_and_aborts_what_does_not_end() {
    let (net, test) = (net(), Test::default());
    let server = serve(&net, &test);
    let channel = channel(&net);
    let call = std::thread::spawn(move || channel.call::<Later, _>(&bytes(b"x")).wait());
    until("the handler waits", || test.gate.waiting.load(SeqCst) == 1);
    let start = Instant::now();
    let drained = server.shutdown_within(Duration::from_millis(50));
    assert_eq!(drained.aborted_calls, 1);
    assert!(start.elapsed() < BOUND);
    let error = call.join().expect("no panic").expect_err("aborted");
    assert!(error.may_have_run(), "{error}");
}

#[test]
fn clients_that_never_pause_do_not_keep_a_server_up() {
    let (net, test) = (net(), Test::default());
    let server = serve(&net, &test);
    let options = ChannelOptions::default().timeout(BOUND).reconnect(ReconnectPolicy::NEVER);
    let channel = Channel::connect(net.clone(), &TEST, options).expect("a server listens");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let channel = &channel;
            scope.spawn(move || while echo(channel, b"again").wait().is_ok() {});
        }
        until("calls run", || test.ran.load(SeqCst) > 100);
        let start = Instant::now();
        server.shutdown_within(BOUND);
        assert!(start.elapsed() < BOUND / 2);
    });
}

#[test]
fn a_channel_goes_on_after_the_server_is_back() {
    let (net, test) = (net(), Test::default());
    let server = serve(&net, &test);
    let channel = channel(&net);
    assert_eq!(echo(&channel, b"before").wait(), Ok(b"before".to_vec()));
    server.shutdown();
    let dials = net.dials();
    let call = echo(&channel, b"waits");
    let waiting = std::thread::spawn(move || call.wait());
    until("the channel dials", || net.dials() > dials);
    let _server = serve(&net, &test);
    assert_eq!(waiting.join().expect("no panic"), Ok(b"waits".to_vec()));
    assert_eq!(echo(&channel, b"after").wait(), Ok(b"after".to_vec()));
}

#[test]
fn a_channel_without_its_server_ends_calls_in_bounded_time() {
    let (net, test) = (net(), Test::default());
    let server = serve(&net, &test);
    let policy = ReconnectPolicy::default().give_up_after(Duration::from_millis(50));
    let options = ChannelOptions::default().timeout(BOUND).reconnect(policy);
    let channel = Channel::connect(net.clone(), &TEST, options).expect("a server listens");
    server.shutdown();
    let start = Instant::now();
    let Err(error @ RpcError::PeerGone { may_have_run: false, why: GoneReason::Dial(_) }) =
        echo(&channel, b"x").wait()
    else {
        panic!("there is no server");
    };
    let cause = error.source().and_then(<dyn Error>::downcast_ref);
    let Some(ConnectError::NoServer { hint, .. }) = cause else { panic!("{error:?}") };
    assert!(error.to_string().contains(hint.as_str()), "{error}");
    let soon = channel.call::<Echo, _>(&bytes(b"x")).timeout(Duration::from_millis(5)).wait();
    assert_eq!(soon, Err(error));
    assert!(start.elapsed() < BOUND / 2);
}

#[test]
fn a_closed_channel_ends_its_calls_and_its_connection() {
    let (net, test) = (net(), Test::default());
    let server = serve(&net, &test);
    let channel = channel(&net);
    until("the server has the client", || server.connections() == 1);
    let other = channel.clone();
    let call = std::thread::spawn(move || other.call::<Later, _>(&bytes(b"x")).wait());
    until("the handler waits", || test.gate.waiting.load(SeqCst) == 1);
    let late = echo(&channel, b"late");
    channel.close();
    assert!(matches!(call.join().expect("no panic"), Err(RpcError::PeerGone { .. })));
    assert!(matches!(late.wait(), Err(RpcError::PeerGone { may_have_run: false, .. })));
    until("the client is gone", || server.connections() == 0);
}

#[test]
fn threads_share_the_clients_and_their_counters_add_up() {
    let (net, test) = (net(), Test::default());
    let cores: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect();
    let server = Server::builder().service(test.clone()).threads(2).pin(cores);
    let server = server.serve(&net).expect("the place is free");
    let channels: Vec<_> = (0..4).map(|_| channel(&net)).collect();
    for channel in &channels {
        assert_eq!(echo(channel, b"x").wait(), Ok(b"x".to_vec()));
    }
    until("the clients are counted", || server.connections() == 4);
    assert_eq!(server.metrics().snapshot().calls(), 4);
}

#[test]
fn a_pinned_program_may_pin_its_server_elsewhere() {
    let (net, test) = (net(), Test::default());
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let [first, .., last] = cores[..] {
        assert!(core_affinity::set_for_current(first));
        let server = Server::builder().service(test.clone()).pin([last.id]);
        let _server = server.serve(&net).expect("the other core can be had");
    }
}

#[test]
fn a_server_that_cannot_be_had_says_why() {
    let (net, test) = (net(), Test::default());
    let refused = |builder: farcall_core::ServerBuilder| {
        builder.serve(&net).expect_err("it cannot be served").to_string()
    };
    let with = || Server::builder().service(test.clone());
    assert!(refused(Server::builder()).contains(".service("));
    assert!(refused(with().service(test.clone())).contains("\"Test\" was given twice"));
    assert!(refused(with().threads(0)).contains("0 server threads"));
    assert!(refused(with().pin([4096])).contains("core 4096 is not available"));
    let _server = serve(&net, &test);
    assert!(matches!(with().serve(&net), Err(BindError::InUse { .. })));
}

#[test]
fn without_a_server_connecting_says_so() {
    let options = ChannelOptions::default();
    let error = Channel::connect(net(), &TEST, options).expect_err("no server listens");
    assert!(error.to_string().contains("no server at loopback"), "{error}");
    let dialled = net().dial(&TEST, &Site::new(), &DialOptions::default());
    assert!(matches!(dialled, Err(ConnectError::NoServer { .. })), "{dialled:?}");
}

#[test]
fn a_large_result_passes_a_channel() {
    let (net, test) = (net(), Test::default());
    let _server = serve(&net, &test);
    let len: u32 = 900_000;
    let result = channel(&net).call::<Grow, _>(&bytes(&len.to_le_bytes())).wait();
    assert_eq!(result.map(|bytes| bytes.len()), Ok(len as usize));
}

#[test]
fn threads_that_steal_answer_each_call_once() {
    const THREADS: u8 = 4;
    const CALLS: u32 = 2_000;
    let (net, test) = (net(), Test::default());
    let begun = Instant::now();
    // Some run long, and none longer than the threads need to notice.
    *test.slow.lock().expect("no panic") = Some(Arc::new(move || {
        let long = Duration::from_micros(u64::from(begun.elapsed().subsec_nanos() % 64));
        let begun = Instant::now();
        while begun.elapsed() < long {}
    }));
    let builder = Server::builder().service(test.clone()).threads(THREADS.into());
    let server = builder.work_stealing(true).serve(&net).expect("the place is free");
    std::thread::scope(|scope| {
        for client in 0..THREADS {
            let net = &net;
            scope.spawn(move || {
                let channel = channel(net);
                let calls = (0..CALLS).map(|n| (n, echo(&channel, &[client, n as u8])));
                for (n, call) in calls.collect::<Vec<_>>() {
                    assert_eq!(call.wait(), Ok(vec![client, n as u8]));
                }
            });
        }
    });
    let echo = server.metrics().snapshot().method("Test", "echo").expect("known").clone();
    let calls = u64::from(CALLS) * u64::from(THREADS);
    assert_eq!((echo.calls(), echo.ok()), (calls, calls));
    assert_eq!(test.ran.load(SeqCst), calls);
    assert!(echo.stolen() > 0);
    assert_eq!(server.shutdown().aborted_calls, 0);
}
