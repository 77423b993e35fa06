//! Every call ends by its deadline, says whether it may have run, and leaves nothing behind.

use std::time::Duration;

use farcall_core::RpcError;

use crate::{pattern, service::SuitePollClient, setup::Setup, world::World};

/// Short enough not to slow the suite, long enough for a call to reach its handler.
const SHORT: Duration = Duration::from_millis(2);

/// A deadline that has passed before the call is made: it does not run.
pub fn a_deadline_in_the_past_ends_the_call_before_it_runs(world: &World) {
    let server = world.serve(Setup::default());
    let mut client = world.client(&server);
    for _ in 0..100 {
        let ended = world.call_within(&mut client, Duration::ZERO, |c| c.start_tally(1));
        assert!(
            matches!(ended, Err(RpcError::DeadlineExceeded { may_have_run: false, .. })),
            "{ended:?}"
        );
    }
    assert_eq!(world.call(&mut client, |c| c.start_tallied(1)), Ok(0), "none has run");
}

/// A deadline that passes while the handler waits: the call ends then, and may have run.
pub fn a_deadline_that_passes_while_waiting_ends_the_call(world: &World) {
    let server = world.serve(Setup::default());
    let mut client = world.client(&server);
    let before = world.now();
    let ended = world.call_within(&mut client, SHORT, |c| c.start_hold(1, 5));
    assert!(
        matches!(ended, Err(RpcError::DeadlineExceeded { may_have_run: true, .. })),
        "{ended:?}"
    );
    assert!(world.now() - before >= SHORT, "the call ended before its deadline");
    let echoed = world.call(&mut client, |c| c.start_echo(b"the connection goes on"));
    assert_eq!(echoed.expect("echo"), b"the connection goes on");
}

/// A response after the deadline is dropped, and its slot serves the next call.
pub fn a_late_response_is_dropped(world: &World) {
    let server = world.serve(Setup::default().window(1));
    let mut client = world.client(&server);
    let mut helper = world.client(&server);
    for gate in 0..20u64 {
        // Small and large responses.
        let len = if gate % 2 == 0 { 24 } else { 50_000 };
        let late = world.call_within(&mut client, SHORT, |c| c.start_make_held(gate, 7, len));
        assert!(matches!(late, Err(RpcError::DeadlineExceeded { .. })), "{:?}", late.err());
        world.call(&mut helper, |c| c.start_open(gate)).expect("open");
        // With a window of one, this call needs the slot of the late response.
        let message = pattern::make(gate, 24);
        let echoed = world.call(&mut client, |c| c.start_echo(&message));
        pattern::assert_is(gate, 24, &echoed.expect("echo"));
    }
}

/// Thousands of calls that pass their deadlines leak no slot, no credit and no posted receive.
pub fn thousands_of_missed_deadlines_leave_a_full_window(world: &World) {
    const WINDOW: u32 = 16;
    let server = world.serve(Setup::default().window(WINDOW));
    let mut client = world.client(&server);
    let mut helper = world.client(&server);
    for round in 0..125u64 {
        let within = Duration::from_micros(50 + round);
        let pending: Vec<_> = (0..u64::from(WINDOW))
            .map(|_| world.start_within(&mut client, within, |c| c.start_hold(round, 0)))
            .collect();
        for pending in pending {
            let ended = world.finish(&mut client, pending);
            assert!(matches!(ended, Err(RpcError::DeadlineExceeded { .. })), "{ended:?}");
        }
        world.call(&mut helper, |c| c.start_open(round)).expect("open");
    }
    world.assert_full_window_works(&mut client, &mut helper, WINDOW);
}

/// The deadline holds for a call whose request is far beyond a slot, at any moment of its transfer.
pub fn a_deadline_ends_a_large_call_at_any_moment(world: &World) {
    let server = world.serve(Setup::default().window(4));
    let mut client = world.client(&server);
    let message = pattern::make(3, 1 << 20);
    for step in 0..120 {
        echo_or_miss(world, &mut client, &message, Duration::from_micros(step * 25));
    }
    let echoed = world.call(&mut client, |c| c.start_echo(&message)).expect("echo");
    pattern::assert_is(3, message.len(), &echoed);
}

/// Echoes a message of pattern 3, or misses the deadline.
#[track_caller]
pub(crate) fn echo_or_miss(
    world: &World,
    client: &mut SuitePollClient,
    message: &[u8],
    within: Duration,
) {
    match world.call_within(client, within, |c| c.start_echo(message)) {
        Ok(echoed) => pattern::assert_is(3, message.len(), &echoed),
        Err(error) => assert!(matches!(error, RpcError::DeadlineExceeded { .. }), "{error:?}"),
    }
}

/// One call's deadline does not affect the others of its window.
pub fn a_missed_deadline_ends_one_call_only(world: &World) {
    let server = world.serve(Setup::default().window(8));
    let mut client = world.client(&server);
    let patient: Vec<_> =
        (0..4).map(|value| world.start(&mut client, |c| c.start_hold(1, value))).collect();
    let mut were_sent = 0;
    for _ in 0..20 {
        match world.call_within(&mut client, SHORT, |c| c.start_hold(2, 0)) {
            Err(RpcError::DeadlineExceeded { may_have_run, .. }) => {
                were_sent += u32::from(may_have_run)
            }
            other => panic!("{other:?}"),
        }
    }
    // On a busy machine a deadline may pass before the call is sent.
    assert!(were_sent > 0);
    world.call(&mut client, |c| c.start_open(1)).expect("open");
    for (value, pending) in (0..4).zip(patient) {
        assert_eq!(world.finish(&mut client, pending), Ok(value));
    }
}

/// A call that has run is not run again because its response was late.
pub fn a_call_that_missed_its_deadline_ran_at_most_once(world: &World) {
    let server = world.serve(Setup::default().window(4));
    let mut client = world.client(&server);
    for id in 0..200u64 {
        let within = Duration::from_micros(id);
        let ended = world.call_within(&mut client, within, |c| c.start_tally(id));
        let executed = world.call(&mut client, |c| c.start_tallied(id)).expect("tallied");
        match ended {
            Ok(count) => assert_eq!((count, executed), (1, 1)),
            Err(RpcError::DeadlineExceeded { may_have_run: true, .. }) => assert!(executed <= 1),
            Err(RpcError::DeadlineExceeded { may_have_run: false, .. }) => assert_eq!(executed, 0),
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// A call that blocks because the window is full of started ones ends by its deadline too, and has not run.
pub fn a_blocking_call_waits_for_the_window_only_until_its_deadline(world: &World) {
    let server = world.serve(Setup::default().window(2));
    let mut client = world.client(&server);
    let mut helper = world.client(&server);
    let held: Vec<_> =
        (0..2).map(|value| world.start(&mut client, |c| c.start_hold(1, value))).collect();
    world.wait_held(&mut client, &mut helper, 1, 2);
    client.connection().set_timeout(SHORT);
    let ended = client.tally(7);
    assert!(
        matches!(ended, Err(RpcError::DeadlineExceeded { may_have_run: false, .. })),
        "{ended:?}"
    );
    client.connection().set_timeout(crate::patient(crate::world::BOUND));
    server.open(1);
    assert_eq!(client.tally(7), Ok(1), "the first one has not run");
    for (value, pending) in (0..2).zip(held) {
        assert_eq!(world.finish(&mut client, pending), Ok(value));
    }
}
