//! Many idle clients of one endpoint.

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farcall_bench::idle::{self, Options};
use serde_json::Value;

/// One test runs at a time: they measure the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn an_endpoint_with_a_thousand_idle_clients_has_one_thread_and_uses_no_processor() {
    let _alone = alone();
    for backend in ["write_imm", "datagram"] {
        let (backend, time) = (backend.to_owned(), Duration::from_secs(1));
        let report = idle::run(&Options {
            device: "shm".into(),
            backend,
            address_options: "window=1".into(),
            clients: 1000,
            time,
            processes: false,
        })
        .expect("a measurement");
        assert_eq!(report.added_threads, ["farcall-io"], "{report:?}");
        // A sleeping thread uses none at all, unless the device wakes it; one that polls its clients uses all it can get.
        let most_ns = report.time_ns / 1000;
        assert!(report.cpu_ns < most_ns, "{report:?}");
        assert!(report.other_cpu_ns < most_ns, "{report:?}");
    }
}

/// Some 60 KiB are measured on a quiet machine. On a busy one more threads accept at a time, and each takes memory of its own from the
/// allocator.
const MOST_BYTES: u64 = 96 << 10;

#[test]
fn an_idle_client_keeps_little_memory_and_no_descriptor() {
    let _alone = alone();
    let report = idle::run(&Options {
        device: "shm".into(),
        backend: "write_imm".to_owned(),
        address_options: String::new(),
        clients: 1000,
        time: Duration::from_millis(1),
        processes: false,
    })
    .expect("a measurement");
    assert!(report.bytes_per_client <= MOST_BYTES, "{report:?}");
    assert!(report.descriptors_per_client < 0.5, "{report:?}");
}

#[test]
fn an_idle_client_of_another_process_keeps_no_descriptor_either() {
    let _alone = alone();
    let bench = Command::new(env!("CARGO_BIN_EXE_farcall-bench"))
        .args(["idle", "--processes", "--clients", "1000", "--seconds", "0.01", "--json"])
        .output()
        .expect("the program");
    let said = String::from_utf8_lossy(&bench.stderr);
    assert!(bench.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&bench.stdout).expect("a report");
    let number = |field: &str| report[field].as_f64().expect("a number");
    assert!(number("bytes_per_client") <= MOST_BYTES as f64, "{report}");
    assert!(number("descriptors_per_client") < 0.5, "{report}");
}
