//! A slow handler or client delays nobody else, and takes no more memory than it may.

use super::counting::value;
use crate::{
    inspect::peak_memory,
    pattern,
    setup::Setup,
    world::{AnyPending, World},
};

/// A handler that awaits delays neither the other clients of its thread nor its own client.
pub fn a_waiting_handler_stalls_no_other_call(world: &World) {
    let server = world.serve(Setup::default().threads(1));
    let mut client = world.client(&server);
    let mut other = world.client(&server);
    let waiting: Vec<_> =
        (0..20).map(|value| world.start(&mut client, |c| c.start_hold(1, value))).collect();
    for seed in 0..200u64 {
        let message = pattern::make(seed, 40);
        for client in [&mut client, &mut other] {
            let echoed = world.call(client, |c| c.start_echo_later(message.clone()));
            pattern::assert_is(seed, 40, &echoed.expect("echo"));
        }
    }
    world.call(&mut other, |c| c.start_open(1)).expect("open");
    for (value, pending) in (0..20).zip(waiting) {
        assert_eq!(world.finish(&mut client, pending), Ok(value));
    }
}

/// A handler that blocks its thread delays the clients of that thread, and no others.
pub fn a_blocking_handler_stalls_only_its_thread(world: &World) {
    let server = world.serve(Setup::default().threads(2));
    let mut first = world.client(&server);
    let home = world.call(&mut first, |c| c.start_whereabouts()).expect("whereabouts");
    // Clients are spread over the threads in some order: one of a few is on the other thread.
    let mut second = (0..16)
        .map(|_| world.client(&server))
        .find_map(|mut client| {
            let its = world.call(&mut client, |c| c.start_whereabouts()).expect("whereabouts");
            (its != home).then_some(client)
        })
        .expect("16 clients are spread over two threads");
    let mut blocked = world.start(&mut first, |c| c.start_block(1));
    first.poll();
    world.until("the handler blocks its thread", || {
        (world.call(&mut second, |c| c.start_held(1)) == Ok(1)).then_some(())
    });
    for seed in 0..100 {
        let message = pattern::make(seed, 40);
        let echoed = world.call(&mut second, |c| c.start_echo(&message));
        pattern::assert_is(seed, 40, &echoed.expect("echo"));
    }
    world.turn(&mut first);
    assert!(first.take(&mut blocked).is_none(), "the handler does not block");
    server.open(1);
    world.finish(&mut first, blocked).expect("block");
}

/// With threads that steal, a call that is known to block runs on an idle thread, and its client's other calls go on.
pub fn a_blocking_handler_moves_to_an_idle_thread(world: &World) {
    let server = world.serve(Setup::default().threads(2).steals());
    let mut client = world.client(&server);
    let home = world.call(&mut client, |c| c.start_whereabouts()).expect("whereabouts");
    let counter = |name: &str| {
        let metrics = server.metrics();
        let line =
            metrics.lines().find(|line| line.starts_with(name) && line.contains("\"block\""));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).expect("a counter")
    };
    // The first one runs at home: it is not yet known to take long. Later ones do too if the other thread is not idle.
    for gate in 0..100 {
        let stolen = counter("farcall_server_calls_stolen");
        let blocked = world.start(&mut client, |c| c.start_block(gate));
        world.until("the handler blocks a thread", || {
            world.turn(&mut client);
            (counter("farcall_server_calls_in_flight") == 1).then_some(())
        });
        // A call is counted once it is given away, which may be after its handler began.
        let is_stolen = counter("farcall_server_calls_stolen") > stolen;
        if is_stolen {
            assert_eq!(world.call(&mut client, |c| c.start_whereabouts()), Ok(home));
        }
        server.open(gate);
        world.finish(&mut client, blocked).expect("block");
        if is_stolen {
            return;
        }
    }
    panic!("no thread has stolen a call");
}

/// A client that reads no responses does not stall the other clients of its thread.
pub fn a_client_that_never_polls_stalls_no_other(world: &World) {
    let server = world.serve(Setup::default().threads(1).window(8));
    let mut silent = world.client(&server);
    let mut other = world.client(&server);
    // Small responses, large responses and large requests, none of them polled.
    let mut left: Vec<AnyPending> = (0..4u64)
        .map(|seed| world.start(&mut silent, |c| c.start_make(seed, 200_000)).into())
        .collect();
    let message = pattern::make(9, 200_000);
    left.extend((0..2).map(|_| world.start(&mut silent, |c| c.start_echo(&message)).into()));
    left.extend((0..2).map(|_| world.start(&mut silent, |c| c.start_tally(5)).into()));
    for seed in 0..500u64 {
        let len = if seed % 10 == 0 { 150_000 } else { 100 };
        let made = world.call(&mut other, |c| c.start_make(seed, len)).expect("make");
        pattern::assert_is(seed, len as usize, &made);
    }
    for pending in left {
        world.finish_any(&mut silent, pending).expect("a call that was not polled");
    }
    let made = world.call(&mut silent, |c| c.start_make(1, 100)).expect("make");
    pattern::assert_is(1, 100, &made);
}

