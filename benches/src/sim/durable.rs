//! Durable writes into memory that a server lends, by each way of `farcall-persist`.

use anyhow::{Context, Result};
use farcall::Server;
use farcall::memory::{Memory, MemoryServer, RemoteMemory, Rights, Until};
use farcall::rack::sim::{Durability, SimConfig};
use farcall::rack::{Host, Rack};
use farcall_persist::ways::{Domain, Machine, NativeFlush, Way, Writer, auto};
use farcall_verbs::sim::Costs;

use super::figure::{Axis, Figure, Series};
use super::study::{Goal, Studied, Study};
use crate::chart::{Lines, charts};

/// Writes that are measured, after so many others.
const MEASURED: u32 = 50;
const WARM_UP: u32 = 10;

/// All ways are measured on it, those too that it does not make durable.
const ANY: Machine = Machine { domain: Domain::Battery, flush: NativeFlush::ThroughCaches };

/// Microseconds of a write of so many bytes by a way, one at a time, over this backend. DDIO is off, so that a READ means durable.
fn microseconds(costs: Costs, backend: &str, way: Way, size: usize) -> Result<f64> {
    let durability = Durability::default().ddio(false);
    let mut rack = Rack::with_config(1, SimConfig::default().costs(costs).durability(durability));
    let [server, client] = [(); 2].map(|()| rack.add_node());
    let memory = Memory::on(&rack.node(server).device())?;
    let region = memory.persistent_region("measured", size)?;
    let lent = region.lend(.., Rights::READ | Rights::WRITE, Until::REVOKED)?;
    let address = format!("sim://{server}/memory?backend={backend}");
    let builder = Server::builder().service(MemoryServer::new(memory));
    let _serving = rack.serve(&address, builder)?;
    let took = rack.run(client, async move |host: Host| -> Result<f64> {
        let memory: RemoteMemory = host.connect(&address).await?;
        let writer = Writer::new(memory, way, ANY)?;
        let bytes = farcall::Bytes::from(vec![7; size]);
        for _ in 0..WARM_UP {
            writer.write(&lent, bytes.clone()).await?;
        }
        let begun = host.now();
        for _ in 0..MEASURED {
            writer.write(&lent, bytes.clone()).await?;
        }
        Ok((host.now() - begun).as_secs_f64() * 1e6 / f64::from(MEASURED))
    });
    took.context("the rack is idle before the writes have ended")?
}

const ROWS: [&str; 8] = [
    "WRITE + READ 64 B, ConnectX-3 (Kalia)",
    "WRITE + READ 1 KiB, ConnectX-3 (Kalia)",
    "call 64 B, ConnectX-3 (Kalia)",
    "call 1 KiB, ConnectX-3 (Kalia)",
    "WRITE + READ 64 B, ConnectX-5 (Kalia)",
    "WRITE 64 B, ConnectX-5 (Wei)",
    "WRITE, wait, READ 64 B, ConnectX-5 (Wei)",
    "WRITE + READ 64 B, ConnectX-5 (Wei)",
];

fn row(row: f64) -> Result<f64> {
    let cx3 = |way, size| microseconds(Costs::connectx3(), "datagram", way, size);
    let cx5 = |way| microseconds(Costs::connectx5(), "datagram", way, 64);
    match row as usize {
        0 => cx3(Way::WriteAndRead, 64),
        1 => cx3(Way::WriteAndRead, 1024),
        2 => cx3(Way::Call, 64),
        3 => cx3(Way::Call, 1024),
        5 => cx5(Way::Write),
        6 => cx5(Way::WriteThenRead),
        _ => cx5(Way::WriteAndRead),
    }
}

