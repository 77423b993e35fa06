//! A server under attack: what it must go on doing for honest clients, and what it must not keep.

use std::time::Duration;

use crate::{
    pattern,
    service::SuitePollClient,
    setup::Setup,
    world::{Server, World},
};

/// Bytes of a slot in these cases.
pub(crate) const SLOT: u32 = 1024;

/// The longest message in these cases.
pub(crate) const LIMIT: u64 = 1 << 20;

/// The setup of a server under attack, or of one that attacks: memory for some large messages.
pub(crate) fn setup(window: u32) -> Setup {
    Setup::default().window(window).slot(SLOT as usize).tight_memory(LIMIT)
}

/// A server to attack, and an honest client of it.
pub(crate) fn serve(world: &World, window: u32) -> (Server, SuitePollClient) {
    let server = world.serve(setup(window));
    let client = world.client(&server);
    (server, client)
}

/// The honest client and a new one get right answers to messages of each kind.
#[track_caller]
pub(crate) fn assert_honest_clients_served(
    world: &World,
    server: &Server,
    honest: &mut SuitePollClient,
) {
    let mut newcomer = world.client(server);
    for client in [honest, &mut newcomer] {
        for len in [20, 700, 200_000] {
            let message = pattern::make(len, len as usize);
            let echoed = world.call(client, |c| c.start_echo(&message)).expect("echo");
            pattern::assert_is(len, len as usize, &echoed);
        }
    }
}

/// Honest clients are served several times while a hostile client holds all the memory that it may.
#[track_caller]
pub(crate) fn assert_served_before_stall_limit(
    world: &World,
    server: &Server,
    honest: &mut SuitePollClient,
) {
    let start = world.now();
    for _ in 0..4 {
        assert_honest_clients_served(world, server, honest);
    }
    let took = world.now() - start;
    // Less than the stall limit: no client waited for the hostile one to be dropped.
    assert!(took.as_secs() < 8, "honest clients waited {took:?} for memory");
}

/// A large call of the honest client waits for memory that hostile clients hold, and succeeds when the server has dropped
/// them.
#[track_caller]
pub(crate) fn assert_served_after_stall_limit(world: &World, honest: &mut SuitePollClient) {
    // The backends' limit is 10 s, the bound on the call 20 s.
    const LEAST: Duration = Duration::from_secs(5);
    const LEN: usize = 1_000_000;
    let start = world.now();
    let message = pattern::make(1, LEN);
    let echoed = world.call(honest, |c| c.start_echo(&message)).expect("echo");
    pattern::assert_is(1, LEN, &echoed);
    let took = world.now() - start;
    assert!(took > LEAST, "there was memory for the call: it took {took:?}");
}

/// A large call of the honest client waits for memory that hostile clients hold although they `move_on` every few seconds, and
/// succeeds when the server has dropped them: when one of their messages has taken too long.
#[track_caller]
pub(crate) fn assert_served_after_message_limit(
    world: &World,
    honest: &mut SuitePollClient,
    mut move_on: impl FnMut(),
) {
    // A client that does not move on is dropped after 10 s.
    const STEP: Duration = Duration::from_secs(7);
    // A message of a mebibyte may take 31 s.
    const LEAST: Duration = Duration::from_secs(20);
    const MOST: Duration = Duration::from_secs(40);
    const LEN: usize = 1_000_000;
    let start = world.now();
    let message = pattern::make(1, LEN);
    let mut call = world.start_within(honest, 3 * MOST, |c| c.start_echo(&message));
    let mut next = start + STEP;
    let echoed = loop {
        world.turn(honest);
        if let Some(echoed) = honest.connection().take(&mut call) {
            break echoed.expect("echo");
        }
        let now = world.now();
        assert!(now < start + MOST, "hostile clients hold the memory on and on");
        if now >= next {
            move_on();
            next = now + STEP;
        }
    };
    pattern::assert_is(1, LEN, &echoed);
    let took = world.now() - start;
    assert!(took > LEAST, "there was memory for the call: it took {took:?}");
}

/// Repeats `visit`, and asserts that the server holds no more afterwards than after the first few.
#[track_caller]
pub(crate) fn assert_nothing_stays_behind(world: &World, server: &Server, visit: impl Fn()) {
    // The first visits may leave what is kept for reuse.
    const FIRST: usize = 2;
    const MORE: usize = 25;
    (0..FIRST).for_each(|_| visit());
    let before = world.settled_holdings(server);
    (0..MORE).for_each(|_| visit());
    world.wait_holdings(server, &before);
}
