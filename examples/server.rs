//! A server as it runs for long: it takes over from its predecessor, shows its metrics over HTTP, and stops at SIGTERM.
//!
//! ```sh
//! cargo run --release --example server -- shm://store 127.0.0.1:9090
//! curl http://127.0.0.1:9090/metrics
//! ```
//!
//! Start it again (with another port for HTTP) while it runs, and end the first one: calls of async clients go on at the second. farcall logs
//! with `tracing`; a program that wants to see that installs a subscriber, such as `tracing_subscriber::fmt().init()`.

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farcall::{BindError, Bytes, Metrics, RunningServer, Server};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

#[farcall::service]
trait Store {
    fn get(&self, key: &[u8]) -> Option<Bytes>;
    fn put(&self, key: &[u8], value: Bytes);
}

#[derive(Default)]
struct InMemory(Mutex<HashMap<Vec<u8>, Bytes>>);

impl Store for InMemory {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn put(&self, key: &[u8], value: Bytes) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_vec(), value);
    }
}

/// How long to wait for a predecessor that answers its last calls.
const TAKE_OVER: Duration = Duration::from_secs(30);

/// How long a client of the metrics may take.
const HTTP_PATIENCE: Duration = Duration::from_secs(5);

/// The most that a request for the metrics may have.
const MOST_BYTES: u64 = 8 << 10;

/// Listens as soon as the server before has left the address.
fn take_over(address: &str) -> Result<RunningServer, BindError> {
    let begun = Instant::now();
    loop {
        let server = Server::builder().service(StoreServer::new(InMemory::default())).threads(2);
        match server.listen(address) {
            Err(BindError::InUse { .. }) if begun.elapsed() < TAKE_OVER => {
                thread::sleep(Duration::from_millis(1));
            }
            outcome => return outcome,
        }
    }
}

/// Answers requests for the metrics, one after the other, as long as the process lives.
fn show_metrics(listener: TcpListener, metrics: Metrics) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Err(error) = answer(stream, &metrics) {
                eprintln!("metrics: {error}");
            }
        }
    });
}

fn answer(mut stream: TcpStream, metrics: &Metrics) -> io::Result<()> {
    stream.set_read_timeout(Some(HTTP_PATIENCE))?;
    stream.set_write_timeout(Some(HTTP_PATIENCE))?;
    // To the empty line behind the headers: a connection that is closed with bytes unread takes the answer with it.
    let mut lines = BufReader::new((&stream).take(MOST_BYTES)).lines();
    let request = lines.next().unwrap_or(Ok(String::new()))?;
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let (status, body) = match request.starts_with("GET /metrics ") {
        true => ("200 OK", metrics.prometheus()),
        false => ("404 Not Found", "try /metrics\n".to_owned()),
    };
    let length = body.len();
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    write!(stream, "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n")?;
    write!(stream, "Connection: close\r\n\r\n{body}")
}

/// Serves until `stop` returns.
fn run(address: &str, http: TcpListener, stop: impl FnOnce()) -> Result<(), Box<dyn Error>> {
    let server = take_over(address)?;
    show_metrics(http, server.metrics());
    println!("serving at {}", server.address());
    stop();
    // Stops listening, which frees the address for the next one, and answers the calls that are in progress.
    let drained = server.shutdown();
    if drained.aborted_calls > 0 || drained.stuck_threads > 0 {
        eprintln!("not answered in time: {drained:?}");
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [address, http] = &arguments[..] else {
        return Err("use: server ADDRESS HOST:PORT, such as shm://store 127.0.0.1:9090".into());
    };
    // Before the first thread starts, so that no signal is lost.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    run(address, TcpListener::bind(http.as_str())?, || {
        signals.forever().next();
    })
}

#[test]
fn a_successor_takes_over_without_a_failed_call() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    let address = &format!("shm://server-example-{}", std::process::id());
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let start = || {
            let http = TcpListener::bind("127.0.0.1:0").unwrap();
            let http_address = http.local_addr().unwrap();
            let (stop, stopped) = channel::<()>();
            let server = scope.spawn(move || {
                // Until the other end is dropped.
                let stop = || _ = stopped.recv();
                run(address, http, stop).map_err(|error| error.to_string())
            });
            (stop, server, http_address)
        };
        let (stop, first, _) = start();
        let client = loop {
            // The server may not listen yet.
            match StoreClient::connect(address).wait() {
                Ok(client) => break client,
                Err(farcall::ConnectError::NoServer { .. }) => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        let calls = scope.spawn(move || {
            let mut calls = 0;
            while !is_over.load(Ordering::Relaxed) {
                client.put(b"tea", Bytes::from_static(b"green")).wait().unwrap();
                calls += 1;
            }
            calls
        });
        let (stop_second, second, http) = start();
        drop(stop);
        first.join().unwrap().unwrap();
        // The second one shows its calls.
        let counted = r#"farcall_server_calls_total{service="Store",method="put"} "#;
        let begun = Instant::now();
        loop {
            let metrics = get(http, "/metrics");
            let count = metrics.lines().find_map(|line| line.strip_prefix(counted));
            if count.is_some_and(|count| count != "0") {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{metrics}");
        }
        assert!(get(http, "/").starts_with("HTTP/1.1 404"));
        is_over.store(true, Ordering::Relaxed);
        assert!(calls.join().unwrap() > 0);
        drop(stop_second);
        second.join().unwrap().unwrap();
    });
}
