//! Messages larger than a slot: rendezvous, its limits, its memory, its cancellation.

use farcall_core::error::{FailureKind, ReserveError};
use farcall_core::transport::Delivery;

use super::pair::{Host, Pieces, limits, pattern};
use crate::contract::Backend;
use crate::contract::Config;
use crate::rendezvous::RING_CHUNKS;

/// Of long messages on shared memory.
const CHUNK: usize = 64 << 10;
const RING: usize = CHUNK * RING_CHUNKS as usize;

pub(crate) fn messages_of_every_kind_of_size_come_back(backend: &'static dyn Backend) {
    let around = |len: usize| [len - 1, len, len + 1];
    let mut sizes = vec![249, 4096, CHUNK / 2, 3 * RING + 17, 8 << 20];
    sizes.extend([CHUNK, 2 * CHUNK, RING].map(around).concat());
    for pieces in Pieces::ALL {
        let mut host = Host::posting(backend, limits(4, 256, 8 << 20), pieces);
        let mut caller = host.admit();
        for len in &sizes {
            let bytes = pattern(*len as u32, *len);
            assert!(host.call(&mut caller, &bytes) == bytes, "{len} bytes");
        }
        assert_eq!(caller.heard.owned, sizes.len());
    }
}

pub(crate) fn large_and_small_calls_share_a_connection(backend: &'static dyn Backend) {
    for pieces in Pieces::ALL {
        large_and_small_calls(backend, pieces);
    }
}

fn large_and_small_calls(backend: &'static dyn Backend, pieces: Pieces) {
    let mut host = Host::posting(backend, limits(4, 256, 16 << 20), pieces);
    let mut caller = host.admit();
    let large: Vec<_> = (0..3).map(|n| pattern(n, (4 << 20) + n as usize)).collect();
    let slots: Vec<_> = large.iter().map(|bytes| caller.send(bytes)).collect();
    for n in 0..5u8 {
        // Small calls do not wait for the end of large ones.
        caller.send(&[n]);
        host.run(&mut [&mut caller], |_, callers| !callers[0].heard.replies.is_empty());
        assert_eq!(caller.heard.replies.pop_front().unwrap().1, [n]);
    }
    host.run(&mut [&mut caller], |_, callers| callers[0].heard.replies.len() == 3);
    for (slot, bytes) in caller.heard.replies.drain(..) {
        let at = slots.iter().position(|sent| *sent == slot).unwrap();
        assert!(bytes == large[at]);
    }
}

pub(crate) fn both_ends_refuse_what_is_over_the_limit_and_name_both_numbers(
    backend: &'static dyn Backend,
) {
    let mut host = Host::new(backend, limits(2, 256, 10_000));
    host.handlers.hold = true;
    let mut caller = host.admit();
    let error = caller.transport.reserve(10_001).map(|_| ()).unwrap_err();
    assert_eq!(error, ReserveError::TooLarge { len: 10_001, max: 10_000 });
    caller.send(b"?");
    host.run(&mut [&mut caller], |host, _| !host.handlers.held.is_empty());
    let error = host.answer(&[0; 10_001]).unwrap_err();
    assert_eq!(error, ReserveError::TooLarge { len: 10_001, max: 10_000 });
}

pub(crate) fn an_answer_may_come_out_other_than_reserved(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(2, 256, 1 << 20));
    host.handlers.hold = true;
    let mut caller = host.admit();
    for (reserved, posted) in [(5000, 100), (5000, 4000), (5000, 0)] {
        caller.send(b"?");
        host.run(&mut [&mut caller], |host, _| !host.handlers.held.is_empty());
        let (call, _) = host.handlers.held.pop_front().unwrap();
        let replies = host.transport.replies();
        replies.reserve(&call, reserved).unwrap().fill(7);
        replies.post(call, posted);
        host.settle(&mut [&mut caller]);
        assert_eq!(caller.heard.replies.pop_front().unwrap().1, vec![7; posted]);
    }
    // A large answer that failed to be made, and the error that goes instead.
    caller.send(b"?");
    host.run(&mut [&mut caller], |host, _| !host.handlers.held.is_empty());
    let (call, _) = host.handlers.held.pop_front().unwrap();
    let replies = host.transport.replies();
    replies.reserve(&call, 5000).unwrap();
    replies.reserve(&call, 3).unwrap().copy_from_slice(b"err");
    replies.post(call, 3);
    host.settle(&mut [&mut caller]);
    assert_eq!(caller.heard.replies.pop_front().unwrap().1, b"err");
}

