//! The steps: each a check that can be run alone.

use anyhow::{Result, bail};

use crate::run::{self, Runner, cargo, command};
use crate::{layers, machine, rdma};

/// Everything, cheap checks first.
pub(crate) fn test(runner: &mut Runner) -> Result<()> {
    runner.step("machine", machine::prepare)?;
    runner.step("fmt", fmt)?;
    runner.step("layers", layers::check)?;
    runner.step("deny", deny)?;
    runner.step("clippy", clippy)?;
    runner.step("unit", || unit(&[]))?;
    runner.step("doc", doc)?;
    runner.step("loom", loom)?;
    runner.step("sim", || sim(&[]))?;
    runner.step("figures", figures)?;
    runner.step("demo", demo)?;
    runner.step("rdma", || rdma::rdma(""))
}

pub(crate) fn fmt() -> Result<()> {
    run::run(cargo().args(["fmt", "--all", "--check"]))
}

/// The simulated rack and layers of faults, which tests want. Not by default: programs that never use them
/// would carry them in every call of a device.
const FOR_TESTS: [&str; 2] = [
    "--features",
    "farcall/sim,farcall-bench/sim,farcall-swarm/sim,farcall-transports-conformance/sim,farcall-verbs-conformance/sim,farcall-verbs-conformance/faults",
];

/// What it adds something to.
const SIMULATOR: [&str; 7] = [
    "farcall",
    "farcall-bench",
    "farcall-swarm",
    "farcall-transports",
    "farcall-transports-conformance",
    "farcall-verbs",
    "farcall-verbs-conformance",
];

/// Once as most build it, once with what the feature `ibverbs` adds, and once with `sim` and `faults`.
pub(crate) fn clippy() -> Result<()> {
    let simulator = SIMULATOR.iter().flat_map(|package| ["--package", package]);
    let for_tests: Vec<_> = simulator.chain(FOR_TESTS).collect();
    let packages: [&[&str]; 3] =
        [&["--workspace"], &["--package", "farcall-verbs", "--features", "ibverbs"], &for_tests];
    packages.into_iter().try_for_each(|packages| {
        let mut clippy = cargo();
        clippy.args(["clippy", "--locked", "--all-targets"]).args(packages);
        run::run(clippy.args(["--", "-D", "warnings"]))
    })
}

pub(crate) fn doc() -> Result<()> {
    run::run(
        cargo()
            .args(["doc", "--locked", "--workspace", "--no-deps"])
            .args(FOR_TESTS)
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// `cargo test` rather than a faster runner: it also runs the code of the documentation.
pub(crate) fn unit(arguments: &[String]) -> Result<()> {
    let mut test = cargo();
    test.args(["test", "--locked"]);
    if arguments.is_empty() {
        test.arg("--workspace").args(FOR_TESTS);
    }
    run::run(test.args(arguments))
}

/// A target directory of its own: `--cfg loom` would rebuild everything else twice.
pub(crate) fn loom() -> Result<()> {
    run::run(
        cargo()
            .args(["test", "--locked", "--release", "--package", "farcall-verbs", "--lib"])
            .args(["--target-dir", "target/loom", "--", "loom"])
            .env("RUSTFLAGS", "--cfg loom")
            // The models want optimized code, and nobody wants to wait for the best of it.
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    )
}

/// Seeds of the swarm in a usual check, each with one of the backends: a minute or less.
const SEEDS: &str = "600";

/// Not optimized: assertions are on, and a seed takes some 100 ms.
pub(crate) fn sim(arguments: &[String]) -> Result<()> {
    let mut swarm = cargo();
    swarm.args([
        "run",
        "--quiet",
        "--locked",
        "--package",
        "farcall-swarm",
        "--features",
        "sim",
        "--",
    ]);
    if arguments.is_empty() {
        swarm.args(["--seeds", SEEDS]);
    }
    run::run(swarm.args(arguments))
}

/// Published figures on the simulated rack, and whether the book shows them as they are. Optimized, as they are millions of
/// messages; built as what the step rdma carries is.
pub(crate) fn figures() -> Result<()> {
    let mut test = cargo();
    test.args(["test", "--locked", "--profile", "vm", "--package", "farcall-bench"]);
    run::run(test.args(["--features", "sim", "--test", "figures"]))
}

pub(crate) fn deny() -> Result<()> {
    let there = cargo().args(["deny", "--version"]).output().is_ok_and(|o| o.status.success());
    if !there {
        println!("  cargo-deny is missing; building it once");
        run::run(cargo().args(["install", "cargo-deny", "--locked"]))?;
    }
    // Offline, cargo-deny reads what cargo has downloaded; this downloads only what is missing.
    run::run(cargo().args(["fetch", "--locked"]))?;
    run::run(cargo().args(["deny", "--offline", "check", "licenses", "bans", "sources"]))
}

pub(crate) fn demo() -> Result<()> {
    run::run(cargo().args([
        "run",
        "--locked",
        "--release",
        "--package",
        "farcall-kv",
        "--",
        "demo",
        "--small",
    ]))
}

/// Without arguments: the runs whose figures the README shows.
pub(crate) fn bench(arguments: &[String]) -> Result<()> {
    run::run(cargo().args(["build", "--locked", "--release", "--package", "farcall-bench"]))?;
    let runs: &[&[&str]] = &[
        &["limit"],
        &["echo", "--size", "32", "--window", "1", "--threads"],
        &["echo", "--size", "32", "--window", "1", "--processes"],
        &["echo", "--size", "32", "--window", "32", "--threads"],
        &["echo", "--size", "32", "--window", "32", "--processes"],
        &["echo", "--size", "1048576", "--window", "1", "--threads"],
        &["echo", "--size", "1048576", "--window", "1", "--processes"],
    ];
    let bench = || {
        let mut bench = cargo();
        bench.args(["run", "--quiet", "--locked", "--release", "--package", "farcall-bench", "--"]);
        bench
    };
    if !arguments.is_empty() {
        return run::run(bench().args(arguments));
    }
    runs.iter().try_for_each(|arguments| run::run(bench().args(*arguments)))
}

pub(crate) fn book() -> Result<()> {
    if !machine::on_path("mdbook") {
        bail!("mdbook is not installed; `cargo install mdbook --version 0.5 --locked` installs it");
    }
    run::run(command("mdbook").args(["build", "book", "--dest-dir", "../target/book"]))
}
