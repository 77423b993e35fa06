//! The sender's view of a peer's inbox: where the next message goes, and whether there is room.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crossbeam_utils::CachePadded;

use super::bell::Bell;
use super::cell::{
    CARRIES_NOTHING, CELL_PAYLOAD_BYTES, CellKind, CellRing, Header, MAX_CELLS, Next, SMALL_LAP,
    Walk, second_word, words_of,
};
use super::duplex::{self, Flow};
use super::inbox::{Inbox, InboxLines, InboxState};
use super::shared_receive::CreditPage;
use super::slow::{Bytes, Outcome, Wait};
use crate::Status;
use crate::memory::bytes::copy_forward;
use crate::memory::prefetch;

/// How we know which of the peer's receives we may use.
#[derive(Debug)]
pub(super) enum Receives {
    /// They are for us alone. The inbox says how many were posted.
    Exclusive,
    /// Other senders use them too. Each receive is taken here before it is used.
    Taken(CreditPage),
    /// Other senders use them too, and a message without a receive is dropped. We may send as many as seem to
    /// be posted.
    Seen(CreditPage),
}

/// Messages that may be sent without an acknowledgement. After more, as in a stream in one direction, the 16 bits of the next one
/// could mean a message of the lap before: from then on only the peer's `head` tells what it has taken.
const MOST_UNACKNOWLEDGED: u64 = (1 << 16) - (MAX_CELLS + duplex::LINES) as u64;

/// A peer's inbox that we write.
#[derive(Debug)]
pub(super) struct Outbox {
    ring: CellRing,
    lines: NonNull<InboxLines>,
    /// The number of the next message.
    number: u64,
    /// Where the next cell is.
    at: Walk,
    /// For each cell, one more than the position of the message last written to it. Datagrams go round the whole ring, and need none.
    written: Box<[u32]>,
    flow: Arc<CachePadded<Flow>>,
    /// The lines that we open, and those that the peer opens and in which we answer.
    our_lines: CellRing,
    peers_lines: Option<CellRing>,
    /// The number of the next message when an acknowledgement last told that messages were taken.
    acknowledged_at: u64,
    /// The last `head` and `posted` read; read again only when they are used up.
    head_seen: u32,
    posted_seen: u32,
    /// Receives used so far, wrapping.
    sent: u32,
    receives: Receives,
    bell: Bell,
    /// The protection domain of the peer's queue pair.
    pub(super) pd: u32,
    inbox: Arc<Inbox>,
}

// SAFETY: `lines` points into the mapping of `inbox`, which moves along with it. Everything there is
// atomic.
unsafe impl Send for Outbox {}
// SAFETY: as above.
unsafe impl Sync for Outbox {}

impl Outbox {
    pub(super) fn new(
        inbox: Arc<Inbox>,
        pd: u32,
        receives: Receives,
        bell: Bell,
        flow: Arc<CachePadded<Flow>>,
        peers_lines: Option<CellRing>,
    ) -> Outbox {
        let ring = inbox.ring();
        let cells = if peers_lines.is_some() { ring.count() } else { 0 };
        Outbox {
            ring,
            lines: inbox.lines_ptr(),
            number: 0,
            at: Walk::default(),
            our_lines: inbox.duplex_lines(),
            peers_lines,
            written: vec![0; cells as usize].into(),
            flow,
            acknowledged_at: 0,
            head_seen: 0,
            posted_seen: 0,
            sent: 0,
            receives,
            bell,
            pd,
            inbox,
        }
    }

    #[inline]
    fn lines(&self) -> &InboxLines {
        // SAFETY: points into the mapping of `inbox`, which lives as long as this does.
        unsafe { self.lines.as_ref() }
    }

