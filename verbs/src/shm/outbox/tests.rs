//! Which cell the next message goes to.

use proptest::prelude::*;

use super::super::inbox::InboxLayout;
use super::*;

/// As many as a ring of 128 cells is for.
const RECEIVES: u32 = 120;

/// A sender, and its receiver as far as the ring goes.
struct Ends {
    outbox: Outbox,
    ring: CellRing,
    at: Walk,
    taken: u32,
}

impl Ends {
    fn new() -> Ends {
        let layout = InboxLayout::for_receives(RECEIVES as usize);
        let (inbox, _) = Inbox::create(layout).expect("an inbox");
        let ring = inbox.ring();
        let flow = Arc::default();
        let lines = Some(inbox.duplex_lines());
        let outbox = Outbox::new(Arc::new(inbox), 0, Receives::Exclusive, Bell::None, flow, lines);
        Ends { outbox, ring, at: Walk::default(), taken: 0 }
    }

    fn outstanding(&self) -> u32 {
        self.outbox.position() - self.taken
    }

    fn send(&mut self) {
        assert!(self.outbox.has_room(), "no cell, with {} outstanding", self.outstanding());
        let number = self.outbox.position();
        self.outbox.put(CellKind::WriteImm, CARRIES_NOTHING, number, 0, &[]);
    }

    fn take(&mut self) {
        let cell = self.ring.cell(self.at.index);
        let header = cell.header();
        assert_eq!(header.tag(), self.ring.tag(self.taken), "at {:?}", self.at);
        assert_eq!(cell.second_word().1, self.taken);
        self.at = self.at.after(&self.ring, header.next());
        self.taken += 1;
    }

    /// The sender hears of it with the next message that comes back.
    fn acknowledge(&mut self) {
        self.outbox.lines().credit.head.store(self.taken, Ordering::Release);
        self.outbox.flow.acknowledged.store(self.taken, Ordering::Release);
    }
}

#[test]
fn only_a_queue_pair_that_takes_no_more_messages_is_over() {
    let ends = Ends::new();
    let states = [InboxState::Init, InboxState::Ready, InboxState::Error, InboxState::Destroyed];
    let outcomes = states.map(|state| {
        ends.outbox.lines().state.state.store(state as u32, Ordering::Release);
        ends.outbox.not_ready()
    });
    let over = Outcome::Failed(Status::RetryExceeded);
    assert_eq!(outcomes, [Outcome::Wait(Wait::NotReady), Outcome::Wait(Wait::Room), over, over]);
}

#[test]
fn a_full_ring_has_room_when_the_peer_has_taken_a_message_and_not_before() {
    let mut ends = Ends::new();
    let cells = ends.ring.count();
    while ends.outstanding() <= cells && ends.outbox.has_room() {
        ends.send();
    }
    assert!((RECEIVES..=cells).contains(&ends.outstanding()), "{}", ends.outstanding());
    assert!(ends.outbox.must_wait_for_room());
    assert_eq!(ends.outbox.lines().sender.waits_for_room.load(Ordering::Relaxed), 1);
    ends.take();
    assert!(!ends.outbox.has_room(), "the peer has not said so");
    ends.outbox.lines().credit.head.store(ends.taken, Ordering::Release);
    assert!(ends.outbox.has_room() && !ends.outbox.must_wait_for_room());
    ends.send();
}

proptest! {
    #[test]
    fn every_message_that_a_receive_admits_has_a_cell(
        steps in proptest::collection::vec((0..=RECEIVES, 0..=RECEIVES, any::<bool>()), 1..60),
    ) {
        let mut ends = Ends::new();
        for (send, take, is_told) in steps {
            // Small counts are what happens most.
            let (send, take) = if send % 3 == 0 { (send % 10, take % 10) } else { (send, take) };
            for _ in 0..send.min(RECEIVES - ends.outstanding()) {
                ends.send();
            }
            for _ in 0..take.min(ends.outstanding()) {
                ends.take();
            }
            if is_told {
                ends.acknowledge();
            } else {
                ends.outbox.lines().credit.head.store(ends.taken, Ordering::Release);
            }
        }
    }
}
