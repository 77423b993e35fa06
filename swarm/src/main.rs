//! The command line of the swarm: a sweep of seeds, or one seed with its trace.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::Instant;

use clap::Parser;
use farcall_swarm::{
    Counts, Mutation, Outcome, Setting, Sweep, Trace, TraceFile, quiet_panics, run_seed, sweep,
};
use farcall_transports::{hybrid, registry};
use farcall_transports_conformance::Case;

/// Prints to standard output, and ignores a closed pipe.
macro_rules! say {
    ($($what:tt)*) => {{
        let _ = writeln!(std::io::stdout(), $($what)*);
    }};
}

/// Trace lines that are shown of a failing seed.
const LAST_LINES: usize = 40;

/// Seeds per line of progress output.
const SEEDS_PER_LINE: u64 = 1000;

#[derive(Parser)]
#[command(
    name = "cargo xtask sim",
    about = "Tests farcall under random faults on a simulated rack, one seed at a time"
)]
struct Options {
    /// How many seeds
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Seeds to run in parallel; by default one per core
    #[arg(long)]
    threads: Option<NonZero<usize>>,
    /// Only this seed, with its faults
    #[arg(long, conflicts_with_all = ["seeds", "first", "threads"])]
    seed: Option<u64>,
    /// The backend of the calls: write_imm, datagram, send_recv, rfp, scale, tcp, hybrid, or all, one for each seed
    #[arg(long, default_value = "all", value_parser = backend)]
    backend: Backend,
    /// Writes the complete trace of that seed to a file
    #[arg(long, requires = "seed", value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Only this case of the backend suite, such as sizes::small_calls_pass_a_large_one
    #[arg(long, value_parser = case, conflicts_with = "mutation")]
    case: Option<&'static Case>,
    #[arg(long, help = format!("Plants a bug, to see that it is found: {}", Mutation::ALL.map(Mutation::name).join(", ")))]
    mutation: Option<Mutation>,
}

/// One backend, or all of them.
type Backend = Option<&'static str>;

fn backend(name: &str) -> Result<Backend, String> {
    let names = registry::names().into_iter().chain([hybrid::NAME]);
    match names.clone().find(|known| *known == name) {
        None if name != "all" => {
            Err(format!("known are {} and all", names.collect::<Vec<_>>().join(", ")))
        }
        backend => Ok(backend),
    }
}

fn case(name: &str) -> Result<&'static Case, String> {
    registry::ALL.iter().find_map(|backend| farcall_swarm::case(backend.name(), name)).ok_or_else(|| {
        "no case of that name runs under faults; `backend-conformance list` tells the names of cases".to_owned()
    })
}

impl Options {
    fn setting(&self) -> Setting {
        Setting { backend: self.backend, mutation: self.mutation, case: self.case }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    quiet_panics();
    let done = match options.seed {
        Some(seed) => replay(seed, &options),
        None => sweep_all(&options),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo xtask sim: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sweeps all seeds. Returns whether all passed.
fn sweep_all(options: &Options) -> Result<bool, String> {
    let cores = || available_parallelism().map_or(1, NonZero::get);
    let threads = options.threads.map_or_else(cores, NonZero::get);
    let begin = Instant::now();
    let mut all = Sweep::default();
    while all.seeds < options.seeds && all.failure.is_none() {
        let first = options.first.wrapping_add(all.seeds);
        let seeds = SEEDS_PER_LINE.min(options.seeds - all.seeds);
        let Sweep { seeds, counts, failure } = sweep(first, seeds, threads, options.setting());
        all.seeds += seeds;
        all.counts.add(counts);
        all.failure = failure;
        let seconds = begin.elapsed().as_secs_f64();
        let Counts { answered, unknown, never_ran } = all.counts;
        say!(
            "{} seeds in {seconds:.1} s, {:.0} per second: {answered} calls answered, {unknown} with unknown outcome, \
             {never_ran} not run",
            all.seeds,
            all.seeds as f64 / seconds,
        );
    }
    let failure = all.failure;
    let Some(Outcome { seed, hash, what, .. }) = failure else {
        say!("all seeds passed");
        return Ok(true);
    };
    // Again, for the end of its trace.
    let again = run_seed(seed, options.setting(), &Trace::Last(LAST_LINES));
    for outcome in again.iter().filter(|outcome| outcome.what == what) {
        say!("{outcome}");
        same(hash, outcome.hash)?;
    }
    let backend = options.backend.unwrap_or("all");
    let planted = options.mutation.map_or_else(String::new, |it| format!(" --mutation {it}"));
    let case = options.case.map_or_else(String::new, |it| format!(" --case {}", it.name));
    say!(
        "for the whole trace: cargo xtask sim --seed {seed} --backend {backend}{planted}{case} --trace FILE"
    );
    Ok(false)
}

/// Runs one seed. Returns whether it passed.
fn replay(seed: u64, options: &Options) -> Result<bool, String> {
    let first = run_seed(seed, options.setting(), &Trace::Off);
    if let Some(path) = &options.trace {
        let unwritable = |error: io::Error| {
            format!("cannot write the trace to {}: {error}; name another file", path.display())
        };
        let file = TraceFile::create(path).map_err(unwritable)?;
        let again = run_seed(seed, options.setting(), &Trace::To(file.clone()));
        file.finish().map_err(unwritable)?;
        for (first, again) in first.iter().zip(&again) {
            same(first.hash, again.hash)?;
        }
    }
    first.iter().for_each(|outcome| say!("{outcome}"));
    if let Some(path) = &options.trace {
        say!("whole trace: {}", path.display());
    }
    Ok(first.iter().all(|outcome| outcome.failure.is_none()))
}

/// Checks that two runs of a seed are the same, bit for bit.
fn same(first: u64, again: u64) -> Result<(), String> {
    match first == again {
        true => Ok(()),
        false => {
            Err(format!("two runs of this seed differ: hashes {first:#018x} and {again:#018x}"))
        }
    }
}
