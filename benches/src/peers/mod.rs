//! farcall's clients next to other libraries and to what their calls are made of, alternating on the same two cores.
//!
//! Each peer has a server process on one core, and a client with one connection on the other. A peer without a turn sleeps,
//! also one whose server would poll forever.

mod asynchronous;
mod calling;
mod child;
mod farcall_clients;
mod kind;
mod picture;
mod program;
pub mod report;
mod serve;
mod silence;
mod tables;
mod tarpc;
mod tonic;
mod turns;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};

use self::report::{Cell, Name, Report};
use crate::cores;
use crate::echo::load::Totals;
use crate::progress::Progress;

pub use self::kind::{Kind, kinds};
pub use self::picture::svg;
pub use self::serve::{ServeOptions, serve};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The peers; each cell has all of them that can do it.
    pub kinds: Vec<Kind>,
    /// Bytes of the argument, and of the result.
    pub sizes: Vec<usize>,
    /// Calls that the client keeps outstanding.
    pub windows: Vec<usize>,
    /// The time of each peer in each cell.
    pub time: Duration,
    /// For the first calls after silence: how long each client waits before its call.
    pub silences: Vec<Duration>,
    /// How long each peer is silent in all, for each of those.
    pub silent_for: Duration,
    /// The servers' core, then the clients'.
    pub cores: [usize; 2],
    /// Where the other programs are.
    pub programs: Programs,
}

/// Programs that are peers, or their servers.
#[derive(Debug, Clone, Default)]
pub struct Programs {
    /// This program, which runs the servers of all peers without a program of their own.
    pub bench: PathBuf,
    /// Echo over UCX, from `benches/ucx`.
    pub ucx: Option<PathBuf>,
    /// Echo over iceoryx2, from `benches/iceoryx2`.
    pub iceoryx2: Option<PathBuf>,
}

/// A server and its only client.
trait Peer {
    /// Makes calls for about `time` after a part that is not counted, which wakes up the server. On return, no call is
    /// outstanding.
    fn turn(&mut self, time: Duration, totals: &mut Totals) -> Result<()>;

    /// Makes a call, is silent for a time, and returns the nanoseconds of the next call.
    fn call_after(&mut self, silence: Duration) -> Result<u64>;

    /// Ends both.
    fn stop(self: Box<Self>) -> Result<()>;
}

/// What to start.
struct Setup<'a> {
    size: usize,
    window: usize,
    cores: [usize; 2],
    programs: &'a Programs,
}

/// Runs the benchmark. The calling thread runs the clients, on their core.
///
/// # Errors
///
/// Nothing to measure, peers that lack their program, and cores that this process may not use. What goes wrong with one peer
/// is in the report.
pub fn run(options: &Options) -> Result<Report> {
    let Options { kinds, sizes, windows, silences, cores, .. } = options;
    let nothing = kinds.is_empty() || sizes.is_empty() || windows.is_empty();
    ensure!(!nothing, "nothing to measure: name peers, sizes and windows");
    kinds.iter().try_for_each(|kind| kind.require(&options.programs))?;
    // The servers' core too must be available; they are started later, by this thread.
    cores::pin(cores[0])?;
    cores::pin(cores[1])?;
    let mut progress =
        Progress::new("peers", (sizes.len() * windows.len() + silences.len()) as u64);
    let mut cells: Vec<Cell> = Vec::new();
    for &window in windows {
        for &size in sizes {
            progress.set(cells.len() as u64, || format!("{size} B, window {window}"));
            let setup = Setup { size, window, cores: *cores, programs: &options.programs };
            cells.push(turns::measure(options, &setup)?);
        }
    }
    let done = cells.len() as u64;
    let silences = silence::measure(options, |number| {
        progress.set(done + number, || "calls after silence".into());
    })?;
    progress.finish();
    Ok(Report {
        bench: "peers",
        cores: *cores,
        shared_cache_level: cores::shared_cache_level(*cores),
        peers: kinds.iter().map(|kind| Name { peer: kind.name(), title: kind.title() }).collect(),
        cells,
        silences,
    })
}
