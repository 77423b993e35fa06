//! The sending side: how a work request is carried out by the initiator's CPU.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crossbeam_utils::CachePadded;

use super::cell::{
    CARRIES_NOTHING, CELL_PAYLOAD_BYTES, CellKind, CellRing, Header, Next, SMALL_LAP, second_word,
    words_of,
};
use super::context::Context;
use super::datagram::Destinations;
use super::duplex::{self, Flow};
use super::inbox::{Inbox, InboxLines, InboxState};
use super::pair::{Pair, ring_event};
use super::peer::Peer;
use super::region::MappedRegion;
use super::shared_receive::CreditPage;
use super::slow::{Bytes, Item, Outcome, Room, Task, Wait};
use crate::memory::bytes::{copy_forward, copy_streaming};
use crate::memory::stores::{CHOICE_BYTES, StoreChoice, Stores};
use crate::{Access, QpType, RemoteSlice, Status};

/// Regions of the peer found without a lock; a power of two.
const CACHED_REGIONS: usize = 8;

/// What posting needs. See [`Pair::side`] for who may touch it.
#[derive(Debug, Default)]
pub(super) struct SendSide {
    pub(super) outbox: Option<Outbox>,
    /// The peer's regions used last, by the low bits of their keys.
    regions: [Option<Arc<MappedRegion>>; CACHED_REGIONS],
    pub(super) peer: Option<Arc<Peer>>,
    /// The peer's count of deregistrations when `regions` was last looked through.
    deregistrations: u32,
    pub(super) rnr_retry: u8,
    pub(super) rnr_timer_ns: u64,
    pub(super) retry_timeout_ns: u64,
    /// Where datagrams go.
    pub(super) destinations: Destinations,
    /// How long WRITEs store, where the region lets them choose.
    stores: StoreChoice,
}

/// A peer's inbox, written by us.
#[derive(Debug)]
pub(super) struct Outbox {
    ring: CellRing,
    lines: NonNull<InboxLines>,
    /// The number of the next message.
    number: u64,
    /// Where the ring goes on.
    index: u32,
    /// For each cell, one more than the position of the message it was last written for.
    written: Box<[u32]>,
    flow: Arc<CachePadded<Flow>>,
    /// The lines that we open, and those that the peer opens, where we answer.
    our_lines: CellRing,
    peers_lines: Option<CellRing>,
    /// The last `head` and `posted` seen: looked up again only when they are used up.
    head_seen: u32,
    posted_seen: u32,
    /// Receives used since the beginning, wrapping.
    sent: u32,
    /// Where receives are counted if other senders use them too.
    credit: Option<CreditPage>,
    event: Option<OwnedFd>,
    /// The protection domain of the peer's queue pair.
    pd: u32,
    inbox: Arc<Inbox>,
}

// SAFETY: `lines` points into `inbox`'s mapping, which moves along; what is there are atomics.
unsafe impl Send for Outbox {}
// SAFETY: as above.
unsafe impl Sync for Outbox {}