pub(super) fn figure() -> Figure {
    let published = [2.9, 3.5, 2.3, 3.3, 2.5, 2.0, 4.0, 3.0];
    let points: Vec<_> = published.iter().enumerate().map(|(row, us)| (row as f64, *us)).collect();
    Figure {
        name: "durable",
        title: "Durable writes by the library's ways",
        source: "Kalia et al. (SoCC 2020); Wei et al. (USENIX ATC 2021)",
        x_label: "way",
        y_label: "us",
        axis: Axis::Names(&ROWS),
        notes: "One write at a time by `farcall_persist::ways`, on lent memory: the operations are one-sided, and calls travel over `datagram`. In contrast to the figure above, the library's own work is part of it. DDIO is off. WRITE + READ is under one doorbell; Wei et al. found that it takes 3 us instead of the 4 us of two round trips. A WRITE alone on ConnectX-3 is in the figure above.",
        series: vec![
            Series::new("one at a time", &points, row)
                .held_out_at(&[0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0]),
        ],
    }
}

const SIZES: [usize; 6] = [64, 256, 1024, 4096, 16 << 10, 64 << 10];

pub(super) fn study() -> Study {
    Study {
        name: "durable-ways",
        title: "Durable writes: where each way wins",
        notes: "One write at a time by `farcall_persist::ways`, ConnectX-5, calls over `write_imm`, DDIO off. Where several ways are durable, `auto` takes a call for up to 1 KiB, and for longer writes one with one-sided operations: the goal compares it with the quickest way that is durable there. A FLUSH costs as much as the READ that does the same where DDIO is off.",
        run: by_size,
    }
}

fn by_size() -> Result<Studied> {
    let mut rows = Vec::new();
    let mut times = Vec::new();
    for way in Way::ALL {
        let took = SIZES.map(|size| microseconds(Costs::connectx5(), "write_imm", way, size));
        let took = took.into_iter().collect::<Result<Vec<_>>>()?;
        let cells = took.iter().map(|us| format!("{us:.2}"));
        rows.push([way.to_string()].into_iter().chain(cells).collect());
        times.push((way, took));
    }
    let us = |way: Way, size: usize| {
        let of_way = times.iter().find(|(measured, _)| *measured == way);
        of_way.and_then(|(_, took)| took.get(size)).copied().unwrap_or(f64::NAN)
    };
    let ratio = |size, a, b| us(a, size) / us(b, size);
    let goals = vec![
        Goal::at_most(
            "64 B: WRITE + READ, of WRITE, wait, READ",
            ratio(0, Way::WriteAndRead, Way::WriteThenRead),
            0.8,
        ),
        Goal::at_most("64 B: a call, of WRITE + READ", ratio(0, Way::Call, Way::WriteAndRead), 1.0),
        Goal::at_most(
            "4 KiB: WRITE + READ, of a call",
            ratio(3, Way::WriteAndRead, Way::Call),
            0.8,
        ),
        Goal::at_most(
            "the way of `auto`, of the quickest durable one, at worst",
            worst_choice(us),
            1.1,
        ),
    ];
    let lines = times.iter().map(|(way, took)| {
        let points = SIZES.iter().zip(took).map(|(size, us)| (*size as f64, *us));
        (way.to_string(), points.collect())
    });
    let chart = Lines {
        title: "ConnectX-5, one at a time".to_owned(),
        x_label: "payload, B",
        y_label: "us",
        series: lines.collect(),
        is_logarithmic: true,
    };
    let header = &["us for bytes of", "64", "256", "1024", "4096", "16384", "65536"];
    Ok(Studied { header, rows, picture: charts(&[chart], 1)?, goals })
}

/// How much longer the way of `auto` takes than the quickest one that is durable, over all sizes, and machines with persistent memory.
fn worst_choice(us: impl Fn(Way, usize) -> f64) -> f64 {
    let flushes = [NativeFlush::None, NativeFlush::ToController, NativeFlush::ThroughCaches];
    let memory = Domain::ALL.into_iter().filter(|domain| *domain != Domain::File);
    let machines = memory.flat_map(|domain| flushes.map(|flush| Machine { domain, flush }));
    let ratios = machines.flat_map(|machine| {
        let us = &us;
        SIZES.iter().enumerate().map(move |(at, size)| {
            let durable = Way::ALL.into_iter().filter(|way| way.durability(machine).is_ok());
            let quickest = durable.map(|way| us(way, at)).fold(f64::INFINITY, f64::min);
            us(auto(machine, *size).way, at) / quickest
        })
    });
    ratios.fold(0.0, f64::max)
}
