//! Ends that were built from different versions of one service: what they have in common works, the rest fails at the
//! caller, and a newer server at the same address brings what was missing.

use std::time::Duration;

use farcall_core::{
    ChannelOptions, ConnectError, MethodMismatch, MissingMethod, PendingCall, ReconnectPolicy,
    RpcError,
};

use super::any_executor::{block_on, poll_once};
use crate::{
    evolving::{sum, v1, v2},
    pattern,
    setup::Setup,
    world::{BOUND, World},
};

#[track_caller]
fn assert_missing(error: Option<RpcError>, method: &str, why: MethodMismatch) {
    let expected = RpcError::NoSuchMethod { method: format!("Evolving.{method}").into(), why };
    assert_eq!(error.as_ref(), Some(&expected));
    assert!(!expected.may_have_run());
}

fn start_error<R>(started: Result<PendingCall<R>, RpcError>) -> Option<RpcError> {
    started.err()
}

/// An older client at a newer server.
pub fn an_old_client_of_a_new_server(world: &World) {
    let server = world.serve(Setup::default().evolving(2));
    let mut client = world.connect::<v1::EvolvingPollClient>(&server);
    for number in 0..50 {
        assert_eq!(world.call(&mut client, |c| c.start_kept(number)), Ok(number + 1));
        // Neither leaves this end.
        assert_missing(start_error(client.start_removed(7)), "removed", MethodMismatch::Absent);
        assert_missing(client.reshaped(7).err(), "reshaped", MethodMismatch::OtherShape);
    }
    assert_eq!(client.connection().in_flight(), 0);
}

/// A newer client at an older server.
pub fn a_new_client_of_an_old_server(world: &World) {
    let server = world.serve(Setup::default().evolving(1));
    let mut client = world.connect::<v2::EvolvingPollClient>(&server);
    for number in 0..50 {
        assert_eq!(world.call(&mut client, |c| c.start_kept(number)), Ok(number + 1));
        assert_missing(start_error(client.start_added(7)), "added", MethodMismatch::Absent);
        assert_missing(client.reshaped(7).err(), "reshaped", MethodMismatch::OtherShape);
    }
    assert_eq!(client.connection().in_flight(), 0);
}

/// Byte strings that `widened` is called with: empty, short, and longer than a slot.
const LENS: [usize; 4] = [0, 1, 300, 100_000];

/// An older client at a newer server, which fills in what the client does not know.
pub fn an_argument_that_an_old_client_does_not_know_has_its_default(world: &World) {
    let server = world.serve(Setup::default().evolving(2));
    let mut client = world.connect::<v1::EvolvingPollClient>(&server);
    for (seed, len) in LENS.into_iter().enumerate() {
        let bytes = pattern::make(seed as u64, len);
        assert_eq!(world.call(&mut client, |c| c.start_widened(&bytes)), Ok(10 * sum(&bytes)));
    }
}

/// A newer client at an older server: a call is sent without the argument if that has its default, and not at all otherwise.
pub fn an_argument_that_an_old_server_does_not_know_must_have_its_default(world: &World) {
    let server = world.serve(Setup::default().evolving(1));
    let mut client = world.connect::<v2::EvolvingPollClient>(&server);
    for (seed, len) in LENS.into_iter().enumerate() {
        let bytes = pattern::make(seed as u64, len);
        assert_eq!(world.call(&mut client, |c| c.start_widened(&bytes, 10)), Ok(sum(&bytes)));
        let refused = start_error(client.start_widened(&bytes, 11));
        assert_missing(refused, "widened@2", MethodMismatch::NewerArgument);
    }
    assert_eq!(client.connection().in_flight(), 0);
}

/// Lengths of a text in a value that may grow: short, and longer than a slot.
const TEXTS: [usize; 2] = [3, 20_000];

