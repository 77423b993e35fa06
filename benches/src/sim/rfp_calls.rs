//! RFP (Su et al., EuroSys 2017): complete calls by `backend=rfp`, on ConnectX-3 at 40 Gbit/s.

use anyhow::Result;
use farcall::rack::CpuCosts;
use farcall::rack::sim::SimConfig;
use farcall_verbs::sim::Costs;

use super::figure::{Axis, Figure, Series};
use crate::rack_calls::{Point, measure};

pub(super) fn figures() -> Vec<Figure> {
    vec![process_time(), client_threads(), with_the_switch()]
}

/// Client machines of the paper.
const MACHINES: usize = 7;

/// Threads of the paper's server, which does not say how many: so many are busy at its rate with 15 us (figure 9).
const THREADS: usize = 14;

/// Client threads at which the paper's rates are highest (its figure 10).
const CLIENTS: usize = 35;

/// Millions of calls of 32 bytes per second, each of which the server processes for so long.
fn rate(responses: &str, clients: usize, process_ns: u64) -> Result<f64> {
    let config = SimConfig::default().cores(24).costs(Costs::connectx3_qdr()).timed_turns();
    let point = Point {
        clients,
        client_nodes: MACHINES,
        server_threads: THREADS,
        options: format!("backend=rfp&responses={responses}&slot=4096"),
        shares_devices: true,
        config,
        cpu: CpuCosts::default().dispatch_ns(process_ns),
        ..Point::default()
    };
    Ok(measure(&point)?.calls_per_second / 1e6)
}

/// By the process time in microseconds.
fn by_process_time(responses: &'static str) -> impl Fn(f64) -> Result<f64> + Clone {
    move |us| rate(responses, CLIENTS, (us * 1000.0) as u64)
}

fn process_time() -> Figure {
    let fetched = [
        (1.0, 5.46),
        (3.0, 3.67),
        (5.0, 2.43),
        (7.0, 1.83),
        (8.0, 1.62),
        (12.0, 1.11),
        (15.0, 0.91),
    ];
    let sent = [
        (1.0, 1.32),
        (3.0, 1.58),
        (5.0, 1.79),
        (7.0, 1.46),
        (8.0, 1.34),
        (12.0, 0.98),
        (15.0, 0.85),
    ];
    Figure {
        name: "rfp-9",
        title: "Calls of 32 B by `rfp`, against the server's process time, ConnectX-3 at 40 Gbit/s",
        source: "RFP (EuroSys 2017), Fig. 9",
        x_label: "process time, us",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "Our own backend, with its responses always fetched, and always sent. 35 client threads on 7 machines, a call of 32 B outstanding per thread. The number of the server's threads, 14, is inferred from the fetched rate at 15 us. Client threads of a machine share an opened device, as the server's do, and contend for the lock of its doorbells. Not met: server reply with 1 us.",
        series: vec![
            Series::new("remote fetch", &fetched, by_process_time("fetched"))
                .held_out_at(&[1.0, 3.0, 5.0, 7.0, 8.0, 12.0]),
            Series::new("server reply", &sent, by_process_time("sent"))
                .held_out()
                .missed_at(&[1.0]),
        ],
    }
}

fn client_threads() -> Figure {
    let points = [(7.0, 1.7), (21.0, 4.2), (35.0, 5.54), (42.0, 5.3), (56.0, 4.9), (70.0, 4.6)];
    Figure {
        name: "rfp-10",
        title: "Calls of 32 B by `rfp`, against the client threads, ConnectX-3 at 40 Gbit/s",
        source: "RFP (EuroSys 2017), Fig. 10, Jakiro",
        x_label: "client threads",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "Our own backend, adaptive; the server has a call for 0.5 us. Not met: 21 client threads. The paper's client threads wait longer for each other there than the model's.",
        series: vec![
            Series::new("rfp", &points, |clients| rate("adaptive", clients as usize, 500))
                .held_out()
                .missed_at(&[21.0]),
        ],
    }
}

fn with_the_switch() -> Figure {
    let points = [(6.0, 2.1), (7.0, 1.47)];
    Figure {
        name: "rfp-14",
        title: "Calls of 32 B by `rfp` where it begins to have responses sent, ConnectX-3 at 40 Gbit/s",
        source: "RFP (EuroSys 2017), Fig. 14",
        x_label: "process time, us",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "Our own backend, adaptive. The paper's begins to have responses sent at 7 us, this one between 7 and 8 us. Not met: 7 us, where it still fetches, which is faster: without the switch, the paper has 1.82 M/s there.",
        series: vec![
            Series::new("rfp", &points, by_process_time("adaptive")).held_out().missed_at(&[7.0]),
        ],
    }
}
