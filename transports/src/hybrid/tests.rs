//! A connection over lanes in the hands of a test.

mod faults;
mod sizes;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use farcall_core::error::{
    Backpressure, ConnectError, FailureKind, ReserveError, TransportFailure,
};
use farcall_core::metrics::{MoveCounts, MoveEvent};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{
    Armed, ClientTransport, Closing, Delivery, LaneReason, Limits, Message, ReplySink, SlotId,
    Usage,
};

use super::choice::LOOK_NS;
use super::sizes::LARGE_FROM_BYTES;
use super::{Hybrid, OpenLane, Opening, Way, Ways};

const WINDOW: u32 = 4;
const MAX_MESSAGE: usize = 8 << 10;
const LIMITS: Limits = Limits { window: WINDOW, max_message: MAX_MESSAGE as u64 };

/// What a test sees of one lane.
#[derive(Default)]
struct Wire {
    slots: Vec<Phase>,
    generations: Vec<u32>,
    /// Answers that the next poll delivers.
    answers: Vec<SlotId>,
    over: Option<FailureKind>,
    /// What the server advises in its answers.
    advice: u8,
    is_dropped: bool,
    limits: Option<Limits>,
    /// How many polls a small call and a large one take. Otherwise the test answers.
    takes: Option<[u64; 2]>,
    polls: u64,
    /// How many bytes each slot's request has.
    lens: Vec<usize>,
    /// Requests that are answered at that poll.
    due: Vec<(u64, SlotId)>,
}

impl Wire {
    /// Answers what is due by itself.
    fn answer_due(&mut self) {
        self.polls += 1;
        let polls = self.polls;
        let due = self.due.extract_if(.., |(at, _)| *at <= polls).map(|(_, slot)| slot);
        self.answers.extend(due);
    }
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Phase {
    #[default]
    Free,
    Reserved,
    Posted,
    GivenUp,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Wire>>);

impl Shared {
    fn new() -> Shared {
        let shared = Shared::default();
        shared.wire().slots.resize(WINDOW as usize, Phase::Free);
        shared.wire().generations.resize(WINDOW as usize, 0);
        shared.wire().lens.resize(WINDOW as usize, 0);
        shared
    }

    fn wire(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().unwrap()
    }

    fn outstanding(&self) -> usize {
        self.wire().slots.iter().filter(|slot| **slot != Phase::Free).count()
    }

    /// Answers everything under way, given up or not.
    fn answer_all(&self) {
        let mut wire = self.wire();
        for index in 0..WINDOW {
            if matches!(wire.slots[index as usize], Phase::Posted | Phase::GivenUp) {
                let generation = wire.generations[index as usize];
                wire.answers.push(SlotId { index, generation });
            }
        }
    }
}

struct Fake {
    shared: Shared,
    bytes: Box<[u8]>,
}

impl Fake {
    fn boxed(shared: Shared) -> Box<dyn ClientTransport> {
        Box::new(Fake { shared, bytes: vec![0; MAX_MESSAGE].into() })
    }
}

impl ClientTransport for Fake {
    fn limits(&self) -> Limits {
        self.shared.wire().limits.unwrap_or(LIMITS)
    }

    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        let mut wire = self.shared.wire();
        if wire.over.is_some() {
            return Err(ReserveError::Closed);
        }
        let free = wire.slots.iter().position(|slot| *slot == Phase::Free);
        let index = free.ok_or(Backpressure::Credits)?;
        wire.slots[index] = Phase::Reserved;
        wire.generations[index] += 1;
        wire.lens[index] = len;
        let slot = SlotId { index: index as u32, generation: wire.generations[index] };
        drop(wire);
        Ok((slot, &mut self.bytes[..len]))
    }

    fn release(&mut self, slot: SlotId) {
        self.shared.wire().slots[slot.index as usize] = Phase::Free;
    }

