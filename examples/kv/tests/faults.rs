//! No server, a server that ends, a server that dies: each told, in bounded time.

mod common;

use std::time::{Duration, Instant};

use common::{Running, Server, address, run, stderr};
use rustix::process::Signal;

#[test]
fn without_a_server_the_mend_is_told() {
    let address = address();
    for command in
        [&["get", "k"][..], &["load", "/dev/null"], &["dump"], &["ycsb", "--workload", "b"]]
    {
        let output = run(&[command, &["--address", &address]].concat(), b"");
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        let mend = format!("farcall-kv serve --listen {address}");
        assert!(stderr(&output).contains(&mend), "{command:?}: {}", stderr(&output));
    }
}

#[test]
fn an_address_that_is_none_is_told() {
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
fn a_name_in_use_is_told_and_free_again_after_a_kill() {
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
fn a_server_ends_in_order_when_asked() {
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
fn a_server_killed_under_load_is_told_in_bounded_time() {
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
