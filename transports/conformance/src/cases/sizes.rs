//! Messages of every size arrive whole, in both directions.

use std::time::Duration;

use crate::{patient, pattern, setup::Setup, world::World};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Echoes one message of each length over one connection, in place and from a task.
fn echo_each(world: &World, setup: Setup, lengths: impl IntoIterator<Item = usize>) {
    let server = world.serve(setup);
    let mut client = world.client(&server);
    for (seed, len) in lengths.into_iter().enumerate() {
        let seed = seed as u64;
        let message = pattern::make(seed, len);
        let echoed = world.call(&mut client, |c| c.start_echo(&message));
        pattern::assert_is(seed, len, &echoed.expect("echo"));
        let echoed = world.call(&mut client, |c| c.start_echo_later(message.clone()));
        pattern::assert_is(seed, len, &echoed.expect("echo from a task"));
    }
}

/// A message may be empty.
pub fn an_empty_message_passes(world: &World) {
    echo_each(world, Setup::default(), [0, 0, 1, 0]);
}

/// Lengths around those that a completion or an inline send can carry.
pub fn short_messages_of_each_length_pass(world: &World) {
    echo_each(world, Setup::default(), 0..=80);
}

/// Lengths around a slot's, for any size of the backend's headers.
pub fn messages_at_the_edges_of_a_slot_pass(world: &World) {
    for slot in [256, 4096] {
        echo_each(world, Setup::default().slot(slot), slot - 40..=slot + 24);
    }
}

/// Messages far longer than a slot.
pub fn messages_beyond_a_slot_pass(world: &World) {
    echo_each(
        world,
        Setup::default(),
        [64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB - 8, MIB, MIB + 1, 3 * MIB + 5],
    );
}

/// 64 MiB in each direction.
pub fn a_message_of_64_mib_passes(world: &World) {
    let server = world.serve(Setup::default().max_message(65 * MIB as u64));
    let mut client = world.client(&server);
    let message = pattern::make(64, 64 * MIB);
    let echoed = world.call(&mut client, |c| c.start_echo(&message));
    pattern::assert_is(64, 64 * MIB, &echoed.expect("echo"));
}

/// 1 GiB in each direction.
pub fn a_message_of_1_gib_passes(world: &World) {
    let world = &world.with_bound(patient(Duration::from_secs(100)));
    let len = 1024 * MIB;
    let server = world.serve(Setup::default().max_message(len as u64 + 4096));
    let mut client = world.client(&server);
    let checked = {
        let message = pattern::make(1, len);
        world.call(&mut client, |c| c.start_check(1, &message))
    };
    assert_eq!(checked.expect("check"), len as u64);
    let made = world.call(&mut client, |c| c.start_make(2, len as u64)).expect("make");
    pattern::assert_is(2, len, &made);
}

/// A large request with a small reply.
pub fn a_large_request_with_a_small_reply_passes(world: &World) {
    let server = world.serve(Setup::default());
    let mut client = world.client(&server);
    for (seed, len) in (0u64..).zip([5 * KIB, 100 * KIB, 2 * MIB, 5 * KIB]) {
        let message = pattern::make(seed, len);
        let checked = world.call(&mut client, |c| c.start_check(seed, &message));
        assert_eq!(checked.expect("check"), len as u64);
    }
}

/// A small request with a large reply.
pub fn a_small_request_with_a_large_reply_passes(world: &World) {
    let server = world.serve(Setup::default());
    let mut client = world.client(&server);
    for (seed, len) in (0u64..).zip([5 * KIB, 100 * KIB, 2 * MIB, 5 * KIB]) {
        let made = world.call(&mut client, |c| c.start_make(seed, len as u64));
        pattern::assert_is(seed, len, &made.expect("make"));
    }
}

/// Large and small calls share a window, and each gets its own answer.
pub fn large_and_small_messages_share_a_window(world: &World) {
    let server = world.serve(Setup::default().window(8));
    let mut client = world.client(&server);
    for round in 0..10u64 {
        let pending: Vec<_> = (0..8u64)
            .map(|i| {
                let seed = round * 8 + i;
                let len = if i % 2 == 0 { 17 + i as usize } else { 30_000 * i as usize };
                (seed, len, world.start(&mut client, |c| c.start_make(seed, len as u64)))
            })
            .collect();
        for (seed, len, pending) in pending {
            let made = world.finish(&mut client, pending).expect("make");
            pattern::assert_is(seed, len, &made);
        }
    }
}

/// Small calls do not wait behind a large one, in either direction.
pub fn small_calls_pass_a_large_one(world: &World) {
    let server = world.serve(Setup::default());
    let mut client = world.client(&server);
    let message = pattern::make(16, 16 * MIB);
    let mut large = world.start(&mut client, |c| c.start_echo(&message));
    let mut passed = 0;
    let echoed = loop {
        if let Some(echoed) = client.connection().take(&mut large) {
            break echoed;
        }
        let small = world.call(&mut client, |c| c.start_echo(b"small"));
        assert_eq!(small.expect("echo"), b"small");
        passed += 1;
    };
    pattern::assert_is(16, 16 * MIB, &echoed.expect("echo"));
    assert!(passed >= 8, "only {passed} small calls ended before the large one did");
}

/// Structured values survive the codec in both directions.
pub fn a_structured_value_passes(world: &World) {
    let server = world.serve(Setup::default());
    let mut client = world.client(&server);
    let mut record = crate::service::Record::default();
    for depth in 0..20 {
        record = crate::service::Record {
            name: "n".repeat(depth * 37),
            numbers: (0..depth as u64).map(|n| n << (3 * depth)).collect(),
            inner: Some(Box::new(record)),
        };
        let described = world.call(&mut client, |c| c.start_describe(record.clone()));
        assert_eq!(described.expect("describe"), record);
    }
}