impl Outbox {
    pub(super) fn new(
        inbox: Arc<Inbox>,
        pd: u32,
        credit: Option<CreditPage>,
        event: Option<OwnedFd>,
        flow: Arc<CachePadded<Flow>>,
        peers_lines: Option<CellRing>,
    ) -> Outbox {
        let ring = inbox.ring();
        Outbox {
            ring,
            lines: inbox.lines_ptr(),
            number: 0,
            index: 0,
            our_lines: inbox.duplex_lines(),
            peers_lines,
            written: vec![0; ring.count() as usize].into(),
            flow,
            head_seen: 0,
            posted_seen: 0,
            sent: 0,
            credit,
            event,
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

    /// Whether it never will any more.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.not_ready(), Outcome::Failed(_))
    }

    /// Why it does not.
    #[cold]
    fn not_ready(&self) -> Outcome {
        match self.lines().state.state.load(Ordering::Acquire) {
            state if state == InboxState::Init as u32 => Outcome::Wait(Wait::NotReady),
            state if state == InboxState::Ready as u32 => Outcome::Wait(Wait::Room),
            _ => Outcome::Failed(Status::RetryExceeded),
        }
    }

    /// Whether the peer has taken all that it was sent, the last message included; or has refused that.
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

    /// The number of the next message, as the ring counts: wrapping.
    #[inline]
    fn position(&self) -> u32 {
        self.number as u32
    }

    /// Messages that the peer has not taken, as far as we know. What it says is not believed beyond the
    /// ring's size; a lie makes us overwrite what it has not read yet, which is its own loss.
    #[inline(always)]
    fn in_flight(&mut self) -> u32 {
        let acknowledged = self.flow.acknowledged.load(Ordering::Acquire) as u16;
        let known = self.position().wrapping_sub(self.head_seen);
        let in_flight = u32::from((self.position() as u16).wrapping_sub(acknowledged));
        if in_flight < known {
            self.head_seen = self.position().wrapping_sub(in_flight);
            return in_flight;
        }
        known
    }

    /// Whether a cell may be written: its last message is among those that the peer has taken.
    #[inline(always)]
    fn is_free(&self, index: u32, in_flight: u32) -> bool {
        let since = self.position().wrapping_sub(self.written[index as usize]);
        since >= in_flight
    }

    /// Whether there is room in the ring for one more message.
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        let in_flight = self.in_flight();
        self.is_free(self.index, in_flight) || self.has_room_after_all()
    }

    #[cold]
    fn has_room_after_all(&mut self) -> bool {
        self.look_at_head();
        self.is_free(self.index, self.position().wrapping_sub(self.head_seen))
    }

    fn look_at_head(&mut self) {
        let head = self.lines().credit.head.load(Ordering::Acquire);
        if self.position().wrapping_sub(head) <= self.ring.count() {
            self.head_seen = head;
        }
    }

    /// Whether there is room for a datagram of this many cells; these go round the whole ring.
    pub(super) fn has_room_for(&mut self, cells: u32) -> bool {
        let free = |outbox: &Outbox| {
            outbox.ring.count() - outbox.position().wrapping_sub(outbox.head_seen) >= cells
        };
        free(self) || {
            self.look_at_head();
            free(self)
        }
    }

    /// Whether the peer has a receive for the next message.
    #[inline]
    fn has_receive(&mut self) -> bool {
        if let Some(credit) = &self.credit {
            return credit.available() > 0;
        }
        if self.sent == self.posted_seen {
            self.posted_seen = self.lines().credit.posted.load(Ordering::Acquire);
        }
        self.sent != self.posted_seen
    }

    /// Uses up one receive; `false` if another sender was quicker.
    #[inline]
    pub(super) fn take_receive(&mut self) -> bool {
        if let Some(credit) = &self.credit {
            if !credit.take() {
                return false;
            }
            // What a dead sender had taken and not used is given back by these two numbers.
            self.lines().sender.taken.fetch_add(1, Ordering::Release);
        }
        self.sent = self.sent.wrapping_add(1);
        true
    }

    /// The longest message that the next receive takes, where the peer says so beforehand.
    fn receive_length(&self) -> u64 {
        match self.credit {
            Some(_) => u64::MAX,
            None => u64::from(self.inbox.receive_length(self.sent).load(Ordering::Relaxed)),
        }
    }

