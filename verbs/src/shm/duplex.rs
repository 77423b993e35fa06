//! Answering in the cache line that carried the question.
//!
//! A core that has just read a cache line can write it at once, but a line that it wrote and the peer then
//! read must be fetched back first. So next to its ring, each direction of a connection has a few lines
//! that both sides write alternately. Message number `i` of one side goes to line `i`. Message number `i`
//! of the other side goes back into that line, if its sender has taken the question from there. A round
//! trip then moves a single line back and forth, the minimum for a coherent machine.
//!
//! Both sides count their messages. The counts alone tell where a message may be:
//!
//! - Number `i` is an *answer* if its sender has taken the peer's number `i` from the peer's line `i`.
//! - Otherwise it opens its own line `i`, if that is free: the peer has taken number `i - LINES`, and we
//!   have received the peer's number `i - LINES` (so that no answer to the old message can still come).
//! - Otherwise it goes to the ring. A one-way stream ends up there, because it gets no answers.
//!
//! The receiver of number `i` looks at the ring, at the peer's line `i`, and, if its own number `i` opened
//! a line, at that line. Numbers are taken in order, so there is never more than one candidate.

use std::sync::{Arc, OnceLock};

use super::bell::Bell;
use super::cell::{Cell, CellRing, Header, Next};
use super::inbox::Inbox;
use super::sync::{AtomicU32, AtomicU64, Ordering};

/// Lines that each side may open: the number of questions in flight whose answers can come back in the same
/// lines.
pub(crate) const LINES: u32 = if cfg!(loom) { 2 } else { 32 };

/// State shared by the receiving and the sending side of one queue pair, which may be owned by different
/// threads.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Messages taken from the peer, wrapping; sent with our next message.
    pub(super) taken: AtomicU32,
    /// Our messages that the peer has taken, modulo 2^16; received with its last message.
    pub(super) acknowledged: AtomicU32,
    /// For each of the peer's lines: one more than the number of the last message taken from it.
    taken_from_line: [AtomicU64; LINES as usize],
    /// For each of our lines: one more than the number of the last message that opened it.
    opened: [AtomicU64; LINES as usize],
    /// The peer's inbox, which contains our lines; set on connecting.
    pub(super) outbox: OnceLock<Arc<Inbox>>,
    /// Where the peer is woken; set on connecting, too.
    pub(super) bell: OnceLock<Bell>,
}

#[inline]
fn line_of(number: u64) -> usize {
    number as usize % LINES as usize
}

impl Flow {
    /// Wakes the peer if it sleeps, for what its own messages wait for. After a sequentially consistent fence.
    #[cold]
    pub(super) fn wake_peer(&self) {
        if let (Some(outbox), Some(bell)) = (self.outbox.get(), self.bell.get())
            && outbox.take_arming()
        {
            bell.ring();
        }
    }

    /// Records that the receiving side has taken the peer's `number` from the peer's line.
    #[inline]
    pub(super) fn take_from_line(&self, number: u64) {
        self.taken_from_line[line_of(number)].store(number + 1, Ordering::Release);
    }

    /// Whether our `number` goes back into the peer's line.
    #[inline]
    pub(super) fn answers(&self, number: u64) -> bool {
        self.taken_from_line[line_of(number)].load(Ordering::Acquire) == number + 1
    }

    /// Whether our `number` may open its line; `in_flight` messages of ours are not taken yet.
    #[inline]
    pub(super) fn may_open(&self, number: u64, in_flight: u32) -> bool {
        let unanswered = (number as u32).wrapping_sub(self.taken.load(Ordering::Acquire));
        in_flight < LINES && (unanswered as i32) < LINES as i32
    }

    /// Opens the line of our `number`, where the peer's `number` may come back.
    #[inline]
    pub(super) fn open(&self, number: u64) {
        self.opened[line_of(number)].store(number + 1, Ordering::Release);
    }

    /// Whether the peer's `number` may arrive in our line.
    #[inline]
    pub(super) fn is_open(&self, number: u64) -> bool {
        self.opened[line_of(number)].load(Ordering::Acquire) == number + 1
    }
}

