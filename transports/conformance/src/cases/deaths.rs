//! Processes killed with SIGKILL, at any moment: calls end in time, and nothing is left behind.

use std::time::Duration;

use farcall_core::RpcError;

use crate::{
    pattern,
    setup::Setup,
    world::{AnyPending, World},
};

/// How soon a call has ended after its server was killed.
const NOTICED_WITHIN: Duration = Duration::from_secs(2);

/// A killed server: each call in flight ends, and says that it may have run; its address is free.
pub fn a_killed_server_ends_its_calls(world: &World) {
    let mut address: Option<String> = None;
    for round in 0..3u64 {
        let server = match &address {
            None => world.serve_in_process(Setup::default()),
            Some(address) => world.serve_in_process_at(address, Setup::default()),
        };
        address = Some(server.address.clone());
        let mut client = world.client(&server);
        let mut helper = world.client(&server);
        let message = pattern::make(round, 2 << 20);
        let mut pending: Vec<AnyPending> =
            (0..20).map(|_| world.start(&mut client, |c| c.start_hold(1, 0)).into()).collect();
        pending.extend(
            (0..2).map(|seed| {
                world.start(&mut client, |c| c.start_make_held(1, seed, 100_000)).into()
            }),
        );
        world.wait_held(&mut client, &mut helper, 1, 22);
        pending.push(world.start(&mut client, |c| c.start_echo(&message)).into());
        for _ in 0..round * 20 {
            world.turn(&mut client);
        }
        server.kill();
        let killed = world.now();
        for pending in pending {
            match world.finish_any(&mut client, pending) {
                Err(RpcError::PeerGone { may_have_run: _ }) | Ok(()) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        let noticed = world.now() - killed;
        assert!(noticed < NOTICED_WITHIN, "the calls ended only after {noticed:?}");
        let after = world.call(&mut client, |c| c.start_tally(1));
        assert_eq!(after, Err(RpcError::PeerGone { may_have_run: false }));
        let idle = world.call(&mut helper, |c| c.start_tally(1));
        assert!(matches!(idle, Err(RpcError::PeerGone { .. })), "{idle:?}");
    }
}

/// A killed client: the tasks of its calls end, and other clients see nothing.
pub fn a_killed_client_frees_its_calls(world: &World) {
    let server = world.serve(Setup::default());
    let mut other = world.client(&server);
    for _ in 0..3 {
        let mut peer = world.peer();
        peer.ask(&format!("connect {}", server.address), "connected");
        peer.ask("hold 1 10", "holding");
        world.until("ten calls are held", || {
            (world.call(&mut other, |c| c.start_held(1)) == Ok(10)).then_some(())
        });
        peer.kill();
        world.until("the killed client's tasks are gone", || {
            (world.call(&mut other, |c| c.start_held(1)) == Ok(0)).then_some(())
        });
    }
}

/// Clients killed in the middle of large transfers, many times: the server ends where it began.
pub fn clients_killed_in_large_transfers_leave_nothing(world: &World) {
    let server = world.serve(Setup::default().tight_memory(4 << 20));
    let mut other = world.client(&server);
    let mut deaths = |count: usize| {
        for round in 0..count {
            let mut peer = world.peer();
            peer.ask(&format!("connect {}", server.address), "connected");
            peer.ask(&format!("stream {}", 100_000 << (round % 5)), "streaming");
            let message = pattern::make(round as u64, 200_000);
            for _ in 0..round % 4 {
                let echoed = world.call(&mut other, |c| c.start_echo(&message)).expect("echo");
                pattern::assert_is(round as u64, message.len(), &echoed);
            }
            peer.kill();
            let echoed = world.call(&mut other, |c| c.start_echo(&message)).expect("echo");
            pattern::assert_is(round as u64, message.len(), &echoed);
        }
    };
    deaths(3);
    world.settle(&server);
    let before = server.holdings();
    deaths(12);
    if let Some(before) = before {
        world.wait_holdings(&server, before);
    }
    // Memory for large messages is bounded: leases of the dead would have used it up.
    world.assert_large_calls_get_their_memory(&server, 3 << 20);
}
