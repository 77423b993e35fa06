//! The receiving side of a datagram queue pair, owned by the poller of its completion queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use zerocopy::FromBytes;

use super::Path;
use crate::memory::prefetch;
use crate::route_header::RouteHeader;
use crate::shm::cell::{CELL_PAYLOAD_BYTES, CellKind, CellRing};
use crate::shm::context::MTU_BYTES;
use crate::shm::discarded::Remains;
use crate::shm::events::Caller;
use crate::shm::pair::Pair;
use crate::shm::receive::Receive;
use crate::shm::shared_receive::ReceivePool;
use crate::shm::spsc::Consumer;
use crate::{CompletionOpcode, GRH_BYTES, QpNumber, QpState, Status, WorkCompletion};

/// Where receives come from.
pub(in crate::shm) enum Supply {
    /// This queue pair's own receives.
    Own(Consumer<Receive>),
    /// A shared receive queue.
    Shared(Arc<ReceivePool>),
}

impl Supply {
    #[inline]
    fn pop(&mut self) -> Option<Receive> {
        match self {
            Supply::Own(posted) => {
                let receive = posted.pop();
                // The buffer of the following receive may not be cached yet.
                posted.peek(|next| {
                    if let Some(buffer) = &next.buffer {
                        buffer.prefetch_front();
                    }
                });
                receive
            }
            Supply::Shared(pool) => pool.pop(),
        }
    }
}

/// The reading side of one sender's inbox.
pub(in crate::shm) struct Reader {
    path: Arc<Path>,
    ring: CellRing,
    position: u32,
    /// The position when it was last noted, and whether it was the same the time before.
    noted: u32,
    is_quiet: bool,
    told_head: u32,
    /// Datagrams that arrived, including dropped ones, wrapping.
    arrived: u32,
    poisoned: bool,
    header: RouteHeader,
}

impl Reader {
    /// Of its path.
    pub(in crate::shm) fn id(&self) -> u64 {
        self.path.id()
    }

    /// Where the sender calls.
    pub(in crate::shm) fn caller(&self) -> Option<&Caller> {
        self.path.caller()
    }

    /// Whether the sender calls, so that it need not be looked at. One that is gone is still to be removed.
    fn is_called_for(&self) -> bool {
        self.caller().is_some_and(Caller::calls) && !self.path.is_closed()
    }

    /// Sets whether the sender rings.
    fn arm(&self, armed: bool) {
        self.path.inbox().lines().state.armed.store(armed.into(), Ordering::SeqCst);
    }

    /// Whether a datagram has arrived. Garbage does not count: it would keep a sleeping poller awake forever.
    #[inline]
    fn has_arrival(&self) -> bool {
        !self.poisoned
            && self.ring.cell(self.position).header().tag() == self.ring.tag(self.position)
    }

    /// Prefetches the second cell. The smallest requests take two cells, written from back to front, so the
    /// second arrives together with the first.
    #[inline]
    fn prefetch_second(&self) {
        prefetch::to_read(self.ring.cell(self.position.wrapping_add(1)));
    }

    #[inline]
    fn publish_head(&mut self) {
        if self.position != self.told_head {
            self.told_head = self.position;
            let credit = &self.path.inbox().lines().credit;
            credit.taken.store(self.arrived, Ordering::Release);
            credit.head.store(self.position, Ordering::Release);
        }
    }
}

/// The result of taking a datagram.
enum Taken {
    /// The completion is filled.
    Completed,
    Dropped,
    /// The sender wrote something else.
    Garbage,
}

pub(in crate::shm) struct DatagramReceiver {
    readers: Vec<Reader>,
    /// The index of the reader that is served first.
    next: usize,
    supply: Supply,
    /// Receives used so far, wrapping.
    consumed: u32,
    pub(in crate::shm) pair: Arc<Pair>,
}

impl DatagramReceiver {
    pub(in crate::shm) fn new(pair: Arc<Pair>, supply: Supply) -> DatagramReceiver {
        DatagramReceiver { readers: Vec::new(), next: 0, supply, consumed: 0, pair }
    }

