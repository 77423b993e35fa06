//! The backend driven step by step, without sockets or threads.

use farcall_core::transport::Delivery;
use farcall_verbs::Device;

use super::{MAX_SLOT_IN_MEMORY, SendRecv};
use crate::slots::operations::{MOST_CREDITS, batch};
use crate::slots::tests::pair::{Caller, Host, limits, pattern};

crate::slots::tests::of_backend!(SendRecv);

/// Here few clients share a queue.
#[test]
fn clients_of_other_queues_go_on_after_an_overrun() {
    crate::slots::tests::overruns::clients_of_other_queues_go_on_after_an_overrun(&SendRecv);
}

/// Each time that a part of a message waits for its receiver, both ends take another turn.
#[test]
fn the_longest_message_of_a_slot_waits_a_few_times_for_room() {
    let mut host = Host::new(&SendRecv, limits(4, MAX_SLOT_IN_MEMORY, 1 << 20));
    let mut caller = host.admit();
    let bytes = pattern(1, MAX_SLOT_IN_MEMORY as usize - 64);
    let mut turns = 0;
    caller.send(&bytes);
    host.run(&mut [&mut caller], |_, callers| {
        turns += 1;
        !callers[0].heard.replies.is_empty()
    });
    assert!(caller.heard.replies[0].1 == bytes && caller.heard.owned == 0);
    assert!(turns <= 32, "{turns}");
}

/// Sends a whole window, and then does not wait for it any more.
fn give_up_window(caller: &mut Caller) {
    let window = caller.transport.limits().window;
    let slots: Vec<_> = (0..window).map(|_| caller.send(b"for nobody")).collect();
    slots.into_iter().for_each(|slot| caller.transport.abandon(slot));
    caller.transport.flush();
}

/// Requests of others find their receives all the same: the request of a client that is not polled any more has left.
#[test]
fn cancellations_take_no_receives_of_others() {
    const WINDOW: u32 = 64;
    let mut host = Host::new(&SendRecv, limits(WINDOW, 256, 4096));
    host.handlers.hold = true;
    let mut late = host.admit();
    let mut callers: Vec<_> = (0..7).map(|_| host.admit()).collect();
    host.settle(&mut callers.iter_mut().collect::<Vec<_>>());
    callers.iter_mut().for_each(give_up_window);
    late.send(b"of another client");
    while host.poll() > 0 {}
    let is_there = host.handlers.held.iter().any(|(_, request)| request == b"of another client");
    assert!(is_there, "it waits for a receive: {} requests are there", host.handlers.requests);

    // All that was given up is told, and the windows are whole again.
    let mut all: Vec<_> = callers.iter_mut().chain([&mut late]).collect();
    host.settle(&mut all);
    assert_eq!(host.handlers.cancelled.len(), 7 * WINDOW as usize);
    for _ in 0..2 {
        answer_all(&mut host);
        host.settle(&mut all);
        for caller in &mut all {
            caller.heard.replies.clear();
            for _ in 0..WINDOW {
                caller.send(b"again");
            }
        }
        host.settle(&mut all);
        assert_eq!(host.handlers.held.len(), 8 * WINDOW as usize);
    }
}

/// Windows, and the most clients of the server: so many that receives are plentiful, or that there is one for the operations of four
/// requests.
const GRANTS: [(u32, usize); 9] =
    [(1, 8), (2, 8), (3, 8), (8, 8), (64, 8), (64, 10_800), (1, 10_900), (2, 10_900), (64, 10_900)];

fn host_for((window, max_clients): (u32, usize)) -> Host {
    let device = Device::open("shm").unwrap();
    let config = limits(window, 256, 1 << 20);
    Host::on(&device.clone(), device, &SendRecv, (config, max_clients))
}

fn answer_all(host: &mut Host) {
    while !host.handlers.held.is_empty() {
        host.answer(b"").unwrap();
    }
}

