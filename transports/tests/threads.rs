//! Threads that sleep: both ends sleep between messages, and wake in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_core::error::TransportFailure;
use farcall_core::service::ServiceDescription;
use farcall_core::site::Site;
use farcall_core::time::{Instant, PollAt};
use farcall_core::transport::{
    BindOptions, Binding, Bound, CallToken, ClientEvent, ClientId, ClientTransport, Delivery, Dial,
    DialOptions, Message, Replies, ReplySink, RequestSink, ServerTransport, SlotId, WindDown,
};
use farcall_transports::Address;

static ECHO: ServiceDescription = ServiceDescription { name: "Echo", fingerprint: 1, methods: &[] };

/// Longer than anything here takes; what waits so long has lost its wake-up.
const LOST: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Echo {
    disconnected: usize,
    deferred: Vec<(CallToken, Vec<u8>)>,
}

impl RequestSink for Echo {
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        match replies.reserve(&call, message.len()) {
            Ok(room) => {
                room.copy_from_slice(&message);
                replies.post(call, message.len());
            }
            Err(_) => self.deferred.push((call, message.to_vec())),
        }
    }

    fn is_idempotent(&self, _: &[u8]) -> bool {
        false
    }

    fn client(&mut self, _: ClientId, event: ClientEvent) {
        if let ClientEvent::Left = event {
            self.disconnected += 1;
        }
    }
}

/// Sleeps at the site, unless a transport has work.
fn sleep(site: &Site, until: Option<Instant>, may_sleep: bool, sleeps: &AtomicUsize) {
    let asleep = site.fall_asleep();
    if may_sleep {
        sleeps.fetch_add(1, Ordering::SeqCst);
        asleep.sleep(until);
    }
}

/// A server thread that sleeps whenever none of its transports has anything to do.
fn serve(
    site: Site,
    mut transports: Vec<Box<dyn ServerTransport>>,
    stop: Arc<AtomicBool>,
    sleeps: Arc<AtomicUsize>,
) -> JoinHandle<usize> {
    std::thread::spawn(move || {
        let mut echo = Echo::default();
        while !stop.load(Ordering::SeqCst) {
            let (mut worked, mut next) = (0, PollAt::OnEvent);
            for transport in &mut transports {
                let progress = transport.poll(site.now(), &mut echo);
                for (call, bytes) in std::mem::take(&mut echo.deferred) {
                    echo.request(call, Message::Borrowed(&bytes), transport.replies());
                }
                transport.flush();
                worked += progress.worked + echo.deferred.len() as u32;
                next = next.earlier(progress.next);
            }
            if worked == 0 {
                let until = match next {
                    PollAt::Now => continue,
                    PollAt::At(at) => Some(at),
                    PollAt::OnEvent => None,
                };
                let may_sleep = transports.iter_mut().all(|transport| transport.arm());
                sleep(&site, until, may_sleep && !stop.load(Ordering::SeqCst), &sleeps);
            }
        }
        for transport in &mut transports {
            transport.wind_down(site.now(), WindDown::Close);
        }
        echo.disconnected
    })
}

struct Server {
    bounds: Vec<Bound>,
    threads: Vec<(JoinHandle<usize>, Site)>,
    stop: Arc<AtomicBool>,
    sleeps: Arc<AtomicUsize>,
}

impl Server {
    fn new(address: &Address, threads: usize) -> Server {
        Server::at(&[address], threads)
    }

    /// A server that listens at all of these addresses.
    fn at(addresses: &[&Address], threads: usize) -> Server {
        let sites: Vec<_> = (0..threads).map(|_| Site::new()).collect();
        let bind = |address: &&Address| address.bind(&sites, &[&ECHO], &BindOptions::default());
        let mut bounds: Vec<_> = addresses.iter().map(bind).map(Result::unwrap).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let sleeps = Arc::new(AtomicUsize::new(0));
        let start = |site: &Site| {
            let transports = bounds
                .iter_mut()
                .flat_map(|it| &mut it.halves)
                .map(|it| it.transports.remove(0))
                .collect();
            let thread = serve(site.clone(), transports, Arc::clone(&stop), Arc::clone(&sleeps));
            (thread, site.clone())
        };
        let threads = sites.iter().map(start).collect();
        Server { bounds, threads, stop, sleeps }
    }

    /// The number of clients that its threads saw leave.
    fn stop(mut self) -> usize {
        self.bounds.iter_mut().for_each(|bound| bound.acceptor.stop());
        self.stop.store(true, Ordering::SeqCst);
        let join = |(thread, site): (JoinHandle<usize>, Site)| {
            site.wake();
            thread.join().unwrap()
        };
        self.threads.into_iter().map(join).sum()
    }
}

/// A client, and the site of its thread.
struct Client {
    transport: Box<dyn ClientTransport>,
    site: Site,
}

impl Client {
    fn dial(address: &Address) -> Client {
        let site = Site::new();
        let dialled = address.dial(&ECHO, &site, &DialOptions::default()).unwrap();
        Client { transport: dialled.transport, site }
    }

