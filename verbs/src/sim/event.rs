//! What is to happen, and when: events in the order of their times, and of their making where these are
//! equal.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Names a queue pair of the rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpId {
    pub(super) number: u32,
    pub(super) node: u16,
}

/// What the responder of a message says to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// No word of the responder: an unreliable message has left.
    Sent,
    /// This message and all before it are done; READs and atomics have responses of their own.
    Done,
    /// This message is missing.
    OutOfSequence,
    /// There was no receive for this message.
    NotReady,
    /// A key, range or right did not allow it.
    AccessError,
    /// It was malformed, or too long.
    InvalidRequest,
}

/// One step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The NIC hears of what was posted.
    Doorbell(QpId),
    /// A work request and its bytes are in the NIC.
    Launch { qp: QpId, epoch: u16, psn: u32 },
    /// A message's last byte has come to the other NIC.
    Arrive(u32),
    /// The other NIC carries it out.
    Deliver(u32),
    /// One piece of a WRITE lands in memory.
    Chunk { message: u32, chunk: u32 },
    /// All pieces have.
    Landed(u32),
    /// The NIC has the bytes that a READ or an atomic asked for.
    Reply(u32),
    /// An answer comes back to the sender of message `psn`.
    Answer { to: QpId, psn: u32, answer: Answer },
    /// A peer that had no receive is tried again.
    TryAgain { qp: QpId, epoch: u16 },
    /// A queue pair in error gives back what it holds.
    Flush(QpId),
    /// A peer may have been silent for too long.
    Timer(QpId),
    /// An actor's turn.
    Turn { actor: u32, token: u32 },
    /// A fault that was scheduled.
    Fault(u32),
}

#[derive(Debug)]
struct Entry {
    at_ns: u64,
    number: u64,
    event: Event,
}

impl Ord for Entry {
    /// The earliest is the greatest: the heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.number).cmp(&(self.at_ns, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

/// Events that have not happened yet. Timers lie apart: most are never needed, and a world that only
/// waits for those is idle.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    heap: BinaryHeap<Entry>,
    timers: BinaryHeap<Entry>,
    next: u64,
}

impl EventQueue {
    #[inline]
    pub(super) fn push(&mut self, at_ns: u64, event: Event) {
        let entry = Entry { at_ns, number: self.next, event };
        self.next += 1;
        match event {
            Event::Timer(_) => self.timers.push(entry),
            _ => self.heap.push(entry),
        }
    }

    /// When the next event is due, and the queue pair whose timer it is.
    #[inline]
    pub(super) fn peek(&self) -> Option<(u64, Option<QpId>)> {
        let timer = self.timers.peek();
        match (self.heap.peek(), timer) {
            (Some(event), Some(timer)) if timer > event => Some(due(timer)),
            (Some(event), _) => Some((event.at_ns, None)),
            (None, timer) => timer.map(due),
        }
    }

    /// Nothing but timers is left.
    pub(super) fn only_timers(&self) -> bool {
        self.heap.is_empty()
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        let timer_first = match (self.heap.peek(), self.timers.peek()) {
            (Some(event), Some(timer)) => timer > event,
            (event, _) => event.is_none(),
        };
        let heap = if timer_first { &mut self.timers } else { &mut self.heap };
        heap.pop().map(|entry| (entry.at_ns, entry.event))
    }
}

fn due(timer: &Entry) -> (u64, Option<QpId>) {
    match timer.event {
        Event::Timer(qp) => (timer.at_ns, Some(qp)),
        _ => (timer.at_ns, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_their_making() {
        let mut events = EventQueue::default();
        let qp = QpId { number: 1, node: 0 };
        events.push(5, Event::Arrive(1));
        events.push(3, Event::Timer(qp));
        events.push(3, Event::Arrive(2));
        events.push(5, Event::Timer(qp));
        events.push(2, Event::Arrive(3));
        let order: Vec<_> = std::iter::from_fn(|| events.pop()).collect();
        let wanted = [
            (2, Event::Arrive(3)),
            (3, Event::Timer(qp)),
            (3, Event::Arrive(2)),
            (5, Event::Arrive(1)),
            (5, Event::Timer(qp)),
        ];
        assert_eq!(order, wanted);
    }

    #[test]
    fn an_event_is_small() {
        assert_eq!(size_of::<Event>(), 16);
    }
}
