//! Calls over the backend `tcp` beside those of tarpc, another RPC library, by turns on the same two cores.
//!
//! Each has a server thread on one core, and a client with one connection on the other. Who has no turn sleeps.

mod calling;
mod farcall_tcp;
pub mod report;
mod tarpc_streams;

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use self::farcall_tcp::{AsyncFarcall, PollingFarcall};
use self::report::{Cell, Report, Round, Run};
use self::tarpc_streams::Tarpc;
use crate::cores;
use crate::echo::load::Totals;

/// Bytes of the argument, and of the result.
const SIZE: usize = 32;

/// The length of a turn, if the time allows: long enough that waking up the server does not count.
const TURN: Duration = Duration::from_millis(100);

/// Medians of fewer rounds say little.
const LEAST_ROUNDS: u32 = 5;

/// What the ratios are to.
const REFERENCE: &str = Tarpc::OVER_TCP;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Calls that the client keeps outstanding; each number is a cell of its own.
    pub windows: Vec<usize>,
    /// The time of all of them together.
    pub time: Duration,
    /// The servers' core, then the clients'.
    pub cores: [usize; 2],
}

/// A server and its only client.
trait Peer {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// Makes calls for about `time`; on return, no call is outstanding.
    fn turn(&mut self, time: Duration, totals: &mut Totals) -> Result<()>;

    /// Ends both.
    fn stop(self: Box<Self>) -> Result<()>;
}

/// Runs the benchmark. The calling thread runs the clients, on their core.
///
/// # Errors
///
/// A peer that cannot start or does not answer, an answer that differs from what was sent, and cores that this
/// process may not use.
pub fn run(options: &Options) -> Result<Report> {
    ensure!(!options.windows.is_empty(), "nothing to measure; `--windows 1,64` is two cells");
    cores::pin(options.cores[1])?;
    let time = options.time / options.windows.len() as u32;
    let measure = |window: &usize| measure(options, *window, time);
    let cells = options.windows.iter().map(measure).collect::<Result<_>>()?;
    Ok(Report { bench: "peers", size: SIZE, reference: REFERENCE, cells })
}

fn start(window: usize, server_core: usize) -> Result<Vec<Box<dyn Peer>>> {
    Ok(vec![
        Box::new(PollingFarcall::start(window, server_core)?),
        Box::new(AsyncFarcall::start(window, server_core)?),
        Box::new(Tarpc::over_tcp(window, server_core)?),
        Box::new(Tarpc::over_unix_socket(window, server_core)?),
    ])
}

fn measure(options: &Options, window: usize, time: Duration) -> Result<Cell> {
    let mut peers = start(window, options.cores[0])?;
    let count = peers.len() as u32;
    let turn = TURN.min(time / (LEAST_ROUNDS * count));
    let rounds = (time.as_nanos() / (turn * count).as_nanos().max(1)).max(LEAST_ROUNDS.into());
    let mut taken = vec![Vec::new(); peers.len()];
    for _ in 0..rounds {
        for (peer, taken) in peers.iter_mut().zip(&mut taken) {
            let mut totals = Totals::default();
            let outcome = peer.turn(turn, &mut totals);
            outcome.with_context(|| format!("{}, window {window}", peer.name()))?;
            taken.push(Round::of(&totals));
        }
    }
    let runs = peers.iter().zip(&taken).map(|(peer, taken)| Run::of(peer.name(), taken)).collect();
    for peer in peers {
        let name = peer.name();
        peer.stop().with_context(|| format!("{name} did not end in order"))?;
    }
    Ok(Cell::new(window, runs, REFERENCE))
}
