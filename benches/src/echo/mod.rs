//! The echo benchmark: a call's round trip, by turns with the machine's limit.

mod host;
mod load;
pub mod service;
mod shape;

use std::process;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use farcall::ConnectPoll;

use self::host::Host;
use self::load::{Load, Totals};
use self::service::EchoPollClient;
use self::shape::Shape;
use crate::clock::Clock;
use crate::limit::{Bounce, Copies, LINE_BYTES, Lines, Memcpy};
use crate::report::EchoReport;
use crate::{SLICE, cores};

pub use self::host::serve;

/// Messages from this size on are measured against bare copies of them.
const LARGE_BYTES: usize = 16 << 10;

/// Where the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In a thread of this process.
    Threads,
    /// In a process of its own.
    Processes,
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device under the backend.
    pub device: String,
    /// The backend under the stubs.
    pub backend: String,
    /// Bytes of the argument, and of the result.
    pub size: usize,
    /// Calls that each client keeps outstanding.
    pub window: usize,
    /// Connections, all driven by one thread.
    pub clients: usize,
    /// Where the server runs.
    pub mode: Mode,
    /// How long, in all.
    pub time: Duration,
    /// The server's core, then the clients'.
    pub cores: [usize; 2],
}

/// Runs the benchmark. The caller's thread becomes the clients', on their core.
pub fn run(options: &Options) -> Result<EchoReport> {
    let byte = |index: usize| (index % 251) as u8;
    match options.size {
        8 => run_shape(options, std::array::from_fn::<u8, 8, _>(byte)),
        16 => run_shape(options, std::array::from_fn::<u8, 16, _>(byte)),
        32 => run_shape(options, std::array::from_fn::<u8, 32, _>(byte)),
        64 => run_shape(options, std::array::from_fn::<u8, 64, _>(byte)),
        size => run_shape(options, (0..size).map(byte).collect::<Bytes>()),
    }
}

fn run_shape<S: Shape>(options: &Options, shape: S) -> Result<EchoReport> {
    let [server_core, client_core] = options.cores;
    let address = address(options);
    let clock = Clock::new();
    let mut host = match options.mode {
        Mode::Threads => Host::thread(&address, server_core)?,
        Mode::Processes => Host::process(&address, server_core)?,
    };
    let address = host.address();
    cores::pin(client_core)?;
    let clients = (0..options.clients)
        .map(|_| EchoPollClient::connect(address))
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| format!("cannot connect to {address}"))?;
    let mut load = Load::new(shape, options.window, clients, clock.clone());
    let mut bounce = Bounce::start(server_core)?;
    let mut memcpy = Memcpy::new(options.size.max(1));
    let mut bare = Bare::of(options)?;
    let mut totals = Totals::default();
    let end = Instant::now() + options.time;
    while Instant::now() < end {
        load.slice(SLICE, &mut totals)?;
        load.rest(|| {
            bounce.slice(&clock, SLICE);
            memcpy.slice(&clock, SLICE / 4);
            bare.slice(&clock);
            host.resume()
        })?;
    }
    drop(load);
    host.stop()?;
    Ok(report(options, &totals, &bounce, &memcpy, &bare))
}

/// Where the server is to listen. Both ends are on this machine: a network address only begins a
/// connection, and the messages go over the device.
fn address(options: &Options) -> String {
    // At least the default, so that a small window does not also mean few slots.
    let window = options.window.max(64);
    let (device, backend) = (&options.device, &options.backend);
    if device == "shm" {
        let id = process::id();
        return format!("shm://farcall-bench-{id}?backend={backend}&window={window}");
    }
    format!("rdma://127.0.0.1:0?device={device}&backend={backend}&window={window}")
}

/// What the two cores do in the same pattern without any call, where there is such a thing.
enum Bare {
    Lines(Lines),
    Copies(Copies),
    Nothing,
}

impl Bare {
    fn of(options: &Options) -> Result<Bare> {
        let Options { size, window, cores: [server, _], .. } = *options;
        Ok(match size {
            _ if options.device != "shm" => Bare::Nothing,
            ..=LINE_BYTES if window > 1 => Bare::Lines(Lines::start(server, window)?),
            LARGE_BYTES.. => Bare::Copies(Copies::start(server, size, window)?),
            _ => Bare::Nothing,
        })
    }

    fn slice(&mut self, clock: &Clock) {
        match self {
            Bare::Lines(lines) => lines.slice(clock, SLICE),
            Bare::Copies(copies) => copies.slice(clock, SLICE),
            Bare::Nothing => {}
        }
    }

    fn line_rate(&self) -> Option<f64> {
        match self {
            Bare::Lines(lines) => Some(lines.rate()),
            _ => None,
        }
    }

    fn copy_bandwidth(&self) -> Option<f64> {
        match self {
            Bare::Copies(copies) => Some(copies.bandwidth()),
            _ => None,
        }
    }
}

fn report(
    options: &Options,
    totals: &Totals,
    bounce: &Bounce,
    memcpy: &Memcpy,
    bare: &Bare,
) -> EchoReport {
    let seconds = (totals.nanos as f64 / 1e9).max(f64::MIN_POSITIVE);
    let rate = totals.calls as f64 / seconds;
    let bandwidth = rate * 2.0 * options.size as f64;
    let p50_ns = totals.latency.quantile(0.5);
    let limit_ns = bounce.latency().quantile(0.5);
    EchoReport {
        bench: "echo",
        device: options.device.clone(),
        backend: options.backend.clone(),
        size: options.size,
        window: options.window,
        clients: options.clients,
        calls: totals.calls,
        p50_ns,
        p99_ns: totals.latency.quantile(0.99),
        p999_ns: totals.latency.quantile(0.999),
        rate,
        limit_ns,
        mode: match options.mode {
            Mode::Threads => "threads",
            Mode::Processes => "processes",
        },
        cores: options.cores,
        ratio: p50_ns as f64 / limit_ns.max(1) as f64,
        bandwidth,
        memcpy_bandwidth: memcpy.bandwidth(),
        bandwidth_ratio: bandwidth / memcpy.bandwidth().max(f64::MIN_POSITIVE),
        line_rate: bare.line_rate(),
        rate_ratio: bare.line_rate().map(|lines| rate / lines.max(f64::MIN_POSITIVE)),
        copy_bandwidth: bare.copy_bandwidth(),
        copy_ratio: bare.copy_bandwidth().map(|bare| bandwidth / bare.max(f64::MIN_POSITIVE)),
    }
}