/// Abandons a large call after each number of turns, so that every phase is met.
pub(crate) fn a_large_call_can_be_abandoned_in_every_phase(backend: &'static dyn Backend) {
    for pieces in Pieces::ALL {
        abandon_in_every_phase(backend, pieces);
    }
}

fn abandon_in_every_phase(backend: &'static dyn Backend, pieces: Pieces) {
    let mut host = Host::posting(backend, limits(1, 256, 8 << 20), pieces);
    let mut caller = host.admit();
    let bytes = pattern(5, 3 * RING + 5);
    for turns in 0..60 {
        let slot = caller.send(&bytes);
        for _ in 0..turns {
            host.poll();
            caller.poll(host.now);
        }
        caller.transport.abandon(slot);
        caller.transport.flush();
        host.settle(&mut [&mut caller]);
        caller.heard.replies.clear();
        assert!(caller.heard.closed.is_empty() && caller.heard.failed.is_empty(), "{turns}");
        assert_eq!(host.call(&mut caller, b"after"), b"after", "{turns}");
    }
    assert!(host.call(&mut caller, &bytes) == bytes);
}

/// Memory for four messages with their rings, of which a client may hold half.
fn scarce(max_message: u64) -> Config {
    Config {
        window: 4,
        slot: 256,
        max_message,
        memory: 4 * max_message + (4 << 20),
        ..Config::default()
    }
}

pub(crate) fn a_stalled_client_does_not_stall_others(backend: &'static dyn Backend) {
    for pieces in Pieces::ALL {
        stall_one(backend, pieces);
    }
}

fn stall_one(backend: &'static dyn Backend, pieces: Pieces) {
    let mut host = Host::posting(backend, scarce(4 << 20), pieces);
    let (mut stalled, mut lively) = (host.admit(), host.admit());
    let bytes = pattern(1, 4 << 20);
    // It asks for as much as it can get, and never writes: it is not polled.
    for _ in 0..2 {
        stalled.send(&bytes);
    }
    host.settle(&mut []);
    for _ in 0..5 {
        assert!(host.call(&mut lively, &bytes) == bytes);
    }
    host.run(&mut [&mut stalled], |_, callers| callers[0].heard.replies.len() == 2);
}

pub(crate) fn who_holds_memory_that_others_wait_for_is_dropped_in_the_end(
    backend: &'static dyn Backend,
) {
    let mut host = Host::new(backend, scarce(4 << 20));
    let bytes = pattern(1, 4 << 20);
    let mut stalled: Vec<_> = (0..4).map(|_| host.admit()).collect();
    for caller in &mut stalled {
        caller.send(&bytes);
    }
    host.settle(&mut []);
    let mut lively = host.admit();
    lively.send(&bytes);
    host.settle(&mut [&mut lively]);
    assert!(lively.heard.replies.is_empty() && host.handlers.disconnected.is_empty());
    for _ in 0..200 {
        // Virtual time: a tenth of a second per turn.
        host.now = host.now.saturating_add_nanos(100_000_000);
        host.poll();
        lively.poll(host.now);
    }
    host.run(&mut [&mut lively], |_, callers| !callers[0].heard.replies.is_empty());
    assert!(!host.handlers.disconnected.is_empty());
    assert!(lively.heard.closed.is_empty());
}

