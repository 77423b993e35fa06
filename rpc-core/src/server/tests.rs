//! One server thread's dispatcher against clients driven by hand, in virtual time.

use super::dispatcher::Dispatcher;
use super::executor::Executor;
use super::quota::Accounts;
use super::table::Table;
use super::turn::Turn;
use super::{CallContext, CancelPolicy};
use crate::client::{Connection, ConnectionOptions, PendingCall};
use crate::error::{Backpressure, CallError, RpcError, Waited};
use crate::metrics::{MethodTable, Metrics, ThreadCounters};
use crate::service::Method;
use crate::site::Site;
use crate::support::loopback::{Clock, Loopback};
use crate::support::service::{
    Bytes, Echo, Grow, Later, Later32, Panics, Refuse, Remaining, TEST, Test, Unknown, YIELDS,
    bytes,
};
use crate::time::{PollAt, Progress};
use crate::transport::{ClientTransport, Delivery, ReplySink, ServerTransport, SlotId};
use core::sync::atomic::Ordering::SeqCst;
use core::time::Duration;
use std::sync::Arc;

const ASYNC_CALLS: usize = 4;

pub(super) struct Bench {
    pub(super) net: Loopback,
    /// The other address of the same thread.
    other_net: Loopback,
    pub(super) transports: Vec<Box<dyn ServerTransport>>,
    pub(super) dispatcher: Dispatcher,
    pub(super) test: Test,
    pub(super) client: Connection,
    pub(super) metrics: Metrics,
}

pub(super) fn bench_with(policy: CancelPolicy) -> Bench {
    bench_of(policy, None)
}

pub(super) fn bench_of(policy: CancelPolicy, accounts: Option<Accounts>) -> Bench {
    let net = Loopback::new(Clock::virtual_time(), 8);
    let site = net.site();
    let transports: Vec<Box<dyn ServerTransport>> = vec![Box::new(net.listen(&site))];
    let other_net = Loopback::new(net.clock.clone(), 8);
    let test = Test::default();
    let methods = Arc::new(MethodTable::new(&[&TEST]));
    let counters = Arc::new(ThreadCounters::new(&methods));
    let dispatcher = Dispatcher::new(
        vec![Box::new(test.clone())],
        Table::new(&[&TEST]).expect("distinct ids"),
        methods.unknown(),
        Turn::new(site.clone(), counters.clone(), accounts),
        Executor::new(ASYNC_CALLS, policy, site.clone()),
        None,
    );
    let refusals = vec![site.refusals().clone()];
    let metrics = Metrics::new("server", methods, vec![counters]).with_refusals(refusals);
    Bench {
        client: client(&net, &net.site()),
        net,
        other_net,
        transports,
        dispatcher,
        test,
        metrics,
    }
}

fn bench() -> Bench {
    bench_with(CancelPolicy::Abort)
}

/// With a client at each of two addresses.
fn bench_with_two_addresses() -> (Bench, Connection) {
    let mut bench = bench();
    let site = bench.net.site();
    bench.transports.push(Box::new(bench.other_net.listen(&site)));
    let other_client = client(&bench.other_net, &site);
    (bench, other_client)
}

pub(super) fn client(net: &Loopback, site: &Site) -> Connection {
    let options = ConnectionOptions::default().timeout(Duration::from_millis(10));
    let transport = Box::new(net.dial_end(site).expect("a server listens"));
    Connection::new(transport, site, &options)
}

