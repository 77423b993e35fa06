//! Idle servers and clients sleep, and wake for every event.

use std::{thread, time::Duration};

use farcall_core::RpcError;

use crate::{inspect::thread_cpu_time, patient, pattern, setup::Setup, world::World};

/// How long an idle server is observed.
const WATCHED: Duration = Duration::from_millis(800);

/// An idle server thread, with clients connected, uses under 1 % of a core, and then answers.
pub fn an_idle_server_sleeps_and_wakes(world: &World) {
    let server = world.serve(Setup::default().threads(1));
    let mut clients: Vec<_> = (0..4).map(|_| world.client(&server)).collect();
    let (process, thread) =
        world.call(&mut clients[0], |c| c.start_whereabouts()).expect("whereabouts");
    let burnt = || thread_cpu_time(process, thread).expect("the server's thread is there");
    // The configured spin ends some time after the last call: wait until it has ended.
    world.until("the server's thread has come to rest", || {
        let before = burnt();
        thread::sleep(patient(Duration::from_millis(20)));
        (burnt() - before < patient(Duration::from_millis(1))).then_some(())
    });
    let before = burnt();
    let watched = patient(WATCHED);
    thread::sleep(watched);
    let used = burnt() - before;
    assert!(used < watched / 100, "an idle server has used {used:?} of {watched:?}");
    for client in &mut clients {
        let echoed = world.call(client, |c| c.start_echo(b"awake?")).expect("echo");
        assert_eq!(echoed, b"awake?");
    }
}

/// A server that sleeps at once wakes for each call, and for each of several that arrive together.
pub fn a_sleeping_server_wakes_for_every_call(world: &World) {
    let server = world.serve(Setup::default().threads(1).sleepy());
    let mut clients: Vec<_> = (0..3).map(|_| world.client(&server)).collect();
    for round in 0..400u64 {
        let together = 1 + round as usize % 3;
        let pending: Vec<_> = (0u64..)
            .zip(&mut clients[..together])
            .map(|(i, client)| {
                let seed = round * 3 + i;
                let len = if seed % 40 == 7 { 10_000 } else { 30 };
                let message = pattern::make(seed, len);
                let first = world.start(client, |c| c.start_echo(&message));
                let second = world.start(client, |c| c.start_echo_later(message.clone()));
                client.poll();
                (seed, len, first, second)
            })
            .collect();
        for (client, (seed, len, first, second)) in clients.iter_mut().zip(pending) {
            pattern::assert_is(seed, len, &world.finish(client, first).expect("echo"));
            pattern::assert_is(seed, len, &world.finish(client, second).expect("echo"));
        }
    }
}

/// A sleeping server wakes for other events than calls: a handler's waker, a deadline, a new client.
pub fn a_sleeping_server_wakes_for_its_tasks(world: &World) {
    let server = world.serve(Setup::default().threads(1).sleepy());
    let mut client = world.client(&server);
    for gate in 0..100u64 {
        let held = world.start(&mut client, |c| c.start_hold(gate, gate));
        client.poll();
        server.open(gate);
        assert_eq!(world.finish(&mut client, held), Ok(gate));
    }
    for _ in 0..20 {
        let mut late = world.client(&server);
        assert_eq!(world.call(&mut late, |c| c.start_held(1)), Ok(0));
    }
}

/// A sleeping client is woken by each response and by each deadline.
pub fn a_sleeping_client_wakes(world: &World) {
    let server = world.serve(Setup::default().sleepy());
    let mut client = world.sleepy_client(&server);
    for seed in 0..300u64 {
        let len = if seed % 30 == 7 { 20_000 } else { 30 };
        let message = pattern::make(seed, len);
        let echoed = client.echo_later(message).expect("echo");
        pattern::assert_is(seed, len, &echoed);
    }
    client.connection().set_timeout(Duration::from_millis(5));
    for _ in 0..10 {
        let ended = client.hold(1, 0);
        assert!(matches!(ended, Err(RpcError::DeadlineExceeded { .. })), "{ended:?}");
    }
}
