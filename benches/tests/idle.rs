//! Many idle clients of one endpoint.

use std::time::Duration;

use farcall_bench::idle::{self, Options};

#[test]
fn an_endpoint_with_a_thousand_idle_clients_has_one_thread_and_uses_no_processor() {
    for backend in ["write_imm", "datagram"] {
        let (backend, time) = (backend.to_owned(), Duration::from_secs(1));
        let report = idle::run(&Options {
            backend,
            address_options: "window=1".into(),
            clients: 1000,
            time,
        })
        .expect("a measurement");
        assert_eq!(report.added_threads, ["farcall-io"], "{report:?}");
        // A sleeping thread uses none at all, unless the device wakes it; one that polls its clients uses all it can get.
        let most_ns = report.time_ns / 1000;
        assert!(report.cpu_ns < most_ns, "{report:?}");
        assert!(report.other_cpu_ns < most_ns, "{report:?}");
    }
}

/// Memory and descriptors are counted, so the bounds are those of the book's page on operation. Both ends are in this process.
#[test]
fn an_idle_client_keeps_64_kib_and_no_descriptor() {
    let report = idle::run(&Options {
        backend: "write_imm".to_owned(),
        address_options: String::new(),
        clients: 500,
        time: Duration::from_millis(1),
    })
    .expect("a measurement");
    assert!(report.bytes_per_client <= 64 << 10, "{report:?}");
    assert!(report.descriptors_per_client < 0.5, "{report:?}");
}
