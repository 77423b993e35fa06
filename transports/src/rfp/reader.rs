//! What the client reads of the server's responses, and when: bytes and times in, READs and messages out.

use std::collections::VecDeque;
use std::ops::Range;

use farcall_core::time::{Instant, PollAt};

use super::fetch_size::FetchSize;
use super::lines::{Cursor, LINE_BYTES, Line, MOST_LINES_PER_READ, join, lines_of, ring_lines};
use super::setup::Places;
use super::shown::Shown;
use crate::rendezvous::server::Misbehaved;
use crate::slots::carrier::MOST_PROBES;

/// When the ring is read next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// No call is outstanding.
    Idle,
    /// When the first request has arrived at the server: a READ right behind it would come too early. `since`: it was first waited for.
    AfterRequest {
        since: Option<Instant>,
    },
    Now,
    /// A READ is under way.
    Reading {
        since: Instant,
        /// When it is taken for lost.
        late_at: Instant,
        probes: u32,
    },
}

/// What is under way is taken for lost after so many times as long as the slowest of the latest READs took, and twice that each further
/// time.
const LATE_ROUND_TRIPS: u64 = 4;

/// What is under way is not taken for lost earlier: a probe costs the server's NIC a READ, and a busy one may be that slow.
const LEAST_LATE_NANOS: u64 = 50_000;

/// As long as that, while it is not known how long a READ takes; and never later.
const MOST_LATE_NANOS: u64 = 5_000_000;

/// The part of the slowest READ that is forgotten with each that is quicker: one in 16.
const FORGET_SHIFT: u32 = 4;

/// A READ that is to be posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Read {
    /// These lines of the ring.
    Lines(Range<u32>),
    /// The response of this slot, in its own place.
    Long { slot: u32, len: u32 },
    /// This line of the ring, whatever is there: an operation behind one that was lost has it repeated at once.
    Probe(u32),
}

/// What was found in lines that were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// These bytes.
    Here { slot: u32, bytes: Range<usize> },
    /// In the slot's own place: it is a later [`Read::Long`].
    Elsewhere,
}

/// The client's end of the ring.
#[derive(Debug)]
pub(super) struct Reader {
    cursor: Cursor,
    shown: Shown,
    most: u32,
    /// Slots of the window, and bytes of a slot: what the server may name.
    window: u32,
    slot_bytes: u32,
    pace: Pace,
    /// The READ under way is taken for lost.
    must_probe: bool,
    /// Lines of the next message, as far as is known.
    need: u32,
    /// Messages that the last READ brought.
    run: u32,
    /// The last READ brought less than a message, but something.
    has_advanced: bool,
    size: FetchSize,
    long: VecDeque<(u32, u32)>,
    long_under_way: u32,
    /// How long a READ takes, smoothed.
    round_trip_nanos: u64,
    /// How long the slowest of the latest READs took.
    slowest_nanos: u64,
}

const NAMELESS: Misbehaved = "a line that no response begins with";

impl Reader {
    pub(super) fn new(places: &Places) -> Reader {
        let Places { window, slot_bytes, most_lines: most, first_word_first } = *places;
        Reader {
            cursor: Cursor::new(ring_lines(window, most)),
            shown: Shown::new(first_word_first),
            most,
            window,
            slot_bytes,
            pace: Pace::Idle,
            must_probe: false,
            need: 1,
            run: 0,
            has_advanced: false,
            size: FetchSize::new(most),
            long: VecDeque::with_capacity(window as usize),
            long_under_way: 0,
            round_trip_nanos: 0,
            slowest_nanos: 0,
        }
    }

    /// A request is posted. `true`: reading begins when that has arrived, so its completion is needed.
    #[inline]
    pub(super) fn begin(&mut self) -> bool {
        let begins = self.pace == Pace::Idle;
        if begins {
            self.pace = Pace::AfterRequest { since: None };
        }
        begins
    }

    /// A request has arrived.
    #[inline]
    pub(super) fn sent(&mut self) {
        if matches!(self.pace, Pace::AfterRequest { .. }) {
            self.pace = Pace::Now;
        }
    }

    /// Notices what has been under way for too long. The network may have lost it, and nothing behind it tells either end. Gives when to
    /// look again.
    #[inline]
    pub(super) fn look_for_lost(&mut self, now: Instant) -> PollAt {
        let late_nanos = self.late_nanos();
        match &mut self.pace {
            Pace::Reading { late_at, probes, .. } if *probes < MOST_PROBES as u32 => {
                if now >= *late_at {
                    *probes += 1;
                    *late_at = now.saturating_add_nanos(late_nanos << *probes);
                    self.must_probe = true;
                }
                PollAt::At(*late_at)
            }
            Pace::AfterRequest { since } => {
                let late_at = since.get_or_insert(now).saturating_add_nanos(late_nanos);
                if now >= late_at {
                    // A READ behind the request has that repeated, if it was lost.
                    self.pace = Pace::Now;
                }
                PollAt::At(late_at)
            }
            Pace::Idle | Pace::Now | Pace::Reading { .. } => PollAt::OnEvent,
        }
    }

    /// How long a READ may be under way before it is taken for lost.
    fn late_nanos(&self) -> u64 {
        match self.slowest_nanos {
            0 => MOST_LATE_NANOS,
            nanos => (LATE_ROUND_TRIPS * nanos).clamp(LEAST_LATE_NANOS, MOST_LATE_NANOS),
        }
    }

