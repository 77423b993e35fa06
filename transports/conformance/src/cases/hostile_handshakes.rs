//! Clients and servers that break the rules of the handshake, over any backend.

use std::{io::Write, thread, time::Duration};

use farcall::{ConnectError, PollClient, RefusalReason};
use farcall_core::transport::MESSAGE_HEADER_BYTES;
use farcall_transports::contract::Terms;
use farcall_transports::handshake::{Frame, Hello, Reject, Welcome};

use crate::{
    backends::{Backend, UnconnectedEnd},
    hostile::{
        LIMIT, RawConnection, SLOT, Stream, assert_honest_clients_served,
        assert_nothing_stays_behind, hello, read_frame, serve, setup, terms,
    },
    pattern,
    service::SuitePollClient,
    world::{Server, World},
};

const WINDOW: u32 = 8;

fn good_terms() -> Terms {
    terms(WINDOW, SLOT, LIMIT)
}

/// A client's first frame to a server of the backend.
fn hello_to(backend: &Backend, terms: Terms, setup: Vec<u8>) -> Frame {
    hello(backend.name, SuitePollClient::DESCRIPTION, terms, setup)
}

/// What the server answers to these bytes.
fn answer(world: &World, server: &Server, bytes: &[u8]) -> std::io::Result<Frame> {
    let RawConnection { mut stream, .. } = world.raw_connection(server);
    stream.write_all(bytes).expect("write hello");
    read_frame(&mut *stream)
}

#[track_caller]
fn assert_malformed(answer: std::io::Result<Frame>, what: &str) {
    assert!(matches!(answer, Ok(Frame::Reject(Reject::Malformed { .. }))), "{what}: {answer:?}");
}