pub(crate) fn a_waiting_request_that_is_abandoned_waits_no_more(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, scarce(4 << 20));
    let bytes = pattern(1, 4 << 20);
    let (mut first, mut second, mut third) = (host.admit(), host.admit(), host.admit());
    for caller in [&mut first, &mut second] {
        caller.send(&bytes);
        caller.send(&bytes);
    }
    host.settle(&mut []);
    let waiting = third.send(&bytes);
    host.settle(&mut []);
    third.transport.abandon(waiting);
    third.transport.flush();
    host.settle(&mut [&mut third]);
    assert_eq!(host.call(&mut third, b"on"), b"on");
    host.run(&mut [&mut first, &mut second], |_, callers| {
        callers.iter().all(|caller| caller.heard.replies.len() == 2)
    });
    // Nor is it granted anything when there is memory again.
    host.settle(&mut [&mut third]);
    assert!(third.heard.closed.is_empty(), "{:?}", third.heard.closed);
    assert!(third.heard.replies.is_empty());
    assert_eq!(host.call(&mut third, b"still on"), b"still on");
}

pub(crate) fn an_announcement_over_the_limit_fails_alone(backend: &'static dyn Backend) {
    for pieces in Pieces::ALL {
        announce_over_limit(backend, pieces);
    }
}

fn announce_over_limit(backend: &'static dyn Backend, pieces: Pieces) {
    // The client believes in more than the server: its terms were tampered with.
    let mut host = Host::posting(backend, limits(2, 256, 10_000), pieces);
    let mut caller = host.admit_trusting(&limits(2, 256, 1 << 20));
    let slot = caller.send(&[1; 20_000]);
    host.settle(&mut [&mut caller]);
    let (failed, why) = caller.heard.failed.pop().unwrap();
    assert_eq!(failed, slot);
    assert_eq!(why.kind, FailureKind::TooLarge { len: 20_000, max: 10_000 });
    assert!(!why.may_have_run);
    assert_eq!(host.call(&mut caller, b"next"), b"next");
}

pub(crate) fn memory_is_used_again(backend: &'static dyn Backend) {
    for pieces in Pieces::ALL {
        let mut host = Host::posting(backend, limits(2, 256, 1 << 20), pieces);
        let mut caller = host.admit();
        let bytes = pattern(1, 1 << 20);
        for _ in 0..200 {
            assert!(host.call(&mut caller, &bytes) == bytes);
        }
    }
    let mut caller = Host::new(backend, limits(2, 256, 1 << 20)).admit();
    let (slot, _) = caller.transport.reserve(1 << 20).unwrap();
    caller.transport.release(slot);
    caller.transport.flush();
}

pub(crate) fn two_ends_that_are_short_of_memory_do_not_wait_for_each_other(
    backend: &'static dyn Backend,
) {
    let tight =
        Config { window: 8, slot: 256, max_message: 1 << 20, memory: 5 << 20, ..Config::default() };
    let mut host = Host::new(backend, tight);
    let (mut one, mut two) = (host.admit(), host.admit());
    let bytes = pattern(3, 1 << 20);
    let mut sent = 0;
    for _ in 0..MANY {
        for caller in [&mut one, &mut two] {
            while let Ok((slot, room)) = caller.transport.reserve(bytes.len()) {
                room.copy_from_slice(&bytes);
                caller.transport.post(slot, Delivery::AtMostOnce);
                caller.transport.flush();
                sent += 1;
            }
        }
        host.poll();
        for caller in [&mut one, &mut two] {
            caller.poll(host.now);
            while let Some((_, reply)) = caller.heard.replies.pop_front() {
                assert!(reply == bytes);
            }
        }
        if sent >= 40 {
            return;
        }
    }
    panic!("stuck after {sent} calls: {:?}", host.handlers);
}

/// Turns after which calls that move at all have moved.
const MANY: usize = 100_000;