    pub(in crate::shm) fn add(&mut self, path: Arc<Path>) {
        let ring = path.inbox().ring();
        let from = path.source().gid.unwrap_or_default();
        let header = RouteHeader::new(&from, &self.pair.context.gid);
        self.readers.push(Reader {
            path,
            ring,
            position: 0,
            noted: 0,
            is_quiet: false,
            told_head: 0,
            arrived: 0,
            poisoned: false,
            header,
        });
    }

    pub(in crate::shm) fn len(&self) -> usize {
        self.readers.len()
    }

    pub(in crate::shm) fn has_arrival(&self) -> bool {
        self.readers.iter().any(Reader::has_arrival)
    }

    pub(in crate::shm) fn arm(&self, armed: bool) {
        self.readers.iter().for_each(|reader| reader.arm(armed));
    }

    /// Whether all senders call.
    pub(in crate::shm) fn are_called_for(&self) -> bool {
        self.readers.iter().all(Reader::is_called_for)
    }

    /// Arms the inboxes of senders that have been quiet since the last time.
    pub(in crate::shm) fn arm_quiet(&mut self) {
        for reader in &mut self.readers {
            reader.is_quiet = reader.noted == reader.position && reader.is_called_for();
            reader.noted = reader.position;
            if reader.is_quiet {
                reader.arm(true);
            }
        }
    }

    /// Takes those out that were quiet, and still are now that their inboxes are armed.
    pub(in crate::shm) fn take_quiet(&mut self) -> impl Iterator<Item = Reader> {
        self.readers.extract_if(.., |reader| {
            let stays = reader.is_quiet && reader.has_arrival();
            if stays {
                reader.arm(false);
            }
            reader.is_quiet && !stays
        })
    }

    /// Takes those out that call. The inboxes of all are armed, and nothing has arrived since.
    pub(in crate::shm) fn take_called_for(&mut self) -> impl Iterator<Item = Reader> {
        self.readers.extract_if(.., |reader| reader.is_called_for())
    }

    /// Looks at this sender again.
    pub(in crate::shm) fn put_back(&mut self, reader: Reader) {
        self.readers.push(reader);
    }

    /// Completes arrived datagrams while `out` has room, one sender after the other.
    #[inline]
    pub(in crate::shm) fn receive(&mut self, out: &mut [WorkCompletion]) -> usize {
        let DatagramReceiver { readers, next, supply, consumed, pair } = self;
        let first = if *next < readers.len() { *next } else { 0 };
        let (before, from_next) = readers.split_at_mut(first);
        let in_turn = from_next.iter_mut().chain(before).enumerate();
        let (mut count, used) = (0, *consumed);
        for (step, reader) in in_turn {
            reader.prefetch_second();
            while reader.has_arrival()
                && let Some(completion) = out.get_mut(count)
            {
                match take(reader, supply, consumed, pair, completion) {
                    Taken::Completed => count += 1,
                    Taken::Dropped => {}
                    Taken::Garbage => break,
                }
            }
            // Also when more datagrams wait: the poller's answers make the sender continue.
            reader.publish_head();
            if count == out.len() {
                *next = (first + step + 1) % readers.len();
                break;
            }
        }
        if used != *consumed {
            self.publish_consumed();
        }
        count
    }

    /// Publishes the used receives to the owner of the queue pair, which may post more, and to the senders.
    #[inline]
    fn publish_consumed(&self) {
        self.pair.consumed.store(self.consumed, Ordering::Release);
        if let (Supply::Own(_), Some(page)) = (&self.supply, &self.pair.credit) {
            page.consumed().store(self.consumed, Ordering::Release);
        }
    }