    /// Whether the peer's queue pair takes messages.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.lines().state.state.load(Ordering::Acquire) == InboxState::Ready as u32
    }

    /// Tells the peer that an access through a window of its begins, and fences: what is checked from now on counts.
    pub(super) fn enter_window(&self) {
        self.lines().sender.in_windows.enter();
    }

    /// Tells it that the access has ended.
    pub(super) fn leave_window(&self) {
        self.lines().sender.in_windows.leave();
    }

    /// Whether the peer's queue pair will never take messages again.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.not_ready(), Outcome::Failed(_))
    }

    /// Why the peer's queue pair takes no messages.
    #[cold]
    pub(super) fn not_ready(&self) -> Outcome {
        match self.lines().state.state.load(Ordering::Acquire) {
            state if state == InboxState::Init as u32 => Outcome::Wait(Wait::NotReady),
            state if state == InboxState::Ready as u32 => Outcome::Wait(Wait::Room),
            _ => Outcome::Failed(Status::RetryExceeded),
        }
    }

    /// Whether the peer has taken everything it was sent, including the last message, or has refused the last
    /// message.
    #[cold]
    fn verdict(&self, len: usize) -> Outcome {
        let taken = self.lines().credit.head.load(Ordering::Acquire) == self.position();
        if self.is_refused() {
            return Outcome::Failed(Status::RemoteInvalidRequest);
        }
        match taken {
            true => Outcome::Done(len as u32),
            false if self.is_ready() => Outcome::Wait(Wait::Verdict),
            false => self.not_ready(),
        }
    }

    /// Whether the peer's queue pair broke because a message of ours was too long.
    pub(super) fn is_refused(&self) -> bool {
        self.lines().state.refused.load(Ordering::Acquire) != 0
    }

    /// The number of the next message as the ring counts: wrapping.
    #[inline]
    fn position(&self) -> u32 {
        self.number as u32
    }

    /// Messages that the peer has not taken, as far as we know. The peer's count is not trusted beyond the
    /// ring's size. If it lies, we overwrite messages it has not read, which only harms the peer.
    #[inline(always)]
    fn in_flight(&mut self) -> u32 {
        let acknowledged = self.flow.acknowledged.load(Ordering::Acquire) as u16;
        let known = self.position().wrapping_sub(self.head_seen);
        let in_flight = u32::from((self.position() as u16).wrapping_sub(acknowledged));
        if in_flight < known && self.number - self.acknowledged_at < MOST_UNACKNOWLEDGED {
            self.head_seen = self.position().wrapping_sub(in_flight);
            self.acknowledged_at = self.number;
            return in_flight;
        }
        known
    }

    /// Whether a cell may be written: the peer has taken its last message.
    #[inline(always)]
    fn is_free(&self, index: u32, in_flight: u32) -> bool {
        let since = self.position().wrapping_sub(self.written[index as usize]);
        since >= in_flight
    }

    /// Whether there is room in the ring for one more message.
    #[inline(always)]
    pub(super) fn has_room(&mut self) -> bool {
        let in_flight = self.in_flight();
        self.is_free(self.at.index, in_flight) || self.has_room_after_reading_head()
    }

    #[cold]
    fn has_room_after_reading_head(&mut self) -> bool {
        self.read_head();
        self.is_free(self.at.index, self.position().wrapping_sub(self.head_seen))
    }

    /// Has the peer wake us when it has taken messages, unless there is room by now.
    #[cold]
    fn must_wait_for_room(&mut self) -> bool {
        self.lines().sender.waits_for_room.store(1, Ordering::Relaxed);
        // The peer publishes `head`, fences and loads that word; we have stored it and load `head`.
        fence(Ordering::SeqCst);
        !self.has_room_after_reading_head()
    }

    fn read_head(&mut self) {
        let head = self.lines().credit.head.load(Ordering::Acquire);
        if self.position().wrapping_sub(head) <= self.ring.count() {
            self.head_seen = head;
        }
    }

    /// Whether there is room for a datagram of this many cells. Datagrams use the whole ring.
    #[inline]
    pub(super) fn has_room_for(&mut self, cells: u32) -> bool {
        let free = |outbox: &Outbox| {
            outbox.ring.count() - outbox.position().wrapping_sub(outbox.head_seen) >= cells
        };
        free(self) || {
            self.read_head();
            free(self)
        }
    }

    /// Whether other senders use the same receives.
    #[inline]
    pub(super) fn shares_receives(&self) -> bool {
        !matches!(self.receives, Receives::Exclusive)
    }

    /// Whether the peer has a receive for the next message.
    #[inline]
    pub(super) fn has_receive(&mut self) -> bool {
        if let Receives::Taken(credit) = &self.receives {
            return credit.available() > 0;
        }
        if self.sent == self.posted_seen {
            self.posted_seen = match &self.receives {
                Receives::Seen(page) => self.sent.wrapping_add(self.left(page)),
                _ => self.lines().credit.posted.load(Ordering::Acquire),
            };
        }
        self.sent != self.posted_seen
    }

    /// How many receives seem to be left for us, according to the peer.
    #[cold]
    fn left(&self, page: &CreditPage) -> u32 {
        // In the opposite order of the peer's stores, so that no message counts as used twice.
        let under_way = self.sent.wrapping_sub(self.lines().credit.taken.load(Ordering::Acquire));
        let consumed = page.consumed().load(Ordering::Acquire);
        let posted = page.posted().load(Ordering::Acquire);
        let left = posted.wrapping_sub(consumed).wrapping_sub(under_way);
        // Negative if others have sent, or the peer lies. The ring's room still bounds what is sent.
        if left as i32 > 0 { left } else { 0 }
    }

    /// Takes one receive of a queue pair that [shares none](Outbox::shares_receives); `false` if there is none.
    #[inline]
    pub(super) fn take_exclusive_receive(&mut self) -> bool {
        if self.sent == self.posted_seen {
            self.posted_seen = self.lines().credit.posted.load(Ordering::Acquire);
            if self.sent == self.posted_seen {
                return false;
            }
        }
        self.sent = self.sent.wrapping_add(1);
        true
    }

    /// Takes one receive; `false` if another sender took it first.
    #[inline]
    pub(super) fn take_receive(&mut self) -> bool {
        if let Receives::Taken(credit) = &self.receives {
            if !credit.take() {
                return false;
            }
            // These two counts tell how many receives a dead sender took and did not use.
            self.lines().sender.taken.fetch_add(1, Ordering::Release);
        }
        self.sent = self.sent.wrapping_add(1);
        true
    }

    /// The longest message that fits the next receive, if the peer announces lengths.
    fn receive_length(&self) -> u64 {
        match self.receives {
            Receives::Taken(_) | Receives::Seen(_) => u64::MAX,
            Receives::Exclusive => {
                u64::from(self.inbox.receive_length(self.sent).load(Ordering::Relaxed))
            }
        }
    }

    /// Writes a datagram from back to front: once the peer sees the first cell, the others are complete.
    #[inline]
    pub(super) fn put_datagram(&mut self, bytes: &[u8], imm: Option<u32>, qkey: u32, cells: u32) {
        let last = self.ring.count() - 1;
        for ahead in (0..cells).rev() {
            let rest = &bytes[ahead as usize * CELL_PAYLOAD_BYTES..];
            let (words, carried) = match rest.first_chunk::<CELL_PAYLOAD_BYTES>() {
                Some(full) => (zerocopy::transmute!(*full), CELL_PAYLOAD_BYTES),
                None => (words_of(rest), rest.len()),
            };
            let cell = self.ring.cell((self.at.index + ahead) & last);
            let kind = match (ahead, imm) {
                (0, Some(_)) => CellKind::SendImm,
                (0, None) => CellKind::Send,
                _ => CellKind::More,
            };
            cell.fill(second_word(qkey, imm.unwrap_or(0)), &words);
            let tag = self.ring.tag(self.position().wrapping_add(ahead));
            let len = bytes.len() as u16;
            cell.publish(Header::new(tag, kind, Next::Adjacent, carried as u8, len));
        }
        self.at.index = (self.at.index + cells) & last;
        self.number += u64::from(cells);
    }

    /// Where the cell after this one is. Goes back to the start when the peer has taken everything before this
    /// message, and past the small lap when that is not free.
    #[inline]
    fn next(&self, in_flight: u32) -> Next {
        let adjacent = self.at.index + 1;
        if adjacent < SMALL_LAP && self.is_free(adjacent, in_flight) {
            Next::Adjacent
        } else if adjacent >= SMALL_LAP && in_flight == 0 {
            Next::Start
        } else if adjacent > SMALL_LAP && adjacent < self.ring.count() {
            Next::Adjacent
        } else {
            self.next_of_burst(adjacent, in_flight)
        }
    }

    /// Out of the small lap, or behind the last cell. The message from which the writer went back may not be taken yet. Then
    /// those that follow it have the cells behind its own first, and after these the cells before it.
    fn next_of_burst(&self, adjacent: u32, in_flight: u32) -> Next {
        let is_free = |index| self.is_free(index, in_flight);
        if adjacent <= SMALL_LAP {
            let (from, behind) = (self.at.returned_from, self.at.returned_from + 1);
            let is_past = from >= SMALL_LAP && behind < self.ring.count();
            match is_past && !is_free(from) && is_free(behind) {
                true => Next::PastReturn,
                false => Next::BehindSmallLap,
            }
        } else if !is_free(0) && is_free(SMALL_LAP) {
            Next::BehindSmallLap
        } else {
            Next::Adjacent // The last is followed by the first.
        }
    }

    /// Writes the next message into a line, if that is possible.
    #[inline(always)]
    fn put_in_line(&mut self, kind: CellKind, carried: u8, imm: u32, payload: &[u64]) -> bool {
        let (number, in_flight) = (self.number, self.in_flight());
        let (cell, next) = match &self.peers_lines {
            Some(lines) if self.flow.answers(number) => {
                (duplex::cell(lines, number), Next::Unchanged)
            }
            Some(_) if self.flow.may_open(number, in_flight) => {
                self.flow.open(number);
                (duplex::cell(&self.our_lines, number), Next::Adjacent)
            }
            _ => return false,
        };
        let taken = self.flow.taken.load(Ordering::Acquire) as u16;
        cell.fill(second_word(duplex::upper_half(number), imm), payload);
        let tag = self.ring.tag(self.position());
        cell.publish(Header::new(tag, kind, next, carried, taken));
        self.number = number + 1;
        true
    }

    /// Whether a message of this length fits the receive that was just taken, whichever that is.
    #[inline]
    fn surely_fits(&self, len: usize) -> bool {
        match &self.receives {
            Receives::Taken(credit) => credit.surely_fits(len),
            Receives::Exclusive | Receives::Seen(_) => {
                len as u64
                    <= u64::from(
                        self.inbox
                            .receive_length(self.sent.wrapping_sub(1))
                            .load(Ordering::Relaxed),
                    )
            }
        }
    }

    /// Sends a message that fits a cell, if nothing has to wait for it: there are a receive that is long enough, and room.
    /// `false`: nothing was done.
    #[inline]
    pub(super) fn send_small(&mut self, bytes: &[u8], imm: Option<u32>) -> bool {
        if !self.is_ready() || !self.has_room() || !self.has_receive() || !self.take_receive() {
            return false;
        }
        if !self.surely_fits(bytes.len()) {
            self.give_receive_back();
            return false;
        }
        let kind = if imm.is_some() { CellKind::SendImm } else { CellKind::Send };
        let words = words_of(bytes);
        let used = bytes.len().div_ceil(8);
        self.put_small(kind, bytes.len() as u8, imm.unwrap_or(0), &words[..used]);
        true
    }

    /// Undoes [`take_receive`](Self::take_receive).
    #[cold]
    fn give_receive_back(&mut self) {
        self.sent = self.sent.wrapping_sub(1);
        if let Receives::Taken(credit) = &self.receives {
            self.lines().sender.taken.fetch_sub(1, Ordering::Release);
            credit.give(1);
        }
    }

    /// Writes a message that fits a cell into a line, or else into the ring if there is room.
    #[inline(always)]
    pub(super) fn put_small(&mut self, kind: CellKind, carried: u8, imm: u32, payload: &[u64]) {
        if !self.put_in_line(kind, carried, imm, payload) {
            self.put(kind, carried, imm, carried.into(), payload);
        }
    }

    /// Writes a message whose `len` bytes the cell does not carry into a line, or else into the ring if there is room. A line
    /// has its length among the payload: the length word of a line is taken.
    #[inline(always)]
    pub(super) fn put_long(&mut self, kind: CellKind, imm: u32, len: u32) {
        if !self.put_in_line(kind, CARRIES_NOTHING, imm, &[len.into()]) {
            self.put(kind, CARRIES_NOTHING, imm, len, &[]);
        }
    }

    /// Writes the next message into the ring, if there is room.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        kind: CellKind,
        carried: u8,
        imm: u32,
        length: u32,
        payload: &[u64],
    ) {
        let in_flight = self.position().wrapping_sub(self.head_seen);
        let next = self.next(in_flight);
        let following = self.at.after(&self.ring, next as u8);
        if following.index >= SMALL_LAP && self.is_free(following.index, in_flight) {
            // It may hold a message so old that its tag has come round again.
            self.ring.cell(following.index).clear();
        }
        let taken = self.flow.taken.load(Ordering::Acquire) as u16;
        let cell = self.ring.cell(self.at.index);
        cell.fill(second_word(length, imm), payload);
        cell.publish(Header::new(self.ring.tag(self.position()), kind, next, carried, taken));
        self.number += 1;
        self.written[self.at.index as usize] = self.position();
        self.at = following;
        // The line of the message after the next comes while others are made: a store that waits for its line holds up those behind it.
        // The next one's line may be polled already.
        prefetch::to_write(self.ring.cell(following.index.wrapping_add(1)));
    }

    /// Wakes a sleeping peer. The fence orders the cell before the load of `armed`; the peer arms before it
    /// looks at the cells (`CompletionQueue::arm`).
    #[inline]
    pub(super) fn ring_doorbell(&self) {
        fence(Ordering::SeqCst);
        self.wake_if_armed();
    }

    /// Loads `armed`, after that fence, and wakes the peer if it is set.
    #[inline]
    pub(super) fn wake_if_armed(&self) {
        if self.lines().state.armed.load(Ordering::Relaxed) != 0 {
            self.wake_peer();
        }
    }

    #[cold]
    fn wake_peer(&self) {
        if self.lines().state.armed.swap(0, Ordering::SeqCst) != 0 {
            self.bell.ring();
        }
    }
}