impl Bench {
    pub(super) fn start<M: Method<Output = R>, R: 'static>(
        &mut self,
        arguments: &[u8],
    ) -> PendingCall<R> {
        let call = self.client.start::<M, _>(&bytes(arguments)).expect("room");
        self.client.poll();
        call
    }

    /// One turn of the server.
    pub(super) fn turn(&mut self) -> Progress {
        let progress = self.dispatcher.turn(self.net.clock.now(), &mut self.transports);
        if !progress.is_idle() {
            self.dispatcher.end_turn(self.net.clock.now());
        }
        progress
    }

    pub(super) fn take<R: 'static>(&mut self, call: &mut PendingCall<R>) -> Option<R> {
        self.client.poll();
        self.client.take(call)
    }

    pub(super) fn call<M: Method<Output = R>, R: 'static>(&mut self, arguments: &[u8]) -> R {
        let mut call = self.start::<M, R>(arguments);
        self.turn();
        self.take(&mut call).expect("answered in one turn")
    }

    pub(super) fn errors(&self, method: &str) -> Vec<(&'static str, u64)> {
        self.metrics.snapshot().method("Test", method).expect("known").errors().collect()
    }
}

#[test]
fn a_handler_answers_in_place_with_a_value_or_its_own_error() {
    let mut bench = bench();
    assert_eq!(bench.call::<Echo, _>(b"hello"), Ok(b"hello".to_vec()));
    let refused = bench.call::<Refuse, _>(b"no");
    assert_eq!(refused, Err(CallError::Service(b"no".to_vec())));
    let snapshot = bench.metrics.snapshot();
    let echo = snapshot.method("Test", "echo").expect("known");
    assert_eq!((echo.calls(), echo.ok(), echo.in_flight()), (1, 1, 0));
    assert_eq!(bench.errors("refuse"), [("service_error", 1)]);
}

#[test]
fn a_panic_fails_that_call_and_the_server_lives() {
    let mut bench = bench();
    assert_eq!(bench.call::<Panics, _>(b""), Err(RpcError::HandlerPanicked));
    assert_eq!(CallContext::current(), None);
    assert_eq!(bench.call::<Echo, _>(b"alive"), Ok(b"alive".to_vec()));
    assert_eq!(bench.errors("panics"), [("handler_panicked", 1)]);
    assert_eq!(bench.net.unanswered(), 0);
}

#[test]
fn an_async_handler_that_panics_fails_that_call_alone() {
    let mut bench = bench();
    let mut good = bench.start::<Later, Bytes>(b"good");
    let mut bad = bench.start::<Later, Bytes>(b"panic");
    bench.turn();
    bench.test.gate.open();
    bench.turn();
    assert_eq!(bench.take(&mut bad), Some(Err(RpcError::HandlerPanicked)));
    assert_eq!(bench.take(&mut good), Some(Ok(b"good".to_vec())));
}

#[test]
fn unknown_methods_and_bad_arguments_have_errors_of_their_own() {
    let mut bench = bench();
    let unknown = bench.call::<Unknown, _>(b"").expect_err("there is no such method");
    assert!(matches!(unknown, RpcError::NoSuchMethod { .. }));
    assert!(unknown.to_string().contains("0x00000063"), "{unknown}");
    let malformed = bench.call::<Grow, _>(b"abc").expect_err("three bytes are no length");
    assert!(matches!(malformed, RpcError::Malformed { .. }));
    assert!(malformed.to_string().contains("len of Test.grow"), "{malformed}");
}

#[test]
fn a_message_shorter_than_its_header_is_answered_and_does_no_harm() {
    struct Replied(u32);
    impl ReplySink for Replied {
        fn reply(&mut self, _slot: SlotId, _message: crate::transport::Message<'_>) {
            self.0 += 1;
        }
        fn failed(&mut self, _slot: SlotId, _why: crate::TransportFailure) {}
        fn lane_lost(&mut self, _: core::ops::Range<u32>, _: crate::TransportFailure) {
            panic!("it has one lane");
        }

        fn closed(&mut self, _why: crate::TransportFailure) {}
    }
    let mut bench = bench();
    let mut hostile = bench.net.dial_end(&bench.net.site()).expect("a server listens");
    for len in 0..8 {
        let (slot, _) = hostile.reserve(len).expect("room");
        hostile.post(slot, Delivery::AtMostOnce);
        hostile.flush();
        bench.turn();
        let mut replied = Replied(0);
        hostile.poll(bench.net.clock.now(), &mut replied);
        assert_eq!(replied.0, 1, "{len} bytes");
    }
    assert_eq!(bench.test.ran.load(SeqCst), 0);
    assert_eq!(bench.call::<Echo, _>(b"alive"), Ok(b"alive".to_vec()));
}

