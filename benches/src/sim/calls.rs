//! Complete calls with a backend of farcall.

use anyhow::Result;
use farcall::rack::sim::SimConfig;
use farcall_verbs::sim::Costs;

use super::figure::{Axis, Figure, Series};
use crate::rack_calls::{Point, measure};

pub(super) fn figures() -> Vec<Figure> {
    vec![write_imm()]
}

/// Millions of calls per second of a server.
fn rate(batch: usize) -> impl Fn(f64) -> Result<f64> + Clone {
    move |clients| {
        let config = SimConfig::default().cores(24).costs(Costs::connectx3());
        let (clients, options) = (clients as usize, "backend=write_imm&slot=4096".into());
        let point = Point { clients, batch, options, config, ..Point::default() };
        Ok(measure(&point)?.calls_per_second / 1e6)
    }
}

fn write_imm() -> Figure {
    let one = [(80.0, 8.2), (160.0, 2.15), (240.0, 1.26), (320.0, 1.12), (400.0, 1.05)];
    let eight = [(80.0, 21.7), (160.0, 14.6), (240.0, 11.4), (320.0, 10.3), (400.0, 9.1)];
    Figure {
        name: "write_imm",
        title: "Calls of 32 B by the number of clients, ConnectX-3",
        source: "ScaleRPC (EuroSys 2019), Fig. 8, RawWrite",
        x_label: "clients",
        y_label: "M/s",
        axis: Axis::Linear,
        notes: "RawWrite is the nearest published system, not the same one: `write_imm` answers by WRITE with immediate and posts a receive for each request, while RawWrite polls its memory. All ten points are missed. With 80 clients, Fig. 3a of the same paper has 3.2 M WRITEs/s out of the server, where this figure has 8.2 M calls/s; no set of constants meets both. With 80 clients the order of the two batches is also reversed: RawWrite gains from a batch of 8, while the model loses, because 640 work requests do not fit into its buffer.",
        series: vec![
            Series::new("batch of 1", &one, rate(1)).missed(),
            Series::new("batch of 8", &eight, rate(8)).missed(),
        ],
    }
}
