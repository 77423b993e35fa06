//! Complete runs of ycsb and demo.

mod common;

use std::time::{Duration, Instant};

use common::{Running, Server, run, stderr, stdout};
use rustix::process::Signal;

#[test]
fn every_workload_passes() {
    let server = Server::start_with(&["--threads", "2"]);
    for workload in ["a", "b", "c", "d", "f"] {
        let arguments = [
            "ycsb",
            "--workload",
            workload,
            "--records",
            "500",
            "--operations",
            "4000",
            "--clients",
            "2",
        ];
        let output = server.run(&arguments, b"");
        let told = format!("{}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(0), "{told}");
        assert!(told.contains(" 0 wrong"), "{told}");
        assert!(told.contains("read "), "{told}");
    }
}

#[test]
fn the_small_demo_passes_and_leaves_nothing_behind() {
    let output = run(&["demo", "--small"], b"");
    let told = format!("{}{}", stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{told}");
    for row in ["load ", "read ", "update ", " 0 wrong"] {
        assert!(told.contains(row), "{row}: {told}");
    }
}

#[test]
fn the_demo_runs_with_a_backend_that_needs_no_device() {
    let output = run(&["demo", "--small", "--seconds", "0.3", "--backend", "tcp"], b"");
    let told = format!("{}{}", stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{told}");
    for part in ["tcp://127.0.0.1:", " 0 wrong"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn the_demo_uses_the_given_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text");
    std::fs::write(&file, b"one\n\n\xff\xfe three\r\nlast").unwrap();
    let arguments =
        ["demo", "--small", "--clients", "3", "--seconds", "0.3", file.to_str().unwrap()];
    let output = run(&arguments, b"");
    let told = format!("{}{}", stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("4 lines"), "{told}");
    assert!(told.contains("4 entries, 0 missing"), "{told}");
}

#[test]
fn a_demo_that_is_killed_takes_its_children_with_it() {
    let demo = Running::start(&["demo", "--seconds", "100"], true);
    let line = demo.line_with("shm://");
    let address = line.split_whitespace().find(|word| word.starts_with("shm://")).unwrap();
    let address = address.trim_end_matches(',').to_owned();
    demo.line_with("load");
    demo.signal(Signal::KILL);

    // The name is free once the server is gone.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let output = run(&["get", "1", "--address", &address, "--timeout", "1"], b"");
        if stderr(&output).contains("start one with") {
            break;
        }
        assert!(Instant::now() < deadline, "the server outlived the demo: {}", stderr(&output));
    }
}