    /// Writes a datagram from back to front: when the peer sees the front, all of it is there.
    pub(super) fn put_datagram(&mut self, bytes: &Bytes, imm: Option<u32>, qkey: u32, cells: u32) {
        let last = self.ring.count() - 1;
        for ahead in (0..cells).rev() {
            let (words, carried) = piece(bytes, ahead as usize * CELL_PAYLOAD_BYTES);
            let cell = self.ring.cell((self.index + ahead) & last);
            let kind = match (ahead, imm) {
                (0, Some(_)) => CellKind::SendImm,
                (0, None) => CellKind::Send,
                _ => CellKind::More,
            };
            cell.fill(second_word(qkey, imm.unwrap_or(0)), &words);
            let tag = self.ring.tag(self.position().wrapping_add(ahead));
            let len = bytes.len() as u16;
            cell.publish(Header::new(tag, kind, Next::Beside, carried as u8, len));
        }
        self.index = (self.index + cells) & last;
        self.number += u64::from(cells);
    }

    /// Where the cell after this one is. Back to the start when the peer has taken all before this
    /// message, and past the small lap when that is not free.
    #[inline]
    fn next(&self, in_flight: u32) -> Next {
        let beside = self.index + 1;
        if beside < SMALL_LAP {
            match self.is_free(beside, in_flight) {
                true => Next::Beside,
                false => Next::BehindSmallLap,
            }
        } else if in_flight == 0 {
            Next::Start
        } else {
            Next::Beside // The last is followed by the first.
        }
    }

