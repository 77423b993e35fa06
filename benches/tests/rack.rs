//! Many clients of one server, on a simulated rack.

use std::time::Instant;

use farcall_bench::rack_calls::{Point, measure};

/// Clients that all call the server at once.
fn crowd(clients: usize) -> Point {
    Point { clients, options: "slot=128&max_message=4096".into(), ..Point::default() }
}

#[test]
fn any_number_of_clients_is_served_and_runs_are_repeatable() {
    let few = measure(&crowd(20)).unwrap();
    let many = measure(&crowd(600)).unwrap();
    assert!(few.calls_per_second > 1e6 && many.calls_per_second > 1e6, "{few:?}, {many:?}");
    assert!(many.latency.mean() > few.latency.mean(), "a server has its limits");
    assert_eq!(measure(&crowd(20)).unwrap().trace_hash, few.trace_hash);
}

/// `cargo test --release -p farcall-bench --features sim --test rack -- --ignored --nocapture`
#[test]
#[ignore = "needs a release build, and a while"]
fn ten_thousand_clients_fit_in_4_gib() {
    for batch in [1, 8] {
        let begin = Instant::now();
        let point = Point { clients: 10_000, batch, measured_ns: 5_000_000, ..Point::default() };
        let measured = measure(&point).unwrap();
        let (took, calls) = (begin.elapsed(), measured.calls);
        let mib = measured.resident_bytes >> 20;
        println!(
            "10,000 clients, batches of {batch}: {mib} MiB, {:.2} M calls/s, median {} ns; {calls} calls counted in {took:.1?}",
            measured.calls_per_second / 1e6,
            measured.latency.value_at_quantile(0.5),
        );
        assert!(calls >= 10_000, "each has called");
        assert!(mib < 4096, "{mib} MiB");
        assert!(took.as_secs() < 60, "{took:?}");
    }
}
