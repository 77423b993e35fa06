//! The backend driven step by step, without sockets or threads.

use super::{MAX_SLOT_IN_MEMORY, SendRecv};
use crate::slots::tests::pair::{Host, limits, pattern};

crate::slots::tests::of_backend!(SendRecv);

/// Here few clients share a queue.
#[test]
fn clients_of_other_queues_go_on_after_an_overrun() {
    crate::slots::tests::overruns::clients_of_other_queues_go_on_after_an_overrun(&SendRecv);
}

/// Each time that a part of a message waits for its receiver may take as long as a timer.
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
