//! Byte streams between two nodes, for backends that use no NIC: what TCP does, in virtual time.
//!
//! Bytes take the time of the network, wait while the way is cut, and arrive in order. How many of them one call takes or gives
//! varies at random, the same for the same seed. A stream ends in order when an end is dropped, and is reset when an end's node
//! is gone.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use farcall_transports::bootstrap::OnPeerGone;
use farcall_transports::contract::ByteStream;
use farcall_verbs::sim::{Next, Turn};

use super::liveness::NodeLife;
use super::network::{LEG_NS, RETRY_NS};
use super::waking::Waking;

/// What a system call costs the core.
const SYSTEM_CALL_NS: u64 = 400;

/// 24 Gbit/s, which one core's TCP reaches.
const BYTES_PER_NS: u64 = 3;

/// Bytes on their way and unread, of one direction: the buffers of two sockets.
const BUFFER_BYTES: usize = 256 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes the readers of streams when their bytes arrive.
#[derive(Default)]
pub(super) struct Deliveries {
    due: BTreeMap<u64, Vec<Waker>>,
    /// The actor that takes [turns](deliver) with them.
    caretaker: Option<Waker>,
}

impl Deliveries {
    pub(super) fn set_caretaker(deliveries: &Mutex<Deliveries>, caretaker: Waker) {
        lock(deliveries).caretaker = Some(caretaker);
    }

    fn wake_at(&mut self, at_ns: u64, reader: &Waker) {
        let is_first = self.due.first_key_value().is_none_or(|(first_ns, _)| at_ns < *first_ns);
        self.due.entry(at_ns).or_default().push(reader.clone());
        if is_first {
            self.caretaker.iter().for_each(Waker::wake_by_ref);
        }
    }
}

/// One turn of the actor that wakes readers.
pub(super) fn deliver(deliveries: &Mutex<Deliveries>, now_ns: u64) -> Turn {
    let mut all = lock(deliveries);
    let later = all.due.split_off(&(now_ns + 1));
    let due = std::mem::replace(&mut all.due, later);
    let next = all.due.first_key_value().map(|(at_ns, _)| *at_ns);
    drop(all);
    due.into_values().flatten().for_each(Waker::wake);
    Turn::then(next.map_or(Next::OnEvent, Next::At))
}

/// Bytes that arrive together.
struct Chunk {
    arrives_ns: u64,
    bytes: Vec<u8>,
    /// So many of them were read.
    read: usize,
}

/// One direction of a stream.
#[derive(Default)]
struct Pipe {
    chunks: VecDeque<Chunk>,
    /// Bytes in them.
    bytes: usize,
    /// When the last byte has left the sender.
    sent_ns: u64,
    /// The sender sends no more.
    is_closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    /// When the next bytes arrive, if there are some.
    fn next_ns(&self) -> Option<u64> {
        self.chunks.front().map(|chunk| chunk.arrives_ns)
    }
}

/// What both ends share.
struct Wire {
    /// What the client sends, and what the server sends.
    pipes: [Pipe; 2],
    is_reset: bool,
    random: u64,
}

impl Wire {
    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    /// How many of so many bytes one call moves: mostly all.
    fn some_of(&mut self, bytes: usize) -> usize {
        if self.below(4) > 0 { bytes } else { 1 + self.below(bytes) }
    }
}

/// One end of a stream. Dropping it closes the stream.
pub(super) struct StreamEnd {
    wire: Arc<Mutex<Wire>>,
    /// Which of the pipes this end writes.
    writes: usize,
    ours: NodeLife,
    theirs: NodeLife,
    deliveries: Arc<Mutex<Deliveries>>,
    /// Dropped with the end: tells the other one.
    pub(super) liveness: Option<Box<dyn Send>>,
    /// Kept as long as the end.
    pub(super) waking: Option<Arc<Waking>>,
}

/// The ends of a stream, the client's and the server's, on those nodes; and for each what resets the stream when the other's node
/// is gone.
pub(super) fn stream(
    deliveries: &Arc<Mutex<Deliveries>>,
    [client, server]: [&NodeLife; 2],
    seed: u64,
) -> ([StreamEnd; 2], [OnPeerGone; 2]) {
    let wire = Wire { pipes: Default::default(), is_reset: false, random: seed };
    let wire = Arc::new(Mutex::new(wire));
    let end = |writes, ours: &NodeLife, theirs: &NodeLife| StreamEnd {
        wire: Arc::clone(&wire),
        writes,
        ours: ours.clone(),
        theirs: theirs.clone(),
        deliveries: Arc::clone(deliveries),
        liveness: None,
        waking: None,
    };
    let ends = [end(0, client, server), end(1, server, client)];
    let reset = || {
        let wire = Arc::downgrade(&wire);
        let reset: OnPeerGone = Box::new(move || {
            if let Some(wire) = wire.upgrade() {
                lock(&wire).is_reset = true;
                wake_all(&wire);
            }
        });
        reset
    };
    (ends, [reset(), reset()])
}

fn wake_all(wire: &Mutex<Wire>) {
    let wakers = {
        let wire = lock(wire);
        let of_pipe = |pipe: &Pipe| [pipe.reader.clone(), pipe.writer.clone()];
        wire.pipes.iter().flat_map(of_pipe).flatten().collect::<Vec<_>>()
    };
    // Not under the lock: they may take others.
    wakers.into_iter().for_each(Waker::wake);
}

impl StreamEnd {
    fn reads(&self) -> usize {
        1 - self.writes
    }

    /// Bytes that have arrived cannot pass while the way is cut: they are sent again.
    fn is_cut(&self) -> bool {
        !self.theirs.node.reaches(&self.ours.node)
    }

