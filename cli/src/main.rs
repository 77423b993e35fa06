//! `farcall`: shows this machine's devices and their capabilities, measures round trips to a server,
//! and compares two versions of a service.
#![forbid(unsafe_code)]

mod compat;
mod credentials;
mod info;
mod ping;
#[cfg(feature = "tls")]
mod tls;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Looks at the devices of this machine, at servers elsewhere, and at versions of services.
///
/// Exit status: 0 done; 1 pings were lost, or a change breaks old clients; 2 an error.
#[derive(Debug, Parser)]
#[command(version, name = "farcall")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what the change of a service from one lock file to another breaks.
    Compat(compat::Args),
    /// Show the devices of this machine, what they can do, and the limits that matter; or what a server has refused.
    Info(info::Args),
    /// Measure round trips to a server, whatever it serves, until stopped with Ctrl-C.
    Ping(ping::Args),
}

/// Something failed, or the command line is wrong.
const ERROR: u8 = 2;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Compat(args) => compat::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Ping(args) => ping::run(&args),
    };
    outcome.unwrap_or_else(|why| {
        // The reader of our output has closed it, as in `farcall info | head`.
        let is_broken_pipe = |why: &std::io::Error| why.kind() == std::io::ErrorKind::BrokenPipe;
        if !why.downcast_ref().is_some_and(is_broken_pipe) {
            eprintln!("farcall: {why:#}");
        }
        ERROR.into()
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