#[test]
fn a_result_over_the_limit_says_its_size() {
    let mut bench = bench();
    let (len, max) = (2 << 20, (1 << 20) - 8);
    let result = bench.call::<Grow, _>(&(2_u32 << 20).to_le_bytes());
    assert_eq!(result, Err(RpcError::TooLarge { may_have_run: true, len, max }));
}

#[test]
fn a_result_that_finds_no_memory_waits_and_is_not_lost() {
    let mut bench = bench();
    bench.net.set_reply_memory(false);
    let mut call = bench.start::<Grow, Bytes>(&1000_u32.to_le_bytes());
    bench.turn();
    // Tried again soon, and not at once: it would spin.
    let PollAt::At(again) = bench.turn().next else { panic!("the answer is forgotten") };
    assert!(
        again > bench.net.clock.now() && again <= bench.net.clock.now() + Duration::from_millis(1)
    );
    assert!(!bench.dispatcher.is_done(), "an answer still has to leave");
    assert_eq!(bench.take(&mut call), None);
    bench.net.set_reply_memory(true);
    bench.turn();
    assert_eq!(bench.take(&mut call), Some(Ok(vec![7; 1000])));
}

/// A thread that is busy does not spend its turns on answers that find no room, however many there are.
#[test]
fn a_turn_tries_one_of_the_answers_that_wait_for_memory() {
    const CLIENTS: usize = 50;
    let mut bench = bench();
    bench.net.set_reply_memory(false);
    let (len, site) = (1000_u32.to_le_bytes(), bench.net.site());
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| client(&bench.net, &site)).collect();
    let mut calls = Vec::new();
    for (number, client) in clients.iter_mut().enumerate() {
        let start = |client: &mut Connection| client.start::<Grow, _>(&bytes(&len)).expect("room");
        calls.extend((0..3).map(|_| (number, start(client))));
        client.poll();
    }
    bench.turn();
    assert_eq!(bench.test.ran.load(SeqCst), 3 * CLIENTS as u64);
    for _ in 0..10 {
        let before = bench.net.refused_replies();
        assert_eq!(bench.call::<Echo, _>(b"busy"), Ok(b"busy".to_vec()));
        assert_eq!(bench.net.refused_replies() - before, 1, "answers tried in one turn");
    }
    // From time to time one of each client is tried, of some clients at a time.
    bench.net.clock.advance(Duration::from_micros(100));
    let before = bench.net.refused_replies();
    bench.turn();
    let tried = bench.net.refused_replies() - before;
    assert!((2..CLIENTS as u64).contains(&tried), "{tried}");

    // Once there is memory, no time passes until they leave.
    bench.net.set_reply_memory(true);
    bench.turn();
    bench.turn();
    for (number, mut call) in calls {
        clients[number].poll();
        assert_eq!(clients[number].take(&mut call), Some(Ok(vec![7; 1000])));
    }
    assert!(bench.dispatcher.is_done());
}

/// A client's answer waits for one answer of each other client at most, however many those have.
#[test]
fn answers_that_wait_for_memory_leave_in_turns_of_their_clients() {
    let mut bench = bench();
    bench.net.set_reply_memory(false);
    let mut modest = client(&bench.net, &bench.net.site());
    let len = 1000_u32.to_le_bytes();
    let _greedy: Vec<_> = (0..3).map(|_| bench.start::<Grow, Bytes>(&len)).collect();
    bench.turn();
    let mut call = modest.start::<Grow, _>(&bytes(&len)).expect("room");
    modest.poll();
    bench.turn();
    let mut left = 0;
    let result = loop {
        bench.net.spare_replies(1);
        bench.net.clock.advance(Duration::from_micros(100));
        bench.turn();
        left += 1;
        modest.poll();
        match modest.take(&mut call) {
            Some(result) => break result,
            None => assert!(left < 2, "it waits for all of another client"),
        }
    };
    assert_eq!(result, Ok(vec![7; 1000]));
}

