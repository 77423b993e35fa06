//! Idle clients that the I/O thread of their endpoint does not look at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use farcall_core::codec::{As, Whole};
use farcall_core::error::ConnectError;
use farcall_core::service::ServiceDescription;
use farcall_core::site::Site;
use farcall_core::time::{self, Progress};
use farcall_core::transport::{
    ClientLayer, ClientTransport, Dial, DialOptions, NewConnection, ReplySink,
};
use farcall_core::{Channel, ChannelOptions, Endpoint, Server};

use super::BOUND;
use super::lost_device::{ECHO, Echo, EchoServer};
use crate::address::Address;

/// What the I/O thread has done with a client.
#[derive(Default)]
struct Seen {
    /// It has asked whether all events call the waker.
    is_asked: AtomicBool,
    /// The answer, until the client is armed.
    calls_waker: AtomicBool,
    /// The client is armed, calls its waker, and was not polled by the I/O thread since.
    is_parked: AtomicBool,
}

/// Dials clients that are watched.
#[derive(Clone)]
struct Watched {
    address: Address,
    seen: Arc<Seen>,
}

impl Dial for Watched {
    fn dial(
        &self,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        let seen = Arc::clone(&self.seen);
        let connection = self.address.dial(service, site, options)?;
        Ok(connection.with_layer(|inner| Box::new(Layer { inner, seen })))
    }
}

struct Layer {
    inner: Box<dyn ClientTransport>,
    seen: Arc<Seen>,
}

impl ClientLayer for Layer {
    fn inner(&self) -> &dyn ClientTransport {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn ClientTransport {
        &mut *self.inner
    }

    fn poll(&mut self, now: time::Instant, sink: &mut dyn ReplySink) -> Progress {
        if is_io_thread() {
            self.seen.is_parked.store(false, Ordering::SeqCst);
        }
        self.inner.poll(now, sink)
    }

    fn arm(&mut self) -> bool {
        let is_armed = self.inner.arm();
        // A caller that has driven a parked client arms it again: it stays parked.
        if is_io_thread() {
            let calls_waker = self.seen.calls_waker.swap(false, Ordering::SeqCst);
            self.seen.is_parked.store(is_armed && calls_waker, Ordering::SeqCst);
        }
        is_armed
    }

    fn wake_with(&mut self, waker: &Waker) -> bool {
        let calls_waker = self.inner.wake_with(waker);
        self.seen.calls_waker.store(calls_waker, Ordering::SeqCst);
        self.seen.is_asked.store(true, Ordering::SeqCst);
        calls_waker
    }
}

/// The rest is done by callers.
fn is_io_thread() -> bool {
    thread::current().name() == Some("farcall-io")
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn call(channel: &Channel) {
    let result = channel.call::<Echo, _>(&As::<Whole, [u8]>::new(b"x")).wait();
    assert_eq!(result.expect("an answer"), b"x");
}

/// Two clients of one endpoint, of which one is idle.
fn check(backend: &str, parks: bool) {
    let name = format!("shm://parked-{backend}-{}?backend={backend}", std::process::id());
    let address: Address = name.parse().expect("an address");
    let server = Server::builder().service(EchoServer).serve(&address).expect("a server");
    let endpoint = Endpoint::new();
    let connect = |seen: &Arc<Seen>| {
        let watched = Watched { address: address.clone(), seen: Arc::clone(seen) };
        let options = ChannelOptions::default().endpoint(&endpoint);
        Channel::connect(watched, &ECHO, options).expect("a client")
    };
    let seen = Arc::<Seen>::default();
    let (idle, busy) = (connect(&seen), connect(&Arc::default()));
    call(&idle);
    if !parks {
        until("it is asked whether it can be parked", || seen.is_asked.load(Ordering::SeqCst));
        assert!(!seen.is_parked.load(Ordering::SeqCst));
        drop(server);
        return;
    }
    until("it is parked", || seen.is_parked.load(Ordering::SeqCst));
    for _ in 0..50 {
        call(&busy);
        assert!(seen.is_parked.load(Ordering::SeqCst), "{backend}: calls of another client");
    }
    call(&idle);
    until("it is parked again", || seen.is_parked.load(Ordering::SeqCst));
    assert_eq!(server.shutdown().stuck_threads, 0);
    until("it hears of the server's end", || !seen.is_parked.load(Ordering::SeqCst));
}

#[test]
fn an_idle_client_of_write_imm_is_parked() {
    check("write_imm", true);
}

#[test]
fn an_idle_client_of_send_recv_is_parked() {
    check("send_recv", true);
}

#[test]
fn an_idle_client_of_rfp_is_parked() {
    check("rfp", true);
}

#[test]
fn an_idle_client_of_scale_is_parked() {
    check("scale", true);
}

/// It would have to be: who sends datagrams to a client from another process does not know how to call it. The I/O thread looks at
/// each idle client while another one is busy.
#[test]
fn an_idle_client_of_datagram_is_not_parked() {
    check("datagram", false);
}