/// The cell of a message's line.
#[inline]
pub(super) fn cell(lines: &CellRing, number: u64) -> &Cell {
    lines.cell(number as u32)
}

/// Whether a line holds this message, as a question or as an answer. The tag alone is not enough: a line
/// may stay unused while the ring carries so many messages that tags repeat. The length word therefore
/// holds the upper half of the number; a message that fits its cell does not need that word.
#[inline]
pub(super) fn holds(cell: &Cell, header: Header, tag: u32, number: u64, answer: bool) -> bool {
    header.tag() == tag
        && (header.next() == Next::Unchanged as u8) == answer
        && cell.second_word().0 == upper_half(number)
}

/// The part of a number that its tag does not contain.
#[inline]
pub(super) fn upper_half(number: u64) -> u32 {
    (number >> 31) as u32
}

#[cfg(all(test, loom))]
mod ring_loom {
    use super::super::cell::{CELL_PAYLOAD_BYTES, CellKind, second_word};
    use super::*;
    use loom::thread;

    const QUESTIONS: u64 = 3; // One more than there are lines.

    fn lines() -> Vec<Cell> {
        (0..LINES).map(|_| Cell::default()).collect()
    }

    /// Waits for message `number` in the lines of `opener`, as a question or as an answer.
    fn take(lines: &CellRing, number: u64, answer: bool) -> u64 {
        loop {
            let cell = cell(lines, number);
            let header = cell.header();
            if holds(cell, header, lines.tag(number as u32), number, answer) {
                let mut words = [0; CELL_PAYLOAD_BYTES / 8];
                cell.payload(&mut words);
                return words[0];
            }
            thread::yield_now();
        }
    }

    fn put(lines: &CellRing, number: u64, next: Next, word: u64) {
        let cell = cell(lines, number);
        cell.fill(second_word(upper_half(number), 0), &[word]);
        let tag = lines.tag(number as u32);
        cell.publish(Header::new(tag, CellKind::WriteImm, next, 8, 0));
    }

    /// Questions and answers share lines, and lines are reused: each side reads exactly the whole message that
    /// the other wrote for this number.
    #[test]
    fn ring_answers_come_back_in_the_line_of_the_question() {
        loom::model(|| {
            let memory = loom::sync::Arc::new(lines());
            let answering = {
                let memory = memory.clone();
                thread::spawn(move || {
                    // SAFETY: `memory` has LINES cells and outlives the ring.
                    let lines = unsafe { CellRing::new(memory.as_ptr(), LINES) };
                    let flow = Flow::default();
                    for number in 0..QUESTIONS {
                        assert_eq!(take(&lines, number, false), number + 10);
                        flow.take_from_line(number);
                        assert!(flow.answers(number) && !flow.answers(number + 1));
                        put(&lines, number, Next::Unchanged, number + 20);
                    }
                })
            };
            // SAFETY: `memory` has LINES cells and outlives the ring.
            let lines = unsafe { CellRing::new(memory.as_ptr(), LINES) };
            let flow = Flow::default();
            for number in 0..QUESTIONS {
                assert!(flow.may_open(number, 0));
                flow.open(number);
                put(&lines, number, Next::Adjacent, number + 10);
                assert!(flow.is_open(number));
                assert_eq!(take(&lines, number, true), number + 20);
                flow.taken.store(number as u32 + 1, Ordering::Release);
            }
            answering.join().unwrap();
        });
    }

    /// A line is not reopened while the peer may still answer in it or has not taken its message.
    #[test]
    fn ring_lines_wait_for_their_answers() {
        loom::model(|| {
            let flow = Flow::default();
            let lines = u64::from(LINES);
            assert!(flow.may_open(lines - 1, LINES - 1));
            assert!(!flow.may_open(lines, 0), "number 0 is not answered");
            flow.taken.store(1, Ordering::Release);
            assert!(flow.may_open(lines, LINES - 1));
            assert!(!flow.may_open(lines, LINES), "number 0 is not taken");
        });
    }
}
