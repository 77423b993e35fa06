//! Which lines at the front of what is to be read are stored for certain, where a READ may see the words of a line in any order.
//!
//! On such a device (Soft-RoCE) a READ may bring the word of the lap and, behind it, bytes of the lap before: it has read these before
//! they were stored. But all that was stored before that word is in each READ that is posted when the word has been seen. So a message is
//! taken from the second READ that brings its first word; the first READ only shows it. A checksum over the line (Pilaf, USENIX ATC 2013)
//! would save that READ, and take a torn line for whole now and then.

use super::lines::{LINE_BYTES, Line};
use crate::planted::{Bug, is_planted};

/// The lines from the reader's place on whose words an earlier READ has brought.
#[derive(Debug)]
pub(super) struct Shown {
    is_needed: bool,
    lines: u32,
}

impl Shown {
    /// `first_word_first`: the server's device reads the first word of each line no later than the rest, and each line that is of its lap
    /// is whole.
    pub(super) fn new(first_word_first: bool) -> Shown {
        Shown { is_needed: !first_word_first, lines: 0 }
    }

    /// How many there are.
    #[inline]
    pub(super) fn lines(&self) -> u32 {
        self.lines
    }

    /// Whether a message whose first line is of its lap may be taken. The first word of a message is stored last, so that all its lines
    /// are whole if the first one was shown.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        !self.is_needed || self.lines > 0 || is_planted(Bug::BelievedFirstWord)
    }

    /// A READ has brought these lines, of which the first is of this lap.
    #[cold]
    pub(super) fn show(&mut self, lines: &[u8], lap: u32) {
        let shown = lines.chunks(LINE_BYTES).take_while(|line| Line::of_lap(line, lap).is_some());
        self.lines = shown.count() as u32;
    }

    /// The reader has taken so many lines.
    #[inline]
    pub(super) fn advance(&mut self, lines: u32) {
        self.lines = self.lines.saturating_sub(lines);
    }
}
