//! The poll-mode client against a server driven by hand, in virtual time.

use super::calls::{Calls, read_into};
use super::{Connection, ConnectionOptions, PendingCall};
use crate::compatibility::Compatibility;
use crate::error::{Backpressure, FailureKind, RpcError, Waited};
use crate::idle::IdlePolicy;
use crate::support::loopback::{Clock, Loopback, ServerEnd};
use crate::support::service::{Echo, TEST, bytes};
use crate::transport::{
    CallToken, ClientEvent, ClientId, Message, NewConnection, Replies, ReplySink, RequestSink,
    ServerTransport, SlotId,
};
use crate::wire::{HEADER_BYTES, RequestHeader, Status};
use core::time::Duration;

const WINDOW: u32 = 4;

/// Keeps requests until the test answers them.
#[derive(Default)]
struct Inbox {
    requests: Vec<(CallToken, Vec<u8>)>,
    cancelled: Vec<(u32, u32)>,
}

impl RequestSink for Inbox {
    fn request(&mut self, call: CallToken, message: Message<'_>, _replies: &mut dyn Replies) {
        self.requests.push((call, message.to_vec()));
    }

    fn is_idempotent(&self, _: &[u8]) -> bool {
        false
    }

    fn client(&mut self, _: ClientId, event: ClientEvent) {
        if let ClientEvent::Cancelled { slot, generation } = event {
            self.cancelled.push((slot, generation));
        }
    }
}

struct Bench {
    net: Loopback,
    server: ServerEnd,
    inbox: Inbox,
    client: Connection,
}

fn bench() -> Bench {
    let net = Loopback::new(Clock::virtual_time(), WINDOW);
    let site = net.site();
    let server = net.listen(&site);
    let options =
        ConnectionOptions::default().timeout(Duration::from_millis(10)).idle(IdlePolicy::PARK);
    let end = net.dial_end(&site).expect("a server listens");
    let client = Connection::new(Box::new(end), &site, &options);
    Bench { client, server, inbox: Inbox::default(), net }
}

impl Bench {
    fn receive(&mut self) -> usize {
        let now = self.net.clock.now();
        self.server.poll(now, &mut self.inbox);
        self.inbox.requests.len()
    }

    /// Answers the request at this place of the inbox with its own arguments.
    fn answer(&mut self, at: usize) {
        let (call, request) = self.inbox.requests.remove(at);
        let replies = self.server.replies();
        let reply = replies.reserve(&call, request.len()).expect("room");
        Status::Value.write(reply);
        reply[HEADER_BYTES..].copy_from_slice(&request[HEADER_BYTES..]);
        replies.post(call, request.len());
    }
}

#[test]
fn a_call_that_the_server_lacks_is_not_sent() {
    let net = Loopback::new(Clock::virtual_time(), WINDOW);
    let site = net.site();
    let _server = net.listen(&site);
    let transport = Box::new(net.dial_end(&site).expect("a server listens"));
    let compatibility = Compatibility::of(&TEST, &[]).map(Box::new);
    let dialled = NewConnection { transport, compatibility, connection: None };
    let mut client = Connection::new(dialled, &site, &ConnectionOptions::default());
    let started = client.start::<Echo, _>(&bytes(b"x")).err();
    let called = client.call::<Echo, _>(&bytes(b"x")).err();
    for error in [started, called] {
        let error = error.expect("the server has no method");
        assert!(error.to_string().starts_with("Test.echo is not there"), "{error}");
        assert!(!error.may_have_run());
    }
    assert_eq!(client.in_flight(), 0);
}

#[test]
fn answers_come_in_any_order_to_their_calls() {
    let mut bench = bench();
    let mut calls: Vec<_> = (0..WINDOW as u8)
        .map(|n| bench.client.start::<Echo, _>(&bytes(&[n])).expect("room"))
        .collect();
    bench.client.poll();
    assert_eq!(bench.receive(), WINDOW as usize);
    let header = RequestHeader::read(&bench.inbox.requests[0].1).expect("a header");
    assert_eq!((header.method(), header.timeout_us()), (1, 10_000));
    for at in [3, 1, 1, 0] {
        bench.answer(at);
    }
    bench.client.poll();
    for (n, call) in calls.iter_mut().enumerate() {
        assert_eq!(bench.client.take(call), Some(Ok(vec![n as u8])));
        assert_eq!(bench.client.take(call), None, "an answer is taken once");
    }
}

#[test]
fn nothing_leaves_before_the_poll() {
    let mut bench = bench();
    let call = bench.client.start::<Echo, _>(&bytes(b"a")).expect("room");
    assert_eq!(bench.receive(), 0);
    bench.client.poll();
    assert_eq!(bench.receive(), 1);
    bench.client.cancel(call);
}

