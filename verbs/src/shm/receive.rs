//! The receiving side of a connected queue pair, owned by the poller of its completion queue.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use zerocopy::IntoBytes;

use super::cell::{
    CARRIES_NOTHING, CELL_PAYLOAD_BYTES, Cell, CellKind, CellRing, Header, MIN_CELLS, SMALL_LAP,
    Walk,
};
use super::duplex;
use super::events::Caller;
use super::inbox::InboxLines;
use super::pair::Pair;
use super::shared_receive::ReceivePool;
use super::spsc::Consumer;
use crate::memory::prefetch;
use crate::{Buffer, CompletionOpcode, QpNumber, QpState, QpType, Status, WorkCompletion};

/// The longest message.
pub(super) const MAX_MESSAGE_BYTES: u64 = 1 << 31;

/// Messages after which a peer is woken that waits for room. One that waits finds more of them not taken: but for the small lap, the ring
/// is full.
const WAKE_EVERY: u64 = 32;

const _: () = assert!(WAKE_EVERY < (MIN_CELLS - SMALL_LAP) as u64);

/// A posted receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) id: u64,
    pub(super) buffer: Option<Buffer>,
}

/// Posted receives on their way to the poller.
#[derive(Debug)]
pub(super) enum Posted {
    One(Receive),
    /// Receives without buffers, with consecutive ids.
    Run {
        id: u64,
        count: u32,
    },
}

/// Where receives come from.
pub(super) enum Source {
    Own(Consumer<Posted>),
    Shared(Arc<ReceivePool>),
}

/// A SEND that has arrived partially.
struct Partial {
    receive: Receive,
    imm: Option<u32>,
    total: usize,
    done: usize,
}

pub(super) struct Receiver {
    ring: CellRing,
    /// The number of the next message, and its tag.
    number: u64,
    tag: u32,
    /// Where the next message is, if it is in the ring, and the one after it.
    at: Walk,
    following: Walk,
    /// The lines that the peer opens, and (once connected) those that we open and it answers in.
    peers_lines: CellRing,
    our_lines: Option<CellRing>,
    /// The rest of a run of receives without buffers.
    run_left: u32,
    run_next: u64,
    qp: QpNumber,
    /// Receives used so far, wrapping.
    consumed: u32,
    /// The head last published to the peer.
    told_head: u32,
    /// The number of the next message when the peer was last looked at for one that waits for room.
    looked_for_waiting: u64,
    /// The number of the next message when activity was last noted, and whether it was the same as the time before.
    noted: u64,
    is_quiet: bool,
    /// The number of our messages that the peer had taken when it sent its last message, modulo 2^16.
    acknowledged: u16,
    /// Where the message that is being taken is.
    location: Location,
    lines: NonNull<InboxLines>,
    partial: Option<Partial>,
    /// The peer broke the protocol, or a message ended the connection: nothing more is read.
    poisoned: bool,
    /// Shared receives that the peer has taken for nothing were given back.
    is_settled: bool,
    source: Source,
    pub(super) pair: Arc<Pair>,
}

// SAFETY: `lines` points into the inbox that `pair` keeps mapped. Everything there is atomic.
unsafe impl Send for Receiver {}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    Ring,
    /// In a line that the peer opened; our message of this number goes back there.
    Line,
    /// In a line that we opened: an answer.
    Answer,
}

/// The result of a cell off the common path.
enum CellResult {
    /// The completion is filled.
    Completed,
    /// Taken, but the message has more cells.
    Taken,
    /// Not taken.
    Stopped,
}

impl Receiver {
    /// For a connected queue pair.
    pub(super) fn new(pair: Arc<Pair>, source: Source) -> Option<Receiver> {
        let inbox = pair.inbox()?;
        let ring = inbox.ring();
        Some(Receiver {
            ring,
            number: 0,
            tag: ring.tag(0),
            at: Walk::default(),
            following: Walk::default(),
            peers_lines: inbox.duplex_lines(),
            our_lines: None,
            run_left: 0,
            run_next: 0,
            qp: QpNumber(pair.number),
            consumed: 0,
            told_head: 0,
            looked_for_waiting: 0,
            noted: 0,
            is_quiet: false,
            acknowledged: 0,
            location: Location::Ring,
            lines: inbox.lines_ptr(),
            partial: None,
            poisoned: false,
            is_settled: false,
            source,
            pair,
        })
    }

