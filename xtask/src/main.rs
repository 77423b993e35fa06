//! Developer tasks of farcall: `cargo xtask test` runs everything, other tasks a single check.
#![forbid(unsafe_code)]

mod book;
mod fuzz;
mod instructions;
mod layers;
mod machine;
mod mutants;
mod peers;
mod rdma;
mod rdma_vm;
mod run;
mod steps;
mod upgrades;

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
    /// Runs all tasks below that a fresh machine needs, in order; stops at the first failure
    Test,
    /// Installs missing packages for the other tasks with apt
    Machine,
    /// Checks the formatting of all packages
    Fmt,
    /// Runs clippy on all targets; warnings are errors
    Clippy,
    /// Builds the documentation of all packages; warnings are errors
    Doc,
    /// Checks which package depends on which, and where `unsafe` is allowed
    Layers,
    /// Runs all tests, including the code of the documentation and the book
    Unit {
        /// Passed on to `cargo test`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Runs the fuzz targets, each for longer than the step unit does
    Fuzz(fuzz::Options),
    /// Checks the rings of the shared-memory device with loom, under every interleaving
    Loom,
    /// Tests farcall under random faults on a simulated rack: a sweep of seeds, or one with `--seed S --trace FILE`
    Sim {
        /// Passed on to `farcall-swarm`; try `--help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Simulates published figures, and checks that the book shows the results
    Figures,
    /// Counts the instructions of a 32-byte call, both ends together, against the bounds in benches/instructions.tsv
    Instructions(instructions::Options),
    /// Makes small bugs in the protocol files and says which of them no test notices
    Mutants(mutants::Options),
    /// Has programs of a former commit and of this one call each other over every backend
    Upgrades(upgrades::Options),
    /// Checks licenses, bans and sources of all dependencies, offline
    Deny,
    /// Runs the small demos of the example programs, optimized
    Demo,
    /// Runs farcall-bench in release with these arguments; without any, the measurements against the limits in the book
    Bench {
        /// Passed on to `farcall-bench`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measures farcall's clients next to UCX, iceoryx2, tarpc and tonic, and first installs and builds what that needs
    Peers(peers::Options),
    /// Runs everything that needs the kernel's RDMA, in virtual machines with Soft-RoCE
    Rdma {
        /// Only the boots whose name contains this
        #[arg(default_value = "")]
        only: String,
    },
    /// Measures over Soft-RoCE, compared with perftest in the same boot
    RdmaBench,
    /// Boots a virtual machine with Soft-RoCE, runs COMMAND there, and exits with its status
    RdmaVm(rdma_vm::Options),
    /// Builds the book as HTML in target/book, checks its links and its code, and looks at each page in a browser
    Book(book::Options),
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
        Task::Mutants(options) => mutants::mutants(&options),
        Task::Upgrades(options) => runner.step("upgrades", || upgrades::upgrades(&options)),
        Task::Deny => runner.step("deny", steps::deny),
        Task::Demo => runner.step("demo", steps::demo),
        Task::Bench { arguments } => steps::bench(&arguments),
        Task::Peers(options) => peers::peers(&options),
        Task::Rdma { only } => runner.step("rdma", || rdma::rdma(&only)),
        Task::RdmaBench => rdma::bench(),
        Task::RdmaVm(options) => return exit(rdma_vm::rdma_vm(&options)),
        Task::Book(options) => runner.step("book", || book::book(&options)),
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
