//! Handlers that use tokio: timers, files, sockets and tasks, on runtimes of each kind, and what happens when a runtime ends.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farcall::{CallError, IdlePolicy, RpcError, RunningServer, Server};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};

/// No test waits as long unless it fails.
const BOUND: Duration = Duration::from_secs(30);

/// What handlers do with tokio.
#[farcall::service]
trait Chores {
    /// Sleeps so long.
    async fn sleep(&self, millis: u64) -> u64;
    /// Writes a file, and reads it again.
    async fn file(&self, text: String) -> Result<String, String>;
    /// Asks the database.
    async fn query(&self, text: String) -> Result<String, String>;
    /// Blocks a thread of the runtime until the test opens the gate.
    async fn block(&self) -> bool;
    /// Starts a task that goes on after the call.
    fn background(&self, number: u32);
    /// What the background tasks have added up to.
    fn sum(&self) -> u32;
}

#[derive(Default)]
struct OnTokio {
    database: Option<Database>,
    sum: Arc<AtomicU32>,
    gate: Arc<Mutex<Option<Receiver<()>>>>,
}

impl Chores for OnTokio {
    async fn sleep(&self, millis: u64) -> u64 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        millis
    }

    async fn file(&self, text: String) -> Result<String, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("farcall-tokio-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let read = async {
            tokio::fs::write(&path, &text).await?;
            let read = tokio::fs::read_to_string(&path).await?;
            tokio::fs::remove_file(&path).await?;
            Ok(read)
        };
        read.await.map_err(|error: io::Error| error.to_string())
    }

    async fn query(&self, text: String) -> Result<String, String> {
        let database = self.database.as_ref().ok_or("this server has none")?;
        database.query(text).await.map_err(|error| error.to_string())
    }

    async fn block(&self) -> bool {
        let gate = self.gate.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let gate = gate.lock().ok()?.take()?;
            gate.recv_timeout(BOUND).ok()
        });
        opened.await.is_ok_and(|opened| opened.is_some())
    }

    fn background(&self, number: u32) {
        let sum = self.sum.clone();
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            sum.fetch_add(number, Ordering::SeqCst);
        });
    }

    fn sum(&self) -> u32 {
        self.sum.load(Ordering::SeqCst)
    }
}

/// A database's client, as `tokio-postgres` has it: handles that send queries to the task that owns the connection.
struct Database {
    queries: mpsc::Sender<Query>,
}

struct Query {
    text: String,
    answer: oneshot::Sender<String>,
}

impl Database {
    /// Connects, and spawns the task of the connection.
    async fn connect(address: std::net::SocketAddr) -> io::Result<Database> {
        let stream = TcpStream::connect(address).await?;
        let (queries, mut asked) = mpsc::channel::<Query>(16);
        tokio::spawn(async move {
            let (from, mut to) = stream.into_split();
            let mut lines = BufReader::new(from).lines();
            while let Some(Query { text, answer }) = asked.recv().await {
                if to.write_all(format!("{text}\n").as_bytes()).await.is_err() {
                    return;
                }
                let Ok(Some(line)) = lines.next_line().await else { return };
                let _ = answer.send(line);
            }
        });
        Ok(Database { queries })
    }

    async fn query(&self, text: String) -> Result<String, &'static str> {
        let (answer, answered) = oneshot::channel();
        let sent = self.queries.send(Query { text, answer }).await;
        sent.map_err(|_| "the connection is closed")?;
        answered.await.map_err(|_| "the connection was lost")
    }
}

/// A database that answers each line with its length.
async fn serve_database() -> io::Result<std::net::SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (from, mut to) = stream.into_split();
                let mut lines = BufReader::new(from).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let answer = format!("{} bytes\n", line.len());
                    if to.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(address)
}

/// A unique address, also among concurrent test runs.
fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("shm://farcall-tokio-{}-{next}", std::process::id())
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A server whose threads sleep as soon as they can: each wake-up of a handler must wake them.
fn serve(service: OnTokio, runtime: &tokio::runtime::Handle) -> (RunningServer, ChoresClient) {
    let server = Server::builder().service(ChoresServer::new(service)).idle(IdlePolicy::PARK);
    let server = server.tokio(runtime.clone()).listen(address()).unwrap();
    let client = ChoresClient::connect(server.address()).timeout(BOUND).wait().unwrap();
    (server, client)
}

#[test]
fn timers_and_files_work_in_handlers() {
    let runtime = runtime();
    let (server, client) = serve(OnTokio::default(), runtime.handle());
    let begin = Instant::now();
    assert_eq!(client.sleep(20).wait(), Ok(20));
    assert!(begin.elapsed() >= Duration::from_millis(20));
    for round in 0..20 {
        assert_eq!(client.sleep(round % 3).wait(), Ok(round % 3));
        assert_eq!(client.file(format!("round {round}")).wait(), Ok(format!("round {round}")));
    }
    assert_eq!(server.shutdown().aborted_calls, 0);
}

