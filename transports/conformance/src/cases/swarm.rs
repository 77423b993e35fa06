//! Everything at random, from a seed: clients come and go, and calls of all kinds and sizes are made, dropped and late. Every
//! response is checked, and at the end everything still works.

use std::{collections::HashMap, env, time::Duration};

use farcall_core::{PendingCall, RpcError};

use crate::{dice::Dice, patient, pattern, service::SuitePollClient, setup::Setup, world::World};

/// The range of seeds to run, such as `100..200`; a few if it is not set.
pub const SEEDS_VARIABLE: &str = "FARCALL_CONFORMANCE_SEEDS";

const STEPS: u32 = 1_500;
const CLIENTS: usize = 4;
const WINDOW: u32 = 6;
const LIMIT: u64 = 600_000;

/// The seeds to run.
pub fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = env::var(SEEDS_VARIABLE) else { return 1..4 };
    let ends = text.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    ends.unwrap_or_else(|| panic!("{SEEDS_VARIABLE}={text} is no range such as 100..200"))
}

/// A call in flight, and its expected outcome.
enum Call {
    Bytes { seed: u64, len: usize, pending: PendingCall<Result<Vec<u8>, RpcError>> },
    Tally { id: u64, pending: PendingCall<Result<u64, RpcError>> },
    Held { gate: u64, pending: PendingCall<Result<u64, RpcError>> },
}

struct Actor {
    client: SuitePollClient,
    calls: Vec<Call>,
}

struct Swarm<'w> {
    world: &'w World<'w>,
    dice: Dice,
    next: u64,
    /// Calls that count their executions, and whether they must have run, may have, or must not.
    tallies: HashMap<u64, Ran>,
}

#[derive(Clone, Copy, Debug)]
enum Ran {
    Once,
    AtMostOnce,
    Never,
}

