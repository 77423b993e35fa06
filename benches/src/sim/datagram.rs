//! Losses and many sessions with `datagram`.

use anyhow::Result;
use farcall::rack::sim::{FaultRates, SimConfig};
use farcall_transports::datagram::Optimization;
use farcall_verbs::sim::Costs;

use super::study::{Goal, Studied, Study};
use crate::chart::{Lines, charts};
use crate::rack_calls::{Measured, Point, measure};

pub(super) fn studies() -> Vec<Study> {
    vec![
        Study {
            name: "datagram-loss",
            title: "Datagrams that are lost",
            notes: "One server thread and 8 clients on machines with ConnectX-5. Each client keeps 16 calls of 32 B or 4 calls of 16 KiB outstanding. A lost datagram is sent again when later requests have been answered, or after a timeout of at least 20 us. The goals count latency in timeouts; one timeout is the lossless p99.9, but at least 20 us. With some loss the rate of small calls *rises*: without loss the clients send in convoys, which limit the baseline, and loss breaks the convoys up. Meeting the goodput goal therefore shows little.",
            run: losses,
        },
        Study {
            name: "datagram-sessions",
            title: "Sessions of one server thread",
            notes: "Calls of 32 B with ConnectX-3, clients on 40 machines, 100 calls outstanding in total, each on a random session. At the server, `datagram` has one queue pair and `write_imm` one per client, which is more than the NIC's cache holds. The rate of `datagram` stays the same while its p50 rises. The model covers the NIC's caches and not the CPU's, which do not hold the state of 10,000 sessions either.",
            run: sessions,
        },
        Study {
            name: "datagram-incast",
            title: "Many that send to one at once",
            notes: "1 to 100 machines with ConnectX-5, one client each, send to one server with 4 threads. Each client keeps 8 requests of 3,000 B outstanding, which fills the server's link. The model's switch has an unbounded queue and drops nothing. Without congestion control up to 24 KB per client wait there. With messages as short as these, congestion control (Swift) changes little except the rate. It matters with long messages: while 100 clients send 256 KiB each, a small call of another client takes 115 us with it and 528 us without (`transports/conformance/tests/datagram_load_on_rack.rs`).",
            run: incast,
        },
    ]
}

const LOSSES: [f64; 5] = [0.0, 0.001, 0.01, 0.05, 0.2];

/// The smallest retransmission timeout of the backend.
const TIMEOUT_US: f64 = 20.0;

/// Calls of `size` bytes with this loss rate.
fn lossy(loss: f64, size: usize, window: usize) -> Result<Measured> {
    let faults = FaultRates::default().datagram_loss(loss);
    measure(&Point {
        clients: 8,
        server_threads: 1,
        size,
        batch: window,
        streams: true,
        options: "backend=datagram&max_message=65536".into(),
        config: SimConfig::default().costs(Costs::connectx5()).faults(faults),
        warm_up_ns: 5_000_000,
        measured_ns: 20_000_000,
        ..Point::default()
    })
}

fn losses() -> Result<Studied> {
    let mut rows = Vec::new();
    let (mut goodputs, mut tails) = (Vec::new(), Vec::new());
    let mut goals = Vec::new();
    for (name, size, window) in [("32 B", 32, 16), ("16 KiB", 16 << 10, 4)] {
        let (mut goodput, mut tail) = (Vec::new(), Vec::new());
        let (mut lossless, mut timeout_us) = (None, TIMEOUT_US);
        for loss in LOSSES {
            let measured = lossy(loss, size, window)?;
            let rate = measured.calls_per_second;
            let part = rate / *lossless.get_or_insert(rate);
            let us = |share| measured.latency.value_at_quantile(share) as f64 / 1e3;
            if loss == 0.0 {
                timeout_us = us(0.999).max(TIMEOUT_US);
            }
            rows.push(vec![
                name.to_owned(),
                format!("{} %", 100.0 * loss),
                format!("{:.3}", rate / 1e6),
                format!("{part:.2}"),
                format!("{:.1}", us(0.5)),
                format!("{:.0}", us(0.99)),
                format!("{:.0}", us(0.999)),
            ]);
            if loss > 0.0 {
                goodput.push((100.0 * loss, part));
                tail.push((100.0 * loss, us(0.999) / 1e3));
            }
            if loss == 0.01 {
                let timeouts = us(0.999) / timeout_us;
                goals.extend(match size {
                    32 => [
                        Goal::at_least("1 % lost, 32 B: goodput relative to lossless", part, 0.8),
                        Goal::at_most("1 % lost, 32 B: p99.9, in timeouts", timeouts, 3.0),
                    ],
                    _ => [
                        Goal::at_least("1 % lost, 16 KiB: goodput relative to lossless", part, 0.8),
                        Goal::at_most("1 % lost, 16 KiB: p99.9, in timeouts", timeouts, 3.0),
                    ],
                });
            }
        }
        goodputs.push((name.to_owned(), goodput));
        tails.push((name.to_owned(), tail));
    }
    let chart = |title: &str, y_label, series, is_logarithmic| Lines {
        title: title.to_owned(),
        x_label: "lost, %",
        y_label,
        series,
        is_logarithmic,
    };
    Ok(Studied {
        header: &[
            "calls of",
            "lost",
            "M calls/s",
            "of lossless",
            "p50, us",
            "p99, us",
            "p99.9, us",
        ],
        rows,
        picture: charts(
            &[
                chart("goodput", "part of lossless", goodputs, false),
                chart("p99.9", "ms", tails, true),
            ],
            2,
        )?,
        goals,
    })
}

