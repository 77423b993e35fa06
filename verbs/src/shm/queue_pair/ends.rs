//! The end of a queue pair: what its peer notices, and what its completion queue forgets.

use std::thread;
use std::time::{Duration, Instant};

use super::QueuePair;
use super::hostile::{RECEIVES, SENDS, connect, queue_pair};
use crate::QpState;
use crate::shm::Domain;
use crate::shm::completion_queue::CompletionQueue;
use crate::shm::context::Context;

/// Longer than anything here takes.
const BOUND: Duration = Duration::from_secs(20);

fn domain() -> Domain {
    Domain { context: Context::open(false).unwrap(), number: 1, sole: None }
}

/// Neither sends, nor polls: only its device can tell it.
#[test]
fn a_peer_that_only_waits_fails_with_the_other_end() {
    let ends: [fn(QueuePair) -> Option<QueuePair>; 2] = [
        |mut failing| {
            failing.fail();
            Some(failing)
        },
        |dropped| {
            drop(dropped);
            None
        },
    ];
    for end in ends {
        let [ours, theirs] = [(); 2].map(|()| domain());
        let [our_queue, their_queue] = [(); 2].map(|()| CompletionQueue::new(64, None, false));
        let (mut one, mut waiting) =
            (queue_pair(&ours, &our_queue), queue_pair(&theirs, &their_queue));
        connect(&mut one, &mut waiting);
        assert_ne!(waiting.state(), QpState::Error);
        let _ended = end(one);
        let begun = Instant::now();
        while waiting.state() != QpState::Error {
            assert!(begun.elapsed() < BOUND, "it was not told");
            thread::yield_now();
        }
    }
}

#[test]
fn queue_pairs_that_are_gone_need_no_room_for_completions() {
    let domain = domain();
    let queue = CompletionQueue::new(SENDS + RECEIVES, None, false);
    for _ in 0..3 {
        let _only = queue_pair(&domain, &queue);
        assert!(!queue.is_crowded());
    }
    let _two = [(); 2].map(|()| queue_pair(&domain, &queue));
    assert!(queue.is_crowded());
}
