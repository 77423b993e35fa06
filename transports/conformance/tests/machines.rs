//! The program for two machines, run on one: servers are started, controlled and killed over TCP. A few cases show that it
//! works; more of them run across two virtual machines.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_backend-conformance");

/// The far machine's part; dropping it ends it.
struct Daemon {
    child: Child,
    address: String,
}

impl Daemon {
    fn start() -> Daemon {
        let mut child = Command::new(PROGRAM)
            .args(["serve", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the far machine's part");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout is piped"))
            .read_line(&mut line)
            .expect("it says where it listens");
        let address = line.trim().strip_prefix("ready at ").expect("an address").to_owned();
        Daemon { child, address }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(PROGRAM).args(arguments).output().expect("run the program");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn cases_run_against_servers_of_another_machine() {
    let daemon = Daemon::start();
    let over = ["run", "rdma://127.0.0.1:0?device=shm", &daemon.address];
    for (filter, passed) in [
        ("refusals::", 7),
        ("a_killed_server_ends_its_calls", 1),
        ("what_clients_held_is_released", 1),
        ("broken_hellos_are_refused", 1),
    ] {
        let (code, said) = run(&[&over[..], &[filter]].concat());
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains(&format!("{passed} passed, 0 failed")), "{said}");
    }
    let (code, said) = run(&[&over[..], &["forged_grants"]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("ignored: needs a hostile server"), "{said}");
}

#[test]
fn arguments_that_cannot_run_are_refused() {
    for (arguments, told) in [
        (&["run"][..], "usage:"),
        (&["run", "nowhere"], "nowhere"),
        (&["run", "shm://x", "somewhere"], "usage:"),
        (&["run", "shm://x", "threads", "nosuchcase"], "nosuchcase"),
        (&["serve", "192.0.2.1:1"], "192.0.2.1:1"),
    ] {
        let (code, said) = run(arguments);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(told), "{said}");
    }
}