    /// Reads at once.
    pub(super) fn start(&mut self) {
        if !matches!(self.pace, Pace::Reading { .. }) {
            self.pace = Pace::Now;
        }
    }

    /// No long response is left to be read.
    pub(super) fn has_no_long(&self) -> bool {
        self.long.is_empty() && self.long_under_way == 0
    }

    /// There is something to read at once.
    #[inline]
    pub(super) fn must_read(&self) -> bool {
        self.pace == Pace::Now || !self.long.is_empty()
    }

    /// How long a READ takes.
    pub(super) fn round_trip_nanos(&self) -> u64 {
        self.round_trip_nanos
    }

    /// The next READ, for so many responses at most and of at most `most` bytes.
    #[inline]
    pub(super) fn next(&mut self, responses: u32, most: usize, now: Instant) -> Option<Read> {
        if let Some((slot, len)) = self.long.pop_front() {
            self.long_under_way += 1;
            return Some(Read::Long { slot, len });
        }
        if std::mem::take(&mut self.must_probe) {
            return Some(Read::Probe(self.cursor.line));
        }
        if self.pace != Pace::Now {
            return None;
        }
        // As many as twice those that were ready the last time, behind those that were shown.
        let responses = (2 * self.run).clamp(1, responses.max(1));
        let lines = (responses * self.size.lines()).max(self.need) + self.shown.lines();
        let most = (most / LINE_BYTES).min(MOST_LINES_PER_READ as usize) as u32;
        let lines = lines.min(most).min(self.cursor.left());
        let late_at = now.saturating_add_nanos(self.late_nanos());
        self.pace = Pace::Reading { since: now, late_at, probes: 0 };
        Some(Read::Lines(self.cursor.line..self.cursor.line + lines))
    }

    /// The next message in `bytes`, from `at` on.
    #[inline]
    pub(super) fn next_message(
        &mut self,
        bytes: &mut [u8],
        at: &mut usize,
    ) -> Result<Option<Message>, Misbehaved> {
        let Some(rest) = bytes.get_mut(*at..) else { return Ok(None) };
        let Some(line) = Line::of_lap(rest, self.cursor.lap) else { return Ok(None) };
        if !self.shown.is_whole() {
            self.shown.show(rest, self.cursor.lap);
            self.has_advanced = true;
            return Ok(None);
        }
        match line {
            Line::First { slot, len } => {
                let (lines, len) = (lines_of(len as usize), len as usize);
                if slot >= self.window || lines > self.most || lines > self.cursor.left() {
                    return Err(NAMELESS);
                }
                let Some(message) = rest.get_mut(..lines as usize * LINE_BYTES) else {
                    (self.need, self.has_advanced) = (lines, true);
                    return Ok(None);
                };
                let mut further = message.chunks(LINE_BYTES).skip(1);
                if !further.all(|line| Line::of_lap(line, self.cursor.lap) == Some(Line::Rest)) {
                    self.need = lines;
                    return Ok(None);
                }
                let joined = join(message, len);
                let found = *at + joined.start..*at + joined.end;
                *at += lines as usize * LINE_BYTES;
                self.advance(lines);
                self.need = 1;
                self.size.note(lines);
                Ok(Some(Message::Here { slot, bytes: found }))
            }
            Line::Elsewhere { slot, len } => {
                if slot >= self.window || len > self.slot_bytes {
                    return Err(NAMELESS);
                }
                *at += LINE_BYTES;
                self.advance(1);
                self.long.push_back((slot, len));
                Ok(Some(Message::Elsewhere))
            }
            // The bytes end with the ring at the latest.
            Line::Skip if self.cursor.line > 0 => {
                self.advance(self.cursor.left());
                self.has_advanced = true;
                *at = bytes.len();
                Ok(None)
            }
            Line::Rest | Line::Skip => Err(NAMELESS),
        }
    }

    #[inline]
    fn advance(&mut self, lines: u32) {
        self.cursor.advance(lines);
        self.shown.advance(lines);
    }

    /// The lines of a READ have been looked at: so many messages were there. `true`: it has brought something.
    #[inline]
    pub(super) fn read_lines(&mut self, messages: usize, outstanding: usize, now: Instant) -> bool {
        if let Pace::Reading { since, .. } = self.pace {
            let took = now.as_nanos().saturating_sub(since.as_nanos());
            let before = self.round_trip_nanos;
            self.round_trip_nanos = if before == 0 { took } else { (7 * before + took) / 8 };
            self.slowest_nanos =
                took.max(self.slowest_nanos - (self.slowest_nanos >> FORGET_SHIFT));
        }
        self.pace = if outstanding > 0 { Pace::Now } else { Pace::Idle };
        self.must_probe = false;
        self.run = messages as u32;
        std::mem::take(&mut self.has_advanced) || messages > 0
    }

    /// A long response has been read.
    pub(super) fn read_long(&mut self) {
        self.long_under_way -= 1;
    }

    /// No call is outstanding: what was to be read is read with the next one.
    #[inline]
    pub(super) fn rest(&mut self) {
        if self.pace == Pace::Now {
            self.pace = Pace::Idle;
        }
    }
}

#[cfg(test)]
mod tests;
