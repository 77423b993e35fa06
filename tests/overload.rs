//! A server that is asked for twice as much as it can do spends its time on callers that still wait.
#![forbid(unsafe_code)]

#[path = "support/addresses.rs"]
mod addresses;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use addresses::each_kind_of_address;
use farcall::{CallContext, RpcError, RunningServer, Server};

#[farcall::service]
trait Work {
    /// Takes so long.
    fn work(&self, time: Duration);
    /// As long, in an `async fn`.
    async fn work_async(&self, time: Duration);
    /// Asks another server.
    async fn ask(&self, time: Duration);
}

#[derive(Clone, Default)]
struct Worker {
    /// Handlers that ran to their end.
    ran: Arc<AtomicU64>,
    /// Whom it asks.
    next: Option<WorkClient>,
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

    async fn ask(&self, time: Duration) {
        let left = CallContext::current().and_then(|call| call.remaining()).unwrap_or_default();
        if let Some(next) = &self.next {
            let _ = next.ask(time).timeout(left).await;
        } else {
            self.take_time(time);
        }
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

/// A caller that gives up is followed by each server on the way, so that the last one does not run what nobody waits for.
#[test]
fn a_chain_of_servers_gives_up_with_the_caller() {
    let name = format!("overload-chain-{}", std::process::id());
    let last = Worker::default();
    let mut servers = vec![serve(&format!("shm://{name}-0"), &last)];
    for level in 1..3 {
        let before = servers.last().expect("there is one").address().to_string();
        let next = WorkClient::connect(before.as_str()).wait().expect("a server listens");
        let worker = Worker { next: Some(next), ..Worker::default() };
        servers.push(serve(&format!("shm://{name}-{level}"), &worker));
    }
    let first = servers.last().expect("there is one").address().to_string();
    let calls = overload(&first, |client| client.ask(TIME).timeout(TIMEOUT).wait());
    assert_most_runs_are_answered("a chain", last.ran.load(SeqCst), calls);
    // The first is asked last to end.
    servers.into_iter().rev().for_each(drop);
}
