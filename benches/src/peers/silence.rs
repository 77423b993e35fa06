//! The first call after silence: each client waits for a time, and its next call finds both ends asleep or their caches cold.

use std::time::Duration;

use anyhow::{Context, Result};

use super::report::{FirstCalls, Silence};
use super::{Kind, Options, Peer, Setup};
use crate::clock::Clock;
use crate::latency::Latency;
use crate::limit::Futex;

/// Bytes of the calls.
const SIZE: usize = 32;

/// Medians of fewer calls say little.
const LEAST_CALLS: u128 = 5;

/// More calls than this change the medians little.
const MOST_CALLS: u128 = 100;

/// One peer.
struct Silent {
    kind: Kind,
    peer: Result<Box<dyn Peer>>,
    /// For each silence.
    latencies: Vec<Latency>,
}

/// Measures all silences of all peers, and of two threads that wake each other; they alternate call by call. `begin` hears the number of
/// each silence.
///
/// # Errors
///
/// Those of the bench itself.
pub(super) fn measure(options: &Options, mut begin: impl FnMut(u64)) -> Result<Vec<Silence>> {
    let Options { kinds, silences, silent_for, cores, programs, .. } = options;
    if silences.is_empty() {
        return Ok(Vec::new());
    }
    let (clock, futex) = (Clock::new(), Futex::start(cores[0])?);
    let mut wake_ups = Vec::new();
    let setup = Setup { size: SIZE, window: 1, cores: *cores, programs };
    let start = |kind: &Kind| {
        let peer = kind.start(&setup).context("it did not start");
        Silent { kind: *kind, peer, latencies: Vec::new() }
    };
    let mut peers: Vec<_> = kinds.iter().map(start).collect();
    for (number, silence) in silences.iter().enumerate() {
        begin(number as u64);
        peers.iter_mut().for_each(|peer| peer.latencies.push(Latency::new()));
        let mut woken = Latency::new();
        let calls = silent_for.as_nanos() / silence.as_nanos().max(1);
        for _ in 0..calls.clamp(LEAST_CALLS, MOST_CALLS) {
            peers.iter_mut().for_each(|peer| peer.call_after(*silence));
            woken.record(futex.after(&clock, *silence));
        }
        wake_ups.push(woken);
    }
    let outcomes: Vec<_> = peers.into_iter().map(Silent::finish).collect();
    let each = silences.iter().enumerate().map(|(number, silence)| Silence {
        silence_ns: silence.as_nanos() as u64,
        size: SIZE,
        futex_p50_ns: wake_ups[number].quantile(0.5),
        futex_max_ns: wake_ups[number].quantile(1.0),
        runs: outcomes.iter().map(|outcome| first_calls(outcome, number)).collect(),
    });
    Ok(each.collect())
}

impl Silent {
    fn call_after(&mut self, silence: Duration) {
        let Ok(peer) = &mut self.peer else { return };
        match peer.call_after(silence) {
            Ok(nanos) => {
                self.latencies.iter_mut().last().into_iter().for_each(|it| it.record(nanos))
            }
            Err(error) => self.peer = Err(error),
        }
    }

    fn finish(self) -> (Kind, Result<Vec<Latency>>) {
        let Self { kind, peer, latencies } = self;
        let stopped = peer.and_then(|peer| peer.stop().context("it did not end in order"));
        (kind, stopped.map(|()| latencies))
    }
}

fn first_calls((kind, outcome): &(Kind, Result<Vec<Latency>>), number: usize) -> FirstCalls {
    let peer = kind.name();
    match outcome {
        Ok(latencies) => FirstCalls::of(peer, &latencies[number]),
        Err(why) => FirstCalls {
            failure: Some(format!("{why:#}")),
            ..FirstCalls::of(peer, &Latency::new())
        },
    }
}
