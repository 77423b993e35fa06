//! What the priorities of `scale` are worth where clients are unlike, and where they are alike.

use anyhow::Result;
use hdrhistogram::Histogram;

use super::scale_calls::{SCALE, program};
use super::study::{Goal, Studied, Study};
use crate::chart::{Lines, charts};
use crate::rack_calls::{Kind, Point, measure};

pub(super) fn study() -> Study {
    Study {
        name: "scale-priorities",
        title: "Scale by priorities of unlike clients",
        notes: "The programs of the two studies above, with 400 clients of two kinds. Busy clients make calls of 32 B, each as soon as the last is answered; the others make calls of 1 KiB, one every 2 ms in the mean. Each server thread has the same number of both. *By priority* is `scale` as it is: clients of like priority are in one group, and the slices of groups differ in length. *As clients came* has the option `without=priorities`, which exists only with the cargo feature `ablation`: groups stay as clients joined them, and all slices are equal, so each slice serves few busy clients. Priorities are worth more the fewer clients are busy, and nothing where all are. With up to 80 busy clients they also shorten the waits of the others, whose groups then wait for few slices of busy clients; with 160 these slices are many and long, and the others wait longer.",
        run: by_busy_clients,
    }
}

const CLIENTS: usize = 400;

/// Sends its next call when the last is answered.
const BUSY: Kind = Kind { size: 32, batch: 1, rest_ns: 0 };

/// Calls some 500 times per second.
const SELDOM: Kind = Kind { size: 1024, batch: 1, rest_ns: 2_000_000 };

/// Clients of each thread are of these kinds in turn.
const TURN: usize = 20;

/// Priorities are measured over windows of 4 ms. The last ones are left after this.
const WARM_UP_NS: u64 = 30_000_000;

const MEASURED_NS: u64 = 20_000_000;

/// What the calls of clients of one kind did.
struct OfKind(Histogram<u64>);

impl OfKind {
    /// Calls per microsecond.
    fn rate(&self) -> f64 {
        self.0.len() as f64 * 1e3 / MEASURED_NS as f64
    }

    fn us(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// The calls of the busy clients and of the others, if so many of each [`TURN`] clients are busy, spread evenly.
fn calls(busy: usize, options: &str) -> Result<[OfKind; 2]> {
    let is_busy = |at: usize| at * busy % TURN < busy;
    let kinds = (0..TURN).map(|at| if is_busy(at) { BUSY } else { SELDOM }).collect();
    let measured = measure(&Point {
        kinds,
        warm_up_ns: WARM_UP_NS,
        measured_ns: MEASURED_NS,
        ..program(&format!("{SCALE}{options}"), CLIENTS, 1)
    })?;
    let of = |wanted: bool| -> Result<OfKind> {
        let mut all = Histogram::new_from(&measured.latency);
        for (at, latency) in measured.kinds.iter().enumerate() {
            if is_busy(at) == wanted {
                all.add(latency)?;
            }
        }
        Ok(OfKind(all))
    };
    Ok([of(true)?, of(false)?])
}

const MODES: [(&str, &str); 2] = [("by priority", ""), ("as clients came", "&without=priorities")];

fn by_busy_clients() -> Result<Studied> {
    let (mut rows, mut rates, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    let mut of_forty = Vec::new();
    for (mode, options) in MODES {
        let (mut rate, mut wait) = (Vec::new(), Vec::new());
        for busy in [1, 2, 4, 8, 20] {
            let [of_busy, of_seldom] = calls(busy, options)?;
            let clients = CLIENTS * busy / TURN;
            let mut row = vec![
                mode.to_owned(),
                clients.to_string(),
                format!("{:.2}", of_busy.rate()),
                format!("{:.1}", of_busy.us(0.5)),
                format!("{:.1}", of_busy.us(0.99)),
            ];
            rate.push((clients as f64, of_busy.rate()));
            if clients == 40 {
                of_forty.push(of_busy.rate());
            }
            if busy < TURN {
                row.push(format!("{:.1}", of_seldom.rate() * 1e3));
                row.push(format!("{:.1}", of_seldom.us(0.5)));
                row.push(format!("{:.1}", of_seldom.us(0.99)));
                wait.push((clients as f64, of_seldom.us(0.5)));
            }
            row.resize(8, String::new());
            rows.push(row);
        }
        rates.push((mode.to_owned(), rate));
        waits.push((mode.to_owned(), wait));
    }
    let chart = |title: &str, y_label, series| Lines {
        title: title.to_owned(),
        x_label: "busy clients of 400",
        y_label,
        series,
        is_logarithmic: false,
    };
    Ok(Studied {
        header: &[
            "groups",
            "busy clients",
            "M calls/s of busy",
            "p50, us",
            "p99, us",
            "k calls/s of others",
            "p50, us",
            "p99, us",
        ],
        rows,
        picture: charts(
            &[
                chart("calls of busy clients", "M calls/s", rates),
                chart("median of the other clients", "us", waits),
            ],
            2,
        )?,
        goals: vec![Goal::at_least(
            "40 busy clients: their rate by priority, relative to groups as clients came",
            of_forty[0] / of_forty[1],
            3.0,
        )],
    })
}
