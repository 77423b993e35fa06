//! Messages that fit a slot: windows, generations, abandoned calls, terms.

use farcall_core::error::{Backpressure, ReserveError};
use farcall_core::transport::{Body, Delivery};
use farcall_verbs::Device;

use super::pair::{Host, limits, pattern};
use crate::contract::Backend;

pub(crate) fn messages_of_every_size_up_to_a_slot_come_back(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(4, 256, 4096));
    let mut caller = host.admit();
    for len in 0..=248 {
        let bytes = pattern(len as u32, len);
        assert_eq!(host.call(&mut caller, &bytes), bytes, "{len} bytes");
    }
    assert_eq!(caller.heard.owned, 0);
}

/// On a device that takes long messages inline, and on one that does not; in a slot and beyond.
pub(crate) fn messages_in_parts_come_back(backend: &'static dyn Backend) {
    for device in ["shm", "shm-plain"] {
        let device = Device::open(device).unwrap();
        let config = limits(4, 16 << 10, 1 << 20);
        let mut host = Host::on(&device, device.clone(), backend, (config, 8));
        host.handlers.hold = true;
        let mut caller = host.admit();
        for (turn, len) in [0, 9, 40, 500, 1023, 4096, 9000, 16_000, 70_000].into_iter().enumerate()
        {
            let bytes = pattern(turn as u32, 2 * len + 8);
            let (front, body) = bytes[len..].split_at(8);
            // Another call of the window waits meanwhile, in a slot that must stay as it is.
            let first = caller.send(&bytes);
            let second = caller
                .transport
                .post_parts(front, Body::Borrowed(body), Delivery::AtMostOnce)
                .unwrap();
            caller.transport.flush();
            host.run(&mut [&mut caller], |host, _| host.handlers.held.len() == 2);
            while let Some((call, request)) = host.handlers.held.pop_front() {
                let (front, body) = request.split_at(request.len() / 3);
                let mut call = Some(call);
                host.transport
                    .replies()
                    .post_parts(&mut call, front, Body::Borrowed(body))
                    .unwrap();
                assert!(call.is_none(), "it is answered");
            }
            host.transport.flush();
            host.run(&mut [&mut caller], |_, callers| callers[0].heard.replies.len() == 2);
            let mut replies: Vec<_> = caller.heard.replies.drain(..).collect();
            replies.sort_unstable_by_key(|(slot, _)| *slot != first);
            assert_eq!(replies, [(first, bytes.clone()), (second, bytes[len..].to_vec())], "{len}");
        }
    }
}

pub(crate) fn a_full_window_is_backpressure_and_frees_in_any_order(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(4, 256, 4096));
    host.handlers.hold = true;
    let mut caller = host.admit();
    let slots: Vec<_> = (0..4u8).map(|n| caller.send(&[n])).collect();
    let full = caller.transport.reserve(1).map(|_| ()).unwrap_err();
    assert_eq!(full, ReserveError::Backpressure(Backpressure::Credits));
    host.run(&mut [&mut caller], |host, _| host.handlers.held.len() == 4);
    // The last is answered first: its slot is free, and no other is touched by its next use.
    let (call, bytes) = host.handlers.held.pop_back().unwrap();
    super::pair::answer(call, &bytes, host.transport.replies()).unwrap();
    host.settle(&mut [&mut caller]);
    assert_eq!(caller.heard.replies.pop_front().unwrap(), (slots[3], vec![3]));
    let again = caller.send(&[9]);
    assert_eq!(again.index, slots[3].index);
    assert_ne!(again.generation, slots[3].generation);
    host.settle(&mut [&mut caller]);
    for n in 0..3 {
        assert_eq!(host.handlers.held[n].1, [n as u8]);
    }
    while !host.handlers.held.is_empty() {
        let bytes = host.handlers.held[0].1.clone();
        host.answer(&bytes).unwrap();
    }
    host.settle(&mut [&mut caller]);
    let mut answers: Vec<_> = caller.heard.replies.drain(..).map(|(_, bytes)| bytes[0]).collect();
    answers.sort_unstable();
    assert_eq!(answers, [0, 1, 2, 9]);
}