/// Starts calls with answers of so many bytes, each handled in a turn of its own.
fn start_grown(bench: &mut Bench, calls: usize, len: u32) -> Vec<PendingCall<Bytes>> {
    let one = |_| {
        let call = bench.start::<Grow, Bytes>(&len.to_le_bytes());
        bench.turn();
        call
    };
    (0..calls).map(one).collect()
}

#[test]
fn a_client_with_many_unread_answers_is_refused_before_its_calls_run() {
    let mut bench = bench();
    bench.net.limit_waiting(4000);
    for _ in 0..3 {
        bench.net.set_reply_memory(false);
        // With core's header, two of them fit three quarters of the limit, and no third one does.
        let waiting = start_grown(&mut bench, 2, 1000);
        let ran = bench.test.ran.load(SeqCst);
        let refused = bench.call::<Echo, _>(b"small");
        assert_eq!(refused, Err(RpcError::Overloaded(Backpressure::Server)));
        assert_eq!(bench.test.ran.load(SeqCst), ran, "the call did not run");
        bench.net.set_reply_memory(true);
        bench.turn();
        for mut call in waiting {
            assert_eq!(bench.take(&mut call), Some(Ok(vec![7; 1000])));
        }
        assert_eq!(bench.call::<Echo, _>(b"small"), Ok(b"small".to_vec()));
    }
}

#[test]
fn answers_beyond_what_may_wait_end_their_calls() {
    let mut bench = bench();
    bench.net.limit_waiting(4000);
    bench.net.set_reply_memory(false);
    let mut calls: Vec<_> =
        (0..ASYNC_CALLS).map(|_| bench.start::<Later, Bytes>(&[5; 1000])).collect();
    bench.turn();
    bench.test.gate.open();
    bench.turn();
    for call in &mut calls[2..] {
        assert_eq!(bench.take(call), Some(Err(RpcError::ResponseDropped)));
    }
    bench.net.set_reply_memory(true);
    bench.turn();
    for call in &mut calls[..2] {
        assert_eq!(bench.take(call), Some(Ok(vec![5; 1000])));
    }
    assert_eq!(bench.errors("later"), [("response_dropped", 2)]);
}

#[test]
fn the_client_with_most_unread_answers_makes_room_for_another() {
    let mut bench = bench();
    bench.net.limit_waiting(3400);
    bench.net.set_reply_memory(false);
    // With core's header, three answers fit three quarters of the limit, and those of five clients four times the limit.
    let mut greedy: Vec<_> = (0..5)
        .map(|_| {
            let calls = start_grown(&mut bench, 3, 800);
            let next = client(&bench.net, &bench.net.site());
            (core::mem::replace(&mut bench.client, next), calls)
        })
        .collect();
    let modest = start_grown(&mut bench, 2, 800);
    bench.net.set_reply_memory(true);
    bench.turn();
    for mut call in modest {
        assert_eq!(bench.take(&mut call), Some(Ok(vec![7; 800])));
    }
    for (number, (client, calls)) in greedy.iter_mut().enumerate() {
        client.poll();
        let ended: Vec<_> = calls.iter_mut().map(|call| client.take(call)).collect();
        let made = Some(Ok(vec![7; 800]));
        let newest = match number {
            4 => Some(Err(RpcError::ResponseDropped)),
            _ => made.clone(),
        };
        assert_eq!(ended, [made.clone(), made, newest]);
    }
    assert_eq!(bench.errors("grow"), [("response_dropped", 1)]);
}

#[test]
fn unread_answers_of_a_client_that_is_gone_wait_no_more() {
    let mut bench = bench();
    bench.net.limit_waiting(4000);
    bench.net.set_reply_memory(false);
    let _calls = start_grown(&mut bench, 2, 1000);
    bench.client = client(&bench.net, &bench.net.site());
    bench.turn();
    assert!(bench.dispatcher.is_done());
}