    fn post(&mut self, slot: SlotId, _: Delivery) {
        let mut wire = self.shared.wire();
        assert!(wire.slots[slot.index as usize] == Phase::Reserved);
        wire.slots[slot.index as usize] = Phase::Posted;
        if let Some(takes) = wire.takes {
            let is_large = wire.lens[slot.index as usize] >= LARGE_FROM_BYTES;
            let at = wire.polls + takes[usize::from(is_large)];
            wire.due.push((at, slot));
        }
    }

    fn flush(&mut self) {}

    fn abandon(&mut self, slot: SlotId) {
        let mut wire = self.shared.wire();
        assert!(wire.slots[slot.index as usize] == Phase::Posted);
        wire.slots[slot.index as usize] = Phase::GivenUp;
    }

    fn usage(&self) -> Usage {
        let wire = self.shared.wire();
        let in_use = wire.slots.iter().filter(|slot| **slot != Phase::Free);
        Usage::of(in_use.map(|slot| *slot == Phase::GivenUp))
    }

    fn poll(&mut self, _: Instant, sink: &mut dyn ReplySink) -> Progress {
        self.shared.wire().answer_due();
        let answers = std::mem::take(&mut self.shared.wire().answers);
        for slot in &answers {
            let phase = std::mem::take(&mut self.shared.wire().slots[slot.index as usize]);
            if phase == Phase::Posted {
                let advice = self.shared.wire().advice;
                sink.reply(*slot, Message::Borrowed(&[0, advice, 0, 0, 0, 0, 0, 0]));
            }
        }
        if let Some(kind) = self.shared.wire().over {
            sink.closed(TransportFailure::new(kind, true));
        }
        Progress { worked: answers.len() as u32, ..Progress::IDLE }
    }

    fn arm(&mut self, _: Option<&Waker>) -> Armed {
        Armed::ByWaker
    }

    fn close(&mut self, _: Closing) {}
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.wire().is_dropped = true;
    }
}

/// Opens a lane when the test says so.
#[derive(Clone)]
struct Opener {
    ways: Ways,
    orders: Arc<Mutex<Orders>>,
}

#[derive(Default)]
struct Orders {
    asked: Vec<usize>,
    answers: Vec<Result<Shared, ConnectError>>,
}

impl OpenLane for Opener {
    fn ways(&self) -> &Ways {
        &self.ways
    }

    fn open(&mut self, way: usize, _: LaneReason) {
        self.orders.lock().unwrap().asked.push(way);
    }

    fn poll(&mut self, _: Instant) -> Opening {
        match self.orders.lock().unwrap().answers.pop() {
            None => Opening::NotYet(PollAt::OnEvent),
            Some(Ok(shared)) => Opening::Done(Ok(Fake::boxed(shared))),
            Some(Err(error)) => Opening::Done(Err(error)),
        }
    }
}

#[derive(Default)]
struct Seen {
    posted: Vec<SlotId>,
    replies: Vec<SlotId>,
    failed: Vec<SlotId>,
    closed: u32,
}

impl ReplySink for Seen {
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        assert_eq!(message.len(), 8);
        self.posted.retain(|posted| *posted != slot);
        self.replies.push(slot);
    }

    fn failed(&mut self, slot: SlotId, _: TransportFailure) {
        self.failed.push(slot);
    }

    fn lane_lost(&mut self, slots: Range<u32>, _: TransportFailure) {
        let (lost, left) = self.posted.drain(..).partition(|slot| slots.contains(&slot.index));
        self.posted = left;
        self.failed.extend::<Vec<_>>(lost);
    }

    fn closed(&mut self, _: TransportFailure) {
        self.closed += 1;
    }
}

/// A connection whose first lane is `first`.
struct Bench {
    hybrid: Hybrid,
    first: Shared,
    opener: Opener,
    now: Instant,
    seen: Seen,
    counts: Arc<MoveCounts>,
}

