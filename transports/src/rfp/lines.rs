//! The ring of cache lines in which responses wait to be fetched.
//!
//! The server leaves its responses there in the order in which they are made, each from a new line on. Each line begins with a
//! word that says which lap of the ring it belongs to; the word is stored after the rest of its line. A NIC reads a line
//! as a whole, and a device in memory its first word before the rest, so a line with the word of the lap is whole too, whatever of
//! the others was still missing (FaRM, NSDI 2014, section 4.1, has a version per line too). Of a device that promises neither, a second READ
//! has to [confirm](super::shown) it.
//!
//! A ring for two messages of each slot never overtakes its reader: a slot has at most a response and the notice that its
//! request was dropped, or a grant and that notice, and is used again only after the client has read the last of them.

use farcall_verbs::SharedRegion;

use crate::planted::{Bug, is_planted};

/// Bytes of a line.
pub(super) const LINE_BYTES: usize = 64;

/// Most lines of one READ of the ring: 4 KiB, as a device in memory does not promise how it [reads](farcall_verbs::WorkRequest::read) the
/// lines of a longer one.
pub(super) const MOST_LINES_PER_READ: u32 = 64;

/// Bytes of the word at the front of a line.
const WORD_BYTES: usize = 8;

/// Bytes of a message in each line.
const PAYLOAD_BYTES: usize = LINE_BYTES - WORD_BYTES;

/// Lines of a message with this length.
#[inline]
pub(super) const fn lines_of(len: usize) -> u32 {
    if len <= PAYLOAD_BYTES { 1 } else { len.div_ceil(PAYLOAD_BYTES) as u32 }
}

/// Lines of the ring of a connection with this window, whose messages have at most `most` lines.
pub(super) const fn ring_lines(window: u32, most: u32) -> u32 {
    // Where a message does not fit before the end, up to `most - 1` lines stay empty.
    (2 * window + 1) * most
}

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// The first of a message.
    First { slot: u32, len: u32 },
    /// A further one.
    Rest,
    /// The response of this slot waits in the slot's own place, as it is too long.
    Elsewhere { slot: u32, len: u32 },
    /// The next message is at the beginning of the ring.
    Skip,
}

const SLOT_BITS: u32 = 10;
const LEN_BITS: u32 = 20;

impl Line {
    #[inline]
    fn to_word(self, lap: u32) -> u64 {
        let of = |tag: u32, slot: u32, len: u32| {
            debug_assert!(slot < 1 << SLOT_BITS && len < 1 << LEN_BITS);
            tag << (SLOT_BITS + LEN_BITS) | slot << LEN_BITS | len
        };
        let what = match self {
            Line::Rest => of(0, 0, 0),
            Line::First { slot, len } => of(1, slot, len),
            Line::Elsewhere { slot, len } => of(2, slot, len),
            Line::Skip => of(3, 0, 0),
        };
        u64::from(lap) | u64::from(what) << 32
    }

    /// What the line that begins with these bytes is, if it is of this lap.
    #[inline]
    pub(super) fn of_lap(bytes: &[u8], lap: u32) -> Option<Line> {
        let word = u64::from_le_bytes(*bytes.first_chunk()?);
        if word as u32 != lap && !is_planted(Bug::UncheckedLap) {
            return None;
        }
        let what = (word >> 32) as u32;
        let slot = what >> LEN_BITS & ((1 << SLOT_BITS) - 1);
        let len = what & ((1 << LEN_BITS) - 1);
        Some(match what >> (SLOT_BITS + LEN_BITS) {
            0 => Line::Rest,
            1 => Line::First { slot, len },
            2 => Line::Elsewhere { slot, len },
            _ => Line::Skip,
        })
    }
}

/// Joins the parts of a message that is at the front of these lines. Afterwards it begins behind the first word.
#[inline]
pub(super) fn join(lines: &mut [u8], len: usize) -> std::ops::Range<usize> {
    for line in 1..lines_of(len) as usize {
        let from = line * LINE_BYTES + WORD_BYTES;
        let to = WORD_BYTES + line * PAYLOAD_BYTES;
        lines.copy_within(from..from + PAYLOAD_BYTES, to);
    }
    WORD_BYTES..WORD_BYTES + len
}

/// A place in a ring of lines. Laps count from 1, as memory is zero at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    lines: u32,
    pub(super) line: u32,
    pub(super) lap: u32,
}

impl Cursor {
    pub(super) fn new(lines: u32) -> Cursor {
        Cursor { lines, line: 0, lap: 1 }
    }

    /// Lines up to the end of the ring.
    #[inline]
    pub(super) fn left(&self) -> u32 {
        self.lines - self.line
    }

    /// Goes on by at most what is [left](Cursor::left).
    #[inline]
    pub(super) fn advance(&mut self, lines: u32) {
        self.line += lines;
        if self.line == self.lines {
            (self.line, self.lap) = (0, self.lap.wrapping_add(1));
        }
    }
}

/// The ring, as the server fills it.
#[derive(Debug)]
pub(super) struct Ring {
    region: SharedRegion,
    cursor: Cursor,
    most: u32,
}

impl Ring {
    /// At the front of this region, for messages of up to `most` lines.
    pub(super) fn new(region: SharedRegion, window: u32, most: u32) -> Ring {
        Ring { region, cursor: Cursor::new(ring_lines(window, most)), most }
    }

    /// Whether a message of this length goes into the ring.
    #[inline]
    pub(super) fn holds(&self, len: usize) -> bool {
        lines_of(len) <= self.most
    }

    /// Leaves a message that the ring [holds](Ring::holds).
    #[inline]
    pub(super) fn put(&mut self, slot: u32, message: &[u8]) {
        let lines = lines_of(message.len());
        if lines > self.cursor.left() {
            self.put_line(0, Line::Skip, &[]);
            self.cursor.advance(self.cursor.left());
        }
        // The first last: who sees it finds the others.
        for (index, part) in message.chunks(PAYLOAD_BYTES).enumerate().skip(1) {
            self.put_line(index as u32, Line::Rest, part);
        }
        let first = &message[..message.len().min(PAYLOAD_BYTES)];
        self.put_line(0, Line::First { slot, len: message.len() as u32 }, first);
        self.cursor.advance(lines);
    }

    /// Says that a message of this length is in the slot's own place.
    #[cold]
    pub(super) fn put_elsewhere(&mut self, slot: u32, len: u32) {
        self.put_line(0, Line::Elsewhere { slot, len }, &[]);
        self.cursor.advance(1);
    }

    #[inline]
    fn put_line(&self, ahead: u32, line: Line, part: &[u8]) {
        let at = (self.cursor.line + ahead) as usize * LINE_BYTES;
        self.region.copy_in(at + WORD_BYTES, part);
        self.region.publish_u64(at, line.to_word(self.cursor.lap).to_le());
    }
}

#[cfg(test)]
mod fuzz;
