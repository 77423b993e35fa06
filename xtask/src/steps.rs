//! The steps, each of which is a check that can be run alone.

use anyhow::Result;

use crate::rdma_vm::{self, Profile};
use crate::run::{self, Runner, cargo, command};
use crate::{instructions, layers, machine, rdma};

/// All steps, cheap ones first.
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
    runner.step("instructions", || instructions::check(&instructions::Options::default()))?;
    runner.step("demo", demo)?;
    runner.step("rdma", || rdma::rdma(""))
}

pub(crate) fn fmt() -> Result<()> {
    run::run(cargo().args(["fmt", "--all", "--check"]))
}

/// Options that add the simulated rack, layers of faults, tokio and the bench beside tarpc to the default build. The first
/// two are not default features because their enum variants would cost every other program something in each call of a
/// device.
const FOR_TESTS: [&str; 2] = [
    "--features",
    "farcall/sim,farcall/tls,farcall-cli/tls,farcall/tokio,farcall-bench/peers,farcall-bench/sim,farcall-persist/sim,farcall-swarm/sim,farcall-transports-conformance/sim,farcall-transports-conformance/tls,farcall-verbs-conformance/sim,farcall-verbs-conformance/faults",
];

/// Runs clippy on everything with the features of the tests and `ibverbs`, then on what users build without them.
pub(crate) fn clippy() -> Result<()> {
    let with_features = [&["--all-targets", "--features", "farcall-verbs/ibverbs"][..], &FOR_TESTS];
    [with_features.concat(), Vec::new()].into_iter().try_for_each(|targets| {
        let mut clippy = cargo();
        clippy.args(["clippy", "--locked", "--workspace"]).args(targets);
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

/// Uses `cargo test` rather than a faster runner because it also runs documentation tests.
pub(crate) fn unit(arguments: &[String]) -> Result<()> {
    let mut test = cargo();
    test.args(["test", "--locked"]);
    if arguments.is_empty() {
        test.arg("--workspace").args(FOR_TESTS);
    }
    run::run(test.args(arguments))
}

/// Uses a separate target directory: `--cfg loom` would otherwise rebuild everything twice.
pub(crate) fn loom() -> Result<()> {
    run::run(
        cargo()
            .args(["test", "--locked", "--release", "--package", "farcall-verbs", "--lib"])
            .args(["--target-dir", "target/loom", "--", "loom"])
            .env("RUSTFLAGS", "--cfg loom")
            // The models need optimized code, but not at the cost of a long build.
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    )
}

/// Seeds of the swarm that each check runs, each with one backend: a minute or less.
const FIXED_SEEDS: &str = "600";

/// Seeds of a commit's own, so that more and more are run.
const SEEDS_OF_COMMIT: &str = "200";

/// The tests of the swarm's package, for which cargo builds its program.
const TESTS_OF_SWARM: &str = "mutations";

/// Not optimized: assertions are enabled, and a seed takes some 100 ms. Built as for the step `unit`, which has built most of
/// it or all.
pub(crate) fn sim(arguments: &[String]) -> Result<()> {
    let mut build = cargo();
    build.args(["test", "--quiet", "--locked", "--no-run", "--workspace"]).args(FOR_TESTS);
    run::run(build.args(["--test", TESTS_OF_SWARM]))?;
    let swarm = || command(run::target().join("debug/farcall-swarm"));
    if !arguments.is_empty() {
        return run::run(swarm().args(arguments));
    }
    run::run(swarm().args(["--seeds", FIXED_SEEDS]))?;
    let Some(first) = first_seed_of_commit() else {
        println!("  no git repository: no seeds of its commit");
        return Ok(());
    };
    run::run(swarm().args(["--seeds", SEEDS_OF_COMMIT, "--first", &first.to_string()]))
}

/// Each commit has seeds of its own: the first one is the beginning of its hash.
fn first_seed_of_commit() -> Option<u32> {
    let hash = run::output(command("git").args(["rev-parse", "HEAD"])).ok()?;
    u32::from_str_radix(hash.get(..8)?, 16).ok()
}

/// Simulates published figures, checks that the book shows them and that rates do not depend on the start, and spends a day with connections
/// that move. Optimized, as they are millions of
/// messages, and built together with the programs of the step rdma.
pub(crate) fn figures() -> Result<()> {
    let mut test = cargo();
    test.arg("test").args(rdma_vm::selection(Profile::Vm));
    run::run(test.args(["--test", "figures", "--test", "grid", "--test", "day"]))
}

pub(crate) fn deny() -> Result<()> {
    let there = cargo().args(["deny", "--version"]).output().is_ok_and(|o| o.status.success());
    if !there {
        println!("  cargo-deny is missing; building it once");
        // Not optimized: it runs for a second, and would take minutes to build.
        run::run(cargo().args(["install", "cargo-deny", "--locked", "--debug"]))?;
    }
    // cargo-deny reads what cargo has downloaded; this downloads only what is missing.
    run::run(cargo().args(["fetch", "--locked"]))?;
    run::run(cargo().args(["deny", "--offline", "check", "licenses", "bans", "sources"]))
}

/// Built together with the programs of the step rdma.
pub(crate) fn demo() -> Result<()> {
    let demos: [&[&str]; 2] = [
        &["farcall-kv", "demo", "--small"],
        &["farcall-persist", "demo", "--seconds=3", "--no-table"],
    ];
    for demo in demos {
        let name = demo[..1].iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for program in rdma_vm::build_named(Profile::Vm, &name)? {
            run::run(command(program.path).args(&demo[1..]))?;
        }
    }
    Ok(())
}

/// Without arguments: the runs whose results are in the book, next to the limits.
pub(crate) fn bench(arguments: &[String]) -> Result<()> {
    run::run(cargo().args(["build", "--locked", "--release", "--package", "farcall-bench"]))?;
    let runs: &[&[&str]] = &[
        &["limit"],
        &["echo", "--size", "32", "--window", "1", "--threads"],
        &["echo", "--size", "32", "--window", "1", "--processes"],
        &["echo", "--size", "32", "--window", "32", "--threads"],
        &["echo", "--size", "32", "--window", "32", "--processes"],
        &["echo", "--size", "1048576", "--window", "2", "--threads"],
        &["echo", "--size", "1048576", "--window", "2", "--processes"],
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