    /// Removes senders that are gone, and flushes receives in error.
    pub(in crate::shm) fn tidy(&mut self, out: &mut [WorkCompletion]) -> usize {
        let is_gone = |reader: &mut Reader| reader.path.is_closed() && !reader.has_arrival();
        let mut discarded = Vec::new();
        for reader in self.readers.extract_if(.., is_gone) {
            if let Supply::Shared(pool) = &self.supply {
                let taken = reader.path.inbox().lines().sender.taken.load(Ordering::Acquire);
                pool.credit.settle(taken, reader.arrived, reader.ring.count());
            }
            discarded.push(Remains::Path(reader.path));
        }
        self.pair.context.control.discard(discarded);
        let mut count = 0;
        if let Supply::Own(posted) = &mut self.supply
            && self.pair.state() == QpState::Error
        {
            while let Some(completion) = out.get_mut(count)
                && let Some(receive) = posted.pop()
            {
                *completion = WorkCompletion {
                    id: receive.id,
                    qp: QpNumber(self.pair.number),
                    status: Status::Flushed,
                    opcode: CompletionOpcode::Recv,
                    buffer: receive.buffer,
                    ..WorkCompletion::default()
                };
                self.consumed = self.consumed.wrapping_add(1);
                count += 1;
            }
            self.publish_consumed();
        }
        count
    }
}

/// Takes one arrived datagram.
#[inline]
fn take(
    reader: &mut Reader,
    supply: &mut Supply,
    consumed: &mut u32,
    pair: &Pair,
    completion: &mut WorkCompletion,
) -> Taken {
    let ring = reader.ring;
    let front = ring.cell(reader.position);
    let (header, (qkey, imm)) = (front.header(), front.second_word());
    let len = usize::from(header.extra());
    let imm = match CellKind::of(header.kind()) {
        Some(CellKind::Send) if len <= MTU_BYTES => None,
        Some(CellKind::SendImm) if len <= MTU_BYTES => Some(imm),
        _ => {
            tracing::warn!(qp = pair.number, "a sender of datagrams wrote garbage");
            reader.poisoned = true;
            return Taken::Garbage;
        }
    };
    let cells = len.div_ceil(CELL_PAYLOAD_BYTES).max(1) as u32;
    let first = reader.position;
    reader.position = first.wrapping_add(cells);
    reader.arrived = reader.arrived.wrapping_add(1);
    if qkey != pair.qkey.load(Ordering::Acquire) {
        if let Supply::Shared(pool) = supply {
            pool.credit.give(1); // The sender took a receive that this datagram does not use.
        }
        return Taken::Dropped;
    }
    // Several senders counted on the same receive, or one sender miscounted.
    let Some(mut receive) = supply.pop() else { return Taken::Dropped };
    *consumed = consumed.wrapping_add(1);
    completion.id = receive.id;
    completion.qp = QpNumber(pair.number);
    completion.status = Status::Success;
    completion.opcode = CompletionOpcode::Recv;
    completion.byte_len = (GRH_BYTES + len) as u32;
    completion.imm = imm;
    completion.source = Some(*reader.path.source());
    completion.payload_len = u8::MAX;
    let buffer = receive.buffer.as_mut().filter(|buffer| buffer.len() >= GRH_BYTES + len);
    match buffer.and_then(|buffer| buffer.split_first_chunk_mut()) {
        Some((route, payload)) => {
            reader.header.fill(route, len);
            copy_out(&ring, first, payload, len);
        }
        None => completion.status = Status::LocalLength,
    }
    if let (Status::Success, Some(buffer)) = (completion.status, &mut receive.buffer) {
        buffer.set_len(GRH_BYTES + len);
    }
    completion.buffer = receive.buffer;
    Taken::Completed
}

/// Copies a datagram's bytes out of its cells. May overwrite bytes of `into` behind them.
#[inline]
fn copy_out(ring: &CellRing, first: u32, into: &mut [u8], len: usize) {
    let mut done = 0;
    let mut position = first;
    while done < len {
        let cell = ring.cell(position);
        let rest = &mut into[done..];
        match <[u64; CELL_PAYLOAD_BYTES / 8]>::mut_from_prefix(rest) {
            Ok((words, _)) => cell.payload(words),
            // The buffer ends here, or is not aligned.
            Err(_) => {
                let mut words = [0; CELL_PAYLOAD_BYTES / 8];
                cell.payload(&mut words);
                let left = (len - done).min(CELL_PAYLOAD_BYTES);
                for (into, word) in rest[..left].chunks_mut(8).zip(&words) {
                    into.copy_from_slice(&word.to_ne_bytes()[..into.len()]);
                }
            }
        }
        done += CELL_PAYLOAD_BYTES;
        position = position.wrapping_add(1);
    }
}
