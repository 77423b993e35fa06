//! Many clients at once.

use std::{thread, time::Duration};

use farcall_core::ConnectError;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::{
    inspect::descriptor_limit, patient, pattern, service::SuitePollClient, setup::Setup,
    world::World,
};

/// Calls of each client of a crowd.
const CALLS: u64 = 150;

/// 64 clients of one server thread, polled in turn by one client thread.
pub fn clients_64_polled_in_turn(world: &World) {
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

/// More clients than the server accepts are refused, with the reason; a client that leaves makes room.
pub fn more_clients_than_the_server_takes_are_refused(world: &World) {
    const MOST: usize = 3;
    let server = world.serve(Setup::default().max_clients(MOST));
    for _ in 0..5 {
        let mut clients: Vec<_> = (0..MOST)
            .map(|_| {
                // The server's thread frees the places of clients that have just left.
                world.until("there is room for one more client", || {
                    world.try_connect::<SuitePollClient>(&server.address).ok()
                })
            })
            .collect();
        match world.try_connect::<SuitePollClient>(&server.address).err() {
            Some(ConnectError::Refused { reason, .. }) => {
                assert!(reason.contains(&MOST.to_string()), "{reason:?} does not say how many");
            }
            other => panic!("{other:?}"),
        }
        for client in &mut clients {
            assert_eq!(world.call(client, |c| c.start_held(1)), Ok(0));
        }
    }
}

/// A server that runs out of file descriptors, at any step of a handshake, refuses new clients in time and serves those that
/// it has.
pub fn a_server_out_of_descriptors_goes_on(world: &World) {
    // A server that cannot reach the client seems silent.
    let server = world.serve_in_process(Setup::default().silence(1));
    let mut first = world.client(&server);
    let (process, _) = world.call(&mut first, |c| c.start_whereabouts()).expect("whereabouts");
    let pid = Pid::from_raw(process as i32);
    let usual = getrlimit(Resource::Nofile);
    let limit = |most| {
        let limit = Rlimit { current: most, maximum: usual.maximum };
        prlimit(pid, Resource::Nofile, limit).expect("limit a process of one's own");
    };
    world.settled_holdings(&server);
    let mut refusals = 0;
    for spare in [0, 1, 2, 3, 4, 6, 8] {
        limit(Some(descriptor_limit(process, spare).expect("look at the process")));
        let soon = patient(Duration::from_millis(300));
        let message = pattern::make(spare, 3_000);
        match world.try_connect_within::<SuitePollClient>(&server.address, soon) {
            Err(_) => refusals += 1,
            // The first call of an accepted client may still fail; it must end.
            Ok(mut newcomer) => {
                let _ = world.call(&mut newcomer, |c| c.start_echo(&message));
            }
        }
        let echoed = world.call(&mut first, |c| c.start_echo(&message)).expect("echo");
        pattern::assert_is(spare, message.len(), &echoed);
        limit(usual.current);
        let mut late: SuitePollClient = world.until("newcomers are welcome again", || {
            world.try_connect_within(&server.address, patient(Duration::from_secs(1))).ok()
        });
        assert_eq!(world.call(&mut late, |c| c.start_held(1)), Ok(0));
    }
    assert!(refusals > 0, "the limit on descriptors was never in force");
}