#[test]
fn a_full_window_is_backpressure_and_loses_nothing() {
    let mut bench = bench();
    assert_eq!(bench.client.window(), WINDOW);
    let mut calls: Vec<_> =
        (0..WINDOW).map(|_| bench.client.start::<Echo, _>(&bytes(b"x")).expect("room")).collect();
    let refused = bench.client.start::<Echo, _>(&bytes(b"y")).expect_err("the window is full");
    assert_eq!(refused, RpcError::Overloaded(Backpressure::Credits));
    assert!(!refused.may_have_run());
    bench.client.poll();
    bench.receive();
    bench.answer(0);
    bench.client.poll();
    assert_eq!(bench.client.take(&mut calls[0]), Some(Ok(b"x".to_vec())));
    assert!(bench.client.start::<Echo, _>(&bytes(b"y")).is_ok());
}

#[test]
fn answers_that_are_not_taken_are_bounded() {
    let mut bench = bench();
    let mut untaken = Vec::new();
    let error = loop {
        match bench.client.start::<Echo, _>(&bytes(b"x")) {
            Ok(call) => untaken.push(call),
            Err(error) => break error,
        }
        bench.client.poll();
        bench.receive();
        bench.answer(0);
        bench.client.poll();
        assert!(untaken.len() < 10_000);
    };
    assert_eq!(error, RpcError::Overloaded(Backpressure::Calls));
    // Dropping one makes room for one, without a poll.
    untaken.pop();
    let call = bench.client.start::<Echo, _>(&bytes(b"x")).expect("room");
    let refused = bench.client.start::<Echo, _>(&bytes(b"x")).expect_err("no more room");
    assert_eq!(refused, RpcError::Overloaded(Backpressure::Calls));
    bench.client.cancel(call);
}

#[test]
fn calls_that_are_dropped_are_cancelled_and_others_go_on() {
    const DROPPED: usize = 1_000;
    let mut bench = bench();
    let mut kept = bench.client.start::<Echo, _>(&bytes(b"kept")).expect("room");
    bench.client.poll();
    for n in 0..DROPPED {
        let call = bench.client.start::<Echo, _>(&bytes(b"dropped")).expect("room");
        if n % 2 == 0 {
            // Before it leaves, which it does all the same.
            drop(call);
            bench.client.poll();
        } else {
            bench.client.poll();
            drop(call);
            assert!(!bench.client.arm(), "there is something to send");
            let before = bench.net.clock.now();
            bench.client.park(None);
            assert_eq!(bench.net.clock.now(), before, "it did not sleep");
            bench.client.poll();
        }
        assert_eq!(bench.client.in_flight(), 1);
        assert_eq!(bench.receive(), 2);
        assert_eq!(bench.inbox.cancelled.len(), n + 1, "the server is told");
        bench.answer(1);
        bench.client.poll();
    }
    bench.answer(0);
    bench.client.poll();
    assert_eq!(bench.client.take(&mut kept), Some(Ok(b"kept".to_vec())));
}

#[test]
fn a_blocking_call_cancels_dropped_ones() {
    let mut bench = bench();
    let dropped = bench.client.start::<Echo, _>(&bytes(b"dropped")).expect("room");
    bench.client.poll();
    drop(dropped);
    bench.client.set_timeout(Duration::from_millis(5));
    let result = bench.client.call::<Echo, _>(&bytes(b"x"));
    assert!(matches!(result, Err(RpcError::DeadlineExceeded { may_have_run: true, .. })));
    bench.receive();
    assert_eq!(bench.inbox.cancelled.len(), 2, "its deadline was later");
}

#[test]
fn a_call_is_dropped_on_another_thread_and_after_its_connection() {
    let mut bench = bench();
    let mut start = || bench.client.start::<Echo, _>(&bytes(b"x")).expect("room");
    let (first, second) = (start(), start());
    bench.client.poll();
    std::thread::spawn(move || drop(first)).join().expect("no panic");
    bench.client.poll();
    bench.receive();
    assert_eq!((bench.client.in_flight(), bench.inbox.cancelled.len()), (1, 1));
    drop(bench);
    drop(second);
}