/// Puts a SEND into the peer's inbox, in pieces as there is room. `sent` bytes are there already.
pub(super) fn send(
    outbox: &mut Outbox,
    bytes: &Bytes,
    imm: Option<u32>,
    sent: &mut Option<usize>,
) -> Outcome {
    let len = bytes.len();
    if *sent == Some(len) {
        return outbox.verdict(len);
    }
    if !outbox.is_ready() {
        return match sent.is_some() && outbox.is_refused() {
            true => Outcome::Failed(Status::RemoteInvalidRequest),
            false => outbox.not_ready(),
        };
    }
    let mut done = match *sent {
        Some(done) => done,
        None => {
            if !outbox.has_receive() {
                return Outcome::Wait(Wait::Receive);
            }
            if !outbox.has_room() && outbox.must_wait_for_room() {
                return Outcome::Wait(Wait::Room);
            }
            if len as u64 > outbox.receive_length() {
                outbox.take_receive();
                outbox.put(CellKind::TooLong, CARRIES_NOTHING, 0, len as u32, &[]);
                return Outcome::Failed(Status::RemoteInvalidRequest);
            }
            if !outbox.take_receive() {
                return Outcome::Wait(Wait::Receive);
            }
            let kind = if imm.is_some() { CellKind::SendImm } else { CellKind::Send };
            let (words, carried) = piece(bytes, 0);
            let used = carried.div_ceil(8);
            let imm = imm.unwrap_or(0);
            if carried == len {
                outbox.put_small(kind, carried as u8, imm, &words[..used]);
            } else {
                outbox.put(kind, carried as u8, imm, len as u32, &words[..used]);
            }
            carried
        }
    };
    while done < len {
        if !outbox.has_room() && outbox.must_wait_for_room() {
            *sent = Some(done);
            return Outcome::Wait(Wait::Room);
        }
        let (words, carried) = piece(bytes, done);
        outbox.put(CellKind::More, carried as u8, 0, 0, &words[..carried.div_ceil(8)]);
        done += carried;
    }
    if matches!(&outbox.receives, Receives::Taken(credit) if !credit.surely_fits(len)) {
        // Only the receiver knows which shared receive it meets, and whether that is long enough.
        *sent = Some(len);
        return outbox.verdict(len);
    }
    Outcome::Done(len as u32)
}

/// The bytes of a message for one cell, starting at `offset`.
#[inline]
fn piece(bytes: &Bytes, offset: usize) -> ([u64; CELL_PAYLOAD_BYTES / 8], usize) {
    let carried = (bytes.len() - offset).min(CELL_PAYLOAD_BYTES);
    let mut words = [0u64; CELL_PAYLOAD_BYTES / 8];
    // SAFETY: `carried` bytes from `offset` on lie in the message, and `words` has room for 48. The source may
    // be shared memory, which the copy tolerates.
    unsafe { copy_forward(words.as_mut_ptr().cast(), bytes.start().add(offset), carried) };
    (words, carried)
}

#[cfg(all(test, not(loom)))]
mod tests;
