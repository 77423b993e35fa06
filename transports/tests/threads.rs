//! Threads that sleep: both ends park between messages, and wake in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_core::error::TransportFailure;
use farcall_core::service::ServiceDescription;
use farcall_core::time::PollAt;
use farcall_core::transport::{
    BindOptions, Binding, Bound, CallToken, ClientTransport, Dial, DialOptions, Message, Replies,
    ReplySink, RequestSink, ServerTransport, SlotId, Unpark,
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
    fn cancelled(&mut self, _: u32, _: u32, _: u32, _: u32) {}
    fn disconnected(&mut self, _: u32, _: u32) {
        self.disconnected += 1;
    }
}

/// A server thread that parks whenever it has nothing to do.
fn serve(
    mut transport: Box<dyn ServerTransport>,
    stop: Arc<AtomicBool>,
    parks: Arc<AtomicUsize>,
) -> JoinHandle<usize> {
    std::thread::spawn(move || {
        let mut echo = Echo::default();
        while !stop.load(Ordering::SeqCst) {
            let now = transport.now();
            let progress = transport.poll(now, &mut echo);
            for (call, bytes) in std::mem::take(&mut echo.deferred) {
                echo.request(call, Message::Borrowed(&bytes), transport.replies());
            }
            transport.flush(now);
            if progress.worked == 0 && echo.deferred.is_empty() {
                parks.fetch_add(1, Ordering::SeqCst);
                match progress.next {
                    PollAt::Now => {}
                    PollAt::At(at) => transport.park(Some(at)),
                    PollAt::OnEvent => transport.park(None),
                }
            }
        }
        transport.close();
        echo.disconnected
    })
}

struct Server {
    bound: Bound,
    threads: Vec<(JoinHandle<usize>, Arc<dyn Unpark>)>,
    stop: Arc<AtomicBool>,
    parks: Arc<AtomicUsize>,
}

impl Server {
    fn new(address: &Address, threads: usize) -> Server {
        let mut bound = address.bind(threads, &[&ECHO], &BindOptions::default()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let parks = Arc::new(AtomicUsize::new(0));
        let threads = std::mem::take(&mut bound.transports)
            .into_iter()
            .map(|transport| {
                let unparker = transport.unparker();
                (serve(transport, Arc::clone(&stop), Arc::clone(&parks)), unparker)
            })
            .collect();
        Server { bound, threads, stop, parks }
    }

    /// Clients that its threads saw leave.
    fn stop(mut self) -> usize {
        self.bound.acceptor.stop();
        self.stop.store(true, Ordering::SeqCst);
        let join = |(thread, unparker): (JoinHandle<usize>, Arc<dyn Unpark>)| {
            unparker.unpark();
            thread.join().unwrap()
        };
        self.threads.into_iter().map(join).sum()
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
    fn closed(&mut self, why: TransportFailure) {
        self.closed = Some(why);
    }
}

/// One call, parking while it waits.
fn call(client: &mut dyn ClientTransport, bytes: &[u8]) -> Vec<u8> {
    let mut inbox = Inbox::default();
    let begun = client.now();
    let (slot, room) = client.reserve(bytes.len()).unwrap();
    room.copy_from_slice(bytes);
    client.post(slot, begun);
    client.flush(begun);
    loop {
        let now = client.now();
        let progress = client.poll(now, &mut inbox);
        client.flush(now);
        if let Some(reply) = inbox.replies.pop() {
            return reply;
        }
        assert!(inbox.closed.is_none(), "{:?}", inbox.closed);
        assert!(now - begun < LOST, "a wake-up was lost");
        if progress.worked == 0 && progress.next != PollAt::Now {
            client.park(Some(begun + LOST));
        }
    }
}

fn fresh(name: &str) -> Address {
    format!("shm://threads-{name}-{}?window=8&max_message=64m", std::process::id()).parse().unwrap()
}

#[test]
fn both_ends_sleep_and_wake() {
    let address = fresh("sleep");
    let server = Server::new(&address, 1);
    let mut client = address.dial(&ECHO, &DialOptions::default()).unwrap();
    for n in 0..2000u32 {
        let bytes = vec![n as u8; n as usize % 200];
        assert_eq!(call(&mut *client, &bytes), bytes);
    }
    assert!(server.parks.load(Ordering::SeqCst) > 0);
    let large = vec![3; 5 << 20];
    assert!(call(&mut *client, &large) == large);
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
                    let mut client = address.dial(&ECHO, &DialOptions::default()).unwrap();
                    for len in [0, 1, 100, 3000, 100_000] {
                        let bytes = vec![n ^ round; len];
                        assert!(call(&mut *client, &bytes) == bytes);
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
    let mut client = address.dial(&ECHO, &DialOptions::default()).unwrap();
    assert_eq!(call(&mut *client, b"hello"), b"hello");
    let waiting = std::thread::spawn(move || {
        let mut inbox = Inbox::default();
        let begun = client.now();
        while inbox.closed.is_none() {
            let now = client.now();
            assert!(now - begun < LOST, "a wake-up was lost");
            client.poll(now, &mut inbox);
            client.park(Some(begun + LOST));
        }
        client.now() - begun
    });
    server.stop();
    assert!(waiting.join().unwrap() < LOST);
}

#[test]
fn an_unpark_is_not_lost() {
    let address = fresh("unpark");
    let server = Server::new(&address, 1);
    let mut client = address.dial(&ECHO, &DialOptions::default()).unwrap();
    let unparker = client.unparker();
    unparker.unpark();
    let begun = client.now();
    client.park(Some(begun + LOST));
    let other = std::thread::spawn(move || unparker.unpark());
    client.park(Some(begun + LOST));
    other.join().unwrap();
    assert!(client.now() - begun < LOST);
    drop(client);
    server.stop();
}