/// Sessions of the server thread. 20,000 is eRPC's number for one machine.
const SESSIONS: [usize; 4] = [100, 1000, 10_000, 20_000];

fn crowd(backend: &str, clients: usize) -> Result<Measured> {
    measure(&Point {
        clients,
        client_nodes: 40,
        server_threads: 1,
        outstanding: Some(100),
        options: format!("backend={backend}&slot=128&max_message=4096"),
        config: SimConfig::default().costs(Costs::connectx3()),
        ..Point::default()
    })
}

fn sessions() -> Result<Studied> {
    let mut rows = Vec::new();
    let mut series = Vec::new();
    let mut goals = Vec::new();
    for backend in ["datagram", "write_imm"] {
        let mut rates = Vec::new();
        for sessions in SESSIONS {
            let measured = crowd(backend, sessions)?;
            let rate = measured.calls_per_second / 1e6;
            rates.push((sessions as f64, rate));
            let part = rate / rates[0].1;
            let us = |share| measured.latency.value_at_quantile(share) as f64 / 1e3;
            rows.push(vec![
                backend.to_owned(),
                sessions.to_string(),
                format!("{rate:.2}"),
                format!("{part:.2}"),
                format!("{:.1}", us(0.5)),
                format!("{:.1}", us(0.999)),
            ]);
            if (backend, sessions) == ("datagram", 10_000) {
                let what = "10,000 sessions: rate relative to 100 sessions";
                goals.push(Goal::at_least(what, part, 0.95));
            }
        }
        series.push((backend.to_owned(), rates));
    }
    let chart = Lines {
        title: "calls of one server thread".to_owned(),
        x_label: "sessions",
        y_label: "M calls/s",
        series,
        is_logarithmic: false,
    };
    Ok(Studied {
        header: &["backend", "sessions", "M calls/s", "of 100", "p50, us", "p99.9, us"],
        rows,
        picture: charts(&[chart], 1)?,
        goals,
    })
}

const INCAST: [usize; 4] = [1, 10, 50, 100];

fn flood(clients: usize, without: &str) -> Result<Measured> {
    measure(&Point {
        clients,
        client_nodes: clients,
        server_threads: 4,
        size: 3000,
        one_way: true,
        batch: 8,
        streams: true,
        options: format!("backend=datagram&max_message=65536{without}"),
        config: SimConfig::default().costs(Costs::connectx5()),
        warm_up_ns: 3_000_000,
        measured_ns: 3_000_000,
        ..Point::default()
    })
}

fn incast() -> Result<Studied> {
    let is_control = |one: &&Optimization| one.name() == "congestion";
    let without = Optimization::ALL.iter().find(is_control);
    let without = without.map(|one| ("without control", format!("&without={}", one.name())));
    let mut rows = Vec::new();
    let mut series = Vec::new();
    for (name, options) in [("all", String::new())].into_iter().chain(without) {
        let mut tails = Vec::new();
        for clients in INCAST {
            let measured = flood(clients, &options)?;
            let us = |share| measured.latency.value_at_quantile(share) as f64 / 1e3;
            tails.push((clients as f64, us(0.99)));
            rows.push(vec![
                name.to_owned(),
                clients.to_string(),
                format!("{:.2}", measured.calls_per_second * 3000.0 / 1e9),
                format!("{:.1}", us(0.5)),
                format!("{:.1}", us(0.99)),
                format!("{:.1}", us(0.999)),
            ]);
        }
        series.push((name.to_owned(), tails));
    }
    let chart = Lines {
        title: "p99 of calls of 3,000 B".to_owned(),
        x_label: "clients",
        y_label: "us",
        series,
        is_logarithmic: true,
    };
    Ok(Studied {
        header: &["", "clients", "GB/s", "p50, us", "p99, us", "p99.9, us"],
        rows,
        picture: charts(&[chart], 1)?,
        goals: Vec::new(),
    })
}
