//! `serve`: serves a store until a signal.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use farcall::{RunningServer, Server};
use farcall_kv::service::{KvServer, StoreService};
use farcall_kv::store::Store;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::args::ServeArgs;
use super::{idle, lifeline};

/// What a server writes before its address, in a line that says that it may be called.
pub(crate) const LISTENING_ON: &str = "listening on ";

/// Serves until SIGINT or SIGTERM, then drains: calls in progress are answered. A second signal ends
/// the process immediately.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode> {
    // Before the first thread starts, so that no signal is lost.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1]).context("signals")?;
    if args.until_stdin_ends {
        lifeline::end_with_stdin();
    }
    let store = Arc::new(Store::with_limit(args.memory_limit.unwrap_or(u64::MAX)));
    let service = KvServer::new(StoreService::new(store.clone()));
    let server = Server::builder()
        .service(service)
        .threads(args.threads)
        .idle(idle::server(args.threads))
        .listen(args.listen.as_str())?;

    // A process that waits for this line may call now.
    let mut out = io::stdout();
    writeln!(out, "{LISTENING_ON}{}", server.address()).and_then(|()| out.flush())?;

    for signal in signals.forever() {
        if signal == SIGUSR1 {
            if args.metrics {
                print_metrics(&server)?;
            }
            continue;
        }
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_default(signal, Arc::new(true.into()))?;
        }
        break;
    }
    if args.metrics {
        print_metrics(&server)?;
    }
    let drained = server.shutdown();
    if drained.aborted_calls > 0 || drained.stuck_threads > 0 {
        eprintln!(
            "{} calls were not answered in time, {} threads did not end",
            drained.aborted_calls, drained.stuck_threads
        );
    }
    if !args.until_stdin_ends {
        let size = store.size();
        eprintln!("ended; {} keys, {} bytes of keys and values are gone", size.keys, size.bytes);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_metrics(server: &RunningServer) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(server.metrics().prometheus().as_bytes())?;
    out.flush()
}
