//! Connections of several lanes: each is a transport of its own, and what a server counts is the connection.

use std::time::Duration;

use farcall_core::{
    Backpressure, ConnectError, RpcError,
    metrics::RefusalReason,
    transport::{ConnectionId, Lane},
};

use crate::{service::SuitePollClient, setup::Setup, world::World};

/// What waits at the gate, and what counts calls.
const GATE: u64 = 83;
const TALLY: u64 = 84;

/// The server may take a moment to notice that a lane has ended.
const MOMENT: Duration = Duration::from_millis(50);

/// Lanes come to the thread of their connection. It goes on when one ends with a call under way, and ends with its last.
pub fn a_connection_goes_on_until_its_last_lane_ends(world: &World) {
    let server = world.serve(Setup::default().threads(2));
    let (mut first, id) = world.lane(&server, Lane::First).expect("a connection");
    let id = id.expect("the server has lanes");
    let further = || world.lane(&server, Lane::Of(id)).map(|(client, _)| client);
    let mut lanes = [further().expect("a lane"), further().expect("another lane")];
    let whereabouts = |client: &mut SuitePollClient| {
        world.call(client, |c| c.start_whereabouts()).expect("an answer")
    };
    let thread = whereabouts(&mut first);
    assert_eq!(lanes.each_mut().map(whereabouts), [thread; 2]);

    let _held = world.start(&mut first, |c| c.start_hold(GATE, 1));
    world.until("a call waits on the first lane", || {
        first.connection().poll();
        let held = world.call(&mut lanes[0], |c| c.start_held(GATE));
        (held == Ok(1)).then_some(())
    });
    drop(first);
    world.until("the call has ended with its lane", || {
        let held = world.call(&mut lanes[0], |c| c.start_held(GATE));
        (held.expect("the connection goes on") == 0).then_some(())
    });
    let [one, mut last] = lanes;
    drop(one);
    let long = vec![7; 200_000];
    assert_eq!(world.call(&mut last, |c| c.start_echo(&long)), Ok(long.clone()));
    drop(last);
    let refused = world.until("a lane of a connection that has ended is refused", || {
        let since = world.now();
        world.until("a moment", || (world.now() - since > MOMENT).then_some(()));
        further().err()
    });
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
}

/// No client gets a lane of a connection by guessing its id, and the server counts those that try.
pub fn a_guessed_connection_is_refused(world: &World) {
    let server = world.serve(Setup::default());
    let (mut client, _) = world.lane(&server, Lane::First).expect("a connection");
    let guessed = Lane::Of(ConnectionId::new([7; 16]));
    let refused = world.lane(&server, guessed).map(|_| ()).expect_err("it was guessed");
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
    assert_eq!(server.refused(RefusalReason::UnknownConnection), 1);
    assert_eq!(world.call(&mut client, |c| c.start_echo(b"here")), Ok(b"here".to_vec()));
}

/// However its calls are spread over its lanes, a connection has one quota.
pub fn lanes_share_a_quota(world: &World) {
    const CALLS: u32 = 10;
    let begun = world.now();
    let server = world.serve(Setup::default().threads(2).calls_per_second(CALLS));
    let (first, id) = world.lane(&server, Lane::First).expect("a connection");
    let id = id.expect("the server has lanes");
    let (second, _) = world.lane(&server, Lane::Of(id)).expect("a lane");
    let mut lanes = [first, second];
    let mut ran = 0;
    for call in 0..6 * CALLS as usize {
        match world.call(&mut lanes[call % 2], |c| c.start_tally(TALLY)) {
            Ok(_) => ran += 1,
            Err(error) => assert_eq!(error, RpcError::Overloaded(Backpressure::Quota)),
        }
    }
    let passed = (world.now() - begun).as_secs_f64() * f64::from(CALLS);
    let most = u64::from(CALLS) + passed as u64 + 1;
    assert!(ran <= most, "{ran} calls ran where the quota allows {most}");
    assert!(ran >= u64::from(CALLS), "a new connection has all of its quota");
}
