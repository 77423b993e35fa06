//! A channel's driver against a server driven by hand, in virtual time.

use super::call::Call;
use super::driver::Driver;
use super::job::Job;
use super::shared::Shared;
use crate::compatibility::{Compatibility, MethodMismatch};
use crate::error::{FailureKind, GoneReason, RpcError, Waited};
use crate::metrics::{MethodTable, Metrics, ThreadCounters};
use crate::panics::tests::Bomb;
use crate::service::{Answer, Method};
use crate::support::loopback::{ClientEnd, Clock, Loopback, ServerEnd};
use crate::support::service::{Bytes, Echo, TEST, bytes};
use crate::time::{Instant, PollAt};
use crate::transport::{CallToken, Message, Replies, RequestSink, ServerTransport};
use crate::wire::{RequestHeader, Status};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;

const WINDOW: u32 = 2;
const MAX_CALLS: usize = 8;

#[derive(Default)]
struct Inbox(Vec<(CallToken, Vec<u8>)>);

impl RequestSink for Inbox {
    fn request(&mut self, call: CallToken, message: Message<'_>, _replies: &mut dyn Replies) {
        self.0.push((call, message.to_vec()));
    }

    fn is_idempotent(&self, _: &[u8]) -> bool {
        false
    }
}

struct Bench {
    net: Loopback,
    server: ServerEnd,
    inbox: Inbox,
    transport: ClientEnd,
    driver: Driver,
    shared: Arc<Shared>,
    metrics: Metrics,
}

fn bench() -> Bench {
    let net = Loopback::new(Clock::virtual_time(), WINDOW);
    let site = net.site();
    let server = net.listen(&site);
    let transport = net.dial_end(&site).expect("a server listens");
    let shared = Arc::new(Shared::new(MAX_CALLS, site));
    let methods = Arc::new(MethodTable::new(&[&TEST]));
    let counters = Arc::new(ThreadCounters::new(&methods));
    let metrics = Metrics::new("client", methods.clone(), vec![counters.clone()]);
    let driver = Driver::new(shared.clone(), methods, counters, WINDOW, None);
    Bench { net, server, inbox: Inbox::default(), transport, driver, shared, metrics }
}

impl Bench {
    fn call(&self, payload: &[u8], timeout: Duration) -> Call<Bytes> {
        let channel = super::handle::Channel::detached(&self.shared, self.metrics.clone());
        let mut call = channel.call::<Echo, _>(&bytes(payload)).timeout(timeout);
        assert!(poll(&mut call).is_pending());
        call
    }

    fn turn(&mut self) {
        self.driver.turn(self.net.clock.now(), &mut self.transport);
    }

    fn receive(&mut self) -> usize {
        self.server.poll(Instant::ZERO, &mut self.inbox);
        self.inbox.0.len()
    }

    /// The next server is there, and the channel connected to it.
    fn connect_again(&mut self) {
        let site = self.net.site();
        self.server = self.net.listen_again(&site);
        self.transport = self.net.dial_end(&site).expect("a server listens");
        self.driver.connected(WINDOW, None);
    }

    /// Answers the oldest request as a server that shuts down.
    fn refuse(&mut self) {
        let (call, _) = self.inbox.0.remove(0);
        let reply = self.server.replies().reserve(&call, 8).expect("room");
        Status::ShuttingDown.write(reply);
        self.server.replies().post(call, 8);
    }

    fn answer(&mut self) {
        let (call, mut request) = self.inbox.0.remove(0);
        Status::Value.write(&mut request);
        self.server
            .replies()
            .reserve(&call, request.len())
            .expect("room")
            .copy_from_slice(&request);
        self.server.replies().post(call, request.len());
    }
}

fn poll<R>(call: &mut Call<R>) -> Poll<R> {
    core::pin::Pin::new(call).poll(&mut Context::from_waker(Waker::noop()))
}

const LONG: Duration = Duration::from_secs(10);

#[test]
fn a_call_goes_there_and_back() {
    let mut bench = bench();
    let mut call = bench.call(b"x", LONG);
    bench.turn();
    bench.receive();
    bench.answer();
    bench.turn();
    assert_eq!(poll(&mut call), Poll::Ready(Ok(b"x".to_vec())));
    let misuse = poll(&mut call);
    assert!(matches!(misuse, Poll::Ready(Err(RpcError::Misuse { .. }))));
    let snapshot = bench.metrics.snapshot();
    let echo = snapshot.method(TEST.name, "echo").expect("known");
    assert_eq!((echo.calls(), echo.ok(), echo.histogram().len()), (1, 1, 1));
    assert_eq!(Echo::NAME, "Test.echo");
}

