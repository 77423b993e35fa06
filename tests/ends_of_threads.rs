//! Calls while a thread, or the process, ends: in the destructor of a thread's variable, when farcall's own variables may be gone.

#[cfg(feature = "tls")]
#[allow(dead_code)] // Each test uses a part of it.
#[path = "support/certificates.rs"]
mod certificates;

#[path = "support/other_process.rs"]
mod other_process;

use std::cell::RefCell;
use std::env;
use std::thread;
use std::time::Duration;

use farcall::Server;

#[farcall::service]
trait Clock {
    /// Answers so much later.
    fn after(&self, ms: u64) -> u64;
}

struct Slow;

impl Clock for Slow {
    fn after(&self, ms: u64) -> u64 {
        thread::sleep(Duration::from_millis(ms));
        ms
    }
}

/// Which end a started process calls at, and the server's address.
const ROLE: &str = "FARCALL_END_OF_THREAD_ROLE";

/// Whom a started process trusts, in PEM, if the server is to prove itself.
const TRUSTED: &str = "FARCALL_END_OF_THREAD_TRUSTED";

/// Longer than a caller stays awake.
const LONG_MS: u64 = 20;

/// A client of either kind, as the process is told to connect.
macro_rules! connect {
    ($client:ident, $address:expr) => {{
        let connecting = $client::connect($address);
        #[cfg(feature = "tls")]
        let connecting = match env::var(TRUSTED) {
            Ok(trusted) => connecting.tls(trusting(&trusted)),
            Err(_) => connecting,
        };
        connecting.wait().expect("a server listens")
    }};
}

/// Calls at its end.
enum Session {
    Shared(ClockClient),
    Polling(Box<ClockPollClient>),
    Connecting(String),
}

impl Drop for Session {
    fn drop(&mut self) {
        for ms in [0, LONG_MS] {
            let answer = match self {
                Session::Shared(client) => client.after(ms).wait(),
                Session::Polling(client) => client.after(ms),
                Session::Connecting(address) => {
                    connect!(ClockClient, address.as_str()).after(ms).wait()
                }
            };
            assert_eq!(answer, Ok(ms));
        }
        println!("all answered");
    }
}

#[cfg(feature = "tls")]
fn trusting(authority: &str) -> farcall::tls::ClientTls {
    let trusted = farcall::tls::Authorities::from_pem(authority).unwrap();
    farcall::tls::ClientTls::without_certificate(trusted).unwrap()
}

thread_local! {
    static SESSION: RefCell<Option<Session>> = const { RefCell::new(None) };
}

/// Does nothing when it is not started by the test below.
#[test]
#[ignore = "the other test starts it as a process"]
fn process() {
    let Ok(role) = env::var(ROLE) else { return };
    let (role, address) = role.split_once(' ').unwrap();
    let address = address.to_owned();
    let slept = |client: ClockClient| {
        // Now the thread has what a thread that sleeps needs.
        assert_eq!(client.after(LONG_MS).wait(), Ok(LONG_MS));
        SESSION.set(Some(Session::Shared(client)));
    };
    let thread = match role {
        "made-first" => thread::spawn(move || {
            SESSION.with(|session| assert!(session.borrow().is_none()));
            slept(connect!(ClockClient, address.as_str()));
        }),
        "made-last" => thread::spawn(move || slept(connect!(ClockClient, address.as_str()))),
        "first-call" => thread::spawn(move || {
            SESSION.set(Some(Session::Shared(connect!(ClockClient, address.as_str()))));
        }),
        "connecting" => thread::spawn(move || SESSION.set(Some(Session::Connecting(address)))),
        "polling" => thread::spawn(move || {
            SESSION
                .set(Some(Session::Polling(Box::new(connect!(ClockPollClient, address.as_str())))));
        }),
        _ => panic!("{role}"),
    };
    thread.join().unwrap();
}

/// Starts a process for each role.
fn are_answered(address: &str, trusted: Option<String>) {
    for role in ["made-first", "made-last", "first-call", "connecting", "polling"] {
        let output = other_process::with_role(ROLE, format!("{role} {address}"))
            .envs(trusted.as_ref().map(|trusted| (TRUSTED, trusted)))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let is_answered = output.status.success() && said.contains("all answered");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(is_answered, "{address}, {role}: {}, {said}, {errors}", output.status);
    }
}

#[test]
fn a_long_call_in_a_destructor_of_a_thread_that_ends_is_answered() {
    let server = Server::builder().service(ClockServer::new(Slow)).threads(2);
    let server = server.listen_all(["shm://ends-of-threads", "tcp://127.0.0.1:0"]).unwrap();
    for address in server.addresses() {
        are_answered(&address.to_string(), None);
    }
}

#[cfg(feature = "tls")]
#[test]
fn such_a_call_is_answered_over_tls() {
    let authority = certificates::Authority::new("ends of threads");
    let certificate = authority.issue(certificates::names(&["127.0.0.1"]));
    let tls = farcall::tls::ServerTls::without_client_certificates(certificate).unwrap();
    let server = Server::builder().service(ClockServer::new(Slow)).threads(2).tls(tls);
    let server = server.listen("tcp://127.0.0.1:0").unwrap();
    are_answered(server.address(), Some(authority.pem()));
}
