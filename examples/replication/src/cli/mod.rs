//! The program: one module per command, and shared functions.

mod args;
mod bench;
mod children;
mod client;
mod demo;
mod serve;
mod workload;

use std::io;
use std::process::ExitCode;

use clap::Parser;

use self::args::{Cli, Command};

/// Something was lost, or applied twice.
const LOST: u8 = 1;
/// Something failed, or the command line is wrong.
const ERROR: u8 = 2;

/// Runs the command line.
pub(crate) fn run() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Configuration(args) => serve::configuration(&args),
        Command::Serve(args) => serve::replica(&args),
        Command::Status(args) => client::status(&args),
        Command::Put(args) => client::put(&args),
        Command::Get(args) => client::get(&args),
        Command::Append(args) => client::append(&args),
        Command::Tail(args) => client::tail(&args),
        Command::Inspect(args) => client::inspect(&args),
        Command::Bench(args) => bench::run(&args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => LOST.into(),
        // The reader of our output has closed it.
        Err(why) if is_broken_pipe(&why) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("farcall-replication: {why:#}");
            ERROR.into()
        }
    }
}

fn is_broken_pipe(why: &anyhow::Error) -> bool {
    why.downcast_ref::<io::Error>().is_some_and(|why| why.kind() == io::ErrorKind::BrokenPipe)
}