#[test]
fn async_handlers_overlap_and_answer_when_woken() {
    let mut bench = bench();
    let mut calls: Vec<_> = (0..3_u8).map(|n| bench.start::<Later, Bytes>(&[n])).collect();
    bench.turn();
    assert_eq!(bench.test.gate.waiting.load(SeqCst), 3);
    assert!(bench.turn().is_idle());
    assert_eq!(bench.metrics.snapshot().method("Test", "later").expect("known").in_flight(), 3);
    assert_eq!(bench.call::<Echo, _>(b"meanwhile"), Ok(b"meanwhile".to_vec()));
    bench.test.gate.open();
    bench.turn();
    for (n, call) in calls.iter_mut().enumerate() {
        assert_eq!(bench.take(call), Some(Ok(vec![n as u8])));
    }
}

#[test]
fn more_async_calls_than_there_may_be_are_refused_before_they_run() {
    let mut bench = bench();
    let calls: Vec<_> = (0..ASYNC_CALLS).map(|_| bench.start::<Later, Bytes>(b"")).collect();
    bench.turn();
    let refused = bench.call::<Later, Bytes>(b"");
    assert_eq!(refused, Err(RpcError::Overloaded(Backpressure::Server)));
    bench.test.gate.open();
    bench.turn();
    for mut call in calls {
        assert!(matches!(bench.take(&mut call), Some(Ok(_))));
    }
}

#[test]
fn a_cancelled_call_drops_its_handler_and_frees_its_slot() {
    let mut bench = bench();
    let call = bench.start::<Later, Bytes>(b"x");
    bench.turn();
    bench.client.cancel(call);
    bench.client.poll();
    bench.turn();
    assert_eq!(bench.test.gate.dropped.load(SeqCst), 1);
    assert_eq!(bench.net.unanswered(), 0);
    assert_eq!(bench.errors("later"), [("cancelled", 1)]);
    bench.test.gate.open();
    assert!(bench.turn().is_idle(), "a waker that outlives its future wakes nothing");
    assert_eq!(bench.call::<Echo, _>(b"alive"), Ok(b"alive".to_vec()));
}

#[test]
fn a_server_may_let_cancelled_handlers_finish() {
    let mut bench = bench_with(CancelPolicy::Finish);
    let call = bench.start::<Later, Bytes>(b"x");
    bench.turn();
    bench.client.cancel(call);
    bench.client.poll();
    bench.turn();
    assert_eq!(bench.test.gate.dropped.load(SeqCst), 0);
    bench.test.gate.open();
    bench.turn();
    assert_eq!(bench.test.gate.passed.load(SeqCst), 1);
    assert_eq!(bench.test.gate.told.load(SeqCst), 1, "the handler can learn of it");
    assert_eq!(bench.net.unanswered(), 0);
}

#[test]
fn a_server_that_lets_handlers_finish_drops_none_at_its_deadline() {
    let mut bench = bench_with(CancelPolicy::Finish);
    let _call = bench.start::<Later, Bytes>(b"x");
    bench.turn();
    bench.net.clock.advance(Duration::from_millis(10));
    bench.turn();
    assert_eq!(bench.test.gate.dropped.load(SeqCst), 0);
    bench.test.gate.open();
    bench.turn();
    assert_eq!(bench.test.gate.passed.load(SeqCst), 1);
}

#[test]
fn a_handler_that_wakes_itself_is_polled_again() {
    let mut bench = bench();
    let data = [7; 32];
    let mut call = bench.start::<Later32, Result<[u8; 32], RpcError>>(&data);
    // It wakes itself at its first poll, and again at its second one.
    let answers = (0..=YIELDS).find_map(|_| {
        bench.turn();
        bench.take(&mut call)
    });
    assert_eq!(answers, Some(Ok(data)));
}