impl Bench {
    fn new() -> Bench {
        let way = |(name, number)| Way { name, number, slots: WINDOW };
        let ways = Ways::new([("a", 1), ("b", 2)].map(way).to_vec());
        let (first, opener) = (Shared::new(), Opener { ways, orders: Arc::default() });
        let fake = Fake::boxed(first.clone());
        let counts = Arc::<MoveCounts>::default();
        let hybrid = Hybrid::new(fake, 0, Box::new(opener.clone()), 5);
        let hybrid = hybrid.counting(Arc::clone(&counts));
        Bench { hybrid, first, opener, now: Instant::ZERO, seen: Seen::default(), counts }
    }

    fn call(&mut self) -> SlotId {
        let (slot, bytes) = self.hybrid.reserve(3).unwrap();
        bytes.copy_from_slice(b"abc");
        self.hybrid.post(slot, Delivery::AtMostOnce);
        self.seen.posted.push(slot);
        slot
    }

    fn poll(&mut self) -> Progress {
        self.now = self.now.saturating_add_nanos(LOOK_NS);
        self.hybrid.poll(self.now, &mut self.seen)
    }

    /// Makes calls until another way is to be tried.
    fn until_trial(&mut self) {
        for _ in 0..1_000 {
            if !self.opener.orders.lock().unwrap().asked.is_empty() {
                return;
            }
            self.call();
            for _ in 0..4 {
                self.poll();
            }
            self.first.answer_all();
            self.poll();
        }
        panic!("nothing is tried");
    }

    /// Opens the lane that is asked for.
    fn open(&mut self) -> Shared {
        let second = Shared::new();
        self.opener.orders.lock().unwrap().answers.push(Ok(second.clone()));
        self.poll();
        second
    }
}

#[test]
fn a_call_ends_where_it_began_and_new_ones_take_the_new_lane() {
    let mut bench = Bench::new();
    bench.until_trial();
    let old: Vec<_> = (0..WINDOW).map(|_| bench.call()).collect();
    let second = bench.open();
    let new: Vec<_> = (0..WINDOW).map(|_| bench.call()).collect();
    assert_eq!((bench.first.outstanding(), second.outstanding()), (4, 4));
    assert!(old.iter().chain(&new).all(|slot| slot.index < bench.hybrid.slots()));
    assert!(old.iter().all(|slot| new.iter().all(|other| other.index != slot.index)));
    assert!(bench.hybrid.reserve(1).is_err());
    bench.seen.replies.clear();
    second.answer_all();
    bench.poll();
    assert_eq!(bench.seen.replies, new);
    bench.first.answer_all();
    bench.poll();
    assert_eq!(bench.seen.replies[4..], old);
    assert_eq!(bench.hybrid.limits().window, WINDOW);
}

#[test]
fn the_lane_that_was_left_ends_when_the_server_has_nothing_of_it() {
    let mut bench = Bench::new();
    bench.until_trial();
    let given_up = bench.call();
    let second = bench.open();
    bench.hybrid.abandon(given_up);
    // Far quicker: an answer comes with the next poll but one, instead of the fifth.
    for _ in 0..500 {
        bench.call();
        bench.poll();
        second.answer_all();
        bench.poll();
    }
    assert!(!bench.first.wire().is_dropped, "the server has a request of it");
    bench.first.answer_all();
    let replies = bench.seen.replies.len();
    bench.poll();
    assert!(bench.first.wire().is_dropped && !second.wire().is_dropped);
    assert_eq!(bench.seen.replies.len(), replies, "no caller waits for it");
}

