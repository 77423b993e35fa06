//! Many clients at once.

use std::thread;

use crate::{pattern, setup::Setup, world::World};

/// Calls of each client of a crowd.
const CALLS: u64 = 150;

/// 64 clients of one server thread, taken in turns by one thread of theirs.
pub fn clients_64_in_turns(world: &World) {
    let server = world.serve(Setup::default().threads(1).window(8));
    let mut clients: Vec<_> = (0..64).map(|_| world.client(&server)).collect();
    for round in 0..10u64 {
        let pending: Vec<_> = (0u64..)
            .zip(&mut clients)
            .map(|(i, client)| {
                let seed = round * 64 + i;
                let len = if (seed % 16) == 3 { 20_000 } else { (seed % 90) as usize };
                let message = pattern::make(seed, len);
                (seed, len, world.start(client, |c| c.start_echo(&message)))
            })
            .collect();
        for (client, (seed, len, pending)) in clients.iter_mut().zip(pending) {
            let echoed = world.finish(client, pending).expect("echo");
            pattern::assert_is(seed, len, &echoed);
        }
    }
}

/// 64 clients, each on a thread of its own, at two server threads.
pub fn clients_64_on_threads(world: &World) {
    let server = world.serve(Setup::default().threads(2).window(8));
    thread::scope(|scope| {
        for who in 0..64u64 {
            let server = &server;
            scope.spawn(move || {
                let mut client = world.client(server);
                for call in 0..CALLS {
                    let seed = who * CALLS + call;
                    let len = if call % 50 == 9 { 30_000 } else { (seed % 90) as usize };
                    let message = pattern::make(seed, len);
                    let echoed = world.call(&mut client, |c| c.start_echo(&message));
                    pattern::assert_is(seed, len, &echoed.expect("echo"));
                    assert_eq!(world.call(&mut client, |c| c.start_tally(who)), Ok(call + 1));
                }
            });
        }
    });
}

/// 64 clients in eight processes.
pub fn clients_64_in_processes(world: &World) {
    let server = world.serve(Setup::default().window(8));
    let mut peers: Vec<_> = (0..8).map(|_| world.peer()).collect();
    let crowd = format!("crowd {} 8 {CALLS}", server.address);
    for peer in &mut peers {
        peer.order(&crowd);
    }
    for peer in &mut peers {
        peer.expect(&crowd, "served");
    }
    for peer in peers {
        peer.finish();
    }
}