/// Panics with something that panics when it is dropped.
struct PanickingWaker;

impl std::task::Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        std::panic::panic_any(Bomb(1));
    }
}

#[test]
fn wakers_that_panic_while_the_channel_ends_keep_nobody_from_being_told() {
    let mut bench = bench();
    let channel = super::handle::Channel::detached(&bench.shared, bench.metrics.clone());
    let waker = Waker::from(Arc::new(PanickingWaker));
    let mut calls: Vec<_> = (0..4).map(|_| channel.call::<Echo, _>(&bytes(b"x"))).collect();
    let poll_with =
        |call: &mut Call<Bytes>| core::pin::Pin::new(call).poll(&mut Context::from_waker(&waker));
    // The first two are in flight, and the others were left for the one who drives.
    assert!(calls[..2].iter_mut().all(|call| poll_with(call).is_pending()));
    bench.turn();
    assert!(calls[2..].iter_mut().all(|call| poll_with(call).is_pending()));
    drop(bench.driver);
    for call in &mut calls {
        assert!(matches!(poll(call), Poll::Ready(Err(RpcError::PeerGone { .. }))));
    }
}

/// Memory of a caller whose destructor panics.
struct PanickingMemory(Vec<u8>);

impl AsRef<[u8]> for PanickingMemory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for PanickingMemory {
    fn drop(&mut self) {
        panic!("a destructor, as asked");
    }
}

#[test]
fn arguments_that_panic_when_a_given_up_call_drops_them_stop_no_turn_and_cost_no_call() {
    use crate::codec::{As, Whole};
    let mut bench = bench();
    let channel = super::handle::Channel::detached(&bench.shared, bench.metrics.clone());
    for _ in 0..2 * MAX_CALLS {
        let memory = bytes::Bytes::from_owner(PanickingMemory(vec![7; 4096]));
        let mut call = channel.call::<Echo, _>(&(As::<Whole, _>::new(&memory),));
        drop(memory);
        assert!(poll(&mut call).is_pending());
        drop(call);
        bench.turn();
    }
    let mut call = bench.call(b"x", LONG);
    bench.turn();
    bench.receive();
    bench.answer();
    bench.turn();
    assert_eq!(poll(&mut call), Poll::Ready(Ok(b"x".to_vec())));
}

#[test]
fn a_call_waits_for_room_in_the_window_and_its_timeout_shrinks() {
    let mut bench = bench();
    let mut calls: Vec<_> = (0..3).map(|_| bench.call(b"x", LONG)).collect();
    bench.turn();
    assert_eq!(bench.receive(), WINDOW as usize);
    bench.net.clock.advance(Duration::from_secs(4));
    bench.answer();
    bench.turn();
    assert_eq!(bench.receive(), 2);
    let header = RequestHeader::read(&bench.inbox.0[1].1).expect("a header");
    assert_eq!(header.timeout_us(), 6_000_000);
    (0..2).for_each(|_| bench.answer());
    bench.turn();
    assert!(calls.iter_mut().all(|call| poll(call).is_ready()));
}

#[test]
fn deadlines_say_whether_the_call_was_sent() {
    let mut bench = bench();
    let mut calls: Vec<_> = (0..3).map(|_| bench.call(b"x", Duration::from_secs(1))).collect();
    bench.turn();
    bench.net.clock.advance(Duration::from_secs(1));
    bench.turn();
    for (n, call) in calls.iter_mut().enumerate() {
        let may_have_run = n < WINDOW as usize;
        let waited = if may_have_run { Waited::ForAnswer } else { Waited::ForWindow };
        let error = RpcError::DeadlineExceeded { may_have_run, waited };
        assert_eq!(poll(call), Poll::Ready(Err(error)));
    }
    assert_eq!(bench.transport.owned_slots(), WINDOW as usize, "slots outlive their calls");
    bench.receive();
    (0..WINDOW).for_each(|_| bench.answer());
    bench.turn();
    assert_eq!(bench.transport.owned_slots(), 0);
}

