//! Servers and clients that end in an orderly way: no accepted call is lost, whatever ends first.

use farcall_core::{ConnectError, RpcError};

use crate::{
    pattern,
    service::SuitePollClient,
    setup::Setup,
    world::{AnyPending, World},
};

/// A server that shuts down answers the calls it has accepted, and accepts no more.
pub fn a_shutdown_drains_the_calls_in_flight(world: &World) {
    let server = world.serve(Setup::default());
    let mut client = world.client(&server);
    let mut helper = world.client(&server);
    let small: Vec<_> =
        (0..10).map(|value| world.start(&mut client, |c| c.start_hold(1, value))).collect();
    let large: Vec<_> = (0..3)
        .map(|seed| world.start(&mut client, |c| c.start_make_held(1, seed, 100_000)))
        .collect();
    world.wait_held(&mut client, &mut helper, 1, 13);
    drop(helper);
    let address = server.address.clone();
    let mut ending = server.begin_shutdown();
    ending.open(1);
    for (value, pending) in (0..10).zip(small) {
        assert_eq!(world.finish(&mut client, pending), Ok(value));
    }
    for (seed, pending) in (0..3).zip(large) {
        let made = world.finish(&mut client, pending).expect("make");
        pattern::assert_is(seed, 100_000, &made);
    }
    world.wait_ended(ending, &mut client);
    // The goodbye may still be under way.
    world.until("the client hears that the server has left", || {
        world.turn(&mut client);
        client.connection().is_closed().then_some(())
    });
    let after = world.call(&mut client, |c| c.start_tally(1));
    assert!(matches!(after, Err(RpcError::PeerGone { may_have_run: false, .. })), "{after:?}");
    let refused = world.try_connect::<SuitePollClient>(&address).err();
    assert!(matches!(refused, Some(ConnectError::NoServer { .. })), "{refused:?}");
}

/// A server that ends without draining: each call in flight ends with an error that says it may have run.
pub fn a_server_that_ends_at_once_ends_its_calls(world: &World) {
    for window in [1, 8] {
        let server = world.serve(Setup::default().window(window));
        let mut client = world.client(&server);
        let mut helper = world.client(&server);
        let pending: Vec<_> =
            (0..window).map(|_| world.start(&mut client, |c| c.start_hold(1, 0))).collect();
        world.wait_held(&mut client, &mut helper, 1, u64::from(window));
        server.kill();
        for pending in pending {
            let ended = world.finish(&mut client, pending);
            match ended {
                // Its handler was dropped, or its server.
                Err(RpcError::Cancelled | RpcError::PeerGone { may_have_run: true, .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        let after = world.call(&mut client, |c| c.start_tally(1));
        assert!(matches!(after, Err(RpcError::PeerGone { may_have_run: false, .. })), "{after:?}");
    }
}

/// A client that leaves with calls in flight: its tasks end, and other clients are not affected.
pub fn a_client_that_leaves_with_calls_in_flight_frees_them(world: &World) {
    let server = world.serve(Setup::default().tight_memory(2 << 20));
    let mut other = world.client(&server);
    let message = pattern::make(4, 1 << 20);
    for round in 0..12u64 {
        let mut client = world.client(&server);
        let held: Vec<AnyPending> =
            (0..5).map(|_| world.start(&mut client, |c| c.start_hold(1, 0)).into()).collect();
        let large: Vec<AnyPending> =
            (0..3).map(|_| world.start(&mut client, |c| c.start_echo(&message)).into()).collect();
        world.wait_held(&mut client, &mut other, 1, 5);
        for _ in 0..round * 3 {
            world.turn(&mut client);
        }
        // The calls' tokens outlive the connection, or go before it.
        if round % 2 == 0 {
            drop(client);
            drop((held, large));
        } else {
            drop((held, large));
            drop(client);
        }
        world.until("the tasks of the client that left are gone", || {
            (world.call(&mut other, |c| c.start_held(1)) == Ok(0)).then_some(())
        });
        let echoed = world.call(&mut other, |c| c.start_echo(&message)).expect("echo");
        pattern::assert_is(4, message.len(), &echoed);
    }
}

/// Clients that connect, call and leave, hundreds of times.
pub fn clients_come_and_go(world: &World) {
    let server = world.serve(Setup::default().window(4).tight_memory(1 << 20));
    let mut stays = world.client(&server);
    for visit in 1..=300u64 {
        let mut client = world.client(&server);
        let message = pattern::make(visit, (visit % 100) as usize);
        let echoed = world.call(&mut client, |c| c.start_echo(&message)).expect("echo");
        pattern::assert_is(visit, message.len(), &echoed);
        assert_eq!(world.call(&mut stays, |c| c.start_tally(1)), Ok(visit));
    }
}

/// A server releases what it held for clients that have left.
pub fn what_clients_held_is_released(world: &World) {
    let server = world.serve(Setup::default());
    let visit = || {
        let mut clients: Vec<_> = (0..4).map(|_| world.client(&server)).collect();
        for client in &mut clients {
            let message = pattern::make(1, 300_000);
            let echoed = world.call(client, |c| c.start_echo(&message)).expect("echo");
            pattern::assert_is(1, message.len(), &echoed);
        }
    };
    visit();
    let before = world.settled_holdings(&server);
    for _ in 0..10 {
        visit();
    }
    world.wait_holdings(&server, &before);
}
