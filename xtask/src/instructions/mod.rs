//! Instructions of a 32-byte call, both ends together, against recorded bounds.
//!
//! Time on a busy machine varies by more than a change to the path of a call makes. The number of instructions does not: it
//! repeats to a few in ten thousand, unless a backend decides by times that it measures. So a case above its bound is counted again.
//! `farcall-bench instructions` makes the calls, callgrind counts.

mod bounds;
mod callgrind;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use self::bounds::{Bounds, Case, Count, Verdict};
use crate::machine;
use crate::run::{self, cargo, command};

/// The bounds, in the root of the workspace.
const FILE: &str = "benches/instructions.tsv";

/// The package, and its program.
const PROGRAM: &str = "farcall-bench";

/// Calls that are counted. What is not part of a call, such as the end of the loop, disappears in so many.
const CALLS: u64 = 10_000;

/// Most often that a case above its bound is counted. The least counts.
const TRIES: usize = 3;

#[derive(Default, clap::Args)]
pub(crate) struct Options {
    /// Records what is counted as the new bounds
    #[arg(long)]
    record: bool,
    /// Prints where the instructions are spent
    #[arg(long)]
    profile: bool,
}

/// Counts each case, and fails if one takes more than its bound.
pub(crate) fn check(options: &Options) -> Result<()> {
    machine::require("valgrind")?;
    let rustc = run::output(command("rustc").arg("--version"))?.trim().to_owned();
    let folder = run::target().join("instructions");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let program = build()?;
    let file = run::root().join(FILE);
    let recorded = || {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {FILE}"))?;
        Bounds::from_tsv(&text).with_context(|| format!("cannot read {FILE}"))
    };
    let bounds = if options.record { None } else { Some(recorded()?) };
    let listed = run::output(command(&program).args(["instructions", "--list"]))?;
    let mut counts = Vec::new();
    for case in listed.lines() {
        let case = Case::parse(case).with_context(|| format!("no case: `{case}`"))?;
        let report = folder.join(format!("{}-{}-{}.out", case.client, case.backend, case.window));
        let bound = bounds.as_ref().and_then(|bounds| bounds.of(&case));
        let mut instructions = u64::MAX;
        for _ in 0..TRIES {
            let total = callgrind::count(&program, &case, CALLS, &report)?;
            instructions = instructions.min(total.div_ceil(CALLS));
            if bound.is_none_or(|bound| Verdict::of(instructions, bound) != Verdict::Above) {
                break;
            }
        }
        if options.profile {
            println!("  {case}, instructions per call:");
            callgrind::print_profile(&report, CALLS)?;
        }
        counts.push(Count { case, instructions });
    }
    let Some(bounds) = bounds else {
        let bounds = Bounds { rustc, counts };
        fs::write(&file, bounds.to_tsv()).with_context(|| format!("cannot write {FILE}"))?;
        println!("  recorded {} bounds in {FILE}", bounds.counts.len());
        return Ok(());
    };
    compare(&counts, &bounds, &rustc)
}

/// Optimized as for users, and all of a crate as one unit: with several, code that is added anywhere changes what is inlined
/// elsewhere, and the counts by more than 1 %.
fn build() -> Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--quiet", "--locked", "--release", "--package", PROGRAM]);
    run::run(build.args(["--bin", PROGRAM]))?;
    Ok(run::target().join("release").join(PROGRAM))
}

fn compare(counts: &[Count], bounds: &Bounds, rustc: &str) -> Result<()> {
    let head = ["client", "backend", "window", "instructions", "bound"];
    let [client, backend, window, instructions, bound] = head;
    println!("  {client:<6} {backend:<12} {window:>6} {instructions:>12} {bound:>8}");
    let mut above = 0;
    for Count { case, instructions } in counts {
        let Some(bound) = bounds.of(case) else {
            bail!("{FILE} has no bound for {case}; `cargo xtask instructions --record` adds it");
        };
        let remark = match Verdict::of(*instructions, bound) {
            Verdict::Within => "",
            Verdict::Above => "  ABOVE ITS BOUND",
            Verdict::Below => "  fewer: record them with --record",
        };
        above += usize::from(Verdict::of(*instructions, bound) == Verdict::Above);
        let Case { client, backend, window } = case;
        println!("  {client:<6} {backend:<12} {window:>6} {instructions:>12} {bound:>8}{remark}");
    }
    if rustc != bounds.rustc {
        println!("  warning: the bounds are of {}; this is {rustc}, and may differ", bounds.rustc);
        return Ok(());
    }
    ensure!(
        above == 0,
        "{above} of {} cases take more instructions than recorded in {FILE}; `cargo xtask instructions --profile` \
         shows where. If the call does more now, and has to: `cargo xtask instructions --record`",
        counts.len()
    );
    Ok(())
}