#[test]
fn a_dropped_call_is_abandoned_wherever_it_is() {
    let mut bench = bench();
    let sent = bench.call(b"sent", LONG);
    bench.turn();
    bench.receive();
    let mut calls: Vec<_> = (0..3).map(|_| bench.call(b"x", LONG)).collect();
    bench.turn();
    let waiting = calls.pop().expect("three");
    let submitted = bench.call(b"x", LONG);
    drop((sent, waiting, submitted));
    bench.turn();
    assert_eq!(bench.metrics.snapshot().calls(), 5);
    let in_flight: u64 = bench.metrics.snapshot().methods.iter().map(|m| m.in_flight()).sum();
    assert_eq!(in_flight, 2);
    // All jobs but two are free again.
    let free: Vec<_> = (0..MAX_CALLS - 2).map_while(|_| bench.shared.job()).collect();
    assert_eq!(free.len(), MAX_CALLS - 2);
    assert!(bench.shared.job().is_none());
}

#[test]
fn a_call_that_is_dropped_is_news_until_the_thread_has_seen_it() {
    let mut bench = bench();
    // It keeps the channel open.
    let channel = super::handle::Channel::detached(&bench.shared, bench.metrics.clone());
    let mut call = channel.call::<Echo, _>(&bytes(b"x"));
    assert!(poll(&mut call).is_pending());
    bench.turn();
    assert!(!bench.shared.has_news(bench.driver.seen_cancels()));
    drop(call);
    assert!(bench.shared.has_news(bench.driver.seen_cancels()));
    bench.turn();
    assert!(!bench.shared.has_news(bench.driver.seen_cancels()));
}

#[test]
fn the_server_dies_and_what_was_not_sent_goes_over_the_next_connection() {
    let mut bench = bench();
    let mut calls: Vec<_> = (0..3).map(|_| bench.call(b"x", LONG)).collect();
    bench.turn();
    bench.receive();
    bench.server.die(FailureKind::PeerGone);
    bench.turn();
    assert!(bench.driver.lost().is_some());
    for call in &mut calls[..2] {
        let error = RpcError::PeerGone { may_have_run: true, why: GoneReason::Lost };
        assert_eq!(poll(call), Poll::Ready(Err(error)));
    }
    assert!(poll(&mut calls[2]).is_pending());
    assert!(bench.driver.is_waiting());

    bench.net.clock.advance(Duration::from_secs(4));
    bench.inbox.0.clear();
    bench.connect_again();
    bench.turn();
    assert_eq!(bench.receive(), 1);
    let header = RequestHeader::read(&bench.inbox.0[0].1).expect("a header");
    assert_eq!(header.timeout_us(), 6_000_000);
    bench.answer();
    bench.turn();
    assert_eq!(poll(&mut calls[2]), Poll::Ready(Ok(b"x".to_vec())));
}

/// What a server without methods lacks.
fn nothing_fits() -> Option<Box<Compatibility>> {
    Compatibility::of(&TEST, &[]).map(Box::new)
}

fn absent() -> Poll<Bytes> {
    let (method, why) = (Echo::NAME.into(), MethodMismatch::Absent);
    Poll::Ready(Err(RpcError::NoSuchMethod { method, why }))
}

#[test]
fn a_call_that_the_server_lacks_fails_at_once_even_behind_a_full_window() {
    let mut bench = bench();
    let mut calls: Vec<_> = (0..3).map(|_| bench.call(b"x", LONG)).collect();
    bench.turn();
    bench.driver.connected(WINDOW, nothing_fits());
    assert_eq!(poll(&mut calls[2]), absent(), "it waited for room");
    let mut late = bench.call(b"x", LONG);
    bench.turn();
    assert_eq!(poll(&mut late), absent());
    assert_eq!(bench.receive(), WINDOW as usize, "the others were sent before");
    let snapshot = bench.metrics.snapshot();
    let echo = snapshot.method(TEST.name, "echo").expect("known");
    assert_eq!(echo.errors().collect::<Vec<_>>(), [("no_such_method", 2)]);
}

#[test]
fn calls_that_wait_for_a_server_are_judged_by_the_one_that_comes() {
    let mut bench = bench();
    bench.receive();
    bench.driver.connected(WINDOW, nothing_fits());
    bench.server.die(FailureKind::PeerGone);
    let mut calls = [bench.call(b"x", LONG), bench.call(b"x", LONG)];
    bench.turn();
    assert!(bench.driver.lost().is_some());
    assert!(
        calls.iter_mut().all(|call| poll(call).is_pending()),
        "the server that lacks it is gone"
    );

    bench.connect_again();
    bench.turn();
    assert_eq!(bench.receive(), 2);
}

