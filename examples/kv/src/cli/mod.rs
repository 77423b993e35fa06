//! The program: one module per command, and shared functions.

mod args;
mod bytes;
mod demo;
mod entries;
mod exit;
mod file;
mod idle;
mod lifeline;
mod outage;
mod pages;
mod phase;
mod progress;
mod serve;
mod ycsb;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Error, Result};
use clap::Parser;
use farcall::{ConnectError, ReconnectPolicy};
use farcall_kv::link::PollLink;
use farcall_kv::service::{KvClient, KvPollClient};

use self::args::{Cli, Command};

/// Runs the command line.
pub(crate) fn run() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Get(args) => entries::get(&args),
        Command::Put(args) => entries::put(&args),
        Command::Del(args) => entries::del(&args),
        Command::Scan(args) => entries::scan(&args),
        Command::Load(args) => file::load(&args),
        Command::Dump(args) => file::dump(&args),
        Command::Ycsb(args) => ycsb::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::DemoClient => Ok(demo::run_client()),
    };
    outcome.unwrap_or_else(|why| {
        // The reader of our output has closed it, as in `farcall-kv dump | head`.
        if !is_broken_pipe(&why) {
            eprintln!("farcall-kv: {why:#}");
        }
        exit::ERROR.into()
    })
}

fn is_broken_pipe(why: &Error) -> bool {
    why.downcast_ref::<io::Error>().is_some_and(|why| why.kind() == io::ErrorKind::BrokenPipe)
}

/// A client whose calls block, for at most `timeout` each.
fn connect(address: &str, timeout: Duration) -> Result<KvClient> {
    KvClient::connect(address)
        .timeout(timeout)
        .dial_timeout(timeout)
        .reconnect(ReconnectPolicy::NEVER)
        .wait()
        .map_err(|why| no_connection(address, why))
}

/// A connection that this thread polls. Each call takes at most `timeout`.
fn connect_poll(address: &str, timeout: Duration) -> Result<PollLink> {
    let client = KvPollClient::connect(address).timeout(timeout).dial_timeout(timeout).wait();
    Ok(PollLink::new(client.map_err(|why| no_connection(address, why))?))
}

fn no_connection(address: &str, why: ConnectError) -> Error {
    let nobody_there = matches!(why, ConnectError::NoServer { .. });
    let why = Error::new(why);
    if nobody_there {
        return why.context(format!("start one with: farcall-kv serve --listen '{address}'"));
    }
    why
}
