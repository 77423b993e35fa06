//! The command `farcall-bench hybrid`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use farcall::rack::sim::Costs;
use farcall_bench::{compare, hybrid};

#[derive(Args)]
pub(crate) struct Options {
    /// The NICs of the rack: connectx3, connectx5, connect_ib, or free, which cost nothing
    #[arg(long, default_value = "connectx3")]
    nic: String,
    /// Milliseconds of each phase, in virtual time
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(60..))]
    phase: u64,
    /// Clients of the fullest phase
    #[arg(long, default_value_t = 1000)]
    crowd: usize,
    /// Threads of the server
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// The seed of the rack
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the phases whose names contain one of these, with commas between them
    #[arg(long)]
    only: Option<String>,
    /// Only this backend, or `hybrid`: the 99th percentile and answers by millisecond of each phase, without a comparison
    #[arg(long)]
    backend: Option<String>,
    /// Draws the day into this file, as SVG
    #[arg(long)]
    svg: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let nic = match (&*options.nic, compare::nic(&options.nic)) {
        (_, Some(known)) => known,
        ("free", None) => Costs::default(),
        (other, None) => {
            bail!("no NIC is called {other}; known are connectx3, connectx5, connect_ib and free")
        }
    };
    let mut day = hybrid::day(options.phase * 1_000_000, options.crowd);
    if let Some(only) = &options.only {
        day.phases.retain(|phase| only.split(',').any(|name| phase.name.contains(name)));
    }
    if day.phases.is_empty() {
        bail!("no phase is called so; leave --only away to see which there are");
    }
    let rack = hybrid::Options {
        nic,
        server_threads: options.threads,
        client_nodes: 11,
        seed: options.seed,
    };
    let say = |backend: &str, run: &hybrid::Run| {
        let calls = run.phases.iter().map(|phase| phase.calls() / phase.by_ms.len() as u64);
        eprintln!("{backend}: {:?} calls per ms", calls.collect::<Vec<_>>());
    };
    if let Some(backend) = &options.backend {
        let run = hybrid::run(&rack, &day, backend)?;
        say(backend, &run);
        for (phase, of) in day.phases.iter().zip(&run.phases) {
            println!("{}: p99 {:.1} us, {:?}", phase.name, of.p99_ns() as f64 / 1e3, of.by_ms);
        }
        return Ok(());
    }
    let report = hybrid::compare(&rack, &day, &hybrid::BACKENDS, say)?;
    print!("{}", report.table()?);
    if let Some(file) = &options.svg {
        fs::write(file, report.svg()?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}
