//! Datagrams: each sender has an inbox of its own at each receiver, made when it first sends there. What
//! does not fit, or meets no receive, is dropped without a word.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::cell::{CELL_PAYLOAD_BYTES, CellKind, CellRing};
use super::completion_queue::Change;
use super::context::MTU_BYTES;
use super::events::Channel;
use super::inbox::{Inbox, InboxLayout, InboxState};
use super::outbox::Outbox;
use super::pair::Pair;
use super::peer::Peer;
use super::queue_pair::attach;
use super::shared_receive::ReceivePool;
use super::slow::{Bytes, Outcome};
use super::wire::Gid;
use crate::event_fd::new_event;
use crate::route_header;
use crate::{
    CompletionOpcode, DatagramSource, GRH_BYTES, QpNumber, QpState, Status, WorkCompletion,
};

/// Cells of an inbox for datagrams: two dozen of the longest, a thousand short ones.
const CELLS: u32 = 2048;

/// Senders that one queue pair hears at once.
const MAX_SENDERS: usize = 1 << 14;

/// How long the first datagram to somebody may take to find out where he is. Whoever does not answer in
/// time counts as dead, so that this is ample for one that is busy, or stopped for a moment.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);

/// The way to a peer's device.
#[derive(Clone, Debug)]
pub(crate) struct AddressHandle {
    pub(crate) peer: Arc<Peer>,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct To {
    pub(super) gid: Gid,
    pub(super) qp: u32,
    pub(super) qkey: u32,
}

/// The inboxes at receivers that we send to.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    outboxes: HashMap<(Gid, u32), Outbox>,
    peers: Vec<(Arc<Peer>, u32)>,
    /// With so many known, those that are gone are looked for.
    enough: usize,
}

/// So few destinations are not worth looking for those that are gone.
const FEW_DESTINATIONS: usize = 8;

impl Destinations {
    /// Makes the way to `to`, if it is not there. A receiver that is not there gets nothing, silently.
    pub(super) fn prepare(&mut self, pair: &Pair, peer: &Arc<Peer>, qp: u32) {
        if self.outboxes.contains_key(&(peer.gid, qp)) || peer.is_dead() {
            return;
        }
        if self.peers.len() >= self.enough {
            self.forget_the_gone();
        }
        // The secret of an endpoint protects connections; a datagram is protected by its queue key.
        if let Ok(outbox) = attach(pair, peer, qp, 0, ATTACH_TIMEOUT) {
            self.outboxes.insert((peer.gid, qp), outbox);
            self.peers.push((Arc::clone(peer), qp));
        }
    }

    pub(super) fn send(
        &mut self,
        _pair: &Pair,
        bytes: &Bytes,
        imm: Option<u32>,
        to: To,
    ) -> Outcome {
        let done = Outcome::Done(bytes.len() as u32);
        let Some(outbox) = self.outboxes.get_mut(&(to.gid, to.qp)) else { return done };
        let cells = bytes.len().div_ceil(CELL_PAYLOAD_BYTES).max(1) as u32;
        if outbox.is_ready() && outbox.has_room_for(cells) && outbox.take_receive() {
            outbox.put_datagram(bytes, imm, to.qkey, cells);
            outbox.ring_doorbell();
        }
        done
    }

    /// Lets go of receivers that are gone: who answers peers that come and go keeps at most twice as many
    /// as are there.
    #[cold]
    fn forget_the_gone(&mut self) {
        self.peers.retain(|(peer, qp)| {
            let way = (peer.gid, *qp);
            let gone = peer.is_dead() || self.outboxes.get(&way).is_none_or(Outbox::is_over);
            if gone {
                self.outboxes.remove(&way);
            }
            !gone
        });
        self.enough = FEW_DESTINATIONS.max(2 * self.peers.len());
    }

    /// Tells the receivers that this sender is gone.
    pub(super) fn close(&mut self, from_qp: u32) {
        self.outboxes.clear();
        for (peer, qp) in self.peers.drain(..) {
            peer.tell_closed(from_qp, qp);
        }
    }
}

/// The inbox of one sender at one receiver.
#[derive(Debug)]
pub(super) struct Path {
    inbox: Inbox,
    event: Option<OwnedFd>,
    channel: Option<Arc<Channel>>,
    source: DatagramSource,
    closed: AtomicBool,
}

