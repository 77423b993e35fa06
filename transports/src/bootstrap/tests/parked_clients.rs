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
    Armed, ClientLayer, ClientTransport, Dial, DialOptions, NewConnection, ReplySink,
};
use farcall_core::{Channel, ChannelOptions, Endpoint, Server};

use super::BOUND;
use super::lost_device::{ECHO, Echo, EchoServer};
use crate::address::Address;
use crate::{registry, runs_on_stream};

/// What the I/O thread has done with a client.
#[derive(Default)]
struct Seen {
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

    fn arm(&mut self, waker: Option<&Waker>) -> Armed {
        let armed = self.inner.arm(waker);
        // A caller that has driven a parked client arms it again: it stays parked.
        if is_io_thread() {
            self.seen.is_parked.store(armed == Armed::ByWaker, Ordering::SeqCst);
        }
        armed
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

/// Clients of one endpoint, of which one is busy. Of the idle ones, so many may be looked at meanwhile.
fn check(address: &str, shares: bool, idle: usize, looked_at: usize) {
    let address: Address = address.parse().expect("an address");
    let server = Server::builder().service(EchoServer).serve(&address).expect("a server");
    let address: Address = server.address().parse().expect("an address");
    let endpoint = Endpoint::new();
    let connect = |seen: &Arc<Seen>| {
        let watched = Watched { address: address.clone(), seen: Arc::clone(seen) };
        let options = ChannelOptions::default().endpoint(&endpoint).share(shares);
        Channel::connect(watched, &ECHO, options).expect("a client")
    };
    let seen: Vec<_> = (0..idle).map(|_| Arc::<Seen>::default()).collect();
    let parked = || seen.iter().filter(|seen| seen.is_parked.load(Ordering::SeqCst)).count();
    let (idle, busy): (Vec<_>, _) = (seen.iter().map(connect).collect(), connect(&Arc::default()));
    idle.iter().for_each(call);
    until("all are parked", || parked() == idle.len());
    for _ in 0..50 {
        call(&busy);
        assert!(parked() + looked_at >= idle.len(), "{address}: calls of another client");
    }
    idle.iter().for_each(call);
    until("all are parked again", || parked() == idle.len());
    assert_eq!(server.shutdown().stuck_threads, 0);
    until("all hear of the server's end", || parked() == 0);
}

#[test]
fn an_idle_client_of_each_backend_is_parked() {
    for backend in registry::ALL {
        let name = backend.name();
        match runs_on_stream(*backend) {
            true => check("tcp://127.0.0.1:0", false, 1, 0),
            false => {
                let address = format!("shm://parked-{}?backend={name}", std::process::id());
                check(&address, false, 1, 0);
            }
        }
    }
}

/// One takes what arrives for another.
#[test]
fn idle_clients_that_share_their_queue_pair_are_parked_but_for_one() {
    let address = format!("shm://parked-shared-{}?backend=datagram", std::process::id());
    check(&address, true, 5, 1);
}
