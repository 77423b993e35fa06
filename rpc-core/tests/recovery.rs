//! Server threads that panic outside of handlers and start again, and that lose a device and get it back.
#![forbid(unsafe_code)]

mod support;

use farcall_core::service::ServiceDescription;
use farcall_core::time::{Instant, Progress};
use farcall_core::transport::{
    BindOptions, Binding, Bound, Renewal, RequestSink, ServerLayer, ServerTransport,
};
use farcall_core::{
    BindError, Channel, ChannelOptions, ClientQuota, RpcError, RunningServer, Server, Site,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread;
use support::bounds::{BOUND, until};
use support::loopback::{Clock, Loopback};
use support::service::{Echo, Later, TEST, Test, bytes};

/// An address whose transports panic or lose their device when they are told to.
#[derive(Clone)]
struct Fragile {
    net: Loopback,
    /// The next poll panics.
    panics: Arc<AtomicBool>,
    /// The next poll finds that the device is lost.
    loses_device: Arc<AtomicBool>,
    /// How many more times there is no new transport.
    refusals: Arc<AtomicUsize>,
    /// New transports so far.
    renewed: Arc<AtomicU64>,
    /// New transports can be made at all.
    can_renew: bool,
}

struct FragileTransport {
    inner: Box<dyn ServerTransport>,
    panics: Arc<AtomicBool>,
    loses_device: Arc<AtomicBool>,
}

impl Fragile {
    fn new() -> Fragile {
        Fragile {
            net: Loopback::new(Clock::real(), 16),
            panics: Arc::default(),
            loses_device: Arc::default(),
            refusals: Arc::default(),
            renewed: Arc::default(),
            can_renew: true,
        }
    }

    fn serve(&self, test: &Test) -> RunningServer {
        Server::builder().service(test.clone()).serve(self).expect("the place is free")
    }

    fn channel(&self) -> Channel {
        let options = ChannelOptions::default().timeout(BOUND);
        Channel::connect(self.net.clone(), &TEST, options).expect("a server listens")
    }

    fn transport(&self, inner: Box<dyn ServerTransport>) -> Box<dyn ServerTransport> {
        let (panics, loses_device) = (Arc::clone(&self.panics), Arc::clone(&self.loses_device));
        Box::new(FragileTransport { inner, panics, loses_device })
    }

    /// The server's thread panics now.
    fn panic(&self) {
        self.panics.store(true, SeqCst);
        // If the thread sleeps, a client wakes it.
        let _client = self.net.dial_end(&self.net.site());
        until("the panic", || !self.panics.load(SeqCst));
    }

    /// The server's device is lost now.
    fn lose_device(&self) {
        self.loses_device.store(true, SeqCst);
        let _client = self.net.dial_end(&self.net.site());
        until("the loss", || !self.loses_device.load(SeqCst));
    }
}

impl Binding for Fragile {
    fn bind(
        &self,
        sites: &[Site],
        services: &[&'static ServiceDescription],
        options: &BindOptions,
    ) -> Result<Bound, BindError> {
        let mut bound = self.net.bind(sites, services, options)?;
        for half in &mut bound.halves {
            let transports = std::mem::take(&mut half.transports);
            half.transports = transports.into_iter().map(|it| self.transport(it)).collect();
            half.renewal = self.can_renew.then(|| Arc::new(self.clone()) as Arc<dyn Renewal>);
        }
        Ok(bound)
    }
}

impl Renewal for Fragile {
    fn renew(&self, _: usize, site: &Site) -> Result<Box<dyn ServerTransport>, BindError> {
        let refused = self.refusals.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        match refused {
            Ok(_) => {
                let (address, cause) = (self.net.name.into(), "no device yet".into());
                Err(BindError::Device { address, cause })
            }
            Err(_) => {
                let transport = self.transport(Box::new(self.net.listen_again(site)));
                self.renewed.fetch_add(1, SeqCst);
                Ok(transport)
            }
        }
    }
}

impl ServerLayer for FragileTransport {
    fn inner(&self) -> &dyn ServerTransport {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn ServerTransport {
        &mut *self.inner
    }

    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress {
        assert!(!self.panics.swap(false, SeqCst), "a panic, as asked");
        if self.loses_device.swap(false, SeqCst) {
            sink.device_lost();
            return Progress::IDLE;
        }
        self.inner.poll(now, sink)
    }
}

#[test]
fn a_thread_that_panics_ends_its_calls_and_serves_again() {
    let (address, test) = (Fragile::new(), Test::default());
    let server = address.serve(&test);
    for round in 1..=3 {
        let channel = address.channel();
        let held = thread::spawn(move || channel.call::<Later, _>(&bytes(b"held")).wait());
        until("the handler", || test.gate.waiting.load(SeqCst) == round);
        address.refusals.store(2, SeqCst);
        address.panic();
        let gone = held.join().expect("no panic");
        assert!(matches!(gone, Err(RpcError::PeerGone { may_have_run: true, .. })), "{gone:?}");
        until("a new transport", || address.renewed.load(SeqCst) == round);
        let echoed = address.channel().call::<Echo, _>(&bytes(b"again")).wait();
        assert_eq!(echoed, Ok(b"again".to_vec()));
        assert_eq!(test.gate.dropped.load(SeqCst), round, "its handlers are dropped");
        let snapshot = server.metrics().snapshot();
        let later = snapshot.method("Test", "later").expect("known");
        assert_eq!((later.calls(), later.in_flight()), (round, 0));
    }
    assert_eq!(server.shutdown().stuck_threads, 0);
}

#[test]
fn a_server_whose_thread_cannot_start_again_shuts_down() {
    let (address, test) = (Fragile::new(), Test::default());
    let server = address.serve(&test);
    address.refusals.store(usize::MAX, SeqCst);
    address.panic();
    until("some attempts", || address.refusals.load(SeqCst) < usize::MAX - 2);
    assert_eq!(server.shutdown().stuck_threads, 0);
}

#[test]
fn a_thread_whose_transports_are_made_once_ends_with_its_panic() {
    let (address, test) = (Fragile { can_renew: false, ..Fragile::new() }, Test::default());
    let server = address.serve(&test);
    assert!(server.is_healthy());
    address.panic();
    let ended = server.wait();
    assert_eq!(ended.thread, 0);
    assert!(ended.reason.contains("as asked") && ended.reason.contains("again"), "{ended}");
    assert!(!server.is_healthy());
    assert_eq!(server.shutdown().stuck_threads, 0);
}

#[test]
fn a_server_tells_that_a_threads_context_has_ended_it() {
    let serve = |address: &Fragile, context: fn(&mut dyn FnMut())| {
        let builder = Server::builder().service(Test::default()).threads(2);
        builder.thread_context(context).serve(address).expect("the place is free")
    };
    let server = serve(&Fragile::new(), |_| panic!("the context failed"));
    assert!(server.wait().reason.contains("panicked: the context failed"));
    drop(server);
    let server = serve(&Fragile::new(), |_| {});
    assert!(server.wait().to_string().contains("thread_context has not run it"));
    assert!(!server.is_healthy());
    drop(server);
    let server = serve(&Fragile::new(), |run| {
        run();
        panic!("the context failed at its end");
    });
    assert!(server.is_healthy());
    assert_eq!(server.shutdown().stuck_threads, 0);
}

#[test]
fn a_thread_that_starts_again_leaves_its_server_healthy() {
    let (address, test) = (Fragile::new(), Test::default());
    let server = address.serve(&test);
    address.panic();
    until("it serves again", || address.renewed.load(SeqCst) == 1);
    assert!(server.is_healthy());
}

#[test]
fn a_transport_that_loses_its_device_is_replaced_while_the_others_go_on() {
    let (address, other, test) = (Fragile::new(), Fragile::new(), Test::default());
    let server = Server::builder().service(test.clone()).serve_all(&[&address, &other]);
    let server = server.expect("the places are free");
    let bystander = other.channel();
    let echo = |channel: &Channel| channel.call::<Echo, _>(&bytes(b"echo")).wait();
    for round in 1..=3 {
        assert_eq!(echo(&address.channel()), Ok(b"echo".to_vec()));
        address.refusals.store(2, SeqCst);
        address.lose_device();
        until("a new transport", || {
            assert_eq!(echo(&bystander), Ok(b"echo".to_vec()), "the other address goes on");
            address.renewed.load(SeqCst) == round
        });
        assert_eq!(address.refusals.load(SeqCst), 0, "it was asked for again and again");
    }
    assert_eq!(other.renewed.load(SeqCst), 0);
    assert_eq!(echo(&address.channel()), Ok(b"echo".to_vec()));
    assert_eq!(server.shutdown().stuck_threads, 0);
}

/// Its requests take another way through the thread.
#[test]
fn a_transport_of_clients_with_quotas_is_replaced_too() {
    let (address, test) = (Fragile::new(), Test::default());
    let quota = ClientQuota::new().calls_per_second(1_000_000);
    let builder = Server::builder().service(test).client_quota(quota);
    let server = builder.serve(&address).expect("the place is free");
    address.lose_device();
    until("a new transport", || address.renewed.load(SeqCst) == 1);
    let answer = address.channel().call::<Echo, _>(&bytes(b"echo")).wait();
    assert_eq!(answer, Ok(b"echo".to_vec()));
    assert_eq!(server.shutdown().stuck_threads, 0);
}

#[test]
fn clients_of_a_new_transport_get_no_answers_of_the_lost_one() {
    let (address, test) = (Fragile::new(), Test::default());
    let server = address.serve(&test);
    let later = |argument: &'static [u8]| {
        let channel = address.channel();
        thread::spawn(move || channel.call::<Later, _>(&bytes(argument)).wait())
    };
    let lost = later(b"lost");
    until("the handler", || test.gate.waiting.load(SeqCst) == 1);
    address.lose_device();
    let ended = lost.join().expect("no panic");
    assert!(matches!(ended, Err(RpcError::PeerGone { may_have_run: true, .. })), "{ended:?}");
    until("a new transport", || address.renewed.load(SeqCst) == 1);
    // It has the place of the lost call, whose handler still runs, and answers first.
    let again = later(b"again");
    until("the handler", || test.gate.waiting.load(SeqCst) == 2);
    test.gate.open();
    assert_eq!(again.join().expect("no panic"), Ok(b"again".to_vec()));
    until("both handlers", || test.gate.passed.load(SeqCst) == 2);
    assert_eq!(server.shutdown().stuck_threads, 0);
}

#[test]
fn a_server_that_waits_for_its_device_shuts_down() {
    let (address, test) = (Fragile::new(), Test::default());
    let server = address.serve(&test);
    address.refusals.store(usize::MAX, SeqCst);
    address.lose_device();
    until("an attempt", || address.refusals.load(SeqCst) < usize::MAX);
    assert_eq!(server.shutdown().stuck_threads, 0);
}
