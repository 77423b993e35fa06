//! A failure of one call does not affect others, and its error names the cause.

use std::time::Duration;

use farcall_core::{BindError, CallError, MethodMismatch, RpcError};

use crate::{
    patient, pattern,
    service::{DESCRIBE, ECHO, SuiteError},
    setup::Setup,
    world::World,
};

/// A handler that panics fails its call; the server, the connection and the other calls go on.
pub fn a_panic_fails_its_call_only(world: &World) {
    let server = world.serve(Setup::default());
    let mut client = world.client(&server);
    let waiting = world.start(&mut client, |c| c.start_hold(1, 11));
    for _ in 0..5 {
        let ended = world.call(&mut client, |c| c.start_panic_in_place());
        assert_eq!(ended, Err(RpcError::HandlerPanicked));
        let ended = world.call(&mut client, |c| c.start_panic_in_task());
        assert_eq!(ended, Err(RpcError::HandlerPanicked));
    }
    world.call(&mut client, |c| c.start_open(1)).expect("open");
    assert_eq!(world.finish(&mut client, waiting), Ok(11));
}

/// The service's own error arrives with its type.
pub fn a_services_own_error_arrives(world: &World) {
    let server = world.serve(Setup::default());
    let mut client = world.client(&server);
    for code in [0, 7, u32::MAX] {
        let ended = world.call(&mut client, |c| c.start_refuse(code));
        assert_eq!(ended, Err(CallError::Service(SuiteError::Refused { code })));
    }
    let wrong = pattern::make(2, 100);
    let ended = world.call(&mut client, |c| c.start_check(1, &wrong));
    assert_eq!(ended, Err(CallError::Service(SuiteError::Mismatch { offset: 0 })));
}

/// A request above the limit is refused before it is sent, and the error names both sizes.
pub fn a_request_above_the_limit_names_both_numbers(world: &World) {
    const LIMIT: u64 = 100_000;
    let server = world.serve(Setup::default().max_message(LIMIT));
    let mut client = world.client(&server);
    for len in [LIMIT as usize + 1, 5 * LIMIT as usize] {
        let ended = world.call(&mut client, |c| c.start_echo(&vec![1; len]));
        match ended {
            Err(RpcError::TooLarge { may_have_run: false, len: named, max }) => {
                assert_eq!((named, max), (len as u64, LIMIT));
            }
            other => panic!("{len} bytes: {:?}", other.map(|echoed| echoed.len())),
        }
    }
    // The limit is that of the caller's bytes.
    let len = LIMIT as usize;
    let message = pattern::make(1, len);
    let echoed = world.call(&mut client, |c| c.start_echo(&message)).expect("echo");
    pattern::assert_is(1, len, &echoed);
}

/// A reply above the limit ends its call with the same error; the connection goes on.
pub fn a_reply_above_the_limit_names_both_numbers(world: &World) {
    const LIMIT: u64 = 100_000;
    let server = world.serve(Setup::default().max_message(LIMIT));
    let mut client = world.client(&server);
    for len in [LIMIT + 1, 10 * LIMIT] {
        match world.call(&mut client, |c| c.start_make(1, len)) {
            Err(RpcError::TooLarge { may_have_run: true, len: named, max }) => {
                assert_eq!((named, max), (len, LIMIT));
            }
            other => panic!("{len} bytes: {:?}", other.map(|made| made.len())),
        }
        let made = world.call(&mut client, |c| c.start_make(1, LIMIT)).expect("make");
        pattern::assert_is(1, LIMIT as usize, &made);
    }
}

/// Arguments that cannot be decoded fail their call.
pub fn malformed_arguments_fail_their_call(world: &World) {
    let server = world.serve(Setup::default());
    let mut client = world.client(&server);
    for arguments in
        [&[][..], &[0xff; 10], &[0xff; 3000], &[5, b'a'], &[0, 0xff, 0xff, 0xff, 0xff, 0x0f]]
    {
        match world.call_raw::<DESCRIBE>(&mut client, arguments) {
            Err(RpcError::Malformed { .. }) => {}
            other => panic!("{arguments:02x?}: {other:?}"),
        }
    }
    let echoed = world.call_raw::<ECHO>(&mut client, b"still here").expect("echo");
    assert_eq!(echoed, b"still here");
}

/// An unknown method fails its call, and the error names it.
pub fn an_unknown_method_fails_its_call(world: &World) {
    let server = world.serve(Setup::default());
    let mut client = world.client(&server);
    for (method, ended) in [
        (0, world.call_raw::<0>(&mut client, b"")),
        (1, world.call_raw::<1>(&mut client, b"whatever")),
        (0xdead_beef, world.call_raw::<0xdead_beef>(&mut client, &[0xff; 40])),
        (u32::MAX, world.call_raw::<{ u32::MAX }>(&mut client, &[0; 5000])),
    ] {
        match ended {
            Err(RpcError::NoSuchMethod { method: named, why: MethodMismatch::Absent }) => {
                assert!(named.contains(&format!("{method:#010x}")), "{named}");
            }
            other => panic!("{other:?}"),
        }
    }
    let echoed = world.call_raw::<ECHO>(&mut client, b"still here").expect("echo");
    assert_eq!(echoed, b"still here");
}

/// A message within the limit but above the memory ends in an error, and delays no other call.
pub fn a_message_above_the_memory_stalls_no_other(world: &World) {
    let mut setup = Setup::default().tight_memory(1 << 20);
    setup.max_message = Some(64 << 20);
    let server = match world.try_serve_at(&world.fresh_address(&setup), setup) {
        Ok(server) => server,
        // It may also be refused at once.
        Err(BindError::InvalidAddress(_) | BindError::Unsupported { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    let mut client = world.client(&server);
    let mut other = world.client(&server);
    let message = pattern::make(1, 32 << 20);
    let soon = patient(Duration::from_secs(2));
    let request = world.call_within(&mut client, soon, |c| match c.start_echo(&message) {
        // There will never be room, so this is not backpressure.
        Err(RpcError::Overloaded(_)) => Err(RpcError::Cancelled),
        other => other,
    });
    match request {
        Err(RpcError::TooLarge { .. }) => {}
        other => panic!("a request of 32 MiB: {:?}", other.map(|echoed| echoed.len())),
    }
    let large = world.start_within(&mut client, soon, |c| c.start_make(1, 32 << 20));
    client.poll();
    for seed in 0..20 {
        let message = pattern::make(seed, 100_000);
        let echoed = world.call(&mut other, |c| c.start_echo(&message)).expect("echo");
        pattern::assert_is(seed, message.len(), &echoed);
    }
    match world.finish(&mut client, large) {
        Err(RpcError::TooLarge { .. }) => {}
        other => panic!("an answer of 32 MiB: {:?}", other.map(|made| made.len())),
    }
}
