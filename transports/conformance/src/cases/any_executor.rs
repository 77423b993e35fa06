//! The client for any executor: shared by threads, dropped at any moment, reconnecting.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use farcall_core::{CallError, ChannelOptions, ReconnectPolicy, RpcError};

use crate::{
    patient, pattern,
    setup::Setup,
    world::{BOUND, World},
};

/// Wakes the thread that waits in [`block_on`].
struct Unparker(Thread);

impl Wake for Unparker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest executor.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unparker(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park_timeout(patient(BOUND)),
        }
    }
}

/// All of them, together.
async fn all<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(Some).collect();
    let mut outputs: Vec<_> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (place, output) in running.iter_mut().zip(&mut outputs) {
            if let Some(future) = place
                && let Poll::Ready(ready) = Pin::new(future).poll(context)
            {
                (*place, *output) = (None, Some(ready));
            }
        }
        if running.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// Polls a future once, without a waker.
pub(super) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Several threads make blocking calls through one client.
pub fn threads_share_a_client(world: &World) {
    let server = world.serve(Setup::default().window(4));
    let client = world.channel(&server, ChannelOptions::default());
    thread::scope(|scope| {
        for who in 0..8u64 {
            let client = client.clone();
            scope.spawn(move || {
                for call in 1..=100u64 {
                    let seed = who * 1_000 + call;
                    let len = if call % 25 == 0 { 50_000 } else { (seed % 80) as usize };
                    let message = pattern::make(seed, len);
                    let echoed = client.echo(&message).wait().expect("echo");
                    pattern::assert_is(seed, len, &echoed);
                    assert_eq!(client.tally(who).wait(), Ok(call));
                }
            });
        }
    });
}

/// More calls than the window wait for room, and none is lost.
pub fn more_calls_than_the_window_wait_for_room(world: &World) {
    let server = world.serve(Setup::default().window(3));
    let client = world.channel(&server, ChannelOptions::default());
    for round in 0..5u64 {
        let calls = (0..300).map(|i| client.tally(round * 1_000 + i)).collect();
        for outcome in block_on(all(calls)) {
            assert_eq!(outcome, Ok(1));
        }
    }
}

/// More calls than a client may hold are refused, and the refusal says so.
pub fn a_client_holds_a_bounded_number_of_calls(world: &World) {
    let server = world.serve(Setup::default().window(2));
    let client = world.channel(&server, ChannelOptions::default().max_calls(8));
    let mut calls: Vec<_> = (0..8).map(|value| client.hold(1, value)).collect();
    assert!(calls.iter_mut().all(|call| poll_once(call).is_pending()));
    let refused = client.tally(1).wait();
    assert!(matches!(refused, Err(RpcError::Overloaded(_))), "{refused:?}");
    server.open(1);
    for (value, outcome) in (0..8).zip(block_on(all(calls))) {
        assert_eq!(outcome, Ok(value));
    }
    assert_eq!(client.tally(2).wait(), Ok(1));
}

/// A call whose future is not polled is not made.
pub fn a_call_that_is_not_polled_does_not_run(world: &World) {
    let server = world.serve(Setup::default());
    let client = world.channel(&server, ChannelOptions::default());
    for _ in 0..100 {
        drop(client.tally(1));
    }
    assert_eq!(client.tallied(1).wait(), Ok(0));
}

/// Futures dropped at every stage, small and large ones: the client and the server keep working.
pub fn dropped_futures_leave_nothing_behind(world: &World) {
    let setup = Setup::default().window(4).tight_memory(2 << 20);
    let server = world.serve(setup);
    let client = world.channel(&server, ChannelOptions::default());
    let message = pattern::make(1, 1 << 20);
    for round in 0..400u64 {
        let polls = round % 5;
        let mut small = client.echo_later(vec![round as u8; 20]);
        let mut held = client.hold(1, round);
        let mut large = client.echo(&message[..(round as usize % 8) << 17]);
        for _ in 0..polls {
            let _ = (poll_once(&mut small), poll_once(&mut held), poll_once(&mut large));
            thread::yield_now();
        }
        // In another order each time.
        match round % 3 {
            0 => drop((small, held, large)),
            1 => drop((large, small, held)),
            _ => drop((held, large, small)),
        }
    }
    world.until("the tasks of dropped calls are gone", || {
        (client.held(1).wait() == Ok(0)).then_some(())
    });
    let calls = (0..12).map(|_| client.echo(&message)).collect();
    for echoed in block_on(all(calls)) {
        pattern::assert_is(1, message.len(), &echoed.expect("echo"));
    }
}