    /// Writes the next message into a line, where that is possible: it has to fit its cell.
    #[inline(always)]
    fn put_in_line(&mut self, kind: CellKind, carried: u8, imm: u32, payload: &[u64]) -> bool {
        let (number, in_flight) = (self.number, self.in_flight());
        let (cell, next) = match &self.peers_lines {
            Some(lines) if self.flow.answers(number) => {
                (duplex::cell(lines, number), Next::Unchanged)
            }
            Some(_) if self.flow.may_open(number, in_flight) => {
                self.flow.open(number);
                (duplex::cell(&self.our_lines, number), Next::Beside)
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

    /// Writes a message that fits its cell into a line, or else into the ring, where there is room.
    #[inline(always)]
    fn put_small(&mut self, kind: CellKind, carried: u8, imm: u32, payload: &[u64]) {
        if !self.put_in_line(kind, carried, imm, payload) {
            self.put(kind, carried, imm, carried.into(), payload);
        }
    }

    /// Writes the next message into the ring, where there is room.
    #[inline(always)]
    fn put(&mut self, kind: CellKind, carried: u8, imm: u32, length: u32, payload: &[u64]) {
        let in_flight = self.position().wrapping_sub(self.head_seen);
        let next = self.next(in_flight);
        let following = self.ring.after(self.index, next as u8);
        if following >= SMALL_LAP && self.is_free(following, in_flight) {
            // It may hold a message of so long ago that its tag has come round again.
            self.ring.cell(following).clear();
        }
        let taken = self.flow.taken.load(Ordering::Acquire) as u16;
        let cell = self.ring.cell(self.index);
        cell.fill(second_word(length, imm), payload);
        cell.publish(Header::new(self.ring.tag(self.position()), kind, next, carried, taken));
        self.number += 1;
        self.written[self.index as usize] = self.position();
        self.index = following;
    }

    /// Tells a sleeping peer that there is something. The fence orders the cell before the look at
    /// `armed`; the peer arms before it looks at the cells (`CompletionQueue::arm`).
    #[inline]
    pub(super) fn ring_doorbell(&self) {
        fence(Ordering::SeqCst);
        if self.lines().state.armed.load(Ordering::Relaxed) != 0 {
            self.wake_peer();
        }
    }

    #[cold]
    fn wake_peer(&self) {
        if self.lines().state.armed.swap(0, Ordering::SeqCst) != 0 {
            ring_event(self.event.as_ref());
        }
    }
}

impl SendSide {
    /// The common case: a small inline WRITE_WITH_IMM to a connected, ready peer. `false`: nothing was
    /// done; the general way finds out why.
    #[inline]
    pub(super) fn write_imm_small(&mut self, bytes: &[u8], remote: RemoteSlice, imm: u32) -> bool {
        let cached = &self.regions[remote.rkey as usize % CACHED_REGIONS];
        let (Some(region), Some(outbox)) = (cached, &mut self.outbox) else { return false };
        if region.rkey != remote.rkey
            || remote.len != bytes.len() as u64
            || !region.access.contains(Access::REMOTE_WRITE)
            || !region.is_alive()
        {
            return false;
        }
        let Some(target) = region.at(remote.addr, remote.len) else { return false };
        if outbox.credit.is_some()
            || !outbox.is_ready()
            || !outbox.has_receive()
            || !outbox.has_room()
        {
            return false;
        }
        outbox.sent = outbox.sent.wrapping_add(1);
        let words = words_of(bytes);
        // SAFETY: `region.at` checked the range in a mapping that allows writing.
        unsafe { store_small(target, bytes, &words) };
        let used = bytes.len().div_ceil(8);
        outbox.put_small(CellKind::WriteImm, bytes.len() as u8, imm, &words[..used]);
        true
    }

    /// Rings the peer, if there is one.
    #[inline]
    pub(super) fn ring_doorbell(&self) {
        if let Some(outbox) = &self.outbox {
            outbox.ring_doorbell();
        }
    }

    /// Carries out a work request, as far as it goes.
    pub(super) fn execute(&mut self, pair: &Pair, item: &mut Item) -> Outcome {
        if let Some(peer) = &self.peer
            && peer.deregistrations() != self.deregistrations
        {
            self.forget_dead_regions();
        }
        let outcome = match &mut item.task {
            Task::Datagram { bytes, imm, to } => {
                return self.destinations.send(pair, bytes, *imm, *to);
            }
            Task::Send { bytes, imm, sent } => {
                let Some(outbox) = &mut self.outbox else { return Outcome::Wait(Wait::NotReady) };
                let outcome = send(outbox, bytes, *imm, sent);
                outbox.ring_doorbell();
                outcome
            }
            Task::Write { bytes, remote, imm } => self.write(&pair.context, bytes, *remote, *imm),
            Task::Read { room, remote } => self.read(room, *remote),
            Task::Atomic { room, remote, change } => {
                self.atomic(room, *remote, |word| change.apply(word))
            }
        };
        match outcome {
            // An unreliable connection knows no negative answers: what fails there is lost.
            Outcome::Wait(wait) if pair.ty == QpType::Uc && wait != Wait::Room => {
                Outcome::Done(item.task.len() as u32)
            }
            Outcome::Failed(_) if pair.ty == QpType::Uc => Outcome::Done(item.task.len() as u32),
            outcome => outcome,
        }
    }

    #[cold]
    fn forget_dead_regions(&mut self) {
        let Some(peer) = &self.peer else { return };
        self.deregistrations = peer.deregistrations();
        peer.forget_dead_regions();
        for cached in &mut self.regions {
            cached.take_if(|region| !region.is_alive());
        }
    }

    /// The peer's region with this key, if its queue pair may lend it.
    fn region(&mut self, rkey: u32) -> Result<&Arc<MappedRegion>, Status> {
        let (Some(outbox), Some(peer)) = (&self.outbox, &self.peer) else {
            return Err(Status::RemoteOperation);
        };
        let cached = &mut self.regions[rkey as usize % CACHED_REGIONS];
        let known = cached.as_ref().is_some_and(|region| region.rkey == rkey && region.is_alive());
        if !known {
            *cached = None;
            let region = peer.region(rkey).filter(|region| region.pd == outbox.pd);
            *cached = Some(region.ok_or(Status::RemoteAccess)?);
        }
        cached.as_ref().ok_or(Status::RemoteAccess)
    }

    /// Where `remote` is here, if the peer's queue pair takes messages and lends it for `access`.
    fn target(&mut self, remote: RemoteSlice, access: Access) -> Result<*mut u8, Outcome> {
        self.target_and_access(remote, access).map(|(target, _)| target)
    }

    /// The same, and all that its region is lent for.
    fn target_and_access(
        &mut self,
        remote: RemoteSlice,
        access: Access,
    ) -> Result<(*mut u8, Access), Outcome> {
        match &self.outbox {
            Some(outbox) if outbox.is_ready() => {}
            Some(outbox) => return Err(outbox.not_ready()),
            None => return Err(Outcome::Wait(Wait::NotReady)),
        }
        if remote.len == 0 {
            return Ok((NonNull::dangling().as_ptr(), access)); // No bytes, no key: as on hardware.
        }
        let region = self.region(remote.rkey).map_err(Outcome::Failed)?;
        if !region.access.contains(access) {
            return Err(Outcome::Failed(Status::RemoteAccess));
        }
        let target = region.at(remote.addr, remote.len);
        Ok((target.ok_or(Outcome::Failed(Status::RemoteAccess))?, region.access))
    }

    fn write(
        &mut self,
        context: &Context,
        bytes: &Bytes,
        remote: RemoteSlice,
        imm: Option<u32>,
    ) -> Outcome {
        let (target, access) = match self.target_and_access(remote, Access::REMOTE_WRITE) {
            Ok(found) => found,
            Err(outcome) => return outcome,
        };
        let len = bytes.len();
        let stores = access.contains(Access::RELAXED_ORDERING).then_some(&mut self.stores);
        let Some(imm) = imm else {
            // SAFETY: both ranges are checked and mapped; peers may race with either side of shared
            // memory, which the copy tolerates.
            unsafe { store_long(target, bytes, stores, context) };
            return Outcome::Done(len as u32);
        };
        let Some(outbox) = &mut self.outbox else { return Outcome::Wait(Wait::NotReady) };
        if !outbox.has_receive() {
            return Outcome::Wait(Wait::Receive);
        }
        if !outbox.has_room() {
            return Outcome::Wait(Wait::Room);
        }
        if !outbox.take_receive() {
            return Outcome::Wait(Wait::Receive);
        }
        if len <= CELL_PAYLOAD_BYTES {
            let mut small = [0; CELL_PAYLOAD_BYTES];
            // SAFETY: `small` has room for `len` bytes, which the source has; a single look at memory
            // that may be shared, so that the target and the cell get the same bytes.
            unsafe { copy_forward(small.as_mut_ptr(), bytes.start(), len) };
            let words = words_of(&small[..len]);
            // SAFETY: as for the copy above.
            unsafe { store_small(target, &small[..len], &words) };
            let used = len.div_ceil(8);
            outbox.put_small(CellKind::WriteImm, len as u8, imm, &words[..used]);
        } else {
            // SAFETY: as for the copy above.
            unsafe { store_long(target, bytes, stores, context) };
            outbox.put(CellKind::WriteImm, CARRIES_NOTHING, imm, len as u32, &[]);
        }
        outbox.ring_doorbell();
        Outcome::Done(len as u32)
    }

    fn read(&mut self, room: &Room, remote: RemoteSlice) -> Outcome {
        match self.target(remote, Access::REMOTE_READ) {
            Ok(source) => {
                // SAFETY: both ranges are checked, mapped, and of this length (posting compared them);
                // peers may race with shared memory, which the copy tolerates.
                unsafe { copy_forward(room.start(), source, remote.len as usize) };
                Outcome::Done(remote.len as u32)
            }
            Err(outcome) => outcome,
        }
    }

    fn atomic(
        &mut self,
        room: &Room,
        remote: RemoteSlice,
        change: impl Fn(&AtomicU64) -> u64,
    ) -> Outcome {
        let word = match self.target(remote, Access::REMOTE_ATOMIC) {
            Ok(word) => word,
            Err(outcome) => return outcome,
        };
        if !remote.addr.is_multiple_of(8) {
            return Outcome::Failed(Status::RemoteInvalidRequest);
        }
        // SAFETY: 8 bytes in range (posting checked the length), and aligned: regions start at a page on
        // both sides, and the address there is a multiple of 8.
        let old = change(unsafe { &*word.cast::<AtomicU64>() });
        // SAFETY: posting checked that there is room for 8 bytes.
        unsafe { copy_forward(room.start(), old.to_ne_bytes().as_ptr(), 8) };
        Outcome::Done(8)
    }
}

/// Stores a message of any length into a peer's memory; in any order, where there is a choice.
///
/// # Safety
/// `target` must be mapped for writing `bytes.len()` bytes.
unsafe fn store_long(
    target: *mut u8,
    bytes: &Bytes,
    choice: Option<&mut StoreChoice>,
    context: &Context,
) {
    let (source, len) = (bytes.start(), bytes.len());
    let Some(choice) = choice.filter(|_| len >= CHOICE_BYTES) else {
        // SAFETY: passed on from the caller; the message's own bytes are mapped.
        return unsafe { copy_forward(target, source, len) };
    };
    let (stores, begin) = (choice.next(), context.now_ns());
    // SAFETY: as above.
    unsafe {
        match stores {
            Stores::Ordinary => copy_forward(target, source, len),
            Stores::Streaming => copy_streaming(target, source, len),
        }
    }
    choice.took(stores, len, context.now_ns() - begin);
}

/// Stores up to 48 bytes into a peer's memory, low addresses first, aligned words whole.
///
/// # Safety
/// `target` must be mapped for writing `bytes.len()` bytes; `words` holds the same bytes.
#[inline]
unsafe fn store_small(target: *mut u8, bytes: &[u8], words: &[u64; CELL_PAYLOAD_BYTES / 8]) {
    let whole = bytes.len() / 8;
    if !target.addr().is_multiple_of(8) {
        // SAFETY: passed on from the caller.
        return unsafe { copy_forward(target, bytes.as_ptr(), bytes.len()) };
    }
    for (i, word) in words.iter().take(whole).enumerate() {
        // SAFETY: word `i` lies in the range, aligned; the owner of the memory may look at it any time,
        // which is why it is an atomic store. Release: whoever sees a word sees those before it.
        unsafe { (*target.cast::<AtomicU64>().add(i)).store(*word, Ordering::Release) };
    }
    let rest = &bytes[whole * 8..];
    if !rest.is_empty() {
        // SAFETY: the rest of the same range.
        unsafe { copy_forward(target.add(whole * 8), rest.as_ptr(), rest.len()) };
    }
}

/// Puts a SEND into the peer's inbox, in pieces as there is room; `sent` bytes are there already.
fn send(outbox: &mut Outbox, bytes: &Bytes, imm: Option<u32>, sent: &mut Option<usize>) -> Outcome {
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
            if !outbox.has_room() {
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
        if !outbox.has_room() {
            *sent = Some(done);
            return Outcome::Wait(Wait::Room);
        }
        let (words, carried) = piece(bytes, done);
        outbox.put(CellKind::More, carried as u8, 0, 0, &words[..carried.div_ceil(8)]);
        done += carried;
    }
    if outbox.credit.as_ref().is_some_and(|credit| !credit.surely_fits(len)) {
        // Which shared receive it meets, and whether that is long enough, only the receiver knows.
        *sent = Some(len);
        return outbox.verdict(len);
    }
    Outcome::Done(len as u32)
}

/// The next bytes of a message that fit a cell, from `offset` on.
#[inline]
fn piece(bytes: &Bytes, offset: usize) -> ([u64; CELL_PAYLOAD_BYTES / 8], usize) {
    let carried = (bytes.len() - offset).min(CELL_PAYLOAD_BYTES);
    let mut words = [0u64; CELL_PAYLOAD_BYTES / 8];
    // SAFETY: `carried` bytes from `offset` on lie in the message, and `words` has room for 48; the
    // source may be shared, which the copy tolerates.
    unsafe { copy_forward(words.as_mut_ptr().cast(), bytes.start().add(offset), carried) };
    (words, carried)
}