#[test]
fn a_deadline_that_passes_drops_the_handler() {
    let mut bench = bench();
    let mut call = bench.start::<Later, Bytes>(b"x");
    bench.turn();
    let at = bench.net.clock.now() + Duration::from_millis(10);
    assert_eq!(bench.turn().next, PollAt::At(at));
    bench.net.clock.advance(Duration::from_millis(10));
    bench.turn();
    assert_eq!(bench.test.gate.dropped.load(SeqCst), 1);
    let error = RpcError::DeadlineExceeded { may_have_run: true, waited: Waited::ForHandler };
    assert_eq!(bench.take(&mut call), Some(Err(error)));
    assert_eq!(bench.turn().next, PollAt::OnEvent);
}

/// A thread that the system stops between a look at the clock and a look for requests.
#[test]
fn a_deadline_counts_from_when_the_request_was_there() {
    let mut bench = bench();
    let stale = bench.net.clock.now();
    bench.net.clock.advance(Duration::from_millis(8));
    let mut call = bench.start::<Later, Bytes>(b"x");
    bench.dispatcher.turn(stale, &mut bench.transports);
    let at = bench.net.clock.now() + Duration::from_millis(10);
    bench.dispatcher.end_turn(bench.net.clock.now());
    assert_eq!(bench.turn().next, PollAt::At(at));
    assert!(bench.take(&mut call).is_none());
}

#[test]
fn the_handlers_of_a_client_that_is_gone_are_dropped() {
    let mut bench = bench();
    let _call = bench.start::<Later, Bytes>(b"x");
    bench.turn();
    bench.client = client(&bench.net, &bench.net.site());
    bench.turn();
    assert_eq!(bench.test.gate.dropped.load(SeqCst), 1);
    assert_eq!(bench.call::<Echo, _>(b"alive"), Ok(b"alive".to_vec()));
}

#[test]
fn deadlines_travel() {
    let mut bench = bench();
    let remaining = bench.call::<Remaining, _>(b"").expect("answered");
    assert_eq!(u64::from_le_bytes(remaining.try_into().expect("eight bytes")), 10_000);
}

#[test]
fn a_server_that_shuts_down_refuses_new_calls_and_answers_old_ones() {
    let mut bench = bench();
    let mut old = bench.start::<Later, Bytes>(b"old");
    bench.turn();
    bench.dispatcher.refuse_requests();
    let new = bench.call::<Echo, _>(b"new");
    assert!(matches!(new, Err(RpcError::PeerGone { may_have_run: false, .. })), "{new:?}");
    assert!(!bench.dispatcher.is_done());
    bench.test.gate.open();
    bench.turn();
    assert!(bench.dispatcher.is_done());
    assert_eq!(bench.take(&mut old), Some(Ok(b"old".to_vec())));
}

#[test]
fn calls_that_are_aborted_are_answered() {
    let mut bench = bench();
    let mut call = bench.start::<Later, Bytes>(b"x");
    bench.turn();
    assert_eq!(bench.dispatcher.abort_all(&mut bench.transports), 1);
    assert_eq!(bench.take(&mut call), Some(Err(RpcError::Cancelled)));
}

#[test]
fn a_call_that_waited_past_its_deadline_behind_slow_ones_does_not_run() {
    let mut bench = bench();
    let clock = bench.net.clock.clone();
    // Two calls show how long the handler takes: longer than the others may wait.
    *bench.test.slow.lock().expect("no panic") = Some(Arc::new(move || {
        clock.advance(Duration::from_millis(20));
    }));
    bench.client.set_timeout(Duration::from_millis(15));
    (0..2).for_each(|_| drop(bench.call::<Echo, _>(b"warns")));
    let mut calls: Vec<_> =
        (0..3).map(|_| bench.client.start::<Echo, _>(&bytes(b"x")).expect("room")).collect();
    bench.client.poll();
    while !bench.turn().is_idle() {}
    let ended = calls.iter_mut().map(|call| bench.take(call).expect("answered"));
    let (ran, late): (Vec<_>, Vec<_>) = ended.partition(Result::is_ok);
    assert_eq!(ran.len(), 1);
    let waited = Waited::InServerQueue;
    let error = RpcError::DeadlineExceeded { may_have_run: false, waited };
    assert!(late.len() == 2 && late.into_iter().all(|it| it == Err(error.clone())));
    assert_eq!(bench.test.ran.load(SeqCst), 3);
}