/// An older client at a newer server: what only the server has takes its default, or is unknown.
pub fn types_that_grew_are_read_by_a_new_server(world: &World) {
    let server = world.serve(Setup::default().evolving(2));
    let mut client = world.connect::<v1::EvolvingPollClient>(&server);
    for limit in [0, u32::MAX] {
        let options = v1::Options { limit };
        for found in [v1::Found::Some(vec![options.clone(); 300]), v1::Found::Unknown] {
            let grown = world.call(&mut client, |c| c.start_grown(options.clone(), found.clone()));
            assert_eq!(grown, Ok((options.clone(), found)));
        }
    }
}

/// A newer client at an older server, which skips what it does not know.
pub fn types_that_grew_are_read_by_an_old_server(world: &World) {
    let server = world.serve(Setup::default().evolving(1));
    let mut client = world.connect::<v2::EvolvingPollClient>(&server);
    for len in TEXTS {
        let options = |colour: &str| v2::Options { limit: 7, colour: colour.to_owned() };
        let (long, usual) = (options(&"x".repeat(len)), options("any"));
        let found = v2::Found::Elsewhere(long.colour.clone());
        let grown = world.call(&mut client, |c| c.start_grown(long.clone(), found.clone()));
        assert_eq!(grown, Ok((usual.clone(), v2::Found::Unknown)));
        let found = v2::Found::Some(vec![long.clone(); 2]);
        let grown = world.call(&mut client, |c| c.start_grown(long.clone(), found.clone()));
        assert_eq!(grown, Ok((usual.clone(), v2::Found::Some(vec![usual; 2]))));
    }
}

/// Clients of either version at servers of their own: all methods work.
pub fn equal_versions_have_everything(world: &World) {
    let server = world.serve(Setup::default().evolving(1));
    let mut client = world.connect::<v1::EvolvingPollClient>(&server);
    assert_eq!(world.call(&mut client, |c| c.start_removed(7)), Ok(9));
    assert_eq!(world.call(&mut client, |c| c.start_reshaped(7)), Ok(10));
    let server = world.serve(Setup::default().evolving(2));
    let mut client = world.connect::<v2::EvolvingPollClient>(&server);
    assert_eq!(world.call(&mut client, |c| c.start_added(7)), Ok(11));
    assert_eq!(world.call(&mut client, |c| c.start_reshaped(7)), Ok(12));
    assert_eq!(world.call(&mut client, |c| c.start_widened(b"ab", 2)), Ok(2 * sum(b"ab")));
    let options = v2::Options { limit: 1, colour: "red".to_owned() };
    let found = v2::Found::Elsewhere("there".to_owned());
    let grown = world.call(&mut client, |c| c.start_grown(options.clone(), found.clone()));
    assert_eq!(grown, Ok((options, found)));
}

/// A method that only one end calls idempotent runs at most once per call, whichever end it is.
pub fn a_method_idempotent_at_one_end_runs_at_most_once(world: &World) {
    const CALLS: u64 = 300;
    let old = world.serve(Setup::default().evolving(1).window(8));
    let mut new_client = world.connect::<v2::EvolvingPollClient>(&old);
    let new = world.serve(Setup::default().evolving(2).window(8));
    let mut old_client = world.connect::<v1::EvolvingPollClient>(&new);
    for call in 1..=CALLS {
        assert_eq!(world.call(&mut new_client, |c| c.start_counted_once()), Ok(2 * call - 1));
        assert_eq!(world.call(&mut new_client, |c| c.start_counted_often()), Ok(2 * call));
        assert_eq!(world.call(&mut old_client, |c| c.start_counted_often()), Ok(2 * call - 1));
        assert_eq!(world.call(&mut old_client, |c| c.start_counted_once()), Ok(2 * call));
    }
}

/// Clients of both versions at one server, at once.
pub fn both_versions_of_clients_at_one_server(world: &World) {
    let server = world.serve(Setup::default().evolving(2));
    let mut old = world.connect::<v1::EvolvingPollClient>(&server);
    let mut new = world.connect::<v2::EvolvingPollClient>(&server);
    for number in 0..50 {
        let kept = world.start(&mut old, |c| c.start_kept(number));
        assert_eq!(world.call(&mut new, |c| c.start_added(number)), Ok(number + 4));
        assert_eq!(world.finish(&mut old, kept), Ok(number + 1));
    }
}

