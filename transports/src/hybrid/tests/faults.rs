//! Lanes that hang, that cannot be opened, and that end while others begin.

use super::*;

const SECOND_NS: u64 = 1_000_000_000;

/// A connection that tries a lane which never answers, and the calls that it has.
fn hanging() -> (Bench, Shared, Vec<SlotId>) {
    let mut bench = Bench::new();
    bench.until_trial();
    let hangs = bench.open();
    let calls: Vec<_> = (0..WINDOW).map(|_| bench.call()).collect();
    assert_eq!(hangs.outstanding(), WINDOW as usize);
    (bench, hangs, calls)
}

#[test]
fn a_lane_that_hangs_is_left_soon_and_new_calls_go_on() {
    let (mut bench, hangs, _) = hanging();
    let polls = (0..100).find(|_| {
        bench.poll();
        let reserved = bench.hybrid.reserve(1).map(|(slot, _)| slot);
        reserved.map(|slot| bench.hybrid.release(slot)).is_ok()
    });
    // Each poll is half a millisecond later, and calls took four polls before. Without what it sees, a trial would take a hundred.
    assert!(polls.is_some_and(|polls| polls <= 90), "{polls:?}");
    let call = bench.call();
    assert_eq!(bench.first.outstanding(), 1);
    bench.seen.replies.clear();
    bench.first.answer_all();
    bench.poll();
    assert_eq!(bench.seen.replies, [call]);
    assert!(!hangs.wire().is_dropped, "callers wait for its answers");
}

#[test]
fn a_lane_that_hangs_ends_some_time_after_the_last_caller_has_given_up() {
    let (mut bench, hangs, calls) = hanging();
    for _ in 0..10_000 {
        bench.poll();
    }
    assert!(!hangs.wire().is_dropped, "a caller waits, for 5 s so far");
    calls.iter().for_each(|call| bench.hybrid.abandon(*call));
    // It tells when it is to be polled, also without news.
    let next = bench.poll().next;
    let PollAt::At(at) = next else { panic!("it says nothing of its end: {next:?}") };
    assert_eq!(at, bench.now.saturating_add_nanos(SECOND_NS));
    bench.poll();
    assert!(!hangs.wire().is_dropped);
    bench.now = at;
    bench.poll();
    assert!(hangs.wire().is_dropped);
    assert_eq!((bench.seen.closed, bench.seen.failed.len()), (0, 0));
    // Then ways are tried again.
    bench.opener.orders.lock().unwrap().asked.clear();
    bench.until_trial();
}

#[test]
fn an_answer_that_comes_after_all_ends_at_its_caller() {
    let (mut bench, hangs, calls) = hanging();
    for _ in 0..200 {
        bench.poll();
    }
    bench.seen.replies.clear();
    let new = bench.call();
    hangs.answer_all();
    bench.poll();
    assert_eq!(bench.seen.replies, calls);
    assert!(hangs.wire().is_dropped, "it was left, and has nothing any more");
    bench.first.answer_all();
    bench.poll();
    assert_eq!(bench.seen.replies[calls.len()..], [new]);
}

#[test]
fn a_way_that_could_not_be_opened_is_taken_when_it_can() {
    let mut bench = Bench::new();
    let refuse = |bench: &mut Bench| {
        let error = ConnectError::Refused { address: "a".into(), reason: "full".into() };
        bench.opener.orders.lock().unwrap().answers.push(Err(error));
        bench.poll();
    };
    let mut tries = Vec::new();
    for _ in 0..5 {
        bench.until_trial();
        bench.opener.orders.lock().unwrap().asked.clear();
        tries.push(bench.now);
        refuse(&mut bench);
    }
    let pauses: Vec<_> = tries.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.is_sorted() && pauses[3] > 4 * pauses[0], "{pauses:?}");
    assert_eq!(bench.counts.of(MoveEvent::NotOpened), 5);
    bench.until_trial();
    let second = bench.open();
    bench.call();
    assert_eq!((bench.first.outstanding(), second.outstanding()), (0, 1));
    assert_eq!(bench.counts.of(MoveEvent::Tried), 1);
}

#[test]
fn the_connection_ends_while_a_lane_is_being_opened() {
    let mut bench = Bench::new();
    bench.until_trial();
    let call = bench.call();
    bench.first.wire().over = Some(FailureKind::PeerGone);
    bench.poll();
    // The request is the ended connection's: its user ends it.
    assert_eq!((bench.seen.closed, bench.seen.failed.len()), (1, 0), "{call:?}");
    let late = bench.open();
    bench.poll();
    assert_eq!(bench.seen.closed, 1);
    assert_eq!(bench.hybrid.reserve(1).map(|_| ()), Err(ReserveError::Closed));
    drop(bench);
    assert!(!late.wire().is_dropped, "the opener has it still");
}

#[test]
fn both_lanes_end_at_once() {
    let mut bench = Bench::new();
    bench.until_trial();
    let old = bench.call();
    let second = bench.open();
    bench.call();
    for lane in [&bench.first, &second] {
        lane.wire().over = Some(FailureKind::PeerGone);
    }
    bench.poll();
    bench.poll();
    assert_eq!((&bench.seen.failed[..], bench.seen.closed), (&[old][..], 1));
    assert!(bench.first.wire().is_dropped);
}