#[test]
fn a_call_of_another_connection_is_none_of_this_one() {
    let (mut one, mut other) = (bench(), bench());
    let mut calls = [&mut one, &mut other].map(|bench| {
        let call = bench.client.start::<Echo, _>(&bytes(b"x")).expect("room");
        bench.client.poll();
        bench.receive();
        bench.answer(0);
        bench.client.poll();
        call
    });
    let [of_one, of_other] = &mut calls;
    assert_eq!(one.client.take(of_other), None);
    assert_eq!(other.client.take(of_one), None);
    assert_eq!(one.client.take(of_one), Some(Ok(b"x".to_vec())));
    let [_, of_other] = calls;
    assert_eq!(one.client.wait(of_other), None);
}

#[test]
fn a_deadline_ends_the_call_and_a_late_reply_frees_the_slot_only() {
    let mut bench = bench();
    let mut late = bench.client.start::<Echo, _>(&bytes(b"late")).expect("room");
    bench.client.poll();
    bench.receive();
    bench.net.clock.advance(Duration::from_millis(10));
    bench.client.park(None);
    bench.client.poll();
    let error = RpcError::DeadlineExceeded { may_have_run: true, waited: Waited::ForAnswer };
    assert_eq!(bench.client.take(&mut late), Some(Err(error)));
    assert_eq!(bench.client.in_flight(), 0);

    // The slot is not used again while the server may still answer into it.
    let mut calls: Vec<_> =
        (1..WINDOW).map(|_| bench.client.start::<Echo, _>(&bytes(b"new")).expect("room")).collect();
    let refused = bench.client.start::<Echo, _>(&bytes(b"one too many")).map(|_| ());
    assert_eq!(refused, Err(RpcError::Overloaded(Backpressure::Credits)));
    bench.client.poll();
    bench.receive();
    assert_eq!(bench.inbox.cancelled.len(), 1, "the server is told");
    bench.answer(0);
    bench.client.poll();
    assert!(calls.iter_mut().all(|call| bench.client.take(call).is_none()));
    calls.push(bench.client.start::<Echo, _>(&bytes(b"new")).expect("the slot is free again"));
    bench.client.poll();
    bench.receive();
    (0..WINDOW).for_each(|_| bench.answer(0));
    bench.client.poll();
    for call in &mut calls {
        assert_eq!(bench.client.take(call), Some(Ok(b"new".to_vec())));
    }
}

#[test]
fn a_deadline_counts_from_when_the_call_leaves() {
    let mut bench = bench();
    bench.client.poll();
    bench.net.clock.advance(Duration::from_secs(5));
    let mut call = bench.client.start::<Echo, _>(&bytes(b"x")).expect("room");
    bench.client.poll();
    assert_eq!(bench.client.take(&mut call), None);
    bench.receive();
    bench.answer(0);
    bench.client.poll();
    assert!(matches!(bench.client.take(&mut call), Some(Ok(_))));
}

#[test]
fn a_blocking_call_to_a_silent_server_ends_at_its_deadline() {
    let mut bench = bench();
    let before = bench.net.clock.now();
    let result = bench.client.call::<Echo, _>(&bytes(b"x"));
    assert!(
        matches!(result, Err(RpcError::DeadlineExceeded { may_have_run: true, .. })),
        "{result:?}"
    );
    assert_eq!(bench.net.clock.now() - before, Duration::from_millis(10));
    assert_eq!(bench.receive(), 1);
    assert_eq!(bench.inbox.cancelled.len(), 1, "the server need not answer");
}

#[test]
fn a_blocking_call_ends_others_at_their_deadlines() {
    let mut bench = bench();
    let mut early = bench.client.start::<Echo, _>(&bytes(b"early")).expect("room");
    bench.client.poll();
    bench.net.clock.advance(Duration::from_millis(5));
    let result = bench.client.call::<Echo, _>(&bytes(b"x"));
    let late = RpcError::DeadlineExceeded { may_have_run: true, waited: Waited::ForAnswer };
    assert_eq!(result, Err(late.clone()));
    // Without a poll in between.
    assert_eq!(bench.client.take(&mut early), Some(Err(late)));
    bench.receive();
    assert_eq!(bench.inbox.cancelled.len(), 2);
}

#[test]
fn what_is_left_of_a_call_means_no_later_one() {
    let mut bench = bench();
    let mut old: Vec<_> = (0..3)
        .map(|_| {
            let mut call = bench.client.start::<Echo, _>(&bytes(b"old")).expect("room");
            bench.client.poll();
            bench.receive();
            bench.answer(0);
            bench.client.poll();
            assert_eq!(bench.client.take(&mut call), Some(Ok(b"old".to_vec())));
            call
        })
        .collect();
    let mut next = bench.client.start::<Echo, _>(&bytes(b"next")).expect("room");
    bench.client.poll();
    // It waits for none of them, and ends by none of them.
    let before = bench.net.clock.now();
    assert_eq!(bench.client.wait(old.remove(0)), None);
    assert_eq!(bench.net.clock.now(), before);
    bench.client.cancel(old.remove(0));
    assert_eq!(bench.client.in_flight(), 1);
    bench.receive();
    bench.answer(0);
    bench.client.poll();
    assert_eq!(bench.client.take(&mut old[0]), None);
    assert_eq!(bench.client.take(&mut next), Some(Ok(b"next".to_vec())));
}

