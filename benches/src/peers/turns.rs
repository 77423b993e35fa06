//! One size and one window: all peers alternate, followed by the machine's own limits in each round.

use std::time::Duration;

use anyhow::{Context, Result};

use super::report::{Cell, Round, Run};
use super::{Kind, Options, Peer, Setup};
use crate::SLICE;
use crate::clock::Clock;
use crate::echo::load::Totals;
use crate::limit::{Bounce, Futex};

/// Medians of fewer rounds say little.
const LEAST_ROUNDS: u32 = 5;

/// Turns are not longer, so that whatever slows down the machine for a moment does so for all peers.
const LONGEST_TURN: Duration = Duration::from_millis(50);

/// One peer in a cell.
struct Competitor {
    kind: Kind,
    peer: Result<Box<dyn Peer>>,
    rounds: Vec<Round>,
}

/// Measures one cell. Only failures of the bench itself are errors.
pub(super) fn measure(options: &Options, setup: &Setup<'_>) -> Result<Cell> {
    let kinds = options.kinds.iter().copied().filter(|kind| kind.can(setup.window));
    let start = |kind: Kind| {
        let peer = kind.start(setup).context("it did not start");
        Competitor { kind, peer, rounds: Vec::new() }
    };
    let mut competitors: Vec<_> = kinds.map(start).collect();
    let clock = Clock::new();
    let (mut bounce, mut futex) = (Bounce::start(setup.cores[0])?, Futex::start(setup.cores[0])?);
    let turn = LONGEST_TURN.min(options.time / LEAST_ROUNDS);
    let rounds = (options.time.as_nanos() / turn.as_nanos().max(1)).max(LEAST_ROUNDS.into());
    for _ in 0..rounds {
        for competitor in &mut competitors {
            let Ok(peer) = &mut competitor.peer else { continue };
            let mut totals = Totals::default();
            match peer.turn(turn, &mut totals) {
                Ok(()) => competitor.rounds.push(Round::of(&totals)),
                Err(error) => competitor.peer = Err(error),
            }
        }
        bounce.slice(&clock, SLICE.min(turn));
        futex.slice(&clock, SLICE.min(turn));
    }
    Ok(Cell {
        size: setup.size,
        window: setup.window,
        line_ns: bounce.latency().quantile(0.5),
        futex_ns: futex.latency().quantile(0.5),
        runs: competitors.into_iter().map(Competitor::finish).collect(),
    })
}

impl Competitor {
    fn finish(self) -> Run {
        let Self { kind, peer, rounds } = self;
        let stopped = peer.and_then(|peer| peer.stop().context("it did not end in order"));
        Run::of(kind.name(), stopped.map(|()| rounds))
    }
}