#[test]
fn a_call_that_a_server_refused_because_it_shuts_down_runs_at_the_next_one() {
    let mut bench = bench();
    let mut calls = [bench.call(b"a", LONG), bench.call(b"b", LONG)];
    bench.turn();
    bench.receive();
    bench.refuse();
    let mut late = bench.call(b"c", LONG);
    bench.turn();
    assert!(bench.driver.lost().is_none(), "a call is in flight");
    assert_eq!(bench.receive(), 1, "nothing more is sent to a server that refuses");
    bench.answer();
    bench.turn();
    assert!(bench.driver.lost().is_some(), "nothing is in flight there");
    assert_eq!(poll(&mut calls[1]), Poll::Ready(Ok(b"b".to_vec())));
    assert!(poll(&mut calls[0]).is_pending() && poll(&mut late).is_pending());

    bench.connect_again();
    bench.turn();
    assert_eq!(bench.receive(), 2);
    (0..2).for_each(|_| bench.answer());
    bench.turn();
    assert_eq!(poll(&mut calls[0]), Poll::Ready(Ok(b"a".to_vec())));
    assert_eq!(poll(&mut late), Poll::Ready(Ok(b"c".to_vec())));
    let snapshot = bench.metrics.snapshot();
    let echo = snapshot.method(TEST.name, "echo").expect("known");
    assert_eq!((echo.calls(), echo.ok(), echo.in_flight()), (3, 3, 0));
}

#[test]
fn without_a_connection_deadlines_still_hold() {
    let mut bench = bench();
    let mut call = bench.call(b"x", LONG);
    bench.server.die(FailureKind::PeerGone);
    let progress = bench.driver.turn_unconnected(bench.net.clock.now());
    assert_eq!(progress.next, PollAt::At(bench.net.clock.now() + LONG));
    bench.net.clock.advance(LONG);
    bench.driver.turn_unconnected(bench.net.clock.now());
    let ended = poll(&mut call);
    assert!(
        matches!(ended, Poll::Ready(Err(RpcError::PeerGone { may_have_run: false, .. }))),
        "{ended:?}"
    );
}

#[test]
fn more_calls_than_there_may_be_are_refused_and_later_ones_are_not() {
    let mut bench = bench();
    let mut calls: Vec<_> = (0..MAX_CALLS).map(|_| bench.call(b"x", LONG)).collect();
    let channel = super::handle::Channel::detached(&bench.shared, bench.metrics.clone());
    let mut refused = channel.call::<Echo, _>(&bytes(b"x"));
    let Poll::Ready(Err(RpcError::Overloaded(_))) = poll(&mut refused) else {
        panic!("there is no room")
    };
    bench.turn();
    while !calls.is_empty() {
        bench.receive();
        while !bench.inbox.0.is_empty() {
            bench.answer();
        }
        bench.turn();
        calls.retain_mut(|call| poll(call).is_pending());
    }
    let mut accepted = channel.call::<Echo, _>(&bytes(b"x"));
    assert!(poll(&mut accepted).is_pending());
}

/// A call whose caller drives.
fn own(bench: &Bench, timeout: Duration) -> Box<Job> {
    let mut job = bench.shared.job().expect("there is room");
    job.arguments.encode(&bytes(b"own"), true).expect("bytes");
    (job.method, job.sent_as) = (Echo::ID, Echo::ID);
    job.timeout_ns = timeout.as_nanos() as u64;
    job
}

#[test]
fn a_call_that_is_alone_has_its_whole_timeout_from_when_it_left() {
    let mut bench = bench();
    let timeout = Duration::from_secs(3);
    bench.turn();
    bench.net.clock.advance(LONG);
    let job = own(&bench, timeout);
    bench.driver.set_own(job.ticket.id());
    let slot = bench.driver.send_alone(job, &mut bench.transport).ok().expect("it is alone");
    assert_eq!(bench.receive(), 1, "it has left");
    let header = RequestHeader::read(&bench.inbox.0[0].1).expect("a header");
    assert_eq!(header.timeout_us(), 3_000_000);
    let sent = bench.net.clock.now();
    bench.driver.stamp(slot, sent);
    bench.turn();
    assert!(bench.driver.take_own().is_none(), "silence is no part of its timeout");
    bench.net.clock.advance(timeout - Duration::from_nanos(1));
    bench.turn();
    assert!(bench.driver.take_own().is_none());
    bench.net.clock.advance(Duration::from_nanos(1));
    bench.turn();
    let mut job = bench.driver.take_own().expect("its deadline has passed");
    bench.driver.record_own(&job, sent + timeout);
    let late = RpcError::DeadlineExceeded { may_have_run: true, waited: Waited::ForAnswer };
    assert!(matches!(job.answer(), Answer::Failed(why) if why == late));
    let snapshot = bench.metrics.snapshot();
    let echo = snapshot.method(TEST.name, "echo").expect("known");
    assert_eq!((echo.calls(), echo.in_flight(), echo.max_latency()), (1, 0, timeout));
}