#[test]
fn a_reply_to_an_earlier_call_of_a_slot_is_dropped() {
    let mut calls = Calls::new(WINDOW, WINDOW);
    let slot = |generation| SlotId { index: 1, generation };
    let read = read_into::<Echo>;
    let call: PendingCall<Result<Vec<u8>, RpcError>> =
        PendingCall::new(calls.start(slot(7), 1, read));
    assert_eq!(calls.cancel(call), Some(slot(7)));
    let call: PendingCall<Result<Vec<u8>, RpcError>> =
        PendingCall::new(calls.start(slot(8), 1, read));
    let mut reply = vec![0; HEADER_BYTES];
    Status::Value.write(&mut reply);
    calls.reply(slot(7), Message::Borrowed(&reply));
    assert!(calls.is_waiting(&call));
    calls.reply(slot(8), Message::Borrowed(&reply));
    assert!(!calls.is_waiting(&call));
}

#[test]
fn a_deadline_in_the_past_sends_nothing() {
    let mut bench = bench();
    bench.client.set_timeout(Duration::ZERO);
    let result = bench.client.call::<Echo, _>(&bytes(b"x"));
    assert!(
        matches!(result, Err(RpcError::DeadlineExceeded { may_have_run: false, .. })),
        "{result:?}"
    );
    assert_eq!(bench.receive(), 0);
}

#[test]
fn the_server_learns_of_a_cancelled_call_and_its_answer_is_dropped() {
    let mut bench = bench();
    let call = bench.client.start::<Echo, _>(&bytes(b"x")).expect("room");
    bench.client.poll();
    bench.receive();
    bench.client.cancel(call);
    bench.client.poll();
    bench.receive();
    assert_eq!(bench.inbox.cancelled.len(), 1);
    bench.answer(0);
    assert_eq!(bench.client.poll().worked, 1);
    assert_eq!(bench.client.in_flight(), 0);
}

#[test]
fn when_the_server_dies_every_call_says_so() {
    let mut bench = bench();
    let mut call = bench.client.start::<Echo, _>(&bytes(b"x")).expect("room");
    bench.client.poll();
    bench.receive();
    bench.server.die(FailureKind::PeerGone);
    bench.client.poll();
    let ended = bench.client.take(&mut call);
    assert!(matches!(ended, Some(Err(RpcError::PeerGone { may_have_run: true, .. }))), "{ended:?}");
    assert!(bench.client.is_closed());
    let later = bench.client.start::<Echo, _>(&bytes(b"x")).expect_err("closed");
    assert!(matches!(later, RpcError::PeerGone { may_have_run: false, .. }), "{later:?}");
    let result = bench.client.call::<Echo, _>(&bytes(b"x"));
    assert!(matches!(result, Err(RpcError::PeerGone { may_have_run: false, .. })), "{result:?}");
}

#[test]
fn a_blocking_call_keeps_the_answers_of_others() {
    let mut bench = bench();
    let mut early = bench.client.start::<Echo, _>(&bytes(b"early")).expect("room");
    bench.client.poll();
    bench.receive();
    bench.answer(0);
    // Its own answer never comes; the other's does, meanwhile.
    let result = bench.client.call::<Echo, _>(&bytes(b"x"));
    assert!(
        matches!(result, Err(RpcError::DeadlineExceeded { may_have_run: true, .. })),
        "{result:?}"
    );
    assert_eq!(bench.client.take(&mut early), Some(Ok(b"early".to_vec())));
}

#[test]
fn a_message_over_the_limit_is_refused_by_its_size() {
    let mut bench = bench();
    let result = bench.client.call::<Echo, _>(&bytes(&vec![0; 2 << 20]));
    let (len, max) = (2 << 20, (1 << 20) - 8);
    assert_eq!(result, Err(RpcError::TooLarge { may_have_run: false, len, max }));
}

#[test]
fn waiting_for_a_taken_call_ends() {
    let mut bench = bench();
    let call = bench.client.start::<Echo, _>(&bytes(b"x")).expect("room");
    bench.client.poll();
    bench.receive();
    bench.answer(0);
    assert_eq!(bench.client.wait(call), Some(Ok(b"x".to_vec())));
}
