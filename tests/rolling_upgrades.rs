//! Two versions of a service in processes of their own, under load: servers are upgraded first, then clients, then all go
//! back, and no call fails.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farcall::{BindError, MethodMismatch, RpcError, RunningServer, Server, ServerBuilder};

mod v1 {
    #[derive(Debug, PartialEq, farcall::Grow)]
    pub(crate) struct Entry {
        pub(crate) number: u64,
    }

    #[farcall::service]
    pub(crate) trait Ledger {
        fn next(&self, number: u64) -> u64;
        fn keep(&self, entry: Entry) -> Entry;
    }
}

mod v2 {
    #[derive(Debug, PartialEq, farcall::Grow)]
    pub(crate) struct Entry {
        pub(crate) number: u64,
        #[rpc(since = 2, default = "none".to_owned())]
        pub(crate) tag: String,
    }

    #[farcall::service]
    pub(crate) trait Ledger {
        fn next(&self, number: u64, #[rpc(since = 2, default = 1)] step: u64) -> u64;
        fn twice(&self, number: u64) -> u64;
        fn keep(&self, entry: Entry) -> Entry;
    }

    pub(crate) fn entry(number: u64, tag: &str) -> Entry {
        Entry { number, tag: tag.to_owned() }
    }
}

struct Book;

impl v1::Ledger for Book {
    fn next(&self, number: u64) -> u64 {
        number + 1
    }

    fn keep(&self, entry: v1::Entry) -> v1::Entry {
        entry
    }
}

impl v2::Ledger for Book {
    fn next(&self, number: u64, step: u64) -> u64 {
        number + step
    }

    fn twice(&self, number: u64) -> u64 {
        2 * number
    }

    fn keep(&self, entry: v2::Entry) -> v2::Entry {
        entry
    }
}

/// What a started process is: `server 1 ADDRESS`, or `client 2 ADDRESS ADDRESS`.
const ROLE: &str = "FARCALL_ROLLING_UPGRADE_ROLE";

/// How long a server waits for its address, and a call for its server.
const BOUND: Duration = Duration::from_secs(20);

/// Threads that call, for each server.
const CALLERS: usize = 2;

/// Calls that the clients make between two steps of an upgrade.
const CALLS_PER_STEP: u64 = 500;

/// The processes of the upgrade. Does nothing when it is not started by the test below.
#[test]
#[ignore = "the other test starts it as processes"]
fn process() {
    let Ok(role) = env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["server", version, address] => serve(version, address),
        ["client", version, ref addresses @ ..] => call(version, addresses),
        _ => panic!("{role}"),
    }
}

