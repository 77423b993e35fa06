//! Handlers that end their own server. The handler's thread cannot end before the handler has returned, so nothing waits for it.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use farcall::{RpcError, RunningServer, Server};

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize, farcall::Shape)]
enum End {
    Shutdown,
    ShutdownWithin { millis: u64 },
    Drop,
}

#[farcall::service]
trait Admin {
    /// Returns the milliseconds that it took.
    fn end(&self, how: End) -> u64;
    async fn end_later(&self, how: End) -> u64;
    async fn never(&self);
}

/// A server that its handlers can take.
#[derive(Clone)]
struct Owner {
    server: Arc<Mutex<Option<RunningServer>>>,
    /// Told when `never` has begun.
    begun: mpsc::Sender<()>,
}

impl Owner {
    fn end_server(&self, how: End) -> u64 {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (server, begin) = (server.unwrap(), Instant::now());
        match how {
            End::Drop => drop(server),
            End::Shutdown => assert!(server.shutdown().stuck_threads > 0),
            End::ShutdownWithin { millis } => {
                let drained = server.shutdown_within(Duration::from_millis(millis));
                assert!(drained.stuck_threads > 0, "{drained:?}");
            }
        }
        begin.elapsed().as_millis() as u64
    }
}

impl Admin for Owner {
    fn end(&self, how: End) -> u64 {
        self.end_server(how)
    }

    async fn end_later(&self, how: End) -> u64 {
        self.end_server(how)
    }

    async fn never(&self) {
        self.begun.send(()).unwrap();
        std::future::pending().await
    }
}

/// Less than any bound that a shutdown waits for.
const AT_ONCE_MS: u64 = 2_000;

const BOUND: Duration = Duration::from_secs(60);

struct Running {
    address: String,
    owner: Owner,
    begun: mpsc::Receiver<()>,
}

fn serve(threads: usize, address: &str) -> Running {
    let (begin, begun) = mpsc::channel();
    let owner = Owner { server: Arc::default(), begun: begin };
    let service = AdminServer::new(owner.clone());
    let server = Server::builder().service(service).threads(threads).listen(address).unwrap();
    let address = server.address().to_owned();
    *owner.server.lock().unwrap() = Some(server);
    Running { address, owner, begun }
}

fn each(what: &str, test: impl Fn(&Running, End, bool)) {
    let name = format!("shm://own-shutdown-{}-{what}", std::process::id());
    for address in [&*name, "tcp://127.0.0.1:0"] {
        for threads in [1, 2] {
            for how in [End::Shutdown, End::Drop] {
                for is_async in [false, true] {
                    test(&serve(threads, address), how, is_async);
                }
            }
        }
    }
}

fn end(client: &AdminClient, how: End, is_async: bool) -> Result<u64, RpcError> {
    let call = if is_async { client.end_later(how) } else { client.end(how) };
    call.timeout(BOUND).wait()
}

#[test]
fn a_handler_ends_its_server_without_waiting_for_itself() {
    each("alone", |running, how, is_async| {
        let client = AdminClient::connect(&*running.address).wait().unwrap();
        let took = match (end(&client, how, is_async), how) {
            // What is dropped with the server is cancelled.
            (Err(RpcError::Cancelled), End::Drop) if is_async => 0,
            (ended, _) => ended.unwrap(),
        };
        assert!(took < AT_ONCE_MS, "{how:?}, async: {is_async}: {took} ms");
        // Its name is free as soon as it does not listen any more.
        let again = serve(1, &running.address);
        drop(again.owner.server.lock().unwrap().take());
    });
}

#[test]
fn the_calls_of_others_end_within_the_bound_of_a_shutdown_by_a_handler() {
    let how = End::ShutdownWithin { millis: 200 };
    each("others", |running, _, is_async| {
        let [client, other] =
            [0; 2].map(|_| AdminClient::connect(&*running.address).wait().unwrap());
        let waiting = thread::spawn(move || other.never().timeout(BOUND).wait());
        running.begun.recv_timeout(BOUND).unwrap();
        let begin = Instant::now();
        // A handler that can be dropped at the bound has returned long before.
        assert!(end(&client, how, is_async).unwrap() < AT_ONCE_MS);
        let ended = waiting.join().unwrap();
        assert!(matches!(ended, Err(RpcError::Cancelled)), "{ended:?}");
        let took = begin.elapsed();
        assert!(took < Duration::from_millis(2 * AT_ONCE_MS), "{took:?}");
    });
}