/// A future that is forgotten instead of dropped leaks its own memory only.
pub fn a_forgotten_future_affects_no_other_call(world: &World) {
    let server = world.serve(Setup::default().window(4).max_message(2 << 20));
    let client = world.channel(&server, ChannelOptions::default());
    let message = pattern::make(1, 300_000);
    for _ in 0..20 {
        let mut forgotten = client.echo(&message);
        let _ = poll_once(&mut forgotten);
        std::mem::forget(forgotten);
    }
    for seed in 0..50 {
        let message = pattern::make(seed, 300_000);
        let echoed = client.echo(&message).wait().expect("echo");
        pattern::assert_is(seed, message.len(), &echoed);
    }
}

/// Deadlines of single calls, one of them in the past, do not affect the others.
pub fn deadlines_end_single_calls(world: &World) {
    let server = world.serve(Setup::default().window(8));
    let client = world.channel(&server, ChannelOptions::default());
    let mut lasting = client.hold(1, 7);
    assert!(poll_once(&mut lasting).is_pending());
    let past = client.tally(1).timeout(Duration::ZERO).wait();
    assert!(
        matches!(past, Err(RpcError::DeadlineExceeded { may_have_run: false, .. })),
        "{past:?}"
    );
    // On a busy machine the deadline of a call may pass before it is sent.
    let (mut late, mut sent) = (0, 0);
    while late < 20 || (sent == 0 && late < 1000) {
        match client.hold(1, 0).timeout(patient(Duration::from_millis(3))).wait() {
            Err(RpcError::DeadlineExceeded { may_have_run, .. }) => sent += u64::from(may_have_run),
            other => panic!("a call that nobody ends has ended: {other:?}"),
        }
        late += 1;
    }
    assert!(sent > 0, "no call was sent within its deadline");
    let held = client.tallied(1).wait().expect("a call without a deadline");
    assert!((1..=1 + sent).contains(&held), "{held} calls have run of {sent} that may have");
    server.open(1);
    assert_eq!(block_on(lasting), Ok(7));
}

/// A call that waits for room in the window ends by its deadline too, and has not run.
pub fn a_deadline_passes_while_waiting_for_the_window(world: &World) {
    let server = world.serve(Setup::default().window(1));
    let client = world.channel(&server, ChannelOptions::default());
    let mut first = client.hold(1, 1);
    assert!(poll_once(&mut first).is_pending());
    world.until("the call is held", || {
        let mut helper = world.client(&server);
        (world.call(&mut helper, |c| c.start_held(1)) == Ok(1)).then_some(())
    });
    let late = client.tally(2).timeout(patient(Duration::from_millis(5))).wait();
    assert!(
        matches!(late, Err(RpcError::DeadlineExceeded { may_have_run: false, .. })),
        "{late:?}"
    );
    server.open(1);
    assert_eq!(block_on(first), Ok(1));
    assert_eq!(client.tallied(2).wait(), Ok(0), "the late call has not run");
}

/// A call keeps its connection until it has ended, even if the client is dropped.
pub fn a_call_outlives_its_client(world: &World) {
    let server = world.serve(Setup::default());
    let client = world.channel(&server, ChannelOptions::default());
    let mut call = client.hold(1, 9);
    assert!(poll_once(&mut call).is_pending());
    drop(client);
    server.open(1);
    assert_eq!(block_on(call), Ok(9));
}

