//! The echo benchmark: round trips of calls, alternating with the machine's limit.

pub(crate) mod host;
pub(crate) mod load;
pub mod service;
pub(crate) mod shape;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;

use self::host::Host;
use self::load::{Calling, Load, Totals};
use self::service::EchoPollClient;
use self::shape::Shape;
use crate::clock::Clock;
use crate::limit::{Bare, Bounce, Memcpy};
use crate::report::EchoReport;
use crate::{SLICE, cores};

pub use self::host::serve;

/// Where the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In a thread of this process.
    Threads,
    /// In a separate process.
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
    /// The total time.
    pub time: Duration,
    /// The server's core, then the clients'.
    pub cores: [usize; 2],
}

/// Runs the benchmark. The calling thread runs the clients, on their core.
pub fn run(options: &Options) -> Result<EchoReport> {
    match options.size {
        8 => run_shape(options, bytes::<8>()),
        16 => run_shape(options, bytes::<16>()),
        32 => run_shape(options, bytes::<32>()),
        64 => run_shape(options, bytes::<64>()),
        size => run_shape(options, any_bytes(size)),
    }
}

/// Calls of `size` bytes, `window` of them outstanding on each of `clients`.
pub(crate) fn calling(
    size: usize,
    window: usize,
    clients: Vec<EchoPollClient>,
    clock: Clock,
) -> Box<dyn Calling> {
    match size {
        8 => Box::new(Load::new(bytes::<8>(), window, clients, clock)),
        16 => Box::new(Load::new(bytes::<16>(), window, clients, clock)),
        32 => Box::new(Load::new(bytes::<32>(), window, clients, clock)),
        64 => Box::new(Load::new(bytes::<64>(), window, clients, clock)),
        size => Box::new(Load::new(any_bytes(size), window, clients, clock)),
    }
}

fn byte(index: usize) -> u8 {
    (index % 251) as u8
}

pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    std::array::from_fn(byte)
}

pub(crate) fn any_bytes(size: usize) -> Bytes {
    (0..size).map(byte).collect()
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
        .map(|_| EchoPollClient::connect(address).wait())
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| format!("cannot connect to {address}"))?;
    let mut load = Load::new(shape, options.window, clients, clock.clone());
    let mut bounce = Bounce::start(server_core)?;
    let mut memcpy = Memcpy::new(options.size.max(1));
    let mut bare = match options.device == "shm" {
        true => Bare::of(options.size, options.window, server_core)?,
        false => Bare::Nothing,
    };
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

/// The server's address.
fn address(options: &Options) -> String {
    // At least the default, so that a small window does not also mean few slots.
    let window = options.window.max(64);
    crate::address::local(&options.device, &options.backend, &format!("window={window}"))
}

fn report(
    options: &Options,
    totals: &Totals,
    bounce: &Bounce,
    memcpy: &Memcpy,
    bare: &Bare,
) -> EchoReport {
    let rate = totals.rate();
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