pub(crate) fn a_late_reply_frees_its_slot_and_is_not_delivered(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(1, 256, 4096));
    host.handlers.hold = true;
    let mut caller = host.admit();
    let slot = caller.send(b"slow");
    host.run(&mut [&mut caller], |host, _| !host.handlers.held.is_empty());
    caller.transport.abandon(slot);
    caller.transport.flush();
    host.settle(&mut [&mut caller]);
    assert_eq!(host.handlers.cancelled, [(0, slot.index)]);
    let full = caller.transport.reserve(1).map(|_| ()).unwrap_err();
    assert_eq!(full, ReserveError::Backpressure(Backpressure::Credits));
    host.answer(b"too late").unwrap();
    host.settle(&mut [&mut caller]);
    assert!(caller.heard.replies.is_empty());
    host.handlers.hold = false;
    assert_eq!(host.call(&mut caller, b"next"), b"next");
}

pub(crate) fn a_request_that_has_not_left_is_taken_back(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(1, 256 << 10, 256 << 10));
    let mut caller = host.admit();
    // Too long to go inline, so it waits for the doorbell.
    let slot = caller.post(&[1; 200 << 10]);
    caller.transport.abandon(slot);
    assert_eq!(host.call(&mut caller, b"this one"), b"this one");
    assert_eq!(host.handlers.requests, 1);
    assert!(host.handlers.cancelled.is_empty());
}

pub(crate) fn a_released_slot_is_free_and_its_generation_is_spent(backend: &'static dyn Backend) {
    let host = Host::new(backend, limits(1, 256, 4096));
    let mut caller = host.admit();
    let (first, _) = caller.transport.reserve(8).unwrap();
    caller.transport.release(first);
    let (second, _) = caller.transport.reserve(8).unwrap();
    assert_eq!(first.index, second.index);
    assert_ne!(first.generation, second.generation);
    caller.transport.release(first);
    let refused = caller.transport.reserve(8).map(|_| ());
    let is_full = refused == Err(ReserveError::Backpressure(Backpressure::Credits));
    assert!(is_full, "a stale release frees nothing: {refused:?}");
}

pub(crate) fn the_smaller_end_sets_the_terms(backend: &'static dyn Backend) {
    let mut host = Host::new(backend, limits(8, 1024, 4096));
    let mut narrow = host.admit_with(&limits(2, 128, 1 << 20));
    assert_eq!(narrow.transport.limits().window, 2);
    assert_eq!(narrow.transport.limits().max_message, 4096);
    let mut wide = host.admit_with(&limits(64, 4096, 1 << 20));
    assert_eq!(wide.transport.limits().window, 8);
    for len in [0, 100, 200, 2000, 4096] {
        let bytes = pattern(1, len);
        assert_eq!(host.call(&mut narrow, &bytes), bytes);
        assert_eq!(host.call(&mut wide, &bytes), bytes);
    }
}

pub(crate) fn replies_of_one_turn_survive_many_rounds_of_every_queue(
    backend: &'static dyn Backend,
) {
    let mut host = Host::new(backend, limits(16, 256, 4096));
    let mut caller = host.admit();
    let mut sent = 0u32;
    let mut seen = 0;
    while seen < 5000 {
        while let Ok((slot, room)) = caller.transport.reserve(100) {
            room[..4].copy_from_slice(&sent.to_le_bytes());
            room[4..].fill(sent as u8);
            caller.transport.post(slot, Delivery::AtMostOnce);
            sent += 1;
        }
        caller.transport.flush();
        host.poll();
        caller.poll(host.now);
        for (_, bytes) in caller.heard.replies.drain(..) {
            let number = u32::from_le_bytes(*bytes.first_chunk().unwrap());
            assert!(number < sent && bytes[4..].iter().all(|byte| *byte == number as u8));
            seen += 1;
        }
    }
    assert!(caller.heard.closed.is_empty());
}

pub(crate) fn a_server_that_does_not_poll_costs_the_client_nothing_but_time(
    backend: &'static dyn Backend,
) {
    let mut host = Host::new(backend, limits(16, 4096, 4096));
    let mut caller = host.admit();
    for round in 0..50 {
        let slots: Vec<_> = (0..16).map(|_| caller.send(&[round; 3000])).collect();
        for slot in slots {
            caller.transport.abandon(slot);
            caller.transport.flush();
        }
        for _ in 0..10 {
            caller.poll(host.now);
        }
        assert!(caller.heard.closed.is_empty());
        host.settle(&mut [&mut caller]);
    }
    assert_eq!(host.call(&mut caller, b"still here"), b"still here");
}