    /// Who waits for this end's bytes or room is the actor whose turn it is.
    fn note_waker(&self, waker: fn(&mut Pipe) -> &mut Option<Waker>, pipe: usize) {
        if let Some(current) = self.ours.node.waker() {
            *waker(&mut lock(&self.wire).pipes[pipe]) = Some(current);
        }
    }

    /// The sender of a part comes back for the rest: a socket would then tell of its room.
    fn wake_writer_at(&self, at_ns: u64) {
        self.note_waker(|pipe| &mut pipe.writer, self.writes);
        if let Some(writer) = self.ours.node.waker() {
            lock(&self.deliveries).wake_at(at_ns, &writer);
        }
    }

    fn wake_reader_at(&self, at_ns: u64, pipe: usize) {
        let reader = lock(&self.wire).pipes[pipe].reader.clone();
        if let Some(reader) = reader {
            lock(&self.deliveries).wake_at(at_ns, &reader);
        }
    }
}

impl ByteStream for StreamEnd {
    fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.ours.node.busy(SYSTEM_CALL_NS);
        self.note_waker(|pipe| &mut pipe.reader, self.reads());
        let (now_ns, is_cut, reads) = (self.ours.node.now_ns(), self.is_cut(), self.reads());
        let mut wire = lock(&self.wire);
        let Some(next_ns) = wire.pipes[reads].next_ns() else {
            return match wire.pipes[reads].is_closed {
                true => Ok(0),
                false if wire.is_reset => Err(io::ErrorKind::ConnectionReset.into()),
                false => Err(io::ErrorKind::WouldBlock.into()),
            };
        };
        // What was sent before an end in order still arrives, unless the way is cut.
        if wire.is_reset && (is_cut || (next_ns > now_ns && !wire.pipes[reads].is_closed)) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if next_ns > now_ns {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if is_cut {
            let again_ns = now_ns + RETRY_NS;
            wire.pipes[reads].chunks[0].arrives_ns = again_ns;
            drop(wire);
            self.wake_reader_at(again_ns, reads);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let room = into.iter().map(|slice| slice.len()).sum();
        let most = wire.some_of(room);
        let mut given = 0;
        for slice in into {
            let mut room = &mut slice[..];
            while !room.is_empty()
                && given < most
                && let Some(chunk) = wire.pipes[reads].chunks.front_mut()
                && chunk.arrives_ns <= now_ns
            {
                let unread = &chunk.bytes[chunk.read..];
                let len = room.len().min(unread.len()).min(most - given);
                room[..len].copy_from_slice(&unread[..len]);
                chunk.read += len;
                if chunk.read == chunk.bytes.len() {
                    wire.pipes[reads].chunks.pop_front();
                }
                given += len;
                room = &mut room[len..];
            }
        }
        wire.pipes[reads].bytes -= given;
        let writer = wire.pipes[reads].writer.take();
        drop(wire);
        writer.into_iter().for_each(Waker::wake);
        Ok(given)
    }

    fn send(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.ours.node.busy(SYSTEM_CALL_NS);
        let now_ns = self.ours.node.now_ns();
        let mut wire = lock(&self.wire);
        if wire.is_reset || wire.pipes[self.reads()].is_closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let offered: usize = bytes.iter().map(|slice| slice.len()).sum();
        let room = BUFFER_BYTES - wire.pipes[self.writes].bytes;
        let most = offered.min(room);
        if most == 0 {
            drop(wire);
            self.note_waker(|pipe| &mut pipe.writer, self.writes);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = wire.some_of(most);
        let mut chunk = Vec::with_capacity(taken);
        for slice in bytes {
            chunk.extend_from_slice(&slice[..slice.len().min(taken - chunk.len())]);
        }
        let pipe = &mut wire.pipes[self.writes];
        pipe.bytes += taken;
        pipe.sent_ns = pipe.sent_ns.max(now_ns) + taken as u64 / BYTES_PER_NS;
        let arrives_ns = pipe.sent_ns + LEG_NS;
        pipe.chunks.push_back(Chunk { arrives_ns, bytes: chunk, read: 0 });
        drop(wire);
        self.wake_reader_at(arrives_ns, self.writes);
        if taken < offered {
            self.wake_writer_at(arrives_ns);
        }
        Ok(taken)
    }

    fn arm(&mut self, wants_room: bool) -> bool {
        self.note_waker(|pipe| &mut pipe.reader, self.reads());
        if wants_room {
            self.note_waker(|pipe| &mut pipe.writer, self.writes);
        }
        let now_ns = self.ours.node.now_ns();
        let wire = lock(&self.wire);
        let incoming = &wire.pipes[self.reads()];
        let next_ns = incoming.next_ns();
        let is_readable = next_ns.map_or(incoming.is_closed, |at_ns| at_ns <= now_ns);
        let has_room = wants_room && wire.pipes[self.writes].bytes < BUFFER_BYTES;
        let may_sleep = !is_readable && !has_room && !wire.is_reset;
        drop(wire);
        if let Some(at_ns) = next_ns.filter(|_| may_sleep) {
            // They were sent before this end had a reader.
            self.wake_reader_at(at_ns, self.reads());
        }
        may_sleep
    }
}

impl Drop for StreamEnd {
    fn drop(&mut self) {
        // A node without power says nothing.
        if !self.ours.is_running() {
            return;
        }
        let mut wire = lock(&self.wire);
        for pipe in &mut wire.pipes {
            pipe.is_closed = true;
        }
        // What it has not read is lost; what it has sent still arrives.
        let reads = self.reads();
        wire.pipes[reads].chunks.clear();
        wire.pipes[reads].bytes = 0;
        drop(wire);
        wake_all(&self.wire);
    }
}
