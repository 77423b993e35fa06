//! Developer tasks of farcall: `cargo xtask test` runs everything, other tasks a single check.
#![forbid(unsafe_code)]

mod fuzz;
mod instructions;
mod layers;
mod machine;
mod rdma;
mod rdma_vm;
mod run;
mod steps;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use run::Runner;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks and tools of farcall")]
struct Options {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything below, in the order of a fresh machine; stops at the first failure
    Test,
    /// Installs, with apt, what the machine lacks for the other tasks
    Machine,
    /// The formatting of all packages
    Fmt,
    /// clippy on all targets, warnings are errors
    Clippy,
    /// The documentation of all packages, warnings are errors
    Doc,
    /// Which package may depend on which, and where `unsafe` may be
    Layers,
    /// All tests, the code of the documentation and of the book included
    Unit {
        /// Passed on to `cargo test`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// The fuzz targets, each for longer than the step unit runs it
    Fuzz(fuzz::Options),
    /// The rings of the shared-memory device under every interleaving that loom finds
    Loom,
    /// farcall under random faults on a simulated rack: a sweep of seeds, or one with `--seed S --trace FILE`
    Sim {
        /// Passed on to `farcall-swarm`; try `--help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Published figures on the simulated rack, and whether the book shows them as they are
    Figures,
    /// Instructions of a 32-byte call, both ends together, against the bounds in benches/instructions.tsv
    Instructions(instructions::Options),
    /// Licenses, bans and sources of all dependencies, offline
    Deny,
    /// The key-value demo, small, in release
    Demo,
    /// farcall-bench in release, with the arguments given; without any, the figures of the README
    Bench {
        /// Passed on to `farcall-bench`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// All that needs the kernel's own RDMA, in virtual machines with Soft-RoCE
    Rdma {
        /// Only the boots whose name contains this
        #[arg(default_value = "")]
        only: String,
    },
    /// The figures over Soft-RoCE, each beside `ib_write_lat` of the same boot
    RdmaBench,
    /// Boots a virtual machine with Soft-RoCE, runs COMMAND there, and ends with its status
    RdmaVm(rdma_vm::Options),
    /// The book as HTML, in target/book (needs mdbook)
    Book,
}

fn main() -> ExitCode {
    let task = Options::parse().task;
    let mut runner = Runner::new();
    let outcome = match task {
        Task::Test => steps::test(&mut runner),
        Task::Machine => runner.step("machine", machine::prepare),
        Task::Fmt => runner.step("fmt", steps::fmt),
        Task::Clippy => runner.step("clippy", steps::clippy),
        Task::Doc => runner.step("doc", steps::doc),
        Task::Layers => runner.step("layers", layers::check),
        Task::Unit { arguments } => runner.step("unit", || steps::unit(&arguments)),
        Task::Fuzz(options) => runner.step("fuzz", || fuzz::fuzz(&options)),
        Task::Loom => runner.step("loom", steps::loom),
        Task::Sim { arguments } => runner.step("sim", || steps::sim(&arguments)),
        Task::Figures => runner.step("figures", steps::figures),
        Task::Instructions(options) => {
            runner.step("instructions", || instructions::check(&options))
        }
        Task::Deny => runner.step("deny", steps::deny),
        Task::Demo => runner.step("demo", steps::demo),
        Task::Bench { arguments } => steps::bench(&arguments),
        Task::Rdma { only } => runner.step("rdma", || rdma::rdma(&only)),
        Task::RdmaBench => rdma::bench(),
        Task::RdmaVm(options) => return exit(rdma_vm::rdma_vm(&options)),
        Task::Book => runner.step("book", steps::book),
    };
    runner.summary();
    exit(outcome.map(|()| 0))
}

fn exit(outcome: anyhow::Result<u8>) -> ExitCode {
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            eprintln!("xtask: {failure:#}");
            ExitCode::FAILURE
        }
    }
}
