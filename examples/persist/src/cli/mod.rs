//! The program: one module per command, and shared functions.

mod args;
mod bench;
mod check;
mod client;
mod demo;
mod inspect;
mod measure;
mod serve;
mod stamp;
mod writer;

use std::io;
use std::process::ExitCode;

use clap::Parser;

use self::args::{Cli, Command};

/// Something was lost, damaged or invented.
const LOST: u8 = 1;
/// Something failed, or the command line is wrong.
const ERROR: u8 = 2;

/// Runs the command line.
pub(crate) fn run() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Append(args) => client::append(&args),
        Command::Read(args) => client::read(&args),
        Command::Write(args) => client::write(&args),
        Command::Commit(args) => client::commit(&args),
        Command::Checkpoint(args) => client::checkpoint(&args),
        Command::Verify(args) => inspect::verify(&args),
        Command::Dump(args) => inspect::dump(&args),
        Command::Repair(args) => inspect::repair(&args),
        Command::Check(args) => check::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::DemoWriter(args) => writer::run(&args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => LOST.into(),
        // The reader of our output has closed it, as in `farcall-persist dump DIR | head`.
        Err(why) if is_broken_pipe(&why) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("farcall-persist: {why:#}");
            ERROR.into()
        }
    }
}

fn is_broken_pipe(why: &anyhow::Error) -> bool {
    why.downcast_ref::<io::Error>().is_some_and(|why| why.kind() == io::ErrorKind::BrokenPipe)
}
