//! `farcall-bench`: how near to the machine's limit a call comes.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use farcall_bench::clock::Clock;
use farcall_bench::cores;
use farcall_bench::limit::{Bounce, Memcpy};
use farcall_bench::report::LimitReport;

/// How long the limit, and then the calls, have the cores before the other has them.
const SLICE: Duration = Duration::from_millis(20);

#[derive(Parser)]
#[command(about = "How near to the machine's limit a farcall call comes")]
struct Options {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// The machine's own limit: a cache line bounced between two cores, and memcpy
    Limit(LimitOptions),
}

#[derive(Args)]
struct LimitOptions {
    /// Bytes of each buffer that memcpy copies
    #[arg(long, default_value_t = 1 << 20)]
    size: usize,
    #[command(flatten)]
    run: RunOptions,
}

#[derive(Args)]
struct RunOptions {
    /// Seconds in all
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// The server's core and the client's
    #[arg(long, value_name = "SERVER,CLIENT", default_value = "0,1", value_parser = parse_cores)]
    cores: [usize; 2],
    /// One line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let outcome = match Options::parse().bench {
        Bench::Limit(options) => limit(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("farcall-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn limit(options: &LimitOptions) -> Result<()> {
    let [server, client] = options.run.cores;
    options.run.pin(client)?;
    let clock = Clock::new();
    let mut bounce = Bounce::start(server).context("cannot start the bounce's other thread")?;
    let mut memcpy = Memcpy::new(options.size);
    let end = Instant::now() + Duration::try_from_secs_f64(options.run.seconds)?;
    while Instant::now() < end {
        bounce.slice(&clock, SLICE);
        memcpy.slice(&clock, SLICE);
    }
    let report = LimitReport {
        bench: "limit",
        size: options.size,
        cores: options.run.cores,
        limit_ns: bounce.latency().quantile(0.5),
        limit_p99_ns: bounce.latency().quantile(0.99),
        memcpy_bandwidth: memcpy.bandwidth(),
    };
    options.run.print(&report, &report.table())
}

impl RunOptions {
    /// Puts the caller on `core`, once both cores are known to exist.
    fn pin(&self, core: usize) -> Result<()> {
        let available = cores::available();
        if let Some(missing) = self.cores.iter().find(|core| !available.contains(core)) {
            bail!("core {missing} is not available; this process may use {available:?}");
        }
        if !cores::pin(core) {
            bail!("the system does not let this thread be pinned to core {core}");
        }
        Ok(())
    }

    fn print(&self, report: &impl serde::Serialize, table: &str) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(report)?);
        } else {
            print!("{table}");
        }
        Ok(())
    }
}

fn parse_cores(text: &str) -> Result<[usize; 2], String> {
    let cores: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
    match cores.as_deref() {
        Ok(&[server, client]) if server != client => Ok([server, client]),
        Ok(&[_, _]) => Err("the server and the client need a core each".into()),
        _ => Err("expected two core numbers, such as 0,1".into()),
    }
}
