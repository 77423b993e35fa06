//! Random work between a connection and a server's dispatcher in virtual time: first anything may happen, then everything
//! is healed, and each call must have ended once and correctly, with no slot and no handler left.

use super::CancelPolicy;
use super::tests::{Bench, bench_with};
use crate::client::PendingCall;
use crate::error::RpcError;
use crate::support::service::{Bytes, Echo, Later, Panics, bytes};
use core::time::Duration;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Echo,
    Later,
    Panic,
    Cancel(usize),
    Take(usize),
    Poll,
    Turn,
    Pass,
    Sleep(u16),
    Memory(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Echo),
        4 => Just(Step::Later),
        1 => Just(Step::Panic),
        1 => (0_usize..16).prop_map(Step::Cancel),
        4 => (0_usize..16).prop_map(Step::Take),
        4 => Just(Step::Poll),
        4 => Just(Step::Turn),
        2 => Just(Step::Pass),
        2 => (0_u16..6_000).prop_map(Step::Sleep),
        1 => any::<bool>().prop_map(Step::Memory),
    ];
    proptest::collection::vec(step, 0..120)
}

/// What a call may end in.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Echo,
    Later,
    Panic,
}

struct Call {
    pending: PendingCall<Bytes>,
    kind: Kind,
    payload: Vec<u8>,
}

struct Swarm {
    bench: Bench,
    calls: Vec<Call>,
    started: u64,
}

impl Swarm {
    fn start(&mut self, kind: Kind) {
        self.started += 1;
        // Longer than a reply that always finds memory.
        let mut payload = vec![0x11; 40];
        payload[..8].copy_from_slice(&self.started.to_le_bytes());
        let client = &mut self.bench.client;
        let started = match kind {
            Kind::Echo => client.start::<Echo, _>(&bytes(&payload)),
            Kind::Later => client.start::<Later, _>(&bytes(&payload)),
            Kind::Panic => client.start::<Panics, _>(&bytes(&payload)),
        };
        match started {
            Ok(pending) => self.calls.push(Call { pending, kind, payload }),
            Err(RpcError::Overloaded(_)) => {}
            Err(error) => panic!("a call could not start: {error}"),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Echo => self.start(Kind::Echo),
            Step::Later => self.start(Kind::Later),
            Step::Panic => self.start(Kind::Panic),
            Step::Cancel(at) if at < self.calls.len() => {
                let call = self.calls.swap_remove(at);
                self.bench.client.cancel(call.pending);
            }
            Step::Take(at) if at < self.calls.len() => self.take(at),
            Step::Cancel(_) | Step::Take(_) => {}
            Step::Poll => drop(self.bench.client.poll()),
            Step::Turn => drop(self.bench.turn()),
            Step::Pass => self.bench.test.gate.pass(),
            Step::Sleep(us) => {
                self.bench.net.clock.advance(Duration::from_micros(us.into()));
                // Where a program sleeps; it reads the clock.
                self.bench.client.park(Some(self.bench.net.clock.now()));
            }
            Step::Memory(there_is) => self.bench.net.set_reply_memory(there_is),
        }
    }

    fn take(&mut self, at: usize) {
        let call = &mut self.calls[at];
        let Some(result) = self.bench.client.take(&mut call.pending) else { return };
        let call = self.calls.swap_remove(at);
        match result {
            Ok(payload) => {
                assert_eq!(payload, call.payload);
                assert!(call.kind != Kind::Panic);
            }
            Err(RpcError::DeadlineExceeded { .. }) => {}
            Err(RpcError::HandlerPanicked) => assert!(call.kind == Kind::Panic),
            Err(RpcError::Overloaded(_)) => assert!(call.kind == Kind::Later),
            Err(error) => panic!("{error}"),
        }
    }

    /// From here on nothing goes wrong: all calls must end, without the help of a deadline.
    fn heal(&mut self) {
        self.bench.net.set_reply_memory(true);
        self.bench.test.gate.open();
        for _ in 0..8 {
            self.bench.client.poll();
            self.bench.turn();
        }
        self.bench.client.poll();
        for at in (0..self.calls.len()).rev() {
            self.take(at);
        }
        assert!(self.calls.is_empty(), "{} calls have not ended", self.calls.len());
        assert_eq!(self.bench.client.in_flight(), 0);
        assert_eq!(self.bench.net.unanswered(), 0);
        assert!(self.bench.dispatcher.is_done());
        let snapshot = self.bench.metrics.snapshot();
        assert!(snapshot.methods.iter().all(|method| method.in_flight() == 0));
        // Every slot of the window can be had again.
        let window = self.bench.client.window();
        for _ in 0..window {
            self.start(Kind::Echo);
        }
        assert_eq!(self.calls.len(), window as usize);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_call_ends_once_and_nothing_leaks(
        steps in steps(),
        finish: bool,
    ) {
        let policy = if finish { CancelPolicy::Finish } else { CancelPolicy::Abort };
        let mut swarm = Swarm { bench: bench_with(policy), calls: Vec::new(), started: 0 };
        for step in steps {
            swarm.step(step);
        }
        swarm.heal();
    }
}
