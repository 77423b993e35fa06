//! A server that is asked for twice as much as it can do spends its time on callers that still wait.
#![forbid(unsafe_code)]

#[path = "support/addresses.rs"]
mod addresses;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use addresses::each_kind_of_address;
use farcall::{CallContext, RpcError, RunningServer, Server};

#[farcall::service]
trait Work {
    /// Takes so long.
    fn work(&self, time: Duration);
    /// As long, in an `async fn`.
    async fn work_async(&self, time: Duration);
    /// Asks another server. Returns whether the last one has taken that time.
    async fn ask(&self, time: Duration) -> bool;
}

#[derive(Clone, Default)]
struct Worker {
    /// Handlers that ran to their end.
    ran: Arc<AtomicU64>,
    /// Handlers of `ask` that have begun.
    asked: Arc<AtomicU64>,
    /// Those of them that have neither ended nor been dropped.
    running: Arc<AtomicU64>,
    /// Whom it asks.
    next: Option<WorkClient>,
    /// Handlers of `ask` wait while another holds this.
    gate: Arc<Mutex<()>>,
}

/// One of [`Worker::running`].
struct Running(Arc<AtomicU64>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Worker {
    fn take_time(&self, time: Duration) {
        std::thread::sleep(time);
        self.ran.fetch_add(1, SeqCst);
    }
}

impl Work for Worker {
    fn work(&self, time: Duration) {
        self.take_time(time);
    }

    async fn work_async(&self, time: Duration) {
        self.take_time(time);
    }

    async fn ask(&self, time: Duration) -> bool {
        self.asked.fetch_add(1, SeqCst);
        self.running.fetch_add(1, SeqCst);
        let _running = Running(Arc::clone(&self.running));
        let left = CallContext::current().and_then(|call| call.remaining()).unwrap_or_default();
        if let Some(next) = &self.next {
            matches!(next.ask(time).timeout(left).await, Ok(true))
        } else {
            drop(self.gate.lock());
            self.take_time(time);
            true
        }
    }
}

/// Longer than any test waits.
const PATIENCE: Duration = Duration::from_secs(60);

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}

/// What a handler takes.
const TIME: Duration = Duration::from_millis(2);

/// How long callers wait: as many of them as in [`callers`] ask for twice as much as one thread can do.
const TIMEOUT: Duration = Duration::from_millis(40);

const CALLERS: u64 = 2 * TIMEOUT.as_millis() as u64 / TIME.as_millis() as u64;

/// Calls until some have been answered. Returns how many were, and how many ended at their deadlines.
fn overload(
    at: &str,
    call: impl Fn(&WorkClient) -> Result<(), RpcError> + Send + Sync,
) -> (u64, u64) {
    const ENOUGH: u64 = 300;
    let (answered, late) = (AtomicU64::new(0), AtomicU64::new(0));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                let client = WorkClient::connect(at).wait().expect("a server listens");
                while !is_over.load(SeqCst) {
                    match call(&client) {
                        Ok(()) if answered.fetch_add(1, SeqCst) >= ENOUGH => {
                            is_over.store(true, SeqCst)
                        }
                        Ok(()) => {}
                        // Without an end to it, nobody would be served.
                        Err(RpcError::DeadlineExceeded { .. }) => {
                            if late.fetch_add(1, SeqCst) > 20 * ENOUGH {
                                is_over.store(true, SeqCst);
                            }
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    (answered.into_inner(), late.into_inner())
}

fn serve(at: &str, worker: &Worker) -> RunningServer {
    Server::builder()
        .service(WorkServer::new(worker.clone()))
        .threads(1)
        .listen(at)
        .expect("listen")
}

/// At least four of five runs of handlers are for callers that get the answer.
fn assert_most_runs_are_answered(what: &str, ran: u64, (answered, late): (u64, u64)) {
    assert!(late > answered / 4, "{what}: no overload, {answered} were answered and {late} late");
    assert!(
        answered * 5 >= ran * 4,
        "{what}: {ran} ran, {answered} were answered, {late} were late"
    );
}

#[test]
fn handlers_run_for_callers_that_still_wait() {
    for at in each_kind_of_address("overload-fn") {
        let worker = Worker::default();
        let server = serve(&at, &worker);
        let calls = overload(server.address(), |client| client.work(TIME).timeout(TIMEOUT).wait());
        assert_most_runs_are_answered(&at, worker.ran.load(SeqCst), calls);
    }
}

#[test]
fn async_handlers_run_for_callers_that_still_wait() {
    for at in each_kind_of_address("overload-async") {
        let worker = Worker::default();
        let server = serve(&at, &worker);
        let calls =
            overload(server.address(), |client| client.work_async(TIME).timeout(TIMEOUT).wait());
        assert_most_runs_are_answered(&at, worker.ran.load(SeqCst), calls);
    }
}

/// Some server on the way has given up, or the caller itself has.
fn assert_late(ended: Result<bool, RpcError>) {
    assert!(matches!(ended, Ok(false) | Err(RpcError::DeadlineExceeded { .. })), "{ended:?}");
}

fn assert_answered(ended: Result<bool, RpcError>) {
    assert!(matches!(ended, Ok(true)), "{ended:?}");
}

/// A caller that gives up is followed by each server on the way, so that the last one does not run what nobody waits for.
#[test]
fn a_chain_of_servers_gives_up_with_the_caller() {
    let name = format!("overload-chain-{}", std::process::id());
    let last = Worker::default();
    let mut servers = vec![serve(&format!("shm://{name}-0"), &last)];
    let mut between = Vec::new();
    for level in 1..3 {
        let before = servers.last().expect("there is one").address().to_string();
        let next = WorkClient::connect(before.as_str()).wait().expect("a server listens");
        let worker = Worker { next: Some(next), ..Worker::default() };
        servers.push(serve(&format!("shm://{name}-{level}"), &worker));
        between.push(worker);
    }
    let first = servers.last().expect("there is one").address().to_string();
    let client = WorkClient::connect(first.as_str()).wait().expect("a server listens");
    // The last server has seen that the method takes long: its requests wait where they can be cancelled.
    for _ in 0..3 {
        assert_answered(client.ask(TIME).wait());
    }
    let before = last.ran.load(SeqCst);
    let gate = last.gate.lock();
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| client.ask(TIME).timeout(PATIENCE).wait());
        wait_until("the last server is busy", || last.running.load(SeqCst) == 1);
        let impatient = [(); 16]
            .map(|()| scope.spawn(|| assert_late(client.ask(TIME).timeout(TIMEOUT).wait())));
        impatient.into_iter().for_each(|call| call.join().expect("it is late"));
        for worker in &between {
            wait_until("the others have given up", || worker.running.load(SeqCst) == 1);
            assert!(worker.asked.load(SeqCst) > before + 1, "no other came so far");
        }
        // What the last server was told is there before this call ends, which comes behind it on the same connection.
        let before_last = between[0].next.as_ref().expect("it asks another");
        assert_late(before_last.ask(TIME).timeout(TIMEOUT).wait());
        drop(gate);
        assert_answered(patient.join().expect("no panic"));
    });
    assert_answered(client.ask(TIME).wait());
    assert_eq!(last.ran.load(SeqCst) - before, 2, "runs for callers that had given up");
    // The first is asked last to end.
    servers.into_iter().rev().for_each(drop);
}