/// A client that does not read large responses does not hold the memory that others need.
pub fn unread_responses_keep_no_memory_from_others(world: &World) {
    const LEN: u64 = 6 << 20;
    let setup = Setup::default().window(8).tight_memory(LEN + 4096);
    let server = world.serve(setup.threads(1));
    let mut silent = world.client(&server);
    let mut other = world.client(&server);
    let left: Vec<_> =
        (0..8).map(|seed| world.start(&mut silent, |c| c.start_make(seed, LEN))).collect();
    silent.poll();
    let start = world.now();
    for seed in 0..3u64 {
        let message = pattern::make(seed, LEN as usize);
        let echoed = world.call(&mut other, |c| c.start_echo(&message)).expect("echo");
        pattern::assert_is(seed, LEN as usize, &echoed);
    }
    let took = world.now() - start;
    // Less than the stall limit: nobody waited for the silent client to be dropped.
    assert!(took.as_secs() < 8, "the other client waited {took:?} for memory");
    for (seed, pending) in (0..).zip(left) {
        let made = world.finish(&mut silent, pending).expect("make");
        pattern::assert_is(seed, LEN as usize, &made);
    }
}

/// Responses that a client does not read hold less than twice the memory that the server may use for large messages,
/// whether handlers answer in place or later.
pub fn unread_responses_hold_bounded_memory(world: &World) {
    const MEMORY: u64 = 64 << 20;
    const CALLS: u64 = 60;
    const LEN: u64 = 15 << 20;
    const GATE: u64 = 1;
    let mut setup = Setup::default().window(64).threads(1).max_message(16 << 20);
    setup.memory = Some(MEMORY);
    for in_place in [true, false] {
        let server = world.serve_in_process(setup.clone());
        let mut silent = world.client(&server);
        let mut other = world.client(&server);
        let (process, _) = world.call(&mut other, |c| c.start_whereabouts()).expect("whereabouts");
        let peak = || peak_memory(process).expect("the memory of the server's process");
        let before = peak();
        let mut left = Vec::new();
        for seed in 0..CALLS {
            left.push(match in_place {
                true => world.start(&mut silent, |c| c.start_make(seed, LEN)),
                false => world.start(&mut silent, |c| c.start_make_held(GATE, seed, LEN)),
            });
        }
        silent.poll();
        if !in_place {
            world.until("the calls wait at the gate", || {
                (world.call(&mut other, |c| c.start_held(GATE)) == Ok(CALLS)).then_some(())
            });
            world.call(&mut other, |c| c.start_open(GATE)).expect("open");
        }
        world.until("the server has handled the calls", || {
            let method = if in_place { "\"make\"" } else { "\"make_held\"" };
            let calls = value(&server.metrics(), &["farcall_server_calls_total", method]);
            let held = world.call(&mut other, |c| c.start_held(GATE));
            (calls == CALLS as f64 && held == Ok(0)).then_some(())
        });
        let taken = peak() - before;
        assert!(taken < 2 * MEMORY, "in place: {in_place}: {} MiB", taken >> 20);
    }
}

/// A client that has more large responses than its share of the memory and reads none is dropped, also if no other needs the
/// memory.
pub fn a_client_that_reads_no_large_responses_is_dropped(world: &World) {
    const CALLS: u64 = 8;
    const LEN: u64 = 6 << 20;
    const GATE: u64 = 1;
    let setup = Setup::default().window(CALLS as u32).tight_memory(LEN + 4096);
    let server = world.serve(setup.threads(1));
    let mut silent = world.client(&server);
    let mut other = world.client(&server);
    let _left: Vec<_> = (0..CALLS)
        .map(|seed| world.start(&mut silent, |c| c.start_make_held(GATE, seed, LEN)))
        .collect();
    // Until then it is polled: requests that are lost are sent again.
    world.wait_held(&mut silent, &mut other, GATE, CALLS);
    world.call(&mut other, |c| c.start_open(GATE)).expect("open");
    let count = |name: &str| value(&server.metrics(), &[name, "\"make_held\""]);
    world.until("the server has handled the calls", || {
        world.turn(&mut other);
        (count("farcall_server_calls_total") == CALLS as f64).then_some(())
    });
    let start = world.now();
    let mut pass = |until_second: u64| {
        world.until("time passes", || {
            world.turn(&mut other);
            ((world.now() - start).as_secs() >= until_second).then_some(())
        });
    };
    // The backends' limit is 10 s, and 6 s more where a client READs the response.
    pass(8);
    assert!(count("farcall_server_calls_in_flight") > 0.0, "no response waits any more");
    pass(18);
    assert_eq!(count("farcall_server_calls_in_flight"), 0.0, "responses wait for the client");
    let message = pattern::make(1, LEN as usize);
    let echoed = world.call(&mut other, |c| c.start_echo(&message)).expect("echo");
    pattern::assert_is(1, LEN as usize, &echoed);
}