#[test]
fn a_call_is_alone_only_next_to_no_other_and_with_a_server_that_takes_it() {
    let mut bench = bench();
    let first = bench.driver.send_alone(own(&bench, LONG), &mut bench.transport);
    bench.driver.stamp(first.ok().expect("it is alone"), bench.net.clock.now());
    let second = bench.driver.send_alone(own(&bench, LONG), &mut bench.transport);
    let second = second.expect_err("another is in flight");
    assert_eq!(bench.receive(), 1);
    bench.answer();
    bench.turn();
    // Nothing else is in its way: it is alone again.
    let again = bench.driver.send_alone(own(&bench, LONG), &mut bench.transport);
    bench.driver.stamp(again.ok().expect("it is alone again"), bench.net.clock.now());
    assert_eq!(bench.receive(), 1);
    bench.answer();
    bench.turn();
    bench.driver.accept_one(second, bench.net.clock.now());
    let third = bench.driver.send_alone(own(&bench, LONG), &mut bench.transport);
    assert!(third.is_err(), "another waits to be sent");
    bench.turn();
    assert_eq!(bench.receive(), 1);
    bench.refuse();
    bench.turn();
    let fourth = bench.driver.send_alone(own(&bench, LONG), &mut bench.transport);
    assert!(fourth.is_err(), "the server shuts down");
    assert_eq!(bench.receive(), 0);
}

/// Its caller would otherwise be told that the call may have run.
#[test]
fn a_call_that_is_alone_is_not_sent_after_the_goodbye_of_the_server() {
    let mut bench = bench();
    bench.receive();
    bench.server.die(FailureKind::Goodbye);
    let job = bench.driver.send_alone(own(&bench, LONG), &mut bench.transport);
    let job = job.expect_err("the server is gone");
    assert!(job.sent.is_none() && bench.driver.lost().is_some());
    bench.driver.accept_one(job, bench.net.clock.now());
    bench.connect_again();
    bench.turn();
    assert_eq!(bench.receive(), 1, "the next server runs it");
}

#[test]
fn a_call_is_alone_when_some_before_it_were() {
    let mut bench = bench();
    for alone in [false, false, false, false, true, true] {
        let job = own(&bench, LONG);
        bench.driver.set_own(job.ticket.id());
        let slot = bench.driver.send_alone(job, &mut bench.transport).ok().expect("it is alone");
        bench.driver.stamp(slot, bench.net.clock.now());
        assert_eq!(bench.driver.is_alone(), alone);
        bench.receive();
        bench.answer();
        bench.turn();
        assert!(bench.driver.take_own().is_some());
    }
    // Another task's call, which the next turn takes.
    let other = bench.call(b"x", LONG);
    bench.turn();
    assert!(!bench.driver.is_alone());
    drop(other);
}

#[test]
fn when_the_driver_ends_no_caller_keeps_waiting() {
    let mut bench = bench();
    let mut sent = bench.call(b"x", LONG);
    bench.turn();
    let mut submitted = bench.call(b"x", LONG);
    drop(bench.driver);
    let ended = poll(&mut sent);
    assert!(
        matches!(ended, Poll::Ready(Err(RpcError::PeerGone { may_have_run: true, .. }))),
        "{ended:?}"
    );
    let ended = poll(&mut submitted);
    assert!(
        matches!(ended, Poll::Ready(Err(RpcError::PeerGone { may_have_run: false, .. }))),
        "{ended:?}"
    );
    let channel = super::handle::Channel::detached(&bench.shared, bench.metrics.clone());
    let mut later = channel.call::<Echo, _>(&bytes(b"x"));
    let ended = poll(&mut later);
    assert!(
        matches!(ended, Poll::Ready(Err(RpcError::PeerGone { may_have_run: false, .. }))),
        "{ended:?}"
    );
}
