//! Calls dropped by their callers: both ends release them, and other calls are not affected.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::{
    pattern,
    setup::Setup,
    world::{AnyPending, World},
};

/// Dropping a call ends its handler's task at the server.
pub fn a_dropped_call_ends_its_task(world: &World) {
    let server = world.serve(Setup::default());
    let mut client = world.client(&server);
    let mut helper = world.client(&server);
    let pending = world.start(&mut client, |c| c.start_hold(1, 0));
    world.wait_held(&mut client, &mut helper, 1, 1);
    client.connection().cancel(pending);
    world.wait_held(&mut client, &mut helper, 1, 0);
    // Dropping its token does the same.
    let pending = world.start(&mut client, |c| c.start_hold(1, 0));
    world.wait_held(&mut client, &mut helper, 1, 1);
    drop(pending);
    world.wait_held(&mut client, &mut helper, 1, 0);
}

/// Dropping one call of a window does not affect the others, and errors reach the right call.
pub fn a_dropped_call_does_not_affect_others(world: &World) {
    const WINDOW: u64 = 9;
    let server = world.serve(Setup::default().window(WINDOW as u32));
    let mut client = world.client(&server);
    let mut helper = world.client(&server);
    for gate in 0..30u64 {
        let mut kept = Vec::new();
        let mut dropped = Vec::new();
        for value in 0..WINDOW {
            match value % 3 {
                0 => kept.push((value, world.start(&mut client, |c| c.start_hold(gate, value)))),
                _ => dropped.push(world.start(&mut client, |c| c.start_hold(gate, value))),
            }
        }
        for pending in dropped {
            client.connection().cancel(pending);
        }
        world.call(&mut helper, |c| c.start_open(gate)).expect("open");
        for (value, pending) in kept {
            assert_eq!(world.finish(&mut client, pending), Ok(value));
        }
    }
}

/// Thousands of calls dropped at every stage leak no slot and no credit.
pub fn thousands_of_dropped_calls_leave_a_full_window(world: &World) {
    const WINDOW: u32 = 16;
    let server = world.serve(Setup::default().window(WINDOW));
    let mut client = world.client(&server);
    let mut helper = world.client(&server);
    for i in 0..4_000u64 {
        let pending = world.start(&mut client, |c| c.start_echo_later(vec![i as u8; 20]));
        for _ in 0..i % 7 {
            world.turn(&mut client);
        }
        match i % 2 {
            0 => drop(pending),
            _ => client.connection().cancel(pending),
        }
    }
    world.assert_full_window_works(&mut client, &mut helper, WINDOW);
}

/// Calls dropped while their large messages are in flight, at many moments, in each direction.
pub fn dropped_large_calls_free_their_memory(world: &World) {
    const LEN: usize = 1 << 20;
    // Memory for a few messages at a time: leaks soon exhaust it.
    let setup = Setup::default().window(4).tight_memory(LEN as u64 + 4096);
    let server = world.serve(setup);
    let mut client = world.client(&server);
    let mut helper = world.client(&server);
    let message = pattern::make(1, LEN);
    for turns in 0..150u64 {
        let pending: AnyPending = match turns % 3 {
            0 => world.start(&mut client, |c| c.start_echo(&message)).into(),
            1 => world.start(&mut client, |c| c.start_check(1, &message)).into(),
            _ => world.start(&mut client, |c| c.start_make(1, LEN as u64)).into(),
        };
        for _ in 0..turns / 3 {
            world.turn(&mut client);
        }
        pending.cancel(&mut client);
    }
    for seed in 0..8u64 {
        let message = pattern::make(seed, LEN);
        let echoed = world.call(&mut client, |c| c.start_echo(&message)).expect("echo");
        pattern::assert_is(seed, LEN, &echoed);
    }
    world.assert_full_window_works(&mut client, &mut helper, 4);
}

/// A whole large window cancelled at once, repeatedly: the cancellations need room too.
pub fn a_whole_window_cancelled_at_once(world: &World) {
    const WINDOW: u32 = 512;
    let server = world.serve(Setup::default().window(WINDOW));
    let mut client = world.client(&server);
    let mut helper = world.client(&server);
    for gate in 0..8u64 {
        let pending: Vec<_> =
            (0..WINDOW).map(|_| world.start(&mut client, |c| c.start_hold(gate, 0))).collect();
        if gate % 2 == 0 {
            world.wait_held(&mut client, &mut helper, gate, u64::from(WINDOW));
        }
        for pending in pending {
            client.connection().cancel(pending);
        }
    }
    world.assert_full_window_works(&mut client, &mut helper, WINDOW);
}

/// Clients that give up whole windows, on and on, while the server's thread is busy: another client's calls run in between, as if their
/// calls were few.
pub fn clients_that_cancel_delay_no_other(world: &World) {
    const CLIENTS: u64 = 28;
    const WINDOW: u32 = 64;
    /// Of those, the middle one counts: a busy machine may hold up any client.
    const CALLS: usize = 15;
    const RUN: u64 = 1;
    const RUN_MICROS: u64 = 1000;
    let server = world.serve(Setup::default().threads(1).window(WINDOW));
    let is_over = AtomicBool::new(false);
    let ran_meanwhile = thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = world.client(&server);
                while !is_over.load(Ordering::Relaxed) {
                    let mut start = || client.start_work(RUN, RUN_MICROS).ok();
                    let calls: Vec<_> = (0..WINDOW).map_while(|_| start()).collect();
                    world.turn(&mut client);
                    calls.into_iter().for_each(|call| client.connection().cancel(call));
                    world.turn(&mut client);
                }
            });
        }
        let mut other = world.client(&server);
        let mut tallied = || world.call(&mut other, |c| c.start_tallied(RUN)).expect("a count");
        world.until("the others are busy", || (tallied() > CLIENTS).then_some(()));
        let counts: Vec<_> = (0..=CALLS).map(|_| tallied()).collect();
        is_over.store(true, Ordering::Relaxed);
        let mut ran: Vec<_> = counts.windows(2).map(|two| two[1] - two[0]).collect();
        ran.sort_unstable();
        ran
    });
    let median = ran_meanwhile[CALLS / 2];
    assert!(median <= CLIENTS, "so many calls ran while another client waited: {ran_meanwhile:?}");
}