#[test]
fn handlers_share_a_connection_that_a_task_of_the_runtime_owns() {
    let runtime = runtime();
    let connected = async { Database::connect(serve_database().await?).await };
    let database = runtime.block_on(connected).unwrap();
    let service = OnTokio { database: Some(database), ..OnTokio::default() };
    let (server, client) = serve(service, runtime.handle());
    let queries = (0..64).map(|n| {
        let client = client.clone();
        runtime.spawn(async move { client.query("x".repeat(n)).await })
    });
    for (n, query) in queries.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(runtime.block_on(query).unwrap(), Ok(format!("{n} bytes")));
    }
    server.shutdown();
}

#[test]
fn plain_handlers_start_tasks_that_go_on_after_the_call() {
    let runtime = runtime();
    let (server, client) = serve(OnTokio::default(), runtime.handle());
    (1..=10).for_each(|number| client.background(number).wait().unwrap());
    let begin = Instant::now();
    while client.sum().wait() != Ok(55) {
        assert!(begin.elapsed() < BOUND, "a task was lost");
    }
    server.shutdown();
}

#[tokio::test]
async fn client_and_handlers_share_a_runtime_of_one_thread() {
    let server = Server::builder().service(ChoresServer::new(OnTokio::default()));
    let server = server.tokio(tokio::runtime::Handle::current()).listen(address()).unwrap();
    let client = ChoresClient::connect(server.address()).await.unwrap();
    let (one, two, file) = tokio::join!(client.sleep(1), client.sleep(2), client.file("x".into()));
    assert_eq!((one, two, file), (Ok(1), Ok(2), Ok("x".into())));
    server.shutdown();
}

#[test]
fn a_handler_that_blocks_the_runtime_delays_neither_other_calls_nor_the_shutdown() {
    let runtime = runtime();
    let (open, gate) = sync_channel(1);
    let service = OnTokio::default();
    *service.gate.lock().unwrap() = Some(gate);
    let untaken = service.gate.clone();
    let (server, client) = serve(service, runtime.handle());
    let call = client.clone();
    let blocked = runtime.spawn(async move { call.block().await });
    let begin = Instant::now();
    // The thread takes the gate before it blocks.
    while untaken.try_lock().is_ok_and(|gate| gate.is_some()) {
        assert!(begin.elapsed() < BOUND, "it never blocks");
    }
    assert_eq!(client.sleep(1).wait(), Ok(1));
    let drained = server.shutdown_within(Duration::from_millis(50));
    assert_eq!((drained.aborted_calls, drained.stuck_threads), (1, 0));
    assert_eq!(runtime.block_on(blocked).unwrap(), Err(RpcError::Cancelled));
    open.send(()).unwrap();
}

#[test]
fn when_the_runtime_ends_first_the_calls_that_need_it_fail_and_the_server_goes_on() {
    let runtime = runtime();
    let address = runtime.block_on(serve_database()).unwrap();
    let database = runtime.block_on(Database::connect(address)).unwrap();
    let service = OnTokio { database: Some(database), ..OnTokio::default() };
    let (server, client) = serve(service, runtime.handle());
    let (asleep, woken) = sync_channel(1);
    let sleeper = client.clone();
    std::thread::spawn(move || asleep.send(sleeper.sleep(BOUND.as_millis() as u64 * 2).wait()));
    let begin = Instant::now();
    while in_flight(&server) == 0 {
        assert!(begin.elapsed() < BOUND, "the call never arrives");
    }
    runtime.shutdown_background();
    let ended = woken.recv_timeout(BOUND).expect("the runtime's end wakes the handler");
    assert_eq!(ended, Err(RpcError::HandlerPanicked));
    assert_eq!(client.sleep(1).wait(), Err(RpcError::HandlerPanicked));
    let lost = client.query("x".into()).wait();
    assert!(matches!(lost, Err(CallError::Service(_))), "{lost:?}");
    assert_eq!(client.sum().wait(), Ok(0));
    assert_eq!(server.shutdown().stuck_threads, 0);
}

fn in_flight(server: &RunningServer) -> u64 {
    let snapshot = server.metrics().snapshot();
    snapshot.methods.iter().map(|method| method.in_flight()).sum()
}

#[test]
fn without_a_runtime_a_handler_that_needs_one_fails_its_call_only() {
    let server = Server::builder().service(ChoresServer::new(OnTokio::default()));
    let server = server.listen(address()).unwrap();
    let client = ChoresClient::connect(server.address()).wait().unwrap();
    assert_eq!(client.sleep(1).wait(), Err(RpcError::HandlerPanicked));
    assert_eq!(client.background(1).wait(), Err(RpcError::HandlerPanicked));
    assert_eq!(client.sum().wait(), Ok(0));
    server.shutdown();
}
