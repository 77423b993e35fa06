//! Server threads and channels that the caller drives: one thread, virtual time, turn by turn.
#![forbid(unsafe_code)]

mod support;

use core::task::{Context, Poll, Waker};
use farcall_core::server::ServerThread;
use farcall_core::time::PollAt;
use farcall_core::{
    Call, Channel, ChannelDriver, ChannelOptions, Connection, ConnectionOptions, DrivenServer,
    RpcError, Server, Site, Waited,
};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use support::loopback::{Clock, Loopback};
use support::service::{Bytes, Echo, Later, TEST, Test, bytes};

const SECOND: Duration = Duration::from_secs(1);

struct Bench {
    net: Loopback,
    test: Test,
    server: DrivenServer,
    thread: ServerThread,
}

fn bench() -> Bench {
    let net = Loopback::new(Clock::virtual_time(), 8);
    let test = Test::default();
    let sites = vec![Site::driven(Arc::new(net.clock.clone()))];
    let assembled = Server::builder().service(test.clone()).assemble(&[&net], sites);
    let (server, mut threads) = assembled.expect("the place is free");
    let thread = threads.pop().expect("one thread");
    assert!(threads.is_empty());
    Bench { net, test, server, thread }
}

impl Bench {
    fn client(&self) -> Connection {
        let site = self.net.site();
        let transport = Box::new(self.net.dial_end(&site).expect("a server listens"));
        Connection::new(transport, &site, &ConnectionOptions::default().timeout(10 * SECOND))
    }

    fn channel(&self) -> (Channel, ChannelDriver) {
        let site = Site::driven(Arc::new(self.net.clock.clone()));
        let transport = Box::new(self.net.dial_end(&site).expect("a server listens"));
        Channel::driven(transport, &site, &TEST, &ChannelOptions::default().timeout(10 * SECOND))
    }

    /// Turns of the server until one is empty; when it wants the next.
    fn turns(&mut self) -> PollAt {
        loop {
            let progress = self.thread.turn(self.net.clock.now());
            if progress.is_idle() {
                return progress.next;
            }
        }
    }
}

#[test]
fn a_driven_server_answers_in_turns_and_waits_for_events_between_them() {
    let mut bench = bench();
    let mut client = bench.client();
    for payload in [&b"one"[..], b"two"] {
        let mut call = client.start::<Echo, _>(&bytes(payload)).expect("room");
        client.turn(bench.net.clock.now());
        assert_eq!(bench.turns(), PollAt::OnEvent);
        client.turn(bench.net.clock.now());
        assert_eq!(client.take(&mut call), Some(Ok(payload.to_vec())));
    }
    assert_eq!((bench.server.connections(), bench.server.is_down()), (1, false));
}

#[test]
fn a_shutdown_answers_in_turns_what_is_in_flight() {
    let mut bench = bench();
    let mut client = bench.client();
    let mut held = client.start::<Later, _>(&bytes(b"held")).expect("room");
    client.turn(bench.net.clock.now());
    bench.turns();
    bench.server.shut_down(SECOND);
    let until = bench.net.clock.now() + SECOND;
    let next = bench.turns();
    let is_bounded = matches!(next, PollAt::At(at) if at <= until);
    assert!(is_bounded, "it waits for the handler, at most so long: {next:?}");
    assert!(!bench.thread.is_over());
    bench.test.gate.open();
    bench.turns();
    client.turn(bench.net.clock.now());
    assert_eq!(client.take(&mut held), Some(Ok(b"held".to_vec())));
    assert!(!bench.thread.is_over(), "a client that calls now is refused before the goodbye");
    bench.net.clock.advance(Duration::from_millis(30));
    bench.turns();
    assert!(bench.thread.is_over());
    assert_eq!((bench.server.aborted_calls(), bench.server.is_down()), (0, false));
    drop(bench.thread);
    assert!(bench.server.is_down());
}

#[test]
fn a_shutdown_ends_at_its_bound_and_says_so() {
    let mut bench = bench();
    let mut client = bench.client();
    let mut held = client.start::<Later, _>(&bytes(b"held")).expect("room");
    client.turn(bench.net.clock.now());
    bench.turns();
    bench.server.shut_down(SECOND);
    bench.turns();
    bench.net.clock.advance(SECOND);
    bench.turns();
    client.turn(bench.net.clock.now());
    assert_eq!(client.take(&mut held), Some(Err(RpcError::Cancelled)));
    assert!(bench.thread.is_over() && client.is_closed());
    assert_eq!(bench.server.aborted_calls(), 1);
    assert_eq!(bench.test.gate.dropped.load(SeqCst), 1);
}

/// One poll of a call.
fn poll(call: &mut Call<Bytes>) -> Poll<Bytes> {
    pin!(call).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_driven_channel_carries_calls_until_no_caller_is_left() {
    let mut bench = bench();
    let (channel, mut driver) = bench.channel();
    let mut call = channel.call::<Echo, _>(&bytes(b"hello"));
    assert!(poll(&mut call).is_pending(), "it is on its way");
    assert!(!driver.turn(bench.net.clock.now()).is_idle());
    bench.turns();
    driver.turn(bench.net.clock.now());
    assert_eq!(poll(&mut call), Poll::Ready(Ok(b"hello".to_vec())));
    assert_eq!(driver.turn(bench.net.clock.now()).next, PollAt::OnEvent, "no deadline is left");
    drop((call, channel));
    driver.turn(bench.net.clock.now());
    assert!(driver.is_over());
}

#[test]
fn calls_of_a_driven_channel_end_with_their_deadline_and_with_their_driver() {
    let mut bench = bench();
    let (channel, mut driver) = bench.channel();
    let mut late = channel.call::<Later, _>(&bytes(b"late")).timeout(SECOND);
    let mut held = channel.call::<Later, _>(&bytes(b"held"));
    assert!(poll(&mut late).is_pending() && poll(&mut held).is_pending());
    driver.turn(bench.net.clock.now());
    bench.turns();
    let until = bench.net.clock.now() + SECOND;
    assert_eq!(driver.turn(bench.net.clock.now()).next, PollAt::At(until));
    bench.net.clock.advance(SECOND);
    driver.turn(bench.net.clock.now());
    let exceeded =
        Err(RpcError::DeadlineExceeded { may_have_run: true, waited: Waited::ForAnswer });
    assert_eq!(poll(&mut late), Poll::Ready(exceeded));
    assert!(poll(&mut held).is_pending());
    drop(driver);
    let ended = poll(&mut held);
    assert!(
        matches!(ended, Poll::Ready(Err(RpcError::PeerGone { may_have_run: true, .. }))),
        "{ended:?}"
    );
    let mut after = channel.call::<Echo, _>(&bytes(b"after"));
    let ended = poll(&mut after);
    assert!(
        matches!(ended, Poll::Ready(Err(RpcError::PeerGone { may_have_run: false, .. }))),
        "{ended:?}"
    );
}
