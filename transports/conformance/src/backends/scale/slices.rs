//! Clients that are busy, call seldom, or are pinned, in groups that change.

use farcall_core::RpcError;

use crate::{
    pattern,
    service::SuitePollClient,
    setup::Setup,
    world::{Server, World},
};

/// A server of small groups and short slices, unless the fixture wants others, with room for two pinned clients.
fn serve(world: &World) -> Server {
    let setup = Setup::default().threads(1);
    let mut address = world.fresh_address(&setup);
    if !address.contains("group=") {
        address += "&group=2&slice=20us";
    }
    address += "&pins=2";
    match world.try_serve_at(&address, setup) {
        Ok(server) => server,
        Err(error) => panic!("serve at {address}: {error}"),
    }
}

/// A window of so many calls at once, each answered by its own bytes.
fn call_at_once(world: &World, client: &mut SuitePollClient, calls: u64, seed: u64) {
    let message = |call| pattern::make(seed + call, 20 + (call as usize % 4) * 300);
    let pending: Vec<_> =
        (0..calls).map(|call| world.start(client, |c| c.start_echo(&message(call)))).collect();
    for (call, pending) in (0..calls).zip(pending) {
        let echoed: Result<_, RpcError> = world.finish(client, pending);
        assert_eq!(echoed.expect("echo"), message(call));
    }
}

/// Which clients are busy changes, so that the groups are formed again and again.
pub(super) fn clients_that_become_busy_and_idle(world: &World) {
    let server = serve(world);
    let mut clients: Vec<_> = (0..8).map(|_| world.client(&server)).collect();
    for round in 0..60u64 {
        let calls: Vec<u64> =
            (0..8).map(|who| if who % 4 == round / 15 { 16 } else { 1 }).collect();
        // All at once, so that groups wait for each other.
        let started: Vec<_> = clients
            .iter_mut()
            .zip(&calls)
            .map(|(client, calls)| {
                let start = |call| world.start(client, |c| c.start_echo(&[round as u8, call]));
                (0..*calls as u8).map(start).collect::<Vec<_>>()
            })
            .collect();
        for (who, pending) in started.into_iter().enumerate() {
            for (call, pending) in (0..).zip(pending) {
                let echoed = world.finish_among(&mut clients, who, pending).expect("echo");
                assert_eq!(echoed, [round as u8, call]);
            }
        }
    }
}

/// More clients want to be pinned than may be; those that are, those that are not and others are served.
pub(super) fn pinned_clients_among_others(world: &World) {
    let server = serve(world);
    let pinned = format!("{}&pinned=yes", server.address);
    let connect = || match world.try_connect::<SuitePollClient>(&pinned) {
        Ok(client) => client,
        Err(error) => panic!("connect to {pinned}: {error}"),
    };
    let mut clients: Vec<_> = (0..3).map(|_| world.client(&server)).collect();
    clients.extend((0..4).map(|_| connect()));
    for round in 0..30u64 {
        for (who, client) in (0..).zip(&mut clients) {
            call_at_once(world, client, 1 + (round + who) % 9, 100 * round + who);
        }
        // One goes, and a new one may be pinned.
        if round % 5 == 4 {
            drop(clients.remove(3));
            clients.push(connect());
        }
    }
}

/// Large messages and cancellations of a client that is pinned.
pub(super) fn a_pinned_client_does_all_that_others_do(world: &World) {
    let server = serve(world);
    let mut other = world.client(&server);
    let address = format!("{}&pinned=yes", server.address);
    let mut pinned: SuitePollClient = world.try_connect(&address).expect("connect");
    for seed in 0..10 {
        let large = pattern::make(seed, 100_000);
        let echoed = world.call(&mut pinned, |c| c.start_echo(&large));
        assert_eq!(echoed.expect("echo"), large);
        drop(world.start(&mut pinned, |c| c.start_hold(seed, 1)));
        for client in [&mut other, &mut pinned] {
            call_at_once(world, client, 5, 10 * seed);
        }
        world.call(&mut other, |c| c.start_open(seed)).expect("open");
    }
}
