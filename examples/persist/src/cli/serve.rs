//! `serve`: serves a log until a signal.

use std::io::{self, Write};
use std::sync::Arc;

use anyhow::{Context, Result};
use farcall::Server;
use farcall_persist::ranges::Ranges;
use farcall_persist::ranges::service::{RangeStoreServer, RangesService};
use farcall_persist::service::{LogService, PersistentServer};
use farcall_persist::storage::Directory;
use farcall_persist::{Log, Options};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::args::ServeArgs;

/// Segments of the ranges' log, whose files are made before they are used: so that a server that nobody asks for ranges takes little.
const RANGES_SEGMENT_BYTES: u64 = 2 << 20;

/// Serves until SIGINT or SIGTERM, then answers calls in progress and closes the log. A second signal ends the process immediately.
pub(crate) fn run(args: &ServeArgs) -> Result<bool> {
    // Before the first thread starts, so that no signal is lost.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("signals")?;
    let service = LogService::new(Arc::new(Log::open(&args.dir, Options::default())?));
    let storage = Arc::new(Directory::create(args.dir.join("ranges"))?);
    let options = Options::default().segment_bytes(RANGES_SEGMENT_BYTES);
    let ranges = Arc::new(Ranges::open(storage, args.ranges_bytes, options)?);
    let server = Server::builder()
        .service(PersistentServer::new(service.clone()))
        .service(RangeStoreServer::new(RangesService::new(ranges.clone())))
        .threads(args.threads)
        .listen(args.listen.as_str())?;

    // A process that waits for this line may call now.
    let mut out = io::stdout();
    writeln!(out, "listening on {}", server.address()).and_then(|()| out.flush())?;

    signals.forever().next();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::new(true.into()))?;
    }
    let drained = server.shutdown();
    if drained.aborted_calls > 0 || drained.stuck_threads > 0 {
        eprintln!(
            "{} calls were not answered in time, {} threads did not end",
            drained.aborted_calls, drained.stuck_threads
        );
    }
    service.log().close()?;
    ranges.log().close()?;
    Ok(true)
}