/// Takes the address over from the server before it, and serves until standard input ends.
fn serve(version: &str, address: &str) {
    let builder = || -> ServerBuilder {
        match version {
            "1" => Server::builder().service(v1::LedgerServer::new(Book)),
            _ => Server::builder().service(v2::LedgerServer::new(Book)),
        }
    };
    let begun = Instant::now();
    let server: RunningServer = loop {
        match builder().listen(address) {
            Ok(server) => break server,
            Err(BindError::InUse { .. }) if begun.elapsed() < BOUND => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    say("serving");
    wait_for_end_of_input();
    server.shutdown();
}

/// Calls all servers without pause until standard input ends. Says how many calls it has made, whenever asked by a line.
fn call(version: &str, addresses: &[&str]) {
    let (calls, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for address in addresses {
            let next: Arc<dyn Fn(u64) -> Result<u64, RpcError> + Send + Sync> = match version {
                "1" => {
                    let client = v1::LedgerClient::connect(*address).wait().expect("a server");
                    Arc::new(move |number| {
                        let kept = client.keep(v1::Entry { number }).wait();
                        assert_eq!(kept, Ok(v1::Entry { number }));
                        client.next(number).wait()
                    })
                }
                _ => {
                    let client = v2::LedgerClient::connect(*address).wait().expect("a server");
                    Arc::new(move |number| {
                        assert_eq!(client.twice(number).wait(), Ok(2 * number));
                        assert_eq!(client.next(number, 5).wait(), Ok(number + 5));
                        let kept = client.keep(v2::entry(number, "new")).wait();
                        assert_eq!(kept, Ok(v2::entry(number, "new")));
                        client.next(number, 1).wait()
                    })
                }
            };
            for _ in 0..CALLERS {
                let (next, calls, is_over) = (next.clone(), &calls, &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let number = calls.fetch_add(1, Ordering::Relaxed);
                        let answer = next(number);
                        assert_eq!(answer, Ok(number + 1), "after {number} calls");
                    }
                });
            }
        }
        say("calling");
        let mut line = String::new();
        let mut input = std::io::stdin().lock();
        while input.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            say(&calls.load(Ordering::Relaxed).to_string());
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

fn say(line: &str) {
    // The test harness writes to the same standard output.
    println!("\n>{line}");
    std::io::stdout().flush().expect("the test reads it");
}

fn wait_for_end_of_input() {
    let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
}

/// A process of the upgrade.
struct Process {
    role: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: String) -> Process {
        let mut command = Command::new(env::current_exe().expect("this test"));
        command.args(["--exact", "process", "--ignored", "--nocapture"]).env(ROLE, &role);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Process { role, child, input, output: BufReader::new(output) }
    }

    fn server(version: u32, address: &str) -> Process {
        Process::start(format!("server {version} {address}"))
    }

    fn client(version: u32, addresses: &[String]) -> Process {
        let mut client = Process::start(format!("client {version} {}", addresses.join(" ")));
        client.expect("calling");
        client
    }

    /// The next line that the process says. It ends when the process does.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            if let Some(said) = line.strip_prefix('>') {
                return said.trim_end().to_owned();
            }
            line.clear();
        }
        panic!("{} has ended", self.role);
    }

    fn expect(&mut self, line: &str) {
        assert_eq!(self.hear(), line, "{}", self.role);
    }

    fn calls(&mut self) -> u64 {
        self.input.as_mut().expect("it runs").write_all(b"\n").expect("it listens");
        self.hear().parse().expect("a number")
    }

    /// Waits until it has made as many more calls.
    fn progress(&mut self) {
        let (begin, begun) = (self.calls(), Instant::now());
        while self.calls() < begin + CALLS_PER_STEP {
            assert!(begun.elapsed() < BOUND, "{}: too slow", self.role);
            thread::yield_now();
        }
    }

    /// Asks it to end, and waits until it has: no call of it has failed.
    fn end(&mut self) {
        self.input = None;
        let status = self.child.wait().expect("it was started");
        assert!(status.success(), "{}: {status}", self.role);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Replaces the servers one after the other, under the load of these clients.
fn replace_servers(
    servers: &mut [Process],
    addresses: &[String],
    version: u32,
    clients: &mut [Process],
) {
    for (server, address) in servers.iter_mut().zip(addresses) {
        // It is there before the old one leaves, and waits for the address.
        let mut next = Process::server(version, address);
        server.end();
        next.expect("serving");
        *server = next;
        clients.iter_mut().for_each(Process::progress);
    }
}

fn replace_clients(clients: &mut [Process], addresses: &[String], version: u32) {
    for client in clients {
        let mut next = Process::client(version, addresses);
        client.end();
        next.progress();
        *client = next;
    }
}

fn upgrade_and_go_back(addresses: &[String]) {
    let mut servers: Vec<_> = addresses.iter().map(|address| Process::server(1, address)).collect();
    servers.iter_mut().for_each(|server| server.expect("serving"));
    let mut clients = [Process::client(1, addresses), Process::client(1, addresses)];
    clients.iter_mut().for_each(Process::progress);
    // A new client is too early: what it needs is not there yet.
    let early = v2::LedgerClient::connect(addresses[0].as_str()).wait().expect("a server");
    let missing = |method: &str, why| Err(RpcError::NoSuchMethod { method: method.into(), why });
    assert_eq!(early.twice(1).wait(), missing("Ledger.twice", MethodMismatch::Absent));
    assert_eq!(early.next(1, 1).wait(), Ok(2), "the step is the default");
    let newer = MethodMismatch::NewerArgument;
    assert_eq!(early.next(1, 5).wait(), missing("Ledger.next@2", newer));
    assert_eq!(early.keep(v2::entry(1, "new")).wait(), Ok(v2::entry(1, "none")));
    replace_servers(&mut servers, addresses, 2, &mut clients);
    assert_eq!(early.keep(v2::entry(1, "new")).wait(), Ok(v2::entry(1, "new")));
    assert_eq!(early.twice(1).wait(), Ok(2), "its server was upgraded");
    assert_eq!(early.next(1, 5).wait(), Ok(6));
    drop(early);
    replace_clients(&mut clients, addresses, 2);
    replace_clients(&mut clients, addresses, 1);
    replace_servers(&mut servers, addresses, 1, &mut clients);
    clients.iter_mut().for_each(Process::end);
    servers.iter_mut().for_each(Process::end);
}

fn fresh(name: &str) -> String {
    format!("rolling-upgrade-{name}-{}", std::process::id())
}

#[test]
fn no_call_fails_while_servers_and_then_clients_are_upgraded_and_back() {
    for backend in ["write_imm", "datagram"] {
        let address = |name| format!("shm://{}?backend={backend}", fresh(name));
        upgrade_and_go_back(&[address("a"), address("b")]);
    }
}
