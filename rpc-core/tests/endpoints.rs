//! Many channels on one endpoint.
#![forbid(unsafe_code)]

mod support;

use farcall_core::{
    Call, Channel, ChannelOptions, Endpoint, IdlePolicy, ReconnectPolicy, RpcError, Server,
};
use support::bounds::{BOUND, until};
use support::loopback::{Clock, Loopback};
use support::service::{Bytes, Echo, TEST, Test, bytes};

fn net() -> Loopback {
    Loopback::new(Clock::real(), 16)
}

fn channel(net: &Loopback, endpoint: &Endpoint) -> Channel {
    let options = ChannelOptions::default().timeout(BOUND).endpoint(endpoint);
    Channel::connect(net.clone(), &TEST, options).expect("a server listens")
}

fn echo(channel: &Channel, payload: &[u8]) -> Call<Bytes> {
    channel.call::<Echo, _>(&bytes(payload))
}

#[test]
fn one_thread_carries_the_calls_of_many_channels() {
    let (net, other) = (net(), net());
    let _servers = [&net, &other].map(|net| Server::builder().service(Test::default()).serve(net));
    let endpoint = Endpoint::new();
    let channels: Vec<_> = (0..20).map(|n| channel([&net, &other][n % 2], &endpoint)).collect();
    for round in 0..20_u8 {
        let calls: Vec<_> = channels.iter().map(|channel| echo(channel, &[round])).collect();
        for call in calls {
            assert_eq!(call.wait(), Ok(vec![round]));
        }
    }
    let sites = [net.client_sites(), other.client_sites()].concat();
    assert!(sites.iter().all(|site| site.is_same(&sites[0])), "all are dialled for one thread");
}

#[test]
fn a_channel_without_an_endpoint_has_a_thread_of_its_own() {
    let net = net();
    let _server = Server::builder().service(Test::default()).serve(&net);
    let _channels =
        [(); 2].map(|()| Channel::connect(net.clone(), &TEST, ChannelOptions::default()));
    let sites = net.client_sites();
    assert!(!sites[0].is_same(&sites[1]));
}

#[test]
fn a_sleeping_endpoint_wakes_for_each_of_its_channels() {
    let net = net();
    let _server = Server::builder().service(Test::default()).serve(&net);
    let endpoint = Endpoint::with_idle(IdlePolicy::PARK);
    let channels = [(); 3].map(|()| channel(&net, &endpoint));
    for n in 0..100_u8 {
        for channel in &channels {
            assert_eq!(echo(channel, &[n]).wait(), Ok(vec![n]));
        }
    }
}

#[test]
fn channels_come_and_go_while_others_carry_calls() {
    let net = net();
    let server = Server::builder().service(Test::default()).serve(&net).expect("it is free");
    let endpoint = Endpoint::new();
    let stays = channel(&net, &endpoint);
    for n in 0..20_u8 {
        let goes = channel(&net, &endpoint);
        assert_eq!(echo(&goes, &[n]).wait(), Ok(vec![n]));
        let late = echo(&goes, b"late");
        goes.close();
        let ended = late.wait();
        assert!(matches!(ended, Err(RpcError::PeerGone { may_have_run: false, .. })), "{ended:?}");
        assert_eq!(echo(&stays, &[n]).wait(), Ok(vec![n]));
    }
    until("the closed channels are gone", || server.connections() == 1);
    drop(endpoint);
    assert_eq!(echo(&stays, b"still").wait(), Ok(b"still".to_vec()));
}

#[test]
fn a_channel_that_reconnects_does_not_delay_the_others() {
    let (lost, healthy) = (net(), net());
    let server = Server::builder().service(Test::default()).serve(&lost).expect("it is free");
    let _healthy = Server::builder().service(Test::default()).serve(&healthy);
    let endpoint = Endpoint::new();
    let policy = ReconnectPolicy::default().give_up_after(BOUND);
    let options = ChannelOptions::default().timeout(BOUND).endpoint(&endpoint).reconnect(policy);
    let waits = Channel::connect(lost.clone(), &TEST, options).expect("a server listens");
    let works = channel(&healthy, &endpoint);
    server.shutdown();
    let held = lost.hold_dials();
    let dials = lost.dials();
    let call = echo(&waits, b"waits");
    let waiting = std::thread::spawn(move || call.wait());
    until("the channel dials", || lost.dials() > dials);
    for n in 0..100_u8 {
        assert_eq!(echo(&works, &[n]).wait(), Ok(vec![n]));
    }
    assert!(!waiting.is_finished());
    let _again = Server::builder().service(Test::default()).serve(&lost).expect("it is free");
    drop(held);
    assert_eq!(waiting.join().expect("no panic"), Ok(b"waits".to_vec()));
}
