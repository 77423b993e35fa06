//! Lanes that cannot be opened, and that end while others begin.

use super::*;

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