impl Path {
    pub(super) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    pub(super) fn event(&self) -> Option<&OwnedFd> {
        self.event.as_ref()
    }

    /// The sender is gone.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        if let (Some(channel), Some(event)) = (&self.channel, &self.event) {
            channel.remove(event.as_fd());
        }
    }
}

/// The inboxes of a datagram queue pair, as the control thread and the owner see them.
#[derive(Debug, Default)]
pub(super) struct Paths {
    open: Mutex<Vec<std::sync::Weak<Path>>>,
}

impl Paths {
    /// A new inbox for a sender, and its file.
    pub(super) fn open(&self, pair: &Arc<Pair>, gid: Gid, qp: u32) -> Option<(Arc<Path>, OwnedFd)> {
        let mut open = super::peer::lock(&self.open);
        open.retain(|path| path.strong_count() > 0);
        if open.len() >= MAX_SENDERS {
            return None;
        }
        let (inbox, file) = Inbox::create(InboxLayout { cells: CELLS, lengths: 16 }).ok()?;
        let channel = pair.recv_cq.channel().cloned();
        let event = match &channel {
            Some(channel) => {
                let event = new_event().ok()?;
                channel.add(event.as_fd()).ok()?;
                Some(event)
            }
            None => None,
        };
        let source = DatagramSource { qp: QpNumber(qp), gid };
        let ready = pair.state() == QpState::ReadyToSend;
        inbox.set_state(if ready { InboxState::Ready } else { InboxState::Init });
        let path = Arc::new(Path { inbox, event, channel, source, closed: AtomicBool::new(false) });
        open.push(Arc::downgrade(&path));
        drop(open);
        pair.recv_cq.change(Change::Path(pair.id, Arc::clone(&path)));
        Some((path, file))
    }

    /// The queue pair has got into another state.
    pub(super) fn set_state(&self, state: InboxState) {
        for path in super::peer::lock(&self.open).iter().filter_map(std::sync::Weak::upgrade) {
            path.inbox.set_state(state);
        }
    }
}

/// One sender's inbox, being read.
struct Reader {
    path: Arc<Path>,
    ring: CellRing,
    position: u32,
    told_head: u32,
    /// Datagrams that came, received or dropped, wrapping.
    arrived: u32,
    poisoned: bool,
}

impl Reader {
    /// Garbage is not an arrival: it would keep a sleeper awake for ever.
    fn has_arrival(&self) -> bool {
        !self.poisoned
            && self.ring.cell(self.position).header().tag() == self.ring.tag(self.position)
    }

    fn tell_head(&mut self) {
        if self.position != self.told_head {
            self.told_head = self.position;
            let head = &self.path.inbox.lines().credit.head;
            head.store(self.position, Ordering::Release);
        }
    }
}

/// The receiving side of a datagram queue pair, in the hands of whoever polls its completion queue.
pub(super) struct DatagramReceiver {
    readers: Vec<Reader>,
    next: usize,
    pool: Arc<ReceivePool>,
    /// The pool is this queue pair's own: flushed with it.
    own: bool,
    gid: Gid,
    pub(super) pair: Arc<Pair>,
}

impl DatagramReceiver {
    pub(super) fn new(pair: Arc<Pair>, pool: Arc<ReceivePool>, own: bool) -> DatagramReceiver {
        let gid = pair.context.gid;
        DatagramReceiver { readers: Vec::new(), next: 0, pool, own, gid, pair }
    }

    pub(super) fn add(&mut self, path: Arc<Path>) {
        let ring = path.inbox.ring();
        self.readers.push(Reader {
            path,
            ring,
            position: 0,
            told_head: 0,
            arrived: 0,
            poisoned: false,
        });
    }

    pub(super) fn len(&self) -> usize {
        self.readers.len()
    }

    pub(super) fn has_arrival(&self) -> bool {
        self.readers.iter().any(Reader::has_arrival)
    }

    pub(super) fn arm(&self, armed: bool) {
        for reader in &self.readers {
            let word = &reader.path.inbox.lines().state.armed;
            word.store(armed.into(), Ordering::SeqCst);
        }
    }

