//! No server, a server that ends, a server that dies: each is reported in bounded time.

mod common;

use std::time::{Duration, Instant};

use common::{Running, Server, address, network_address, run, stderr};
use rustix::process::Signal;

#[test]
fn without_a_server_the_error_says_how_to_start_one() {
    let address = address();
    for command in
        [&["get", "k"][..], &["load", "/dev/null"], &["dump"], &["ycsb", "--workload", "b"]]
    {
        let output = run(&[command, &["--address", &address]].concat(), b"");
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        let mend = format!("farcall-kv serve --listen '{address}'");
        assert!(stderr(&output).contains(&mend), "{command:?}: {}", stderr(&output));
    }
}

#[test]
fn an_invalid_address_is_refused() {
    for (address, words) in [
        ("kv", "kv"),
        ("http://kv", "shm"),
        ("shm://kv?backend=carrier_pigeon", "write_imm"),
        ("shm://kv?colour=red", "window"),
    ] {
        for command in [&["get", "k", "--address", address][..], &["serve", "--listen", address]] {
            let output = run(command, b"");
            assert_eq!(output.status.code(), Some(2), "{command:?}");
            assert!(stderr(&output).contains(words), "{command:?}: {}", stderr(&output));
        }
    }
}

#[test]
fn a_name_in_use_is_refused_and_free_after_a_kill() {
    let server = Server::start();
    let second = run(&["serve", "--listen", &server.address], b"");
    assert_eq!(second.status.code(), Some(2));
    assert!(stderr(&second).contains("in use"), "{}", stderr(&second));

    server.process.signal(Signal::KILL);
    let address = server.address.clone();
    assert_eq!(server.process.finish().0, None);
    let again = Running::start(&["serve", "--listen", &address], false);
    again.line_with("listening on");
}

#[test]
fn a_server_shuts_down_cleanly_on_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let server = Server::start_with(&["--metrics"]);
        server.ok(&["put", "k", "v"], b"");
        server.process.signal(Signal::USR1);
        server.process.line_with("farcall_server_calls");
        server.process.signal(signal);
        let (code, lines) = server.process.finish();
        assert_eq!(code, Some(0));
        assert!(lines.iter().any(|line| line.contains("put")), "{lines:?}");
    }
}

#[test]
fn a_server_killed_under_load_is_reported_in_bounded_time() {
    let server = Server::start();
    let load = Running::start(
        &[
            "ycsb",
            "--workload",
            "a",
            "--clients",
            "2",
            "--seconds",
            "100",
            "--address",
            &server.address,
        ],
        true,
    );
    load.line_with("load");
    server.process.signal(Signal::KILL);
    let killed = Instant::now();
    let (code, lines) = load.finish();
    assert_eq!(code, Some(2), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("the server is gone")), "{lines:?}");
    assert!(killed.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_network_address_serves_every_command() {
    let server = Server::start_at(&network_address(), &[]);
    server.ok(&["put", "k", "v"], b"");
    assert_eq!(server.ok(&["get", "k"], b""), b"v");
    let output = run(&["get", "k", "--connect", &server.address], b"");
    assert_eq!(output.stdout, b"v");
    // A server on port 0 prints the port it got.
    let chosen = Running::start(&["serve", "--listen", "rdma://127.0.0.1:0?device=shm"], false);
    let line = chosen.line_with("listening on");
    let address = line.split_whitespace().last().unwrap();
    assert_eq!(run(&["put", "k", "v", "--address", address], b"").status.code(), Some(0));
}

/// Runs YCSB with several clients against that server, riding out outages.
fn ride_out(address: &str, seconds: &str, timeout: &str) -> Running {
    let load = Running::start(
        &[
            "ycsb",
            "--workload",
            "a",
            "--clients",
            "3",
            "--records",
            "300",
            "--seconds",
            seconds,
            "--timeout",
            timeout,
            "--ride-out",
            "60",
            "--address",
            address,
        ],
        true,
    );
    load.line_with("load  3");
    load
}

#[test]
fn a_run_rides_out_a_server_that_is_killed_and_started_again() {
    for address in [address(), network_address()] {
        let server = Server::start_at(&address, &[]);
        let load = ride_out(&address, "4", "10");
        server.process.signal(Signal::KILL);
        let told = load.line_with("the server is gone");
        assert!(told.contains("outage  client"), "{told}");
        load.line_with("dialling");
        assert_eq!(server.process.finish().0, None);
        let server = Server::start_at(&address, &[]);
        load.line_with("the server is back");
        let (code, lines) = load.finish();
        assert_eq!(code, Some(0), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("audit")), "{lines:?}");
        assert!(!lines.iter().any(|line| line.starts_with("wrong")), "{lines:?}");
        drop(server);
    }
}

/// Calls that missed their deadlines may still run late. They are not taken for wrong answers, and
/// everything acknowledged is there.
#[test]
fn a_run_rides_out_a_server_that_stops_for_a_while() {
    for address in [address(), network_address()] {
        let server = Server::start_at(&address, &["--threads", "2"]);
        let load = ride_out(&address, "5", "0.5");
        server.process.signal(Signal::STOP);
        load.line_with("outage  client");
        load.line_with("dialling");
        server.process.signal(Signal::CONT);
        let told = load.line_with("the server is back");
        assert!(told.contains("with all that it had"), "{told}");
        let (code, lines) = load.finish();
        assert_eq!(code, Some(0), "{lines:?}");
    }
}

#[test]
fn a_run_ends_if_the_server_stays_away() {
    let server = Server::start_at(&network_address(), &[]);
    let arguments = [
        "ycsb",
        "--workload",
        "b",
        "--records",
        "100",
        "--seconds",
        "60",
        "--ride-out",
        "0.3",
        "--address",
        &server.address,
    ];
    let load = Running::start(&arguments, true);
    load.line_with("load  1");
    server.process.signal(Signal::KILL);
    let killed = Instant::now();
    let (code, lines) = load.finish();
    assert_eq!(code, Some(2), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("was not back within 0.3 s")), "{lines:?}");
    assert!(killed.elapsed() < Duration::from_secs(20));
}