    fn sleep_until(&mut self, until: Instant) {
        let may_sleep = self.transport.arm(None).may_sleep();
        sleep(&self.site, Some(until), may_sleep, &AtomicUsize::new(0));
    }

    /// One call, sleeping while it waits.
    fn call(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut inbox = Inbox::default();
        let (slot, room) = self.transport.reserve(bytes.len()).unwrap();
        room.copy_from_slice(bytes);
        self.transport.post(slot, Delivery::AtMostOnce);
        self.transport.flush();
        let begun = self.site.now();
        loop {
            let now = self.site.now();
            let progress = self.transport.poll(now, &mut inbox);
            self.transport.flush();
            if let Some(reply) = inbox.replies.pop() {
                return reply;
            }
            assert!(inbox.closed.is_none(), "{:?}", inbox.closed);
            assert!(now - begun < LOST, "a wake-up was lost");
            if progress.worked == 0 && progress.next != PollAt::Now {
                self.sleep_until(begun + LOST);
            }
        }
    }
}

#[derive(Default)]
struct Inbox {
    replies: Vec<Vec<u8>>,
    closed: Option<TransportFailure>,
}

impl ReplySink for Inbox {
    fn reply(&mut self, _: SlotId, message: Message<'_>) {
        self.replies.push(message.to_vec());
    }
    fn failed(&mut self, _: SlotId, why: TransportFailure) {
        panic!("{why}");
    }
    fn lane_lost(&mut self, _: std::ops::Range<u32>, _: TransportFailure) {
        panic!("it has one lane");
    }

    fn closed(&mut self, why: TransportFailure) {
        self.closed = Some(why);
    }
}

fn fresh(name: &str) -> Address {
    format!("shm://threads-{name}-{}?window=8&max_message=64m", std::process::id()).parse().unwrap()
}

#[test]
fn both_ends_sleep_and_wake() {
    let address = fresh("sleep");
    let server = Server::new(&address, 1);
    let mut client = Client::dial(&address);
    for n in 0..2000u32 {
        let bytes = vec![n as u8; n as usize % 200];
        assert_eq!(client.call(&bytes), bytes);
    }
    assert!(server.sleeps.load(Ordering::SeqCst) > 0);
    let large = vec![3; 5 << 20];
    assert!(client.call(&large) == large);
    drop(client);
    server.stop();
}

#[test]
fn a_sleeping_server_wakes_for_new_clients_and_for_those_that_leave() {
    let address = fresh("come-and-go");
    let server = Server::new(&address, 2);
    let clients: Vec<_> = (0..8u8)
        .map(|n| {
            let address = address.clone();
            std::thread::spawn(move || {
                for round in 0..10u8 {
                    let mut client = Client::dial(&address);
                    for len in [0, 1, 100, 3000, 100_000] {
                        let bytes = vec![n ^ round; len];
                        assert!(client.call(&bytes) == bytes);
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    // All but the last few, which said goodbye while their threads were told to stop.
    assert!(server.stop() >= 72);
}

#[test]
fn a_sleeping_client_wakes_when_its_server_goes() {
    let address = fresh("goes");
    let server = Server::new(&address, 1);
    let mut client = Client::dial(&address);
    assert_eq!(client.call(b"hello"), b"hello");
    let waiting = std::thread::spawn(move || {
        let mut inbox = Inbox::default();
        let begun = client.site.now();
        while inbox.closed.is_none() {
            let now = client.site.now();
            assert!(now - begun < LOST, "a wake-up was lost");
            client.transport.poll(now, &mut inbox);
            client.sleep_until(begun + LOST);
        }
        client.site.now() - begun
    });
    server.stop();
    assert!(waiting.join().unwrap() < LOST);
}

#[test]
fn a_wake_is_not_lost() {
    let address = fresh("wake");
    let server = Server::new(&address, 1);
    let mut client = Client::dial(&address);
    let waker = client.site.waker();
    waker.wake_by_ref();
    let begun = client.site.now();
    client.sleep_until(begun + LOST);
    let other = std::thread::spawn(move || waker.wake());
    client.sleep_until(begun + LOST);
    other.join().unwrap();
    assert!(client.site.now() - begun < LOST);
    drop(client);
    server.stop();
}

#[test]
fn a_thread_sleeps_for_the_clients_of_several_devices() {
    let (shared, plain) = (fresh("shared"), "rdma://127.0.0.1:0?device=shm-plain");
    let server = Server::at(&[&shared, &plain.parse().unwrap()], 1);
    let plain = server.bounds[1].address.parse().unwrap();
    let mut clients = [Client::dial(&shared), Client::dial(&plain)];
    for n in 0..500_u32 {
        let bytes = n.to_le_bytes();
        assert_eq!(clients[n as usize % 2].call(&bytes), bytes);
    }
    assert!(server.sleeps.load(Ordering::SeqCst) > 0);
    drop(clients);
    server.stop();
}
