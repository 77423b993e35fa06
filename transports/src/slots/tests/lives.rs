//! Clients and servers that come, go and die.

use farcall_core::error::{FailureKind, ReserveError};
use farcall_core::time::Instant;
use farcall_core::transport::{Closing, WindDown};
use farcall_verbs::Device;

use super::pair::{Host, answer, limits, pattern};
use crate::contract::Backend;

pub(crate) fn a_client_that_says_goodbye_is_gone_at_once(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(4, 256, 1 << 20));
    let mut caller = host.admit();
    host.call(&mut caller, b"hello");
    assert_eq!(host.transport.connections(), 1);
    caller.transport.close(Closing::Goodbye);
    host.settle(&mut [&mut caller]);
    assert_eq!(host.transport.connections(), 0);
    assert_eq!(host.handlers.disconnected.len(), 1);
    assert_eq!(caller.transport.reserve(1).map(|_| ()).unwrap_err(), ReserveError::Closed);
    assert_eq!(caller.heard.closed.len(), 1);
}

pub(crate) fn a_dropped_client_leaves_calls_that_nobody_can_answer(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(4, 256, 1 << 20));
    host.handlers.hold = true;
    let mut caller = host.admit();
    caller.send(b"one");
    host.run(&mut [&mut caller], |host, _| !host.handlers.held.is_empty());
    drop(caller);
    host.run(&mut [], |host, _| host.transport.connections() == 0);
    let (call, _) = host.handlers.held.pop_front().unwrap();
    let error = answer(call, b"answer", host.transport.replies()).unwrap_err();
    assert_eq!(error, ReserveError::Closed);
}

pub(crate) fn a_new_client_of_the_same_number_does_not_get_old_answers(
    backend: &'static dyn Backend,
) {
    let device = Device::open("shm").unwrap();
    let mut host = Host::on(&device.clone(), device, backend, (limits(4, 256, 1 << 20), 1));
    host.handlers.hold = true;
    let mut first = host.admit();
    first.send(b"first");
    host.run(&mut [&mut first], |host, _| !host.handlers.held.is_empty());
    drop(first);
    host.run(&mut [], |host, _| host.transport.connections() == 0);
    let mut second = host.admit();
    second.send(b"second");
    host.run(&mut [&mut second], |host, _| host.handlers.held.len() == 2);
    let (old, _) = host.handlers.held.pop_front().unwrap();
    let (new, _) = host.handlers.held.pop_front().unwrap();
    assert_eq!(old.client(), new.client());
    assert_eq!(answer(old, b"old", host.transport.replies()), Err(ReserveError::Closed));
    answer(new, b"new", host.transport.replies()).unwrap();
    host.settle(&mut [&mut second]);
    assert_eq!(second.heard.replies.pop_front().unwrap().1, b"new");
}

pub(crate) fn clients_come_and_go_and_leave_room_for_others(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(4, 256, 1 << 20));
    let mut stays = host.admit();
    for round in 0..30u32 {
        let mut guests: Vec<_> = (0..7).map(|_| host.admit()).collect();
        for (n, guest) in guests.iter_mut().enumerate() {
            let bytes = pattern(round + n as u32, 40 * n);
            assert_eq!(host.call(guest, &bytes), bytes);
        }
        assert_eq!(host.transport.connections(), 8);
        // One leaves in the middle of a large request.
        guests[3].send(&[1; 500_000]);
        host.poll();
        guests[3].poll(host.now);
        drop(guests);
        host.run(&mut [], |host, _| host.transport.connections() == 1);
        assert_eq!(host.call(&mut stays, b"on"), b"on");
    }
}