    #[inline]
    fn lines(&self) -> &InboxLines {
        // SAFETY: points into the inbox that `pair` keeps mapped.
        unsafe { self.lines.as_ref() }
    }

    /// Whether a message has arrived. Garbage does not count: it would keep a sleeping poller awake forever.
    pub(super) fn has_arrival(&self) -> bool {
        let (ring, peers) = (self.ring, self.peers_lines);
        let ours = self.our_lines.or_else(|| self.connected_lines());
        !self.poisoned && self.arrival(&ring, &peers, ours.as_ref()).is_some()
    }

    /// Finds the next message's cell, if it has arrived: in the ring, in the peer's line, or as an answer in
    /// ours.
    #[inline(always)]
    fn arrival<'c>(
        &self,
        ring: &'c CellRing,
        peers_lines: &'c CellRing,
        our_lines: Option<&'c CellRing>,
    ) -> Option<(&'c Cell, Header, Location)> {
        let number = self.number;
        if let Some(lines) = our_lines
            && self.pair.flow.is_open(number)
        {
            let cell = duplex::cell(lines, number);
            let header = cell.header();
            if duplex::holds(cell, header, self.tag, number, true) {
                return Some((cell, header, Location::Answer));
            }
        }
        let cell = duplex::cell(peers_lines, number);
        let header = cell.header();
        if duplex::holds(cell, header, self.tag, number, false) {
            return Some((cell, header, Location::Line));
        }
        let cell = ring.cell(self.at.index);
        let header = cell.header();
        (header.tag() == self.tag).then_some((cell, header, Location::Ring))
    }

    /// Our lines, which are in the peer's inbox and only available once connected.
    #[cold]
    fn connected_lines(&self) -> Option<CellRing> {
        self.pair.flow.outbox.get().map(|outbox| outbox.duplex_lines())
    }

    /// Completes arrived messages while `out` has room.
    #[inline]
    pub(super) fn receive(&mut self, out: &mut [WorkCompletion]) -> usize {
        if self.our_lines.is_none() {
            self.our_lines = self.connected_lines();
        }
        let mut count = 0;
        while let Some(completion) = out.get_mut(count) {
            // Copies of the rings, so that a cell can be read while `self` changes. They stay mapped through
            // `pair`.
            let (ring, peers_lines, our_lines) = (self.ring, self.peers_lines, self.our_lines);
            let Some((cell, header, location)) =
                self.arrival(&ring, &peers_lines, our_lines.as_ref())
            else {
                break;
            };
            self.location = location;
            match location {
                Location::Ring => {
                    self.following = self.at.after(&ring, header.next());
                    if count > 0 {
                        // The writer is ahead: what comes after the next one is probably there, too.
                        prefetch::to_read(ring.cell(self.following.index.wrapping_add(1)));
                    }
                }
                Location::Line | Location::Answer => prefetch::to_write(cell),
            }
            self.acknowledged = header.extra();
            if self.run_left != 0
                && header.kind() == CellKind::WriteImm as u8
                && (header.carried() as usize <= CELL_PAYLOAD_BYTES
                    || header.carried() == CARRIES_NOTHING)
                && self.partial.is_none()
            {
                let id = self.run_next;
                self.run_next = id.wrapping_add(1);
                self.run_left -= 1;
                self.complete_write_imm(completion, cell, header, Receive { id, buffer: None });
                count += 1;
                continue;
            }
            if (header.kind() == CellKind::SendImm as u8 || header.kind() == CellKind::Send as u8)
                && header.carried() as usize <= CELL_PAYLOAD_BYTES
                && self.partial.is_none()
                && (location != Location::Ring
                    || cell.second_word().0 == u32::from(header.carried()))
                && !self.poisoned
            {
                let Some(receive) = self.next_receive() else {
                    self.handle_no_receive();
                    break;
                };
                self.complete_send(completion, cell, header, receive);
                count += 1;
                continue;
            }
            match self.handle_uncommon(header, cell, completion) {
                CellResult::Completed => count += 1,
                CellResult::Taken => {}
                CellResult::Stopped => break,
            }
        }
        if self.number as u32 != self.told_head {
            self.publish_progress();
        }
        count
    }

    /// Publishes the progress to the owner of the queue pair (which may post more), to our sending side (which
    /// tells the peer with its next message), and to the peer itself, in case we send nothing. The peer reads
    /// that line only when the values it last read are used up, so the line stays in our cache.
    #[inline]
    fn publish_progress(&mut self) {
        let position = self.number as u32;
        self.told_head = position;
        self.pair.consumed.store(self.consumed, Ordering::Release);
        self.pair.flow.taken.store(position, Ordering::Release);
        self.pair.flow.acknowledged.store(self.acknowledged.into(), Ordering::Release);
        self.lines().credit.head.store(position, Ordering::Release);
    }

    #[inline(always)]
    fn next_cell(&mut self) {
        match self.location {
            Location::Ring => self.at = self.following,
            Location::Line => self.pair.flow.take_from_line(self.number),
            Location::Answer => {}
        }
        self.number += 1;
        self.tag = self.ring.tag(self.number as u32);
    }

    /// Completes `receive` with a WRITE_WITH_IMM.
    #[inline]
    fn complete_write_imm(
        &mut self,
        completion: &mut WorkCompletion,
        cell: &Cell,
        header: Header,
        receive: Receive,
    ) {
        completion.opcode = CompletionOpcode::RecvWriteWithImm;
        let (length, imm) = cell.second_word();
        completion.imm = Some(imm);
        let carried = header.carried();
        if carried == CARRIES_NOTHING {
            let length = match self.location {
                Location::Ring => length.into(),
                Location::Line | Location::Answer => cell.first_word(),
            };
            completion.byte_len = length.min(MAX_MESSAGE_BYTES) as u32;
        } else {
            completion.byte_len = carried.into();
            cell.payload(&mut completion.payload);
        }
        completion.payload_len = carried;
        self.finish(completion, receive);
    }

    /// Completes `receive` with a SEND of one cell.
    #[inline]
    fn complete_send(
        &mut self,
        completion: &mut WorkCompletion,
        cell: &Cell,
        header: Header,
        mut receive: Receive,
    ) {
        let len = usize::from(header.carried());
        match &mut receive.buffer {
            Some(buffer) if len <= buffer.len() => {
                cell.payload(&mut completion.payload);
                buffer.set_len(len);
                buffer.copy_from_slice(&completion.payload.as_bytes()[..len]);
            }
            None if len == 0 => {}
            _ => {
                self.handle_too_long(completion, receive);
                return;
            }
        }
        completion.opcode = CompletionOpcode::Recv;
        completion.imm = (header.kind() == CellKind::SendImm as u8).then(|| cell.second_word().1);
        completion.byte_len = len as u32;
        completion.payload_len = header.carried();
        self.finish(completion, receive);
        self.answer_for_length(len);
    }

    /// A sender that could not know whether its message fits waits for the verdict.
    #[inline]
    fn answer_for_length(&mut self, len: usize) {
        if let Source::Shared(pool) = &self.source
            && !pool.credit.surely_fits(len)
        {
            self.publish_progress();
        }
    }

    /// Sets the fields that all successful receives share, and moves on to the next cell.
    #[inline]
    fn finish(&mut self, completion: &mut WorkCompletion, receive: Receive) {
        completion.id = receive.id;
        completion.qp = self.qp;
        completion.status = Status::Success;
        completion.source = None;
        completion.buffer = receive.buffer;
        self.consumed = self.consumed.wrapping_add(1);
        self.next_cell();
    }

    /// The receive for the next message.
    fn next_receive(&mut self) -> Option<Receive> {
        if self.run_left == 0 {
            match &mut self.source {
                Source::Shared(pool) => return pool.pop(),
                Source::Own(posted) => match posted.pop()? {
                    Posted::One(receive) => return Some(receive),
                    Posted::Run { id, count } => (self.run_next, self.run_left) = (id, count),
                },
            }
        }
        let id = self.run_next;
        self.run_next = id.wrapping_add(1);
        self.run_left -= 1;
        Some(Receive { id, buffer: None })
    }

    #[cold]
    fn handle_uncommon(
        &mut self,
        header: Header,
        cell: &Cell,
        completion: &mut WorkCompletion,
    ) -> CellResult {
        if self.poisoned {
            return CellResult::Stopped;
        }
        let carried = header.carried();
        let (length, imm) = cell.second_word();
        let length = match self.location {
            Location::Ring => u64::from(length),
            Location::Line | Location::Answer => u64::from(carried),
        };
        match (CellKind::of(header.kind()), &self.partial) {
            (Some(CellKind::WriteImm), None)
                if usize::from(carried) <= CELL_PAYLOAD_BYTES || carried == CARRIES_NOTHING =>
            {
                let Some(receive) = self.next_receive() else { return self.handle_no_receive() };
                self.complete_write_imm(completion, cell, header, receive);
                CellResult::Completed
            }
            (Some(kind @ (CellKind::Send | CellKind::SendImm)), None)
                if length <= MAX_MESSAGE_BYTES
                    && u64::from(carried) == length.min(CELL_PAYLOAD_BYTES as u64) =>
            {
                let Some(receive) = self.next_receive() else { return self.handle_no_receive() };
                let imm = (kind == CellKind::SendImm).then_some(imm);
                self.begin_send(
                    cell,
                    completion,
                    Partial { receive, imm, total: length as usize, done: 0 },
                )
            }
            (Some(CellKind::More), Some(partial))
                if usize::from(carried)
                    == (partial.total - partial.done).min(CELL_PAYLOAD_BYTES) =>
            {
                let result = match self.partial.take() {
                    Some(partial) => self.append_cell(cell, completion, partial),
                    None => CellResult::Stopped,
                };
                if self.number - self.looked_for_waiting >= WAKE_EVERY {
                    self.wake_waiting();
                }
                result
            }
            (Some(CellKind::TooLong), None) => {
                let Some(receive) = self.next_receive() else { return self.handle_no_receive() };
                self.handle_too_long(completion, receive)
            }
            _ => self.reject_garbage(),
        }
    }

    /// Wakes a peer that waits for room with the rest of a SEND.
    fn wake_waiting(&mut self) {
        self.looked_for_waiting = self.number;
        self.publish_progress();
        // See `Outbox::must_wait_for_room`. If the peer is not armed, it looks again when it is (`CompletionQueue::arm`).
        fence(Ordering::SeqCst);
        if self.lines().sender.waits_for_room.swap(0, Ordering::Relaxed) != 0 {
            self.pair.flow.wake_peer();
        }
    }

    /// Takes the first cell of a SEND.
    fn begin_send(
        &mut self,
        cell: &Cell,
        completion: &mut WorkCompletion,
        partial: Partial,
    ) -> CellResult {
        let room = partial.receive.buffer.as_ref().map_or(0, |buffer| buffer.len());
        if partial.total > room {
            return self.handle_too_long(completion, partial.receive);
        }
        self.append_cell(cell, completion, partial)
    }

    /// Copies the cell's bytes into the posted buffer. The cell's length has been checked against the
    /// message's, and the message's against the buffer's.
    fn append_cell(
        &mut self,
        cell: &Cell,
        completion: &mut WorkCompletion,
        mut partial: Partial,
    ) -> CellResult {
        let mut words = [0; CELL_PAYLOAD_BYTES / 8];
        cell.payload(&mut words);
        let carried = (partial.total - partial.done).min(CELL_PAYLOAD_BYTES);
        if let Some(buffer) = &mut partial.receive.buffer {
            let into = &mut buffer[partial.done..partial.done + carried];
            for (into, word) in into.chunks_mut(8).zip(&words) {
                into.copy_from_slice(&word.to_ne_bytes()[..into.len()]);
            }
        }
        partial.done += carried;
        if partial.done < partial.total {
            self.partial = Some(partial);
            self.next_cell();
            return CellResult::Taken;
        }
        let Partial { mut receive, imm, total, .. } = partial;
        if let Some(buffer) = &mut receive.buffer {
            buffer.set_len(total);
        }
        completion.opcode = CompletionOpcode::Recv;
        completion.imm = imm;
        completion.byte_len = total as u32;
        completion.payload_len = if total <= CELL_PAYLOAD_BYTES {
            completion.payload = words;
            total as u8
        } else {
            CARRIES_NOTHING
        };
        self.finish(completion, receive);
        self.answer_for_length(total);
        CellResult::Completed
    }

    /// Handles a SEND that is longer than its receive. It ends a reliable connection.
    fn handle_too_long(&mut self, completion: &mut WorkCompletion, receive: Receive) -> CellResult {
        self.complete_failed(completion, receive, Status::LocalLength);
        // Before the head moves past it: see `Outbox::verdict`.
        self.lines().state.refused.store(1, Ordering::Release);
        self.consumed = self.consumed.wrapping_add(1);
        self.next_cell();
        self.poison();
        CellResult::Completed
    }

    fn complete_failed(&self, completion: &mut WorkCompletion, receive: Receive, status: Status) {
        *completion = WorkCompletion {
            id: receive.id,
            qp: self.qp,
            status,
            opcode: CompletionOpcode::Recv,
            buffer: receive.buffer,
            ..WorkCompletion::default()
        };
    }

    /// Handles a message without a receive. With a shared queue, another sender was faster than the count, and
    /// the message waits here; otherwise the peer has sent without credit.
    fn handle_no_receive(&mut self) -> CellResult {
        match self.source {
            Source::Shared(_) => CellResult::Stopped,
            Source::Own(_) => self.reject_garbage(),
        }
    }

    fn reject_garbage(&mut self) -> CellResult {
        tracing::warn!(qp = self.qp.0, "a peer wrote garbage into its inbox; queue pair in error");
        self.poison();
        CellResult::Stopped
    }

    fn poison(&mut self) {
        self.poisoned = true;
        self.pair.fail();
    }

    /// Flushes posted receives in the error state. Earlier messages have been delivered.
    pub(super) fn flush(&mut self, out: &mut [WorkCompletion]) -> usize {
        if self.pair.state() != QpState::Error {
            return 0;
        }
        let mut count = 0;
        while let Some(completion) = out.get_mut(count) {
            let receive = match self.partial.take() {
                Some(partial) => Some(partial.receive),
                None if matches!(self.source, Source::Shared(_)) => None,
                None => self.next_receive(),
            };
            let Some(receive) = receive else { break };
            self.complete_failed(completion, receive, Status::Flushed);
            self.consumed = self.consumed.wrapping_add(1);
            count += 1;
        }
        self.pair.consumed.store(self.consumed, Ordering::Release);
        count
    }

    /// Whether the peer calls for this queue pair, so that it need not be looked at. Not for one in error: its receives are still to be
    /// flushed.
    pub(super) fn is_called_for(&self) -> bool {
        let is_called = self.pair.is_announced.load(Ordering::Acquire);
        (is_called || self.pair.caller().is_some_and(Caller::calls))
            && self.pair.state() != QpState::Error
    }

    /// Notes whether there were messages since the last time.
    pub(super) fn note_activity(&mut self) {
        self.is_quiet = self.noted == self.number && self.is_called_for();
        self.noted = self.number;
    }

    /// There were none, and the peer calls when there is one.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Sets whether the peer rings.
    pub(super) fn arm(&self, armed: bool) {
        self.lines().state.armed.store(armed.into(), Ordering::SeqCst);
    }
}

impl Receiver {
    /// Gives shared receives back that the peer has taken for messages which never came, once.
    pub(super) fn settle(&mut self) {
        if let Source::Shared(pool) = &self.source
            && !std::mem::replace(&mut self.is_settled, true)
        {
            let taken = self.lines().sender.taken.load(Ordering::Acquire);
            pool.credit.settle(taken, self.consumed, self.ring.count());
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.settle();
        debug_assert!(self.pair.ty != QpType::Ud);
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("pair", &self.pair).finish_non_exhaustive()
    }
}
