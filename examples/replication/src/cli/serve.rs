//! `serve` and `configuration`: a replica or the membership service, until a signal.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farcall::Server;
use farcall_replication::membership::{ConfigurationService, InProcess, MembershipServer};
use farcall_replication::node::NodeOptions;
use farcall_replication::replica::Replica;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::args::{ConfigurationArgs, ServeArgs};

/// The options of a replica that suspects after this time.
pub(crate) fn options(detect: Duration) -> NodeOptions {
    NodeOptions { detect, heartbeat: detect / 10, ..NodeOptions::default() }
}

/// Runs a replica.
pub(crate) fn replica(args: &ServeArgs) -> Result<bool> {
    // Before the first thread starts, so that no signal is lost.
    let signals = Signals::new([SIGINT, SIGTERM]).context("signals")?;
    let mut builder = Replica::builder(args.group.membership());
    builder = builder.options(options(args.timing.detect));
    if let Some(dir) = &args.dir {
        builder = builder.directory(dir.clone());
    }
    if let Some(device) = &args.device {
        builder = builder.device(device);
    }
    let replica = builder.listen(&args.listen)?;
    wait(signals, &args.listen, || replica.failure())?;
    Ok(true)
}

/// Serves the membership of a group.
pub(crate) fn configuration(args: &ConfigurationArgs) -> Result<bool> {
    let signals = Signals::new([SIGINT, SIGTERM]).context("signals")?;
    let service = match &args.dir {
        Some(dir) => ConfigurationService::open(dir)?,
        None => ConfigurationService::in_memory(InProcess::default()),
    };
    let server =
        Server::builder().service(MembershipServer::new(service)).listen(args.listen.as_str())?;
    wait(signals, &args.listen, || None)?;
    server.shutdown();
    Ok(true)
}

/// How often it looks for signals and failures.
const LOOK: Duration = Duration::from_millis(50);

/// Waits for a signal, or for a failure. A second signal ends the process immediately.
fn wait(mut signals: Signals, address: &str, failure: impl Fn() -> Option<String>) -> Result<()> {
    // A process that waits for this line may call now.
    let mut out = io::stdout();
    writeln!(out, "listening on {address}").and_then(|()| out.flush())?;
    while signals.pending().next().is_none() {
        if let Some(why) = failure() {
            bail!("{why}");
        }
        std::thread::sleep(LOOK);
    }
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::new(true.into()))?;
    }
    Ok(())
}