#[test]
fn a_lane_that_can_be_left_keeps_its_thread_from_sleeping() {
    let mut bench = Bench::new();
    bench.until_trial();
    assert_eq!(bench.hybrid.arm(Some(Waker::noop())), Armed::AtSite, "a lane is being opened");
    let second = bench.open();
    assert_eq!(bench.hybrid.arm(Some(Waker::noop())), Armed::ByWaker);
    let trial_ends = bench.poll().next;
    assert!(matches!(trial_ends, PollAt::At(at) if at > bench.now), "{trial_ends:?}");
    for _ in 0..200 {
        bench.poll();
    }
    assert!(second.wire().is_dropped, "a trial without calls ends");
    assert_eq!(bench.poll().next, PollAt::OnEvent);
    assert_eq!(bench.hybrid.arm(Some(Waker::noop())), Armed::ByWaker);
}

#[test]
fn a_lane_that_ends_fails_its_calls_and_the_connection_goes_on() {
    for first_ends in [false, true] {
        let mut bench = Bench::new();
        bench.until_trial();
        let old = bench.call();
        let second = bench.open();
        let new = bench.call();
        let [lost, left] =
            if first_ends { [&bench.first, &second] } else { [&second, &bench.first] };
        let (lost, left) = (lost.clone(), left.clone());
        lost.wire().over = Some(FailureKind::PeerGone);
        bench.poll();
        assert_eq!(bench.seen.failed, [if first_ends { old } else { new }]);
        assert_eq!((bench.seen.closed, lost.wire().is_dropped), (0, true));
        bench.call();
        assert_eq!(left.outstanding(), 2);
        left.wire().over = Some(FailureKind::PeerGone);
        bench.poll();
        bench.poll();
        assert_eq!(bench.seen.closed, 1);
        assert_eq!(bench.hybrid.reserve(1).map(|_| ()), Err(ReserveError::Closed));
    }
}

#[test]
fn a_lane_that_carries_less_is_not_taken() {
    let mut bench = Bench::new();
    bench.until_trial();
    let narrow = Shared::new();
    narrow.wire().limits = Some(Limits { max_message: LIMITS.max_message - 1, ..LIMITS });
    bench.opener.orders.lock().unwrap().answers.push(Ok(narrow.clone()));
    bench.poll();
    assert!(narrow.wire().is_dropped);
    bench.call();
    assert_eq!(bench.first.outstanding(), 1);
}

#[test]
fn a_lane_that_cannot_be_opened_changes_nothing() {
    let mut bench = Bench::new();
    bench.until_trial();
    let error = ConnectError::Refused { address: "a".into(), reason: "full".into() };
    bench.opener.orders.lock().unwrap().answers.push(Err(error));
    bench.poll();
    let slot = bench.call();
    bench.seen.replies.clear();
    bench.first.answer_all();
    bench.poll();
    assert_eq!(bench.seen.replies, [slot]);
}

#[test]
fn what_was_reserved_is_released_where_it_was_reserved() {
    let mut bench = Bench::new();
    bench.until_trial();
    let (slot, _) = bench.hybrid.reserve(3).unwrap();
    bench.open();
    bench.hybrid.release(slot);
    assert_eq!(bench.first.outstanding(), 0);
}

/// The server advises the second way, and takes it back: the first lane is there still, and is taken again.
#[test]
fn a_connection_moves_as_advised_and_back_to_the_lane_that_it_has() {
    let mut bench = Bench::new();
    bench.first.wire().advice = 2;
    bench.until_trial();
    let second = bench.open();
    for advice in [2, 2, 0] {
        for _ in 0..4 {
            bench.call();
            bench.poll();
            second.wire().advice = advice;
            second.answer_all();
            bench.first.wire().advice = advice;
            bench.first.answer_all();
            bench.poll();
        }
    }
    let slot = bench.call();
    assert_eq!((bench.first.outstanding(), second.outstanding()), (1, 0));
    bench.seen.replies.clear();
    bench.first.answer_all();
    bench.poll();
    assert_eq!(bench.seen.replies, [slot]);
    assert!(second.wire().is_dropped);
    assert_eq!(bench.opener.orders.lock().unwrap().asked, [1]);
    assert_eq!(bench.counts.of(MoveEvent::Moved), 2, "there and back");
}
