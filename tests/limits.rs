//! Limits of a process: what farcall leaves as it is, and what it says when it meets one.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

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

/// Does nothing when it is not started by the tests below.
#[test]
#[ignore = "the other tests start it as a process"]
fn process() {
    let Ok(role) = env::var(ROLE) else { return };
    let (scenario, address) = role.split_once(' ').unwrap();
    match scenario {
        "descriptors" => descriptors(address),
        _ => lengths(address),
    }
}

/// A process of its own with a server in this one, for an address of each kind.
fn run(scenario: &str) {
    let name = format!("shm://limits-{}-{scenario}", std::process::id());
    let shm = ["write_imm", "send_recv", "datagram", "rfp", "scale"];
    let shm = shm.map(|backend| format!("{name}-{backend}?backend={backend}"));
    for address in shm.iter().map(String::as_str).chain(["tcp://127.0.0.1:0"]) {
        let server = listen(address, true).unwrap();
        let done = Command::new(env::current_exe().unwrap())
            .args(["process", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{scenario} {}", server.address()))
            .output()
            .unwrap();
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