/// As many calls as its window has, one after the other and together.
fn assert_whole_window_works(host: &mut Host, caller: &mut Caller) {
    host.handlers.hold = false;
    let window = caller.transport.limits().window;
    for _ in 0..3 * window {
        assert_eq!(host.call(caller, b"after"), b"after", "a window of {window}");
    }
    for _ in 0..window {
        caller.send(b"together");
    }
    host.settle(&mut [caller]);
    assert_eq!(caller.heard.replies.len(), window as usize);
}

/// A cancellation waits for its receive, and is none any more when its call has ended.
#[test]
fn cancellations_that_wait_for_receives_end_with_their_calls() {
    for grant in GRANTS {
        let mut host = host_for(grant);
        host.handlers.hold = true;
        let mut caller = host.admit();
        host.settle(&mut [&mut caller]);
        let window = caller.transport.limits().window;
        give_up_window(&mut caller);
        while host.poll() > 0 {}
        let told = host.handlers.cancelled.len() as u32;
        match grant {
            (64, 10_800) => assert_eq!((window, told), (63, 16)),
            (2, 10_900) => assert_eq!((window, told), (2, 2)),
            (64, 10_900) => assert_eq!((window, told), (3, 1)),
            _ => assert_eq!((window, told), (grant.0, window)),
        }
        answer_all(&mut host);
        host.settle(&mut [&mut caller]);
        assert_eq!(host.handlers.cancelled.len() as u32, told, "{grant:?}");
        assert!(caller.heard.replies.is_empty(), "nobody waits for them");
        assert_whole_window_works(&mut host, &mut caller);

        // If none ends, all are told in the end.
        host.handlers.hold = true;
        give_up_window(&mut caller);
        host.settle(&mut [&mut caller]);
        assert_eq!(host.handlers.cancelled.len() as u32, told + window, "{grant:?}");
    }
}

/// Cancellations that cross their answers are operations too. A client that has sent many starts fewer calls until the server has
/// read some, and never sends more than its receives hold, as the window asserts.
#[test]
fn operations_and_requests_in_any_order_keep_within_the_receives() {
    for grant in GRANTS {
        let mut host = host_for(grant);
        host.handlers.hold = true;
        let mut caller = host.admit();
        let (mut dice, mut slots) = (pattern(grant.0, 6000).into_iter(), Vec::new());
        while let (Some(what), Some(which)) = (dice.next(), dice.next()) {
            match what % 8 {
                0..3 => {
                    let bytes = pattern(1, if which < 4 { 100_000 } else { 9 });
                    if let Ok((slot, room)) = caller.transport.reserve(bytes.len()) {
                        room.copy_from_slice(&bytes);
                        caller.transport.post(slot, Delivery::AtMostOnce);
                        slots.push(slot);
                    }
                }
                3 if !slots.is_empty() => {
                    let slot = slots.swap_remove(usize::from(which) % slots.len());
                    caller.transport.abandon(slot);
                }
                4 if !host.handlers.held.is_empty() => {
                    let len = if which < 16 { 10_000 } else { 5 };
                    host.answer(&vec![0; len]).unwrap();
                }
                5 => drop(host.poll()),
                _ => drop(caller.poll(host.now)),
            }
        }
        for slot in slots {
            caller.transport.abandon(slot);
        }
        for _ in 0..3 {
            answer_all(&mut host);
            host.settle(&mut [&mut caller]);
        }
        assert!(caller.heard.closed.is_empty() && host.handlers.disconnected.is_empty());
        caller.heard.replies.clear();
        assert_whole_window_works(&mut host, &mut caller);
    }
}

#[test]
fn few_credits_of_operations_are_on_their_way() {
    for window in 1..=1024_u32 {
        for spare in window.div_ceil(4)..=window {
            let most = (window + spare) / batch(spare);
            assert!(most as usize <= MOST_CREDITS, "{window}, {spare}: {most}");
        }
    }
}
