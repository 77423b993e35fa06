//! Connecting as a future: the executor's thread never waits for the dial, and a dropped future leaves nothing behind.

mod support;

use farcall_core::error::Source;
use farcall_core::transport::{
    BindOptions, Binding, Bound, Dial, DialOptions, NewConnection, ParseAddress, ServerAddress,
    ToAddress,
};
use farcall_core::{
    BindError, Channel, ChannelOptions, ConnectError, Connecting, Endpoint, RpcError, Server,
    ServiceClient, ServiceDescription, Site,
};
use std::future::IntoFuture;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use support::bounds::until;
use support::loopback::{Clock, Loopback};
use support::service::{Echo, TEST, Test, bytes};

/// A client without generated code.
#[derive(Debug)]
struct Client(Channel);

impl ServiceClient for Client {
    const DESCRIPTION: &'static ServiceDescription = &TEST;

    fn from_channel(channel: Channel) -> Self {
        Client(channel)
    }

    fn channel(&self) -> &Channel {
        &self.0
    }
}

/// An address whose dials wait for a gate.
#[derive(Clone)]
struct Gated {
    net: Loopback,
    gate: Arc<Mutex<()>>,
    dials: Arc<AtomicUsize>,
    /// The number of the dial that panics.
    panics: Option<usize>,
}

impl Gated {
    fn new() -> Gated {
        let net = Loopback::new(Clock::real(), 4);
        Gated { net, gate: Arc::default(), dials: Arc::default(), panics: None }
    }
}

impl Dial for Gated {
    fn dial(
        &self,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        let _open = self.gate.lock();
        let number = self.dials.fetch_add(1, SeqCst);
        assert_ne!(Some(number), self.panics, "the test asked for it");
        self.net.dial(service, site, options)
    }
}

impl Binding for Gated {
    fn bind(
        &self,
        sites: &[Site],
        services: &[&'static ServiceDescription],
        options: &BindOptions,
    ) -> Result<Bound, BindError> {
        self.net.bind(sites, services, options)
    }
}

impl ToAddress for Gated {
    fn to_address(&self, _: ParseAddress) -> Result<Box<dyn ServerAddress>, Source> {
        Ok(Box::new(self.clone()))
    }
}

fn no_text(text: &str) -> Result<Box<dyn ServerAddress>, Source> {
    Err(format!("no address: {text}").into())
}

fn connect(address: impl ToAddress) -> Connecting<Client> {
    Connecting::to(address, no_text)
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn the_executor_does_not_wait_for_the_dial_and_is_woken_by_its_end() {
    let address = Gated::new();
    let server = Server::builder().service(Test::default()).listen(&address).expect("it is free");
    let gate = address.gate.lock().expect("no panic");
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(flag.clone());
    let mut dialling = pin!(connect(&address).into_future());
    // It would deadlock here if it dialled on this thread.
    assert!(dialling.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(!flag.0.load(SeqCst));
    drop(gate);
    until("the dial has ended", || flag.0.load(SeqCst));
    let Poll::Ready(client) = dialling.as_mut().poll(&mut Context::from_waker(&waker)) else {
        panic!("it was woken before there was a result");
    };
    let client = client.expect("a server listens");
    assert_eq!(client.channel().call::<Echo, _>(&bytes(b"x")).wait(), Ok(b"x".to_vec()));
    let Poll::Ready(Err(again)) = dialling.poll(&mut Context::from_waker(&waker)) else {
        panic!("it has ended");
    };
    assert!(again.to_string().contains("after it had ended"), "{again}");
    server.shutdown();
}

#[test]
fn a_future_that_is_not_polled_does_not_dial() {
    let address = Gated::new();
    let _server = Server::builder().service(Test::default()).listen(&address).expect("it is free");
    drop(connect(&address));
    drop(connect(&address).into_future());
    let client = connect(&address).wait().expect("a server listens");
    assert_eq!(address.dials.load(SeqCst), 1);
    drop(client);
}

#[test]
fn the_connection_of_a_dropped_future_is_closed_when_it_is_made() {
    let address = Gated::new();
    let server = Server::builder().service(Test::default()).listen(&address).expect("it is free");
    let endpoint = Endpoint::new();
    let gate = address.gate.lock().expect("no panic");
    let mut dialling = Box::pin(connect(&address).endpoint(&endpoint).into_future());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(dialling.as_mut().poll(&mut cx).is_pending());
    drop(dialling);
    drop(gate);
    until("the dial has ended", || address.dials.load(SeqCst) == 1);
    // It was made before this one, so the server knows both.
    let client = connect(&address).endpoint(&endpoint).wait().expect("a server listens");
    assert_eq!(client.channel().call::<Echo, _>(&bytes(b"x")).wait(), Ok(b"x".to_vec()));
    until("the server has one connection", || server.connections() == 1);
}

#[test]
fn errors_come_when_it_is_awaited_or_waited_for() {
    let unreadable = connect("nowhere").wait().expect_err("it cannot be parsed");
    assert_eq!(unreadable.to_string(), "invalid address: no address: nowhere");
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(Err(error)) = pin!(connect("nowhere").into_future()).poll(&mut cx) else {
        panic!("there is nothing to wait for");
    };
    assert_eq!(error.to_string(), unreadable.to_string());
    let unserved = connect(Gated::new()).wait().expect_err("no server listens");
    assert!(matches!(unserved, ConnectError::NoServer { .. }), "{unserved}");
}

#[test]
fn a_dial_that_panics_is_an_error_of_the_future() {
    let address = Gated { panics: Some(0), ..Gated::new() };
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(flag.clone());
    let mut dialling = pin!(connect(&address).into_future());
    let first = dialling.as_mut().poll(&mut Context::from_waker(&waker));
    let ended = match first {
        Poll::Ready(ended) => ended,
        Poll::Pending => {
            until("the dial has ended", || flag.0.load(SeqCst));
            match dialling.poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(ended) => ended,
                Poll::Pending => panic!("it was woken before there was a result"),
            }
        }
    };
    let error = ended.expect_err("the dial panicked");
    assert!(error.to_string().contains("panicked"), "{error}");
}

#[test]
fn a_dial_that_panics_fails_the_calls_that_wait_for_it_and_no_later_ones() {
    let address = Gated { panics: Some(1), ..Gated::new() };
    let serve = || Server::builder().service(Test::default()).serve(&address.net).expect("free");
    let server = serve();
    let channel = Channel::connect(address.clone(), &TEST, ChannelOptions::default());
    let channel = channel.expect("a server listens");
    let echo = || channel.call::<Echo, _>(&bytes(b"x")).wait();
    assert_eq!(echo(), Ok(b"x".to_vec()));
    server.shutdown();
    let _server = serve();
    let mut ended = echo();
    until("the channel dials", || {
        let has_dialled = address.dials.load(SeqCst) == 2;
        if !has_dialled {
            ended = echo();
        }
        has_dialled
    });
    assert!(matches!(ended, Err(RpcError::PeerGone { may_have_run: false, .. })), "{ended:?}");
    assert_eq!(echo(), Ok(b"x".to_vec()));
    assert_eq!(address.dials.load(SeqCst), 3);
}
