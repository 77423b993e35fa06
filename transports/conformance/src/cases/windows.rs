//! Many calls in flight: a full window is backpressure, never loss and never a hang.

use farcall_core::RpcError;

use crate::{pattern, service::SuitePollClient, setup::Setup, world::World};

/// Fills a window with calls that wait at one gate; one more is refused, and every call is answered.
fn fill_and_drain(world: &World, window: u32) {
    let server = world.serve(Setup::default().window(window));
    let mut client = world.client(&server);
    let mut helper = world.client(&server);
    for gate in 0..3u64 {
        let pending: Vec<_> = (0..u64::from(window))
            .map(|value| (value, world.start(&mut client, |c| c.start_hold(gate, value))))
            .collect();
        world.wait_held(&mut client, &mut helper, gate, u64::from(window));
        // A connection that moves meanwhile has a window on each of its lanes.
        let mut more = Vec::new();
        let refused = loop {
            match client.start_hold(gate, 0) {
                Ok(pending) => more.push(pending),
                Err(refused) => break refused,
            }
            assert!(more.len() <= (world.most_windows() - 1) * window as usize, "it is full");
        };
        assert!(
            matches!(refused, RpcError::Overloaded(_)),
            "{refused:?} does not say that the window is full"
        );
        world.call(&mut helper, |c| c.start_open(gate)).expect("open");
        for (value, pending) in pending {
            assert_eq!(world.finish(&mut client, pending).expect("hold"), value);
        }
        let calls = u64::from(window) + more.len() as u64;
        for pending in more {
            assert_eq!(world.finish(&mut client, pending).expect("hold"), 0);
        }
        let executed = world.call(&mut client, |c| c.start_tallied(gate)).expect("tallied");
        assert_eq!(executed, calls, "each call ran once, and the refused one never");
    }
}

/// One call at a time.
pub fn a_window_of_one(world: &World) {
    fill_and_drain(world, 1);
}

/// Two calls at a time.
pub fn a_window_of_two(world: &World) {
    fill_and_drain(world, 2);
}

/// As many as the backend offers by default.
pub fn a_window_of_64(world: &World) {
    fill_and_drain(world, 64);
}

/// More calls than the window, offered as fast as it takes them: each runs once, each is answered.
pub fn more_calls_than_the_window_all_get_through(world: &World) {
    const CALLS: u64 = 5_000;
    for window in [1, 2, 7, 64] {
        let server = world.serve(Setup::default().window(window));
        let mut client = world.client(&server);
        let mut waiting = std::collections::VecDeque::new();
        for seed in 0..CALLS {
            let len = (seed % 61) as usize;
            let message = pattern::make(seed, len);
            loop {
                match client.start_echo(&message) {
                    Ok(pending) => break waiting.push_back((seed, len, pending)),
                    Err(error) => assert!(matches!(error, RpcError::Overloaded(_)), "{error:?}"),
                }
                let (seed, len, pending) = waiting.pop_front().expect("a full window is not empty");
                pattern::assert_is(seed, len, &world.finish(&mut client, pending).expect("echo"));
            }
        }
        for (seed, len, pending) in waiting {
            pattern::assert_is(seed, len, &world.finish(&mut client, pending).expect("echo"));
        }
    }
}

/// Credits are not ring positions: one slow call keeps its slot while thousands overtake it.
pub fn thousands_of_calls_pass_a_slow_one(world: &World) {
    let server = world.serve(Setup::default().window(4));
    let mut client = world.client(&server);
    let slow = world.start(&mut client, |c| c.start_make_held(1, 99, 3_000));
    for seed in 0..3_000u64 {
        let made = world.call(&mut client, |c| c.start_make(seed, seed % 200)).expect("make");
        pattern::assert_is(seed, (seed % 200) as usize, &made);
    }
    world.call(&mut client, |c| c.start_open(1)).expect("open");
    pattern::assert_is(99, 3_000, &world.finish(&mut client, slow).expect("the slow call"));
}

/// Responses may arrive in any order; each ends its own call.
pub fn answers_in_any_order_find_their_calls(world: &World) {
    const WINDOW: u64 = 16;
    let server = world.serve(Setup::default().window(WINDOW as u32));
    let mut client = world.client(&server);
    let mut helper = world.client(&server);
    for round in 0..8u64 {
        let gate = |i: u64| 1_000 + round * WINDOW + i;
        let mut pending: Vec<_> = (0..WINDOW)
            .map(|i| Some(world.start(&mut client, |c| c.start_hold(gate(i), gate(i)))))
            .collect();
        // A stride that is coprime to the window visits each call once, in another order each round.
        for step in 0..WINDOW {
            let i = (step * (2 * round + 1) + round) % WINDOW;
            world.call(&mut helper, |c| c.start_open(gate(i))).expect("open");
            let pending = pending[i as usize].take().expect("each is visited once");
            assert_eq!(world.finish(&mut client, pending).expect("hold"), gate(i));
        }
    }
}

/// Both directions full of messages beyond a slot: neither ring waits for the other.
pub fn both_directions_full_of_large_messages_go_on(world: &World) {
    let server = world.serve(Setup::default().window(8));
    let mut clients = [world.client(&server), world.client(&server)];
    for round in 0..4u64 {
        let mut pending = Vec::new();
        for (which, client) in clients.iter_mut().enumerate() {
            for i in 0..8u64 {
                let seed = round * 100 + which as u64 * 10 + i;
                let message = pattern::make(seed, 300_000);
                pending.push((which, seed, world.start(client, |c| c.start_echo(&message))));
            }
        }
        for (which, seed, pending) in pending {
            // The other client is polled too, as its thread would.
            let echoed = world.finish_among(&mut clients, which, pending).expect("echo");
            pattern::assert_is(seed, 300_000, &echoed);
        }
    }
}

/// More large messages than either end has memory for, in both directions: neither waits for the other for ever.
pub fn large_messages_beyond_the_memory_go_on(world: &World) {
    const LEN: usize = 2 << 20;
    let setup = Setup::default().window(12).tight_memory(LEN as u64 + 4096);
    let server = world.serve(setup);
    let mut clients = [world.client(&server), world.client(&server)];
    let mut pending = std::collections::VecDeque::new();
    let start = |clients: &mut [SuitePollClient], which: usize, seed: u64| {
        let message = pattern::make(seed, LEN);
        world.until("there is room for one more large call", || {
            match clients[which].start_echo(&message) {
                Ok(call) => Some(call),
                Err(RpcError::Overloaded(_)) => {
                    for client in &mut *clients {
                        client.poll();
                    }
                    None
                }
                Err(error) => panic!("{error:?}"),
            }
        })
    };
    for seed in 0..48u64 {
        let which = seed as usize % 2;
        let call = start(&mut clients, which, seed);
        pending.push_back((which, seed, call));
        if pending.len() == 24
            && let Some((which, seed, call)) = pending.pop_front()
        {
            let echoed = world.finish_among(&mut clients, which, call).expect("echo");
            pattern::assert_is(seed, LEN, &echoed);
        }
    }
    for (which, seed, call) in pending {
        let echoed = world.finish_among(&mut clients, which, call).expect("echo");
        pattern::assert_is(seed, LEN, &echoed);
    }
}