    /// Completes what has arrived, as far as `out` has room; each sender in turn.
    pub(super) fn receive(&mut self, out: &mut [WorkCompletion]) -> usize {
        let mut count = 0;
        let senders = self.readers.len();
        for step in 0..senders {
            let index = (self.next + step) % senders;
            while count < out.len() && self.readers[index].has_arrival() {
                match self.take(index, &mut out[count]) {
                    Some(true) => count += 1,
                    Some(false) => {}
                    None => break,
                }
            }
            // Also where there is more: what the poller answers makes the sender send on.
            self.readers[index].tell_head();
            if count == out.len() {
                self.next = index + 1;
                return count;
            }
        }
        count
    }

    /// Takes one datagram: `Some(false)` if it was dropped, `None` if the sender wrote garbage.
    fn take(&mut self, index: usize, completion: &mut WorkCompletion) -> Option<bool> {
        let reader = &mut self.readers[index];
        let ring = reader.ring;
        let front = ring.cell(reader.position);
        let (header, (qkey, imm)) = (front.header(), front.second_word());
        let len = usize::from(header.extra());
        let imm = match CellKind::of(header.kind()) {
            Some(CellKind::Send) if len <= MTU_BYTES => None,
            Some(CellKind::SendImm) if len <= MTU_BYTES => Some(imm),
            _ => {
                tracing::warn!(qp = self.pair.number, "a sender of datagrams wrote garbage");
                reader.poisoned = true;
                return None;
            }
        };
        let cells = len.div_ceil(CELL_PAYLOAD_BYTES).max(1) as u32;
        let first = reader.position;
        reader.position = first.wrapping_add(cells);
        reader.arrived = reader.arrived.wrapping_add(1);
        if qkey != self.pair.qkey.load(Ordering::Acquire) {
            self.pool.credit.give(1); // The sender took a receive that this datagram does not use.
            return Some(false);
        }
        // None left only if a hostile sender has counted wrong: dropped.
        let Some(mut receive) = self.pool.pop() else { return Some(false) };
        *completion = WorkCompletion {
            id: receive.id,
            qp: QpNumber(self.pair.number),
            opcode: CompletionOpcode::Recv,
            ..WorkCompletion::default()
        };
        let Some(buffer) = receive.buffer.as_mut().filter(|buffer| buffer.len() >= GRH_BYTES + len)
        else {
            completion.status = Status::LocalLength;
            completion.buffer = receive.buffer;
            return Some(true);
        };
        route_header::fill(&mut buffer[..GRH_BYTES], len, &reader.path.source.gid, &self.gid);
        let payload = &mut buffer[GRH_BYTES..GRH_BYTES + len];
        for (ahead, into) in payload.chunks_mut(CELL_PAYLOAD_BYTES).enumerate() {
            let mut words = [0; CELL_PAYLOAD_BYTES / 8];
            ring.cell(first.wrapping_add(ahead as u32)).payload(&mut words);
            for (into, word) in into.chunks_mut(8).zip(&words) {
                into.copy_from_slice(&word.to_ne_bytes()[..into.len()]);
            }
        }
        buffer.set_len(GRH_BYTES + len);
        completion.byte_len = (GRH_BYTES + len) as u32;
        completion.imm = imm;
        completion.source = Some(reader.path.source);
        completion.buffer = receive.buffer;
        Some(true)
    }

    /// Lets go of senders that are gone, and flushes in error.
    pub(super) fn tidy(&mut self, out: &mut [WorkCompletion]) -> usize {
        let credit = &self.pool.credit;
        self.readers.retain(|reader| {
            let gone = reader.path.closed.load(Ordering::Acquire) && !reader.has_arrival();
            if gone {
                let taken = reader.path.inbox.lines().sender.taken.load(Ordering::Acquire);
                credit.settle(taken, reader.arrived, reader.ring.count());
            }
            !gone
        });
        let mut count = 0;
        if self.own && self.pair.state() == QpState::Error {
            while count < out.len()
                && let Some(receive) = self.pool.pop()
            {
                out[count] = WorkCompletion {
                    id: receive.id,
                    qp: QpNumber(self.pair.number),
                    status: Status::Flushed,
                    opcode: CompletionOpcode::Recv,
                    buffer: receive.buffer,
                    ..WorkCompletion::default()
                };
                count += 1;
            }
        }
        count
    }
}
