//! The steady state allocates nothing: counted over all threads, on a transport that keeps its buffers.
#![forbid(unsafe_code)]

mod support;

use farcall_core::{
    Channel, ChannelOptions, Connection, ConnectionOptions, Endpoint, PendingCall, RpcError, Server,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use support::bounds::until;
use support::loopback::{Clock, Loopback};
use support::service::{Echo32, Later32, TEST, Test, bytes};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const WINDOW: usize = 16;
const ROUNDS: usize = 500;

/// One call in so many takes long enough for its caller to sleep.
const LONG_ONE_IN: usize = 100;
const LONG: Duration = Duration::from_millis(3);

/// Runs the work once to warm up, then counts.
fn allocations(mut work: impl FnMut()) -> usize {
    work();
    let region = Region::new(GLOBAL);
    work();
    let change = region.change();
    change.allocations + change.reallocations
}

fn window(connection: &mut Connection) {
    let mut calls: VecDeque<PendingCall<Result<[u8; 32], RpcError>>> =
        VecDeque::with_capacity(WINDOW);
    let mut left = ROUNDS;
    while left > 0 || !calls.is_empty() {
        while left > 0
            && let Ok(call) = connection.start::<Echo32, _>(&bytes(&[left as u8; 32]))
        {
            calls.push_back(call);
            left -= 1;
        }
        connection.poll();
        while let Some(call) = calls.front_mut()
            && let Some(result) = connection.take(call)
        {
            assert!(result.is_ok());
            calls.pop_front();
        }
    }
}

/// Has a call ended by another caller or by the I/O thread: the channel makes what that needs when it first happens. That is seldom, and may
/// first happen at any time, if each caller drives its own call.
fn drive_for_another(channel: &Channel) {
    let call = || channel.call::<Echo32, _>(&bytes(&[1; 32]));
    let mut context = Context::from_waker(Waker::noop());
    until("a call waits for its response", || {
        let mut first = call();
        let waits = Pin::new(&mut first).poll(&mut context).is_pending();
        assert!(call().wait().is_ok());
        waits && first.wait().is_ok()
    });
}

/// One test, so that no other thread of the test program allocates meanwhile.
#[test]
fn the_steady_state_allocates_nothing() {
    let net = Loopback::new(Clock::real(), WINDOW as u32);
    let test = Test::default();
    let slow = test.slow.clone();
    let _server = Server::builder().service(test).serve(&net).expect("the place is free");
    let options = ConnectionOptions::default();
    let mut connection = Connection::connect(&net, &TEST, &options).expect("a server listens");

    let counted = allocations(|| {
        for n in 0..ROUNDS {
            let data = [n as u8; 32];
            assert_eq!(connection.call::<Echo32, _>(&bytes(&data)), Ok(data));
        }
    });
    assert_eq!(counted, 0, "poll mode, one call at a time");

    // The queue of pending calls is this test's own.
    let counted = allocations(|| window(&mut connection));
    assert!(counted <= 1, "poll mode, a window of calls: {counted}");

    let counted = allocations(|| {
        for n in 0..ROUNDS {
            let data = [n as u8; 32];
            assert_eq!(connection.call::<Later32, _>(&bytes(&data)), Ok(data));
        }
    });
    assert_eq!(counted, 0, "async handlers");

    let channel = Channel::connect(net.clone(), &TEST, ChannelOptions::default());
    let channel = channel.expect("a server listens");
    let endpoint = Endpoint::new();
    let channels = [(); 3].map(|()| {
        let options = ChannelOptions::default().endpoint(&endpoint);
        Channel::connect(net.clone(), &TEST, options).expect("a server listens")
    });
    *slow.lock().expect("no panic") = Some(Arc::new(|| std::thread::sleep(LONG)));
    for channel in channels.iter().chain([&channel]) {
        drive_for_another(channel);
    }

    // On a busy machine any caller sleeps now and then, so here some always do.
    let calls = AtomicUsize::new(0);
    *slow.lock().expect("no panic") = Some(Arc::new(move || {
        if calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(LONG_ONE_IN) {
            std::thread::sleep(LONG);
        }
    }));
    let counted = allocations(|| {
        for n in 0..ROUNDS {
            let data = [n as u8; 32];
            assert_eq!(channel.call::<Echo32, _>(&bytes(&data)).wait(), Ok(data));
        }
    });
    assert_eq!(counted, 0, "a channel, blocking");

    let counted = allocations(|| {
        for n in 0..ROUNDS {
            let data = [n as u8; 32];
            let channel = &channels[n % channels.len()];
            assert_eq!(channel.call::<Echo32, _>(&bytes(&data)).wait(), Ok(data));
        }
    });
    assert_eq!(counted, 0, "several channels on one endpoint");

    stealing_allocates_nothing();
}

/// Each call runs long enough to be given to the other thread.
fn stealing_allocates_nothing() {
    let net = Loopback::new(Clock::real(), WINDOW as u32);
    let test = Test::default();
    *test.slow.lock().expect("no panic") = Some(Arc::new(|| {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(100) {}
    }));
    let builder = Server::builder().service(test).threads(2).work_stealing(true);
    let server = builder.serve(&net).expect("the place is free");
    let options = ConnectionOptions::default();
    let mut connection = Connection::connect(&net, &TEST, &options).expect("a server listens");
    let stolen = || server.metrics().snapshot().method("Test", "echo32").expect("known").stolen();
    let mut call = || {
        let data = [3; 32];
        assert_eq!(connection.call::<Echo32, _>(&bytes(&data)), Ok(data));
    };
    until("calls are stolen", || {
        call();
        stolen() > 10
    });
    let before = stolen();
    let counted = allocations(|| (0..ROUNDS).for_each(|_| call()));
    assert_eq!(counted, 0, "calls that other threads ran");
    assert!(stolen() > before + 10, "{} calls were stolen", stolen() - before);
}
