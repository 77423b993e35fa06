//! Processes killed with SIGKILL at any moment: calls end in time, and nothing is left behind.

use std::time::Duration;

use farcall_core::RpcError;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    inspect::{Holdings, is_stopped},
    patient, pattern,
    setup::Setup,
    world::{AnyPending, World},
};

/// The longest that a call goes on after its server was killed.
const NOTICED_WITHIN: Duration = Duration::from_secs(2);

/// A killed server: each call that was running ends with an error that says it may have run; the address is free again.
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
        let last = world.start(&mut client, |c| c.start_echo(&message));
        for _ in 0..round * 20 {
            world.turn(&mut client);
        }
        server.kill();
        let killed = world.now();
        for pending in pending {
            let ended = world.finish_any(&mut client, pending);
            assert!(
                matches!(ended, Err(RpcError::PeerGone { may_have_run: true, .. })),
                "{ended:?}"
            );
        }
        // How far the last call got depends on the moment.
        match world.finish(&mut client, last) {
            Err(RpcError::PeerGone { .. }) | Ok(_) => {}
            Err(other) => panic!("{other:?}"),
        }
        let noticed = world.now() - killed;
        assert!(noticed < patient(NOTICED_WITHIN), "the calls ended only after {noticed:?}");
        let after = world.call(&mut client, |c| c.start_tally(1));
        assert!(matches!(after, Err(RpcError::PeerGone { may_have_run: false, .. })), "{after:?}");
        let idle = world.call(&mut helper, |c| c.start_tally(1));
        assert!(matches!(idle, Err(RpcError::PeerGone { .. })), "{idle:?}");
    }
}

/// A killed client: the tasks of its calls end, and other clients are not affected.
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

/// Clients killed in the middle of large transfers, many times: the server holds no more than before.
pub fn clients_killed_in_large_transfers_leave_nothing(world: &World) {
    let server = world.serve_in_process(Setup::default().tight_memory(4 << 20));
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
    let before = world.settled_holdings(&server);
    deaths(12);
    world.wait_holdings(&server, &before);
    // Memory for large messages is bounded: leases of killed clients would have used it up.
    world.assert_large_calls_get_their_memory(&server, 3 << 20);
}

fn signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(process as i32).expect("a process has a number");
    kill_process(process, signal).expect("the process is there");
}

/// Stops all threads of a process, and waits until they are stopped.
fn stop(world: &World, process: u32) {
    signal(process, Signal::STOP);
    world.until("the process is stopped", || {
        is_stopped(process).expect("the process is there").then_some(())
    });
}

/// Lets a stopped process go on.
fn resume(process: u32) {
    signal(process, Signal::CONT);
}

/// A client stopped by a signal in the middle of large transfers stalls no other, and goes on when it is resumed.
pub fn a_stopped_client_stalls_no_other(world: &World) {
    let server = world.serve(Setup::default().tight_memory(1 << 20));
    let mut other = world.client(&server);
    let mut peers: Vec<_> = (0..2).map(|_| world.peer()).collect();
    for peer in &mut peers {
        peer.ask(&format!("connect {}", server.address), "connected");
        peer.ask("stream 500000", "streaming");
    }
    for round in 0..10u64 {
        for peer in &peers {
            stop(world, peer.pid());
        }
        for len in [30, 3_000, 400_000] {
            let message = pattern::make(round, len);
            let echoed = world.call(&mut other, |c| c.start_echo(&message)).expect("echo");
            pattern::assert_is(round, len, &echoed);
        }
        for peer in &peers {
            resume(peer.pid());
        }
    }
    // Only a client that still streams answers.
    for peer in &mut peers {
        peer.ask("", "streamed");
    }
}

/// A client stopped by a signal before the server has ever sent it anything stalls no other.
pub fn a_client_stopped_before_its_first_response_stalls_no_other(world: &World) {
    const AT_ONCE: Duration = Duration::from_secs(2);
    let server = world.serve(Setup::default());
    let mut other = world.client(&server);
    let mut peer = world.peer();
    peer.ask(&format!("connect {}", server.address), "connected");
    peer.ask("post 1", "posted");
    world.until("the call is held", || {
        (world.call(&mut other, |c| c.start_held(1)) == Ok(1)).then_some(())
    });
    stop(world, peer.pid());
    let began = world.now();
    world.call(&mut other, |c| c.start_open(1)).expect("open");
    for value in 0..100 {
        world.call(&mut other, |c| c.start_tally(value)).expect("tally");
    }
    let took = world.now() - began;
    resume(peer.pid());
    assert!(took < patient(AT_ONCE), "calls beside a stopped client took {took:?}");
    // It is still there.
    peer.ask("hold 2 1", "holding");
}

/// A server stopped by a signal: calls end by their deadlines, and it answers again when it is resumed.
pub fn a_stopped_server_only_delays_calls(world: &World) {
    let server = world.serve_in_process(Setup::default());
    let mut client = world.client(&server);
    let (process, _) = world.call(&mut client, |c| c.start_whereabouts()).expect("whereabouts");
    let message = pattern::make(1, 200_000);
    for round in 0..5u64 {
        stop(world, process);
        let within = Duration::from_millis(20);
        let small = world.call_within(&mut client, within, |c| c.start_tally(round));
        assert!(matches!(small, Err(RpcError::DeadlineExceeded { .. })), "{small:?}");
        let large = world.call_within(&mut client, within, |c| c.start_echo(&message));
        assert!(matches!(large, Err(RpcError::DeadlineExceeded { .. })), "{:?}", large.err());
        resume(process);
        let executed = world.call(&mut client, |c| c.start_tallied(round)).expect("tallied");
        assert!(executed <= 1, "a late call ran {executed} times");
        let echoed = world.call(&mut client, |c| c.start_echo(&message)).expect("echo");
        pattern::assert_is(1, message.len(), &echoed);
    }
}

/// A client's process releases what it held for connections to servers that were killed.
pub fn clients_release_what_they_held(world: &World) {
    let mut peer = world.peer();
    let mut outlive = |servers: u32| {
        for _ in 0..servers {
            let server = world.serve_in_process(Setup::default());
            peer.ask(&format!("visit {} 6", server.address), "visited");
            peer.ask(&format!("connect {}", server.address), "connected");
            server.kill();
            peer.ask("await_death", "died");
        }
        peer.pid()
    };
    let process = outlive(2);
    let holdings = || Holdings::of(process).expect("the peer is there");
    let mut before = holdings();
    world.until("the peer's holdings have settled", || {
        let now = holdings();
        let same = now == before;
        before = now;
        std::thread::sleep(Duration::from_millis(100));
        same.then_some(())
    });
    outlive(6);
    let mut after = holdings();
    world.until("the peer holds no more than before", || {
        after = holdings();
        after.within(&before).then_some(())
    });
}