impl Swarm<'_> {
    fn len(&mut self) -> usize {
        match self.dice.below(8) {
            0 => 0,
            1..=3 => self.dice.below(60) as usize,
            4 => 200 + self.dice.below(200) as usize,
            5 => 3_900 + self.dice.below(300) as usize,
            6 => self.dice.below(40_000) as usize,
            _ => self.dice.below(LIMIT - 5_000) as usize,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Starts a call of some kind, if there is room.
    fn start(&mut self, actor: &mut Actor) {
        let (seed, len) = (self.number(), self.len());
        let late = self.dice.below(5) == 0;
        if late {
            let micros = self.dice.below(400);
            actor.client.connection().set_timeout(Duration::from_micros(micros));
        }
        let client = &mut actor.client;
        let started = match self.dice.below(6) {
            0 => client.start_make(seed, len as u64).map(|pending| Call::Bytes {
                seed,
                len,
                pending,
            }),
            1 => {
                let message = pattern::make(seed, len);
                client.start_echo(&message).map(|pending| Call::Bytes { seed, len, pending })
            }
            2 => {
                let message = pattern::make(seed, len);
                client.start_echo_later(message).map(|pending| Call::Bytes { seed, len, pending })
            }
            3 => client.start_hold(seed, seed).map(|pending| Call::Held { gate: seed, pending }),
            _ => {
                self.tallies.insert(seed, Ran::Never);
                client.start_tally(seed).map(|pending| Call::Tally { id: seed, pending })
            }
        };
        match started {
            Ok(call) => {
                if let Call::Tally { id, .. } = &call {
                    self.tallies.insert(*id, Ran::AtMostOnce);
                }
                actor.calls.push(call);
            }
            Err(
                RpcError::Overloaded(_) | RpcError::DeadlineExceeded { may_have_run: false, .. },
            ) => {}
            Err(other) => panic!("{other:?}"),
        }
        if late {
            client.connection().set_timeout(patient(crate::world::BOUND));
        }
    }

    /// Checks the outcome of a call if it has ended.
    fn take(&mut self, actor: &mut Actor, at: usize) {
        let client = &mut actor.client;
        let ended = match &mut actor.calls[at] {
            Call::Bytes { seed, len, pending } => client
                .take(pending)
                .map(|outcome| outcome.map(|bytes| pattern::assert_is(*seed, *len, &bytes))),
            Call::Tally { id, pending } => client.take(pending).map(|outcome| {
                let ran = match &outcome {
                    Ok(count) => {
                        assert_eq!(*count, 1, "call {id} has run before");
                        Ran::Once
                    }
                    Err(error) if error.may_have_run() => Ran::AtMostOnce,
                    Err(_) => Ran::Never,
                };
                self.tallies.insert(*id, ran);
                outcome.map(drop)
            }),
            Call::Held { gate, pending } => client.take(pending).map(|outcome| {
                outcome.map(|value| assert_eq!(value, *gate, "another call's answer"))
            }),
        };
        match ended {
            None => return,
            Some(Ok(()) | Err(RpcError::DeadlineExceeded { .. })) => {}
            Some(Err(other)) => panic!("{other:?}"),
        }
        actor.calls.swap_remove(at);
    }

    fn cancel(&mut self, actor: &mut Actor, at: usize) {
        let connection = actor.client.connection();
        match actor.calls.swap_remove(at) {
            Call::Bytes { pending, .. } => connection.cancel(pending),
            Call::Tally { pending, .. } | Call::Held { pending, .. } => connection.cancel(pending),
        }
    }
}

/// A few seeds; more with [`SEEDS_VARIABLE`].
pub fn everything_at_once(world: &World) {
    for seed in seeds() {
        println!("seed {seed}");
        run(world, seed);
    }
}

fn run(world: &World, seed: u64) {
    let setup = Setup::default().window(WINDOW).tight_memory(LIMIT).threads(1 + seed as usize % 2);
    let setup = if seed.is_multiple_of(3) { setup.sleepy() } else { setup };
    let server = world.serve(setup);
    let mut helper = world.client(&server);
    let connect = || Actor { client: world.client(&server), calls: Vec::new() };
    let mut actors: Vec<_> = (0..CLIENTS).map(|_| connect()).collect();
    let mut swarm =
        Swarm { world, dice: Dice::new(seed), next: seed << 32, tallies: HashMap::new() };
    for _ in 0..STEPS {
        let which = swarm.dice.below(CLIENTS as u64) as usize;
        let actor = &mut actors[which];
        let some_call = (!actor.calls.is_empty())
            .then(|| swarm.dice.below(actor.calls.len().max(1) as u64) as usize);
        match (swarm.dice.below(20), some_call) {
            (0..=6, _) => swarm.start(actor),
            (7..=12, _) => {
                actor.client.poll();
            }
            (13..=15, Some(at)) => swarm.take(actor, at),
            (16, Some(at)) => swarm.cancel(actor, at),
            (17, Some(at)) => {
                if let Call::Held { gate, .. } = actor.calls[at] {
                    server.open(gate);
                }
            }
            (18, _) => swarm.world.turn(&mut helper),
            (19, _) if swarm.dice.below(12) == 0 => *actor = connect(),
            _ => {}
        }
    }
    // Open the gates, and finish all calls.
    for mut actor in actors {
        for call in &actor.calls {
            if let Call::Held { gate, .. } = call {
                server.open(*gate);
            }
        }
        world.until("the calls of the swarm have ended", || {
            actor.client.poll();
            for at in (0..actor.calls.len()).rev() {
                swarm.take(&mut actor, at);
            }
            actor.calls.is_empty().then_some(())
        });
        world.assert_full_window_works(&mut actor.client, &mut helper, WINDOW);
    }
    for (id, ran) in &swarm.tallies {
        let executed = world.call(&mut helper, |c| c.start_tallied(*id)).expect("tallied");
        let fits = match ran {
            Ran::Once => executed == 1,
            Ran::AtMostOnce => executed <= 1,
            Ran::Never => executed == 0,
        };
        assert!(fits, "seed {seed}: call {id} ran {executed} times; it should have: {ran:?}");
    }
}
