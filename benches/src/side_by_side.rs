//! The command `farcall-bench peers`.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use farcall_bench::peers::{self, Kind, Programs};

#[derive(Args)]
pub(crate) struct Options {
    /// Peers by name, `local` for all on one machine that are there, or `tcp` for those over TCP
    #[arg(long, default_value = "local", value_parser = parse_peers)]
    peers: Peers,
    /// Bytes of the argument, and of the result
    #[arg(long, value_delimiter = ',', default_values_t = every_power_of_two(), value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    sizes: Vec<u32>,
    /// Calls that the client keeps outstanding
    #[arg(long, value_delimiter = ',', default_value = "1,64", value_parser = clap::value_parser!(u16).range(1..=64))]
    windows: Vec<u16>,
    /// Seconds of each peer in each cell
    #[arg(long, default_value = "0.25", value_parser = super::parse_seconds)]
    seconds: Duration,
    /// Milliseconds of silence before a call; `0` for none
    #[arg(long, value_delimiter = ',', default_value = "1,10,1000", value_parser = clap::value_parser!(u32).range(..=60_000))]
    silences: Vec<u32>,
    /// Seconds that each peer is silent in all, for each of those; at least five calls are made
    #[arg(long, default_value = "1", value_parser = super::parse_seconds)]
    silent_for: Duration,
    /// The servers' core and the clients'
    #[arg(long, value_name = "SERVER,CLIENT", default_value = "0,1", value_parser = super::parse_cores)]
    cores: [usize; 2],
    /// The program of the peer `ucx`, which `cargo xtask peers` builds
    #[arg(long, value_name = "PROGRAM")]
    ucx: Option<PathBuf>,
    /// The program of the peer `iceoryx2`, which `cargo xtask peers` builds
    #[arg(long, value_name = "PROGRAM")]
    iceoryx2: Option<PathBuf>,
    /// Writes the report to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the report to this file as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// From a word to where all peers copy more than they talk.
fn every_power_of_two() -> Vec<u32> {
    (3..=20).map(|bits| 1 << bits).collect()
}

/// Peers that were named.
#[derive(Clone)]
struct Peers {
    kinds: Vec<Kind>,
    /// A group: those of it that lack their program are left out.
    is_group: bool,
}

fn parse_peers(list: &str) -> Result<Peers, String> {
    let is_group = list == "local";
    peers::kinds(list).map(|kinds| Peers { kinds, is_group })
}

pub(crate) fn run(options: Options) -> Result<()> {
    let files = || [&options.json, &options.svg].into_iter().flatten();
    files().try_for_each(|file| super::write(file, ""))?;
    let bench = env::current_exe().context("cannot find this program's own file")?;
    let programs = Programs { bench, ucx: options.ucx, iceoryx2: options.iceoryx2 };
    let Peers { mut kinds, is_group } = options.peers;
    if is_group {
        let is_named = |kind: Kind| match kind {
            Kind::Ucx | Kind::UcxUnread => programs.ucx.is_some(),
            Kind::Iceoryx2 => programs.iceoryx2.is_some(),
            _ => true,
        };
        kinds.retain(|&kind| {
            if !is_named(kind) {
                eprintln!(
                    "peers: without {}, whose program `cargo xtask peers` builds",
                    kind.name()
                );
            }
            is_named(kind)
        });
    }
    let millis = |silence: u32| Duration::from_millis(silence.into());
    let report = peers::run(&peers::Options {
        kinds,
        sizes: options.sizes.into_iter().map(|size| size as usize).collect(),
        windows: options.windows.into_iter().map(usize::from).collect(),
        time: options.seconds,
        silences: options.silences.into_iter().filter(|silence| *silence > 0).map(millis).collect(),
        silent_for: options.silent_for,
        cores: options.cores,
        programs,
    })?;
    print!("{}", report.table());
    if let Some(file) = &options.json {
        super::write(file, &serde_json::to_string_pretty(&report)?)?;
    }
    if let Some(file) = &options.svg {
        super::write(file, &peers::svg(&report)?)?;
    }
    super::ends_well(report.failures())
}