/// Errors of the service and of the call arrive with their types.
pub fn errors_arrive_with_their_types(world: &World) {
    let server = world.serve(Setup::default().max_message(100_000));
    let client = world.channel(&server, ChannelOptions::default());
    let refused = client.refuse(3).wait();
    assert!(matches!(refused, Err(CallError::Service(_))), "{refused:?}");
    assert_eq!(client.panic_in_place().wait(), Err(RpcError::HandlerPanicked));
    assert_eq!(client.panic_in_task().wait(), Err(RpcError::HandlerPanicked));
    let large = client.echo(&vec![0; 200_000]).wait();
    assert!(matches!(large, Err(RpcError::TooLarge { max: 100_000, .. })), "{:?}", large.err());
    let made = client.make(1, 200_000).wait();
    assert!(matches!(made, Err(RpcError::TooLarge { max: 100_000, .. })), "{:?}", made.err());
    assert_eq!(client.tally(1).wait(), Ok(1));
}

/// Responses that their caller keeps, in the memory that they arrived in, do not delay further calls.
pub fn responses_may_be_kept(world: &World) {
    const LEN: u64 = 3 << 20;
    let server = world.serve(Setup::default().tight_memory(LEN + 4096));
    let client = world.channel(&server, ChannelOptions::default());
    let started = world.now();
    for round in 0..2u64 {
        // More than the memory has room for, one after the other and then together.
        let mut kept: Vec<_> = (0..12).map(|_| client.lend(round, LEN).wait()).collect();
        kept.extend(block_on(all((0..12).map(|_| client.lend(round, LEN)).collect())));
        for answer in kept {
            pattern::assert_is(round, LEN as usize, &answer.expect("lend"));
        }
    }
    let took = world.now() - started;
    assert!(took < patient(BOUND), "the calls took {took:?}: some waited for a deadline");
}

/// After a restart of the server calls reconnect; those in flight ended with an error.
pub fn a_client_dials_again(world: &World) {
    let mut server = world.serve(Setup::default());
    let waiting = ReconnectPolicy::default().give_up_after(patient(BOUND));
    let client = world.channel(&server, ChannelOptions::default().reconnect(waiting));
    for _ in 0..3 {
        assert_eq!(client.tally(1).wait(), Ok(1), "each server counts from zero");
        let mut held = client.hold(5, 0);
        assert!(poll_once(&mut held).is_pending());
        world.until("the call is held", || (client.held(5).wait() == Ok(1)).then_some(()));
        let address = server.address.clone();
        server.kill();
        match block_on(held) {
            Err(RpcError::PeerGone { may_have_run: true, .. } | RpcError::Cancelled) => {}
            other => panic!("{other:?}"),
        }
        // This call waits for the next server.
        let mut early = client.tally(1);
        assert!(poll_once(&mut early).is_pending());
        drop(early);
        server = world.try_serve_at(&address, Setup::default()).expect("the address is free");
    }
    assert_eq!(client.tally(1).wait(), Ok(1));
}

/// Without a server a call ends in time, and has not run.
pub fn a_call_without_a_server_ends_in_time(world: &World) {
    let server = world.serve(Setup::default());
    let hasty = ReconnectPolicy::default().give_up_after(Duration::from_millis(50));
    let client = world.channel(&server, ChannelOptions::default().reconnect(hasty));
    assert_eq!(client.tally(1).wait(), Ok(1));
    server.kill();
    world.until("the client has noticed", || client.tally(1).wait().err());
    let before = world.now();
    let ended = client.tally(1).wait();
    assert!(matches!(ended, Err(RpcError::PeerGone { may_have_run: false, .. })), "{ended:?}");
    let deadline = client.tally(1).timeout(Duration::from_millis(20)).wait();
    assert!(
        matches!(deadline, Err(RpcError::PeerGone { may_have_run: false, .. })),
        "{deadline:?}"
    );
    assert!(world.now() - before < patient(Duration::from_secs(3)));
}
