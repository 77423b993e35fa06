//! One server at several addresses.
#![forbid(unsafe_code)]

mod support;

use farcall_core::error::Source;
use farcall_core::time::PollAt;
use farcall_core::transport::ServerAddress;
use farcall_core::{
    BindError, Channel, ChannelOptions, Connection, ConnectionOptions, IdlePolicy, Server, Site,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use support::bounds::{BOUND, until};
use support::loopback::{Clock, Loopback};
use support::service::{Echo, Later, TEST, Test, bytes};

fn nets(clock: Clock) -> [Loopback; 2] {
    ["one", "two"].map(|name| {
        let mut net = Loopback::new(clock.clone(), 16);
        net.name = name;
        net
    })
}

#[test]
fn all_threads_serve_the_clients_of_all_addresses() {
    let ([one, two], test) = (nets(Clock::real()), Test::default());
    let server = Server::builder().service(test).threads(2).serve_all(&[&one, &two]);
    let server = server.expect("both addresses are free");
    assert_eq!(server.address(), "one");
    assert_eq!(server.addresses(), ["one", "two"]);
    let channels = [&one, &one, &two, &two].map(|net| {
        let options = ChannelOptions::default().timeout(BOUND);
        Channel::connect(net.clone(), &TEST, options).expect("a server listens")
    });
    for (n, channel) in channels.iter().enumerate() {
        let n = [n as u8];
        assert_eq!(channel.call::<Echo, _>(&bytes(&n)).wait(), Ok(n.to_vec()));
    }
    until("the clients are counted", || server.connections() == 4);
    assert_eq!(server.metrics().snapshot().calls(), 4);
    let drained = server.shutdown();
    assert_eq!((drained.aborted_calls, drained.stuck_threads), (0, 0));
    assert!(!one.has_server() && !two.has_server());
}

#[test]
fn a_sleeping_server_wakes_for_a_call_at_any_address() {
    let ([one, two], test) = (nets(Clock::real()), Test::default());
    let server = Server::builder().service(test).idle(IdlePolicy::PARK).serve_all(&[&one, &two]);
    let _server = server.expect("both addresses are free");
    let options = ConnectionOptions::default().timeout(BOUND);
    let mut connections =
        [&one, &two].map(|net| Connection::connect(net, &TEST, &options).expect("listens"));
    for n in 0..100_u8 {
        let sleeps = two.server_sleeps();
        for connection in &mut connections {
            assert_eq!(connection.call::<Echo, _>(&bytes(&[n])), Ok(vec![n]));
        }
        until("the server is about to sleep again", || two.server_sleeps() > sleeps);
    }
}

#[test]
fn a_server_that_cannot_have_all_its_addresses_has_none() {
    let ([one, two], test) = (nets(Clock::real()), Test::default());
    let server = || Server::builder().service(test.clone());
    let at_two = server().serve(&two).expect("the address is free");
    let error = server().serve_all(&[&one, &two]).expect_err("the second is in use");
    assert!(matches!(&error, BindError::InUse { address } if address == "two"), "{error}");
    assert!(!one.has_server(), "the first one is free again");
    drop(at_two);
    assert!(matches!(server().serve_all(&[]), Err(BindError::NoAddress)));
}

fn parse(address: &str) -> Result<Box<dyn ServerAddress>, Source> {
    match nets(Clock::real()).into_iter().find(|net| net.name == address) {
        Some(net) => Ok(Box::new(net)),
        None => Err(address.into()),
    }
}

#[test]
fn addresses_in_text_are_parsed_before_any_is_bound() {
    let server = || Server::builder().service(Test::default()).addresses(parse);
    let running = server().listen_all(["two", "one"]).expect("both are valid");
    assert_eq!(running.addresses(), ["two", "one"]);
    assert_eq!(server().listen("one").expect("valid").address(), "one");
    let error = server().listen_all(["one", "nowhere"]).expect_err("there is no such address");
    assert_eq!(error.to_string(), "invalid address: nowhere");
}

#[test]
fn a_shutdown_waits_until_all_addresses_have_drained() {
    let ([one, two], test) = (nets(Clock::virtual_time()), Test::default());
    let site = Site::driven(Arc::new(one.clock.clone()));
    let assembled = Server::builder().service(test.clone()).assemble(&[&one, &two], vec![site]);
    let (mut server, mut threads) = assembled.expect("both addresses are free");
    let thread = &mut threads[0];
    let site = two.site();
    let transport = Box::new(two.dial_end(&site).expect("a server listens"));
    let mut client = Connection::new(transport, &site, &ConnectionOptions::default());
    let mut held = client.start::<Later, _>(&bytes(b"held")).expect("room");
    client.turn(two.clock.now());
    while !thread.turn(one.clock.now()).is_idle() {}
    two.set_drain_steps(2);
    server.shut_down(BOUND);
    test.gate.open();
    for _ in 0..2 {
        while !thread.turn(one.clock.now()).is_idle() {}
        let next = thread.turn(one.clock.now()).next;
        let PollAt::At(again) = next else { break };
        assert!(!thread.is_over(), "the second address has not drained");
        one.clock.advance(again - one.clock.now());
    }
    while !thread.is_over() {
        thread.turn(one.clock.now());
        one.clock.advance(std::time::Duration::from_millis(1));
    }
    client.turn(two.clock.now());
    assert_eq!(client.take(&mut held), Some(Ok(b"held".to_vec())));
    assert!(client.is_closed());
    assert_eq!(test.gate.dropped.load(SeqCst), 0);
}
