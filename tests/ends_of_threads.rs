//! Calls while a thread, or the process, ends: in the destructor of a thread's variable, when farcall's own variables may be gone.

use std::cell::RefCell;
use std::env;
use std::process::Command;
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

/// Longer than a caller stays awake.
const LONG_MS: u64 = 20;

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
                    let client = ClockClient::connect(address.as_str()).wait();
                    client.expect("a server listens").after(ms).wait()
                }
            };
            assert_eq!(answer, Ok(ms));
        }
        println!("all answered");
    }
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
    let connect = |address: &str| ClockClient::connect(address).wait().expect("a server listens");
    let slept = |client: ClockClient| {
        // Now the thread has what a thread that sleeps needs.
        assert_eq!(client.after(LONG_MS).wait(), Ok(LONG_MS));
        SESSION.set(Some(Session::Shared(client)));
    };
    let thread = match role {
        "made-first" => thread::spawn(move || {
            SESSION.with(|session| assert!(session.borrow().is_none()));
            slept(connect(&address));
        }),
        "made-last" => thread::spawn(move || slept(connect(&address))),
        "first-call" => thread::spawn(move || {
            SESSION.set(Some(Session::Shared(connect(&address))));
        }),
        "connecting" => thread::spawn(move || SESSION.set(Some(Session::Connecting(address)))),
        "polling" => thread::spawn(move || {
            let client = ClockPollClient::connect(address.as_str()).wait();
            SESSION.set(Some(Session::Polling(Box::new(client.expect("a server listens")))));
        }),
        _ => panic!("{role}"),
    };
    thread.join().unwrap();
}

#[test]
fn a_long_call_in_a_destructor_of_a_thread_that_ends_is_answered() {
    let server = Server::builder().service(ClockServer::new(Slow)).threads(2);
    let server = server.listen_all(["shm://ends-of-threads", "tcp://127.0.0.1:0"]).unwrap();
    for address in server.addresses() {
        let roles = ["made-first", "made-last", "first-call", "connecting", "polling"];
        for role in roles {
            let output = Command::new(env::current_exe().unwrap())
                .args(["process", "--exact", "--ignored", "--nocapture"])
                .env(ROLE, format!("{role} {address}"))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            let is_answered = output.status.success() && said.contains("all answered");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(is_answered, "{address}, {role}: {}, {said}, {errors}", output.status);
        }
    }
}
