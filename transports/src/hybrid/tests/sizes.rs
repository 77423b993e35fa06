//! Connections with small calls and large ones.

use super::*;

const SMALL: usize = 3;
const LARGE: usize = LARGE_FROM_BYTES;

/// A connection among two ways, on which small and large calls take so many polls.
struct TwoSizes {
    bench: Bench,
    takes: [[u64; 2]; 2],
    lanes: Vec<Shared>,
    /// The request of which each slot is, by size.
    under_way: Vec<(SlotId, usize)>,
}

impl TwoSizes {
    fn new(takes: [[u64; 2]; 2]) -> TwoSizes {
        let bench = Bench::new();
        bench.first.wire().takes = Some(takes[0]);
        let lanes = vec![bench.first.clone()];
        TwoSizes { bench, takes, lanes, under_way: Vec::new() }
    }

    /// Polls so often, with two calls of each of these sizes under way.
    fn run(&mut self, polls: u32, sizes: &[usize]) {
        for _ in 0..polls {
            self.call(sizes);
            self.open_lanes();
            self.bench.seen.replies.clear();
            // A twentieth of a look: calls that take several polls differ.
            self.bench.now = self.bench.now.saturating_add_nanos(LOOK_NS / 20);
            self.bench.hybrid.poll(self.bench.now, &mut self.bench.seen);
            let replies = &self.bench.seen.replies;
            let before = self.under_way.len();
            self.under_way.retain(|(slot, _)| !replies.contains(slot));
            assert_eq!(self.under_way.len() + replies.len(), before, "each answer once");
        }
    }

    /// Makes calls of each of these sizes until two are under way.
    fn call(&mut self, sizes: &[usize]) {
        for size in sizes {
            while self.under_way.iter().filter(|(_, len)| len == size).count() < 2 {
                let (slot, _) = self.bench.hybrid.reserve(*size).unwrap();
                self.bench.hybrid.post(slot, Delivery::AtMostOnce);
                self.under_way.push((slot, *size));
            }
        }
    }

    fn open_lanes(&mut self) {
        let mut orders = self.bench.opener.orders.lock().unwrap();
        for way in std::mem::take(&mut orders.asked) {
            let lane = Shared::new();
            lane.wire().takes = Some(self.takes[way]);
            orders.answers.push(Ok(lane.clone()));
            self.lanes.push(lane);
        }
    }

    /// The ways that calls of these sizes take.
    fn ways(&self) -> [usize; 2] {
        let Hybrid { current, large, .. } = &self.bench.hybrid;
        let large = large.as_ref().and_then(|large| large.lane.as_ref());
        [current.way, large.unwrap_or(current).way]
    }

    /// Makes calls of both sizes until each has the lane that is best for it, and nothing is tried.
    fn settle(&mut self) {
        self.run(40_000, &[SMALL, LARGE]);
        for _ in 0..4_000 {
            if (self.ways(), self.open_now()) == ([0, 1], 2) {
                return;
            }
            self.run(1, &[SMALL, LARGE]);
        }
        panic!("{:?} with {} lanes", self.ways(), self.open_now());
    }

    fn open_now(&self) -> usize {
        self.lanes.iter().filter(|lane| !lane.wire().is_dropped).count()
    }
}

#[test]
fn calls_of_each_size_take_the_way_that_is_best_for_them() {
    let mut sizes = TwoSizes::new([[2, 9], [6, 3]]);
    sizes.settle();
    // Both are better on the second now: they share its lane.
    sizes.takes = [[9, 9], [2, 3]];
    for lane in &sizes.lanes {
        let way = usize::from(lane.wire().takes == Some([6, 3]));
        lane.wire().takes = Some(sizes.takes[way]);
    }
    sizes.run(40_000, &[SMALL, LARGE]);
    assert_eq!((sizes.ways(), sizes.open_now()), ([1, 1], 1));
}

#[test]
fn a_connection_of_one_size_has_one_lane_and_one_choice() {
    for size in [SMALL, LARGE] {
        let mut sizes = TwoSizes::new([[2, 9], [6, 3]]);
        sizes.run(40_000, &[size]);
        assert!(sizes.bench.hybrid.large.is_none() && sizes.open_now() == 1);
        assert_eq!(sizes.ways()[0], usize::from(size == LARGE));
    }
}

#[test]
fn the_lane_of_large_calls_ends_some_time_after_the_last_of_them() {
    let mut sizes = TwoSizes::new([[2, 9], [6, 3]]);
    sizes.settle();
    sizes.run(4_000, &[SMALL]);
    assert!(sizes.bench.hybrid.large.is_none());
    assert_eq!((sizes.ways(), sizes.open_now()), ([0, 0], 1));
}

#[test]
fn a_lane_of_one_size_that_ends_leaves_its_calls_to_the_other() {
    for lost in [0, 1] {
        let mut sizes = TwoSizes::new([[2, 9], [6, 3]]);
        sizes.settle();
        sizes.call(&[SMALL, LARGE]);
        let left: Vec<_> = sizes.lanes.iter().filter(|lane| !lane.wire().is_dropped).collect();
        let of_way =
            |way: usize| *left.iter().find(|it| it.wire().takes == Some(sizes.takes[way])).unwrap();
        let of_lost = of_way(lost);
        of_lost.wire().over = Some(FailureKind::PeerGone);
        of_lost.wire().due.clear();
        let bench = &mut sizes.bench;
        bench.seen.posted = sizes.under_way.iter().map(|(slot, _)| *slot).collect();
        bench.hybrid.poll(bench.now, &mut bench.seen);
        assert_eq!(bench.seen.failed.len(), 2, "those of its size");
        assert_eq!(bench.seen.closed, 0);
        assert_eq!(sizes.ways(), [1 - lost; 2]);
        sizes.under_way.retain(|(slot, _)| !sizes.bench.seen.failed.contains(slot));
        sizes.settle();
    }
}

/// Three lanes are the most, and no slot is that of two of them.
#[test]
fn slots_of_different_lanes_never_meet() {
    let mut sizes = TwoSizes::new([[2, 9], [6, 3]]);
    let (mut most, mut seen) = (0, 0);
    for _ in 0..40_000 {
        sizes.run(1, &[SMALL, LARGE]);
        let offsets: Vec<_> = {
            let Hybrid { current, .. } = &sizes.bench.hybrid;
            let current = current.offset;
            let more = sizes.bench.hybrid.more_lanes().map(|lane| lane.offset);
            more.chain([current]).collect()
        };
        most = most.max(offsets.len());
        seen += usize::from(offsets.len() == 3);
        let distinct = (0..offsets.len()).all(|at| !offsets[..at].contains(&offsets[at]));
        assert!(distinct, "{offsets:?}");
    }
    assert!(most == 3 && seen > 0, "{most} lanes at a time");
}