pub(crate) fn a_server_says_goodbye_after_its_last_replies(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(4, 256, 1 << 20));
    host.handlers.hold = true;
    let (mut one, mut two) = (host.admit(), host.admit());
    one.send(b"one");
    host.run(&mut [&mut one, &mut two], |host, _| !host.handlers.held.is_empty());
    let (call, _) = host.handlers.held.pop_front().unwrap();
    answer(call, b"last", host.transport.replies()).unwrap();
    host.transport.wind_down(host.now, WindDown::Close);
    for caller in [&mut one, &mut two] {
        for _ in 0..10 {
            caller.poll(host.now);
        }
        assert_eq!(caller.heard.closed.len(), 1, "told once");
        assert_eq!(caller.heard.closed[0].kind, FailureKind::Goodbye);
    }
    assert_eq!(one.heard.replies.pop_front().unwrap().1, b"last");
}

pub(crate) fn a_server_that_vanishes_is_noticed(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(4, 256, 1 << 20));
    host.handlers.hold = true;
    let mut caller = host.admit();
    caller.send(b"one");
    host.run(&mut [&mut caller], |host, _| !host.handlers.held.is_empty());
    let now = host.now;
    drop(host);
    for _ in 0..1000 {
        caller.poll(now);
    }
    assert_eq!(caller.heard.closed.len(), 1);
    assert!(caller.heard.closed[0].may_have_run);
}

pub(crate) fn a_client_that_is_one_too_many_is_refused(backend: &'static dyn Backend) {
    let host = Host::new(backend, limits(4, 256, 1 << 20));
    let callers: Vec<_> = (0..8).map(|_| host.admit()).collect();
    let error = host.try_admit().map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("8 clients"), "{error}");
    drop(callers);
}

pub(crate) fn a_handshake_that_ends_badly_leaves_no_client(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(4, 256, 1 << 20));
    let (caller, accepted) = host.admit_unfinished();
    host.settle(&mut []);
    assert_eq!(host.transport.connections(), 1);
    (accepted.withdraw)();
    host.settle(&mut []);
    assert_eq!(host.transport.connections(), 0);
    drop(caller);
}

pub(crate) fn a_server_that_ends_sees_its_last_answers_arrive(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(16, 256, 1 << 20));
    host.handlers.hold = true;
    let mut callers = [host.admit(), host.admit()];
    for caller in &mut callers {
        for seed in 0..16 {
            caller.post(&pattern(seed, 100));
        }
        caller.transport.flush();
    }
    let [first, second] = &mut callers;
    host.run(&mut [first, second], |host, _| host.handlers.held.len() == 32);
    while let Some((call, bytes)) = host.handlers.held.pop_front() {
        answer(call, &bytes, host.transport.replies()).unwrap();
    }
    // The clients need not do anything for it, unless they have to fetch.
    let mut turns = 0;
    while !host.transport.wind_down(host.now, WindDown::Drain) {
        host.poll();
        for caller in &mut callers {
            caller.poll(host.now);
        }
        turns += 1;
        assert!(turns < 1000, "the answers are never fetched");
    }
    host.transport.wind_down(host.now, WindDown::Close);
    let mut asked = 0;
    while !host.transport.wind_down(Instant::ZERO, WindDown::Close) {
        asked += 1;
        assert!(asked < 1000, "the answers never arrive");
    }
    drop(host);
    for caller in &mut callers {
        while caller.heard.closed.is_empty() {
            caller.transport.poll(Instant::ZERO, &mut caller.heard);
        }
        assert_eq!(caller.heard.replies.len(), 16);
        assert_eq!(caller.heard.closed[0].kind, FailureKind::Goodbye);
    }
}

pub(crate) fn a_server_that_is_known_to_be_gone_ends_its_calls_once(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(4, 256, 1 << 20));
    host.handlers.hold = true;
    let mut caller = host.admit();
    caller.send(b"one");
    host.run(&mut [&mut caller], |host, _| !host.handlers.held.is_empty());
    caller.transport.close(Closing::PeerGone);
    for _ in 0..3 {
        caller.transport.poll(Instant::ZERO, &mut caller.heard);
    }
    assert_eq!(caller.heard.closed.len(), 1);
    assert_eq!(caller.heard.closed[0].kind, FailureKind::PeerGone);
    assert!(caller.heard.closed[0].may_have_run);
    assert_eq!(caller.transport.reserve(1).map(|_| ()).unwrap_err(), ReserveError::Closed);
}