/// A client that requires what the server lacks does not connect; one that requires what it has does.
pub fn a_required_method_that_is_missing_refuses_the_server(world: &World) {
    let server = world.serve(Setup::default().evolving(1));
    let connect = |methods: &[&'static str]| {
        world.try_connect_requiring::<v2::EvolvingPollClient>(&server.address, methods)
    };
    match connect(&["kept", "added", "reshaped"]).err() {
        Some(ConnectError::IncompatibleService { service, methods, .. }) => {
            let missing = |method: &str, why| MissingMethod { method: method.into(), why };
            let added = missing("Evolving.added", MethodMismatch::Absent);
            let reshaped = missing("Evolving.reshaped", MethodMismatch::OtherShape);
            assert_eq!((service.as_str(), methods), ("Evolving", vec![added, reshaped]));
        }
        other => panic!("{other:?}"),
    }
    let mut client = connect(&["kept", "counted_often"]).expect("both are there");
    assert_eq!(world.call(&mut client, |c| c.start_kept(1)), Ok(2));
}

/// A server that is replaced by another version at its address: the next connection finds what that one has.
pub fn the_next_connection_finds_what_the_next_server_has(world: &World) {
    let mut server = world.serve(Setup::default().evolving(1));
    let address = server.address.clone();
    for version in [2, 1, 2] {
        server.shutdown(world);
        server = world
            .try_serve_at(&address, Setup::default().evolving(version))
            .expect("the address is free");
        let mut client = world.connect::<v2::EvolvingPollClient>(&server);
        match version {
            1 => assert_missing(client.added(0).err(), "added", MethodMismatch::Absent),
            _ => assert_eq!(world.call(&mut client, |c| c.start_added(0)), Ok(4)),
        }
    }
}

/// A client for any executor: what is missing fails at once, in a call that waits too, and works after a reconnection to a
/// newer server. Calls that waited for the server are judged by the one that comes.
pub fn a_channel_follows_its_server(world: &World) {
    let waiting = ReconnectPolicy::default().give_up_after(BOUND);
    let options = ChannelOptions::default().reconnect(waiting);
    let mut server = world.serve(Setup::default().evolving(1));
    let address = server.address.clone();
    let client = world.channel_of::<v2::EvolvingClient>(&server, options);
    for version in [1, 2, 1, 2] {
        // Submitted before the server is there.
        server.kill();
        world.until("the client has noticed", || {
            let kept = client.kept(0).timeout(Duration::from_millis(20)).wait();
            matches!(kept, Err(RpcError::PeerGone { may_have_run: false, .. })).then_some(())
        });
        let mut early = client.added(1);
        assert!(poll_once(&mut early).is_pending());
        let [mut usual, mut other] = [10, 11].map(|factor| client.widened(b"ab", factor));
        assert!(poll_once(&mut usual).is_pending() && poll_once(&mut other).is_pending());
        server = world
            .try_serve_at(&address, Setup::default().evolving(version))
            .expect("the address is free");
        assert_eq!(client.kept(1).wait(), Ok(2));
        for added in [block_on(early), client.added(1).wait()] {
            match version {
                1 => assert_missing(added.err(), "added", MethodMismatch::Absent),
                _ => assert_eq!(added, Ok(5)),
            }
        }
        let why = MethodMismatch::NewerArgument;
        for (call, factor) in [(usual, 10), (other, 11)] {
            for widened in [block_on(call), client.widened(b"ab", factor).wait()] {
                match (version, factor) {
                    (1, 10) => assert_eq!(widened, Ok(sum(b"ab"))),
                    (1, _) => assert_missing(widened.err(), "widened@2", why),
                    _ => assert_eq!(widened, Ok(factor * sum(b"ab"))),
                }
            }
        }
    }
}
