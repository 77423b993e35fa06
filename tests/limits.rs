//! Limits of a process: what farcall leaves as it is, and what it says when it meets one.

#[path = "support/addresses.rs"]
mod addresses;
#[path = "support/other_process.rs"]
mod other_process;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write, stdin};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use addresses::each_kind_of_address;
use bytes::Bytes;
use farcall::{BindError, ConnectError, RunningServer, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[farcall::service]
trait Store {
    fn twice(&self, value: Bytes) -> Bytes;
}

struct Values;

impl Store for Values {
    fn twice(&self, value: Bytes) -> Bytes {
        [&value[..], &value[..]].concat().into()
    }
}

fn listen(address: &str, raises: bool) -> Result<RunningServer, BindError> {
    let server = Server::builder().service(StoreServer::new(Values));
    server.raise_descriptor_limit(raises).listen(address)
}

/// What a started process does: `SCENARIO ADDRESS`.
const ROLE: &str = "FARCALL_LIMITS_ROLE";

fn set_soft(resource: Resource, limit: u64) {
    setrlimit(resource, Rlimit { current: Some(limit), ..getrlimit(resource) }).unwrap();
}

/// More than one slot, and more than the buffers that are there from the beginning.
fn long() -> Bytes {
    vec![7; 300_000].into()
}

const USUAL: u64 = 300;

fn descriptors(address: &str) {
    set_soft(Resource::Nofile, USUAL);
    let soft = || getrlimit(Resource::Nofile).current;
    let own = |name: &str| match address.strip_prefix("shm://") {
        Some(place) => format!("shm://{name}-{}", place.split('?').next().unwrap()),
        None => "tcp://127.0.0.1:0".to_owned(),
    };
    let client = StoreClient::connect(address).wait().unwrap();
    assert_eq!(client.twice(long()).wait().unwrap().len(), 600_000);
    assert_eq!(soft(), Some(USUAL), "a client raises nothing");
    let _server = listen(&own("modest"), false).unwrap();
    assert_eq!(soft(), Some(USUAL), "the server was told to leave it");
    let _other = listen(&own("usual"), true).unwrap();
    assert_eq!(soft(), getrlimit(Resource::Nofile).maximum);
}

fn names_limit(what: &str, error: &dyn std::error::Error) {
    let text = error.to_string();
    assert!(text.contains("ulimit -f"), "{what}: {text}");
}

/// Tries each limit of the length of files: what the address is good for.
fn lengths(address: &str) {
    let (mut refused, mut connected) = (0, 0);
    let mut call = |client: Result<StoreClient, ConnectError>| match client {
        Ok(client) => {
            connected += 1;
            // A long call may need more memory than there is; a short one does not.
            let _ = client.twice(long()).wait();
            assert_eq!(client.twice(Bytes::from_static(b"ab")).wait().unwrap(), &b"abab"[..]);
        }
        Err(error) => {
            refused += 1;
            names_limit("connect", &error);
        }
    };
    for shift in 8..28 {
        set_soft(Resource::Fsize, 1 << shift);
        call(StoreClient::connect(address).wait());
        let own = match address.strip_prefix("shm://") {
            Some(place) => format!("shm://limited-{shift}-{place}"),
            None => "tcp://127.0.0.1:0".to_owned(),
        };
        match listen(&own, true) {
            Ok(server) => call(StoreClient::connect(server.address()).wait()),
            Err(error) => names_limit("listen", &error),
        }
    }
    println!("refused {refused}, connected {connected}");
    assert!(connected > 0 && (refused > 0 || address.starts_with("tcp")));
}

/// Serves, and leaves this process as many free descriptors as each line says.
fn starved(address: &str) {
    // The numbers of those that are free begin here: none in between is missing.
    let usual = getrlimit(Resource::Nofile);
    let server = listen(address, false).unwrap();
    println!("at {}", server.address());
    for line in stdin().lines() {
        setrlimit(Resource::Nofile, usual).unwrap();
        let spare: usize = line.unwrap().parse().unwrap();
        let listed: Vec<_> = fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u64>().ok())
            .collect();
        // The one that listed them is closed again.
        let is_taken =
            |number: &u64| fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
        let taken: Vec<_> = listed.into_iter().filter(is_taken).collect();
        let beyond = (0..).filter(|number| !taken.contains(number)).nth(spare).unwrap();
        set_soft(Resource::Nofile, beyond);
        println!("at {beyond}");
    }
}

/// Does nothing when it is not started by the tests below.
#[test]
#[ignore = "the other tests start it as a process"]
fn process() {
    let Ok(role) = env::var(ROLE) else { return };
    let (scenario, address) = role.split_once(' ').unwrap();
    match scenario {
        "descriptors" => descriptors(address),
        "starved" => starved(address),
        _ => lengths(address),
    }
}

/// A process of its own with a server in this one, for an address of each kind.
fn run(scenario: &str) {
    for address in each_kind_of_address(&format!("limits-{scenario}")) {
        let server = listen(&address, true).unwrap();
        let role = format!("{scenario} {}", server.address());
        let done = other_process::with_role(ROLE, role).output().unwrap();
        let says = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(done.status.signal(), None, "{address}: it died of a signal");
        let (out, error) = (says(&done.stdout), says(&done.stderr));
        assert!(done.status.success(), "{address}: {out} {error}");
        eprintln!("{address}: {}", out.lines().find(|line| line.contains("refused")).unwrap_or(""));
    }
}

#[test]
fn only_servers_raise_the_limit_of_descriptors_unless_told_to_leave_it() {
    run("descriptors");
}

#[test]
fn a_limit_of_file_lengths_is_an_error_that_names_it_and_no_signal() {
    run("lengths");
}

const DIAL: Duration = Duration::from_secs(4);

/// A client does not wait until its time is over.
const AT_ONCE: Duration = Duration::from_secs(2);

#[test]
fn a_server_without_descriptors_tells_its_clients_that_it_has_none() {
    let mut wrong = Vec::new();
    for address in each_kind_of_address("limits-starved") {
        let mut server = other_process::with_role(ROLE, format!("starved {address}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut to, from) = (server.stdin.take().unwrap(), server.stdout.take().unwrap());
        let mut lines = BufReader::new(from).lines();
        let mut hear = || {
            let line = lines.by_ref().map(Result::unwrap).find(|line| line.contains("at "));
            line.unwrap().split_once("at ").unwrap().1.to_owned()
        };
        let at = hear();
        let mut refused = 0;
        for spare in 0..8 {
            writeln!(to, "{spare}").unwrap();
            hear();
            let begin = Instant::now();
            match StoreClient::connect(&*at).dial_timeout(DIAL).wait() {
                // What it needs for its first call may not be there.
                Ok(client) => drop(client.twice(Bytes::from_static(b"ab")).wait()),
                Err(error) => {
                    refused += 1;
                    let (text, took) = (error.to_string(), begin.elapsed());
                    let is_told = ["at the server", "the server's process", "the process there"]
                        .iter()
                        .any(|it| text.contains(it));
                    // What a server cannot take or send as datagrams is lost without a word.
                    let is_late = took > AT_ONCE && !at.contains("backend=datagram");
                    if !(is_told && text.contains("open files")) || is_late {
                        wrong.push(format!("{at}, {spare} descriptors, after {took:?}: {text}"));
                    }
                }
            }
        }
        assert!(refused > 0, "{at}: there were enough");
        drop(to);
        assert!(server.wait().unwrap().success());
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