/// First frames that are garbage, stop in the middle, or ask for what cannot be.
pub fn broken_hellos_are_refused(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let backend = world.backend();
    let good = hello_to(backend, good_terms(), vec![1, 2, 3]);
    let whole = good.to_bytes();
    let mut endless = whole.clone();
    endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let garbage = pattern::make(3, 5_000);
    // Bytes that are no frames; the streams stay open while honest clients go on.
    let mut open = Vec::new();
    for bytes in [&[][..], b"GET / HTTP/1.1\r\n\r\n", &garbage, &endless, &whole[..9], &whole[..40]]
    {
        let RawConnection { mut stream, .. } = world.raw_connection(&server);
        // The server may close before all of it is written.
        let _ = stream.write_all(bytes);
        open.push(stream);
        assert_honest_clients_served(world, &server, &mut honest);
    }
    // A frame of another version is answered in ours, so that the other end can tell.
    let mut version = whole.clone();
    version[8] ^= 0x40;
    match answer(world, &server, &version) {
        Ok(Frame::Reject(Reject::Malformed { what })) => {
            assert!(what.contains("version"), "{what}");
        }
        other => panic!("{other:?}"),
    }
    let Frame::Hello(good) = good else { unreachable!("a hello was made") };
    let other = Frame::Hello(Hello { backend: "nosuchbackend".to_owned(), ..good });
    match answer(world, &server, &other.to_bytes()) {
        Ok(Frame::Reject(Reject::Backend { theirs })) => assert_eq!(theirs, backend.name),
        other => panic!("{other:?}"),
    }
    assert_malformed(answer(world, &server, &Frame::Ready.to_bytes()), "ready before hello");
    for wrong in [
        terms(0, SLOT, LIMIT),
        terms(u32::MAX, SLOT, LIMIT),
        terms(WINDOW, 0, LIMIT),
        terms(WINDOW, 63, LIMIT),
        terms(WINDOW, u32::MAX, LIMIT),
        terms(WINDOW, SLOT, 0),
    ] {
        let hello = hello_to(backend, wrong, vec![]);
        assert_malformed(answer(world, &server, &hello.to_bytes()), &format!("{wrong:?}"));
    }
    for (reason, count) in
        [(RefusalReason::Version, 1), (RefusalReason::Backend, 1), (RefusalReason::Malformed, 7)]
    {
        assert_eq!(server.refused(reason), count, "{reason:?}");
    }
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Bytes that are no setup of any backend.
fn no_setups() -> [Vec<u8>; 4] {
    [vec![], vec![0; 3], vec![0xff; 100], pattern::make(1, 200)]
}

/// Setups of clients that are none, or name no endpoint.
pub fn broken_setups_are_refused(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let backend = world.backend();
    let RawConnection { device, .. } = world.raw_connection(&server);
    for setup in (backend.broken_setups)(&device).into_iter().chain(no_setups()) {
        let hello = hello_to(backend, good_terms(), setup.clone());
        match answer(world, &server, &hello.to_bytes()) {
            Ok(Frame::Reject(Reject::Malformed { .. } | Reject::Refused { .. })) => {}
            other => panic!("{setup:x?}: {other:?}"),
        }
    }
    assert_honest_clients_served(world, &server, &mut honest);
}

/// A client that is welcome, and then neither ready nor gone as long as the result lives.
fn stop_after_welcome(
    world: &World,
    server: &Server,
) -> (Box<dyn UnconnectedEnd>, Box<dyn Stream>) {
    let RawConnection { device, mut stream, .. } = world.raw_connection(server);
    let end = (world.backend().open_end)(&device, &good_terms());
    let hello = hello_to(world.backend(), good_terms(), end.setup());
    stream.write_all(&hello.to_bytes()).expect("write hello");
    match read_frame(&mut *stream) {
        Ok(Frame::Welcome(_)) => (end, stream),
        other => panic!("{other:?} instead of welcome"),
    }
}

/// Clients that stop after the welcome do not disturb others, as long as they stay and when they leave.
pub fn clients_that_never_become_ready_disturb_nobody(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    let stopped: Vec<_> = (0..3).map(|_| stop_after_welcome(world, &server)).collect();
    assert_honest_clients_served(world, &server, &mut honest);
    drop(stopped);
    assert_honest_clients_served(world, &server, &mut honest);
}

/// Clients that stop after the welcome and leave: the server keeps nothing of them.
pub fn clients_that_never_become_ready_leave_nothing(world: &World) {
    let (server, mut honest) = serve(world, WINDOW);
    assert_nothing_stays_behind(world, &server, || drop(stop_after_welcome(world, &server)));
    assert_honest_clients_served(world, &server, &mut honest);
}

/// When all places are taken, a newcomer gets that of a client that has not called for long; never that of one that has.
pub fn clients_that_never_call_make_room_and_those_that_have_called_stay(world: &World) {
    const MOST: usize = 4;
    /// A client may take 30 s until its first call.
    const LONG: Duration = Duration::from_secs(31);
    let server = world.serve(setup(WINDOW).max_clients(MOST));
    let mut honest = world.client(&server);
    let call = |client: &mut SuitePollClient| world.call(client, |c| c.start_tally(1));
    assert_eq!(call(&mut honest), Ok(1));
    let _strangers: Vec<_> = (1..MOST)
        .map(|_| {
            let (end, mut stream) = stop_after_welcome(world, &server);
            stream.write_all(&Frame::Ready.to_bytes()).expect("write ready");
            (end, stream)
        })
        .collect();
    let connect = || world.try_connect::<SuitePollClient>(&server.address);
    assert!(matches!(connect(), Err(ConnectError::Refused { .. })), "all places are taken");
    let begin = world.now();
    while world.now() < begin + LONG {
        world.turn(&mut honest);
    }
    let newcomers: Vec<_> = (1..MOST)
        .map(|_| {
            let mut newcomer = world.until("a stranger makes room", || connect().ok());
            call(&mut newcomer).expect("tally");
            newcomer
        })
        .collect();
    assert!(matches!(connect(), Err(ConnectError::Refused { .. })), "all have called");
    assert_eq!(server.refused(RefusalReason::NeverCalled), MOST as u64 - 1);
    assert!(server.refused(RefusalReason::Full) >= 2);
    assert_eq!(call(&mut honest), Ok(MOST as u64 + 1));
    drop(newcomers);
}

/// Answers of servers that are garbage, grant what was not asked for, or do not come.
pub fn broken_welcomes_are_refused(world: &World) {
    let good = good_terms();
    let backend = world.backend();
    let mut version = Frame::Ready.to_bytes();
    version[8] ^= 0x40;
    let refused = Frame::Reject(Reject::Refused { reason: "not today".to_owned() });
    let other_backend = Frame::Reject(Reject::Backend { theirs: "another backend".to_owned() });
    for (what, bytes) in [
        ("garbage", pattern::make(1, 500)),
        ("nothing", vec![]),
        ("version", version),
        ("a client's frame", Frame::Ready.to_bytes()),
        ("not today", refused.to_bytes()),
        ("another backend", other_backend.to_bytes()),
    ] {
        let (error, named) = dial_hostile_server(world, what, |_| bytes.clone());
        let fits = match what {
            "version" => matches!(error, ConnectError::VersionMismatch { .. }),
            "nothing" => matches!(error, ConnectError::NoServer { .. }),
            "another backend" => {
                matches!(error, ConnectError::BackendMismatch { .. }) && named.contains(what)
            }
            "not today" => matches!(error, ConnectError::Refused { .. }) && named.contains(what),
            _ => matches!(error, ConnectError::PeerMisbehaved { .. }),
        };
        assert!(fits, "{what}: {error:?}");
    }
    let welcome =
        |terms, setup| Frame::Welcome(Welcome { terms, setup, connection: None }).to_bytes();
    for (what, terms) in [
        ("a larger window", terms(WINDOW + 1, SLOT, LIMIT)),
        ("a larger slot", terms(WINDOW, SLOT * 2, LIMIT)),
        ("a larger limit", terms(WINDOW, SLOT, LIMIT + MESSAGE_HEADER_BYTES as u64 + 1)),
        ("no window", terms(0, SLOT, LIMIT)),
        ("no slot", terms(WINDOW, 0, LIMIT)),
    ] {
        let (error, _) = dial_hostile_server(world, what, |listener| {
            welcome(terms, (backend.open_end)(listener, &good).setup())
        });
        assert!(matches!(error, ConnectError::PeerMisbehaved { .. }), "{what}: {error:?}");
    }
    let device = world.raw_listener(&world.fresh_address(&setup(WINDOW))).device;
    for setup in (backend.broken_setups)(&device).into_iter().chain(no_setups()) {
        let (error, _) = dial_hostile_server(world, "setup", |_| welcome(good, setup.clone()));
        assert!(matches!(error, ConnectError::PeerMisbehaved { .. }), "{setup:x?}: {error:?}");
    }
}

/// How dialling ends at a server that answers hello with these bytes; and the error's text.
fn dial_hostile_server(
    world: &World,
    what: &str,
    answer: impl FnOnce(&farcall_verbs::Device) -> Vec<u8> + Send,
) -> (ConnectError, String) {
    let address = world.fresh_address(&setup(WINDOW));
    let mut listener = world.raw_listener(&address);
    let error = thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = (listener.accept)().expect("a client");
            let _ = read_frame(&mut *stream);
            // The client may have closed already.
            let _ = stream.write_all(&answer(&listener.device));
        });
        world.try_connect::<SuitePollClient>(&address).err()
    });
    let Some(error) = error else { panic!("{what}: connected") };
    let text = error.to_string();
    (error, text)
}