#[test]
fn latency_counts_from_the_arrival_to_the_departure() {
    let mut bench = bench();
    let clock = bench.net.clock.clone();
    *bench.test.slow.lock().expect("no panic") = Some(Arc::new(move || {
        clock.advance(Duration::from_micros(100));
    }));
    (0..50).for_each(|_| drop(bench.call::<Echo, _>(b"x")));
    let snapshot = bench.metrics.snapshot();
    let echo = snapshot.method("Test", "echo").expect("known");
    assert_eq!(echo.histogram().len(), 50, "no slow call is left out");
    let median = echo.latency(0.5).as_micros();
    assert!((97..=103).contains(&median), "{median} us");
}

/// Starts a call of `Later` at each address, with the same token at both.
fn start_at_both(
    bench: &mut Bench,
    other_client: &mut Connection,
) -> (PendingCall<Bytes>, PendingCall<Bytes>) {
    let call = bench.start::<Later, Bytes>(b"first");
    let other = other_client.start::<Later, _>(&bytes(b"second")).expect("room");
    other_client.poll();
    bench.turn();
    assert_eq!(bench.test.gate.waiting.load(SeqCst), 2);
    (call, other)
}

#[test]
fn each_address_gets_the_answers_to_its_own_calls() {
    let (mut bench, mut other_client) = bench_with_two_addresses();
    let (mut call, mut other) = start_at_both(&mut bench, &mut other_client);
    bench.test.gate.open();
    bench.turn();
    assert_eq!(bench.take(&mut call), Some(Ok(b"first".to_vec())));
    other_client.poll();
    assert_eq!(other_client.take(&mut other), Some(Ok(b"second".to_vec())));
}

#[test]
fn a_cancellation_counts_only_for_its_own_address() {
    let (mut bench, mut other_client) = bench_with_two_addresses();
    let (mut call, other) = start_at_both(&mut bench, &mut other_client);
    other_client.cancel(other);
    other_client.poll();
    bench.turn();
    assert_eq!(bench.test.gate.dropped.load(SeqCst), 1);
    drop(other_client);
    bench.turn();
    assert_eq!(bench.test.gate.dropped.load(SeqCst), 1, "a client that is gone has its own number");
    bench.test.gate.open();
    bench.turn();
    assert_eq!(bench.take(&mut call), Some(Ok(b"first".to_vec())));
    assert_eq!((bench.net.unanswered(), bench.other_net.unanswered()), (0, 0));
}

#[test]
fn an_answer_that_waits_for_memory_leaves_by_its_own_address() {
    let (mut bench, mut other_client) = bench_with_two_addresses();
    bench.other_net.set_reply_memory(false);
    let mut call = other_client.start::<Grow, _>(&bytes(&1000_u32.to_le_bytes())).expect("room");
    other_client.poll();
    bench.turn();
    assert_eq!(bench.call::<Echo, _>(b"meanwhile"), Ok(b"meanwhile".to_vec()));
    bench.other_net.set_reply_memory(true);
    bench.turn();
    other_client.poll();
    assert_eq!(other_client.take(&mut call), Some(Ok(vec![7; 1000])));
}

#[test]
fn deadlines_and_aborts_answer_at_each_address() {
    let (mut bench, mut other_client) = bench_with_two_addresses();
    let _late = start_at_both(&mut bench, &mut other_client);
    bench.net.clock.advance(Duration::from_millis(10));
    bench.turn();
    assert_eq!((bench.net.unanswered(), bench.other_net.unanswered()), (0, 0));
    bench.test.gate.waiting.store(0, SeqCst);
    let _aborted = start_at_both(&mut bench, &mut other_client);
    assert_eq!(bench.dispatcher.abort_all(&mut bench.transports), 2);
    assert_eq!((bench.net.unanswered(), bench.other_net.unanswered()), (0, 0));
}
