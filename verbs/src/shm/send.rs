//! The sending side: the initiator's CPU executes work requests.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::cell::{CELL_PAYLOAD_BYTES, CellKind, LINE_BYTES, words_of};
use super::changed_by::{self, Side};
use super::context::{Context, MTU_BYTES};
use super::datagram::Destinations;
use super::discarded::Remains;
use super::lookup::Lookup;
use super::outbox::{Outbox, send};
use super::pair::Pair;
use super::peer::Peer;
use super::region::{CACHED_REGIONS, MappedRegion};
use super::slow::{Bytes, Item, Outcome, Room, Task, Wait};
use crate::memory::bytes::{claim, copy_fetched, copy_forward, copy_polled};
use crate::memory::bytes::{copy_streaming, copy_unordered};
use crate::memory::stores::{CHOICE_BYTES, StoreChoice, Stores};
use crate::{Access, QpType, RemoteSlice, Status};

/// The bit of [`SendSide::written`] for the region with this key.
#[inline]
fn written_bit(rkey: u32) -> u8 {
    1 << (rkey as usize % CACHED_REGIONS)
}

const _: () = assert!(CACHED_REGIONS <= u8::BITS as usize);

/// The state of the sending side. See [`Pair::side`] for the rules of access.
#[derive(Debug, Default)]
pub(super) struct SendSide {
    pub(super) outbox: Option<Outbox>,
    /// The peer's recently used regions, indexed by the low bits of their keys.
    regions: [Option<Arc<MappedRegion>>; CACHED_REGIONS],
    pub(super) peer: Option<Arc<Peer>>,
    /// The peer's queue pair.
    pub(super) peers_qp: u32,
    /// The peer has been told that this side accesses its memory through a window, and not yet that it does so no more.
    in_window: bool,
    /// The request for the region that the oldest work request waits for.
    lookup: Option<Lookup>,
    /// The peer's count of deregistrations when `regions` was last checked.
    deregistrations: u64,
    /// Which of `regions` were written since their owners were last told, one bit each.
    written: u8,
    pub(super) rnr_retry: u8,
    pub(super) rnr_timer_ns: u64,
    pub(super) retry_timeout_ns: u64,
    /// Where datagrams go.
    pub(super) destinations: Destinations,
    /// How large WRITEs are stored, if the region leaves it open.
    stores: StoreChoice,
}

impl SendSide {
    /// Where an inline WRITE_WITH_IMM to a connected, ready peer lands, if its region is known, and there are a receive, which
    /// is taken, and room.
    #[inline(always)]
    fn begin_write_imm(
        &mut self,
        len: usize,
        remote: RemoteSlice,
    ) -> Option<(*mut u8, &mut Outbox)> {
        let target = self.known_target(len, remote, Access::REMOTE_WRITE)?;
        let outbox = self.outbox.as_mut()?;
        if outbox.shares_receives()
            || !outbox.is_ready()
            || !outbox.has_room()
            || !outbox.take_exclusive_receive()
        {
            return None;
        }
        self.written |= written_bit(remote.rkey);
        Some((target, outbox))
    }

    /// The fast path of a WRITE_WITH_IMM that does not fit a cell, of the bytes of `front` and then those of `rest`. `false`:
    /// nothing was done, and the general path finds out why.
    #[inline(never)]
    pub(super) fn write_imm_long(
        &mut self,
        front: &[u8],
        rest: &[u8],
        remote: RemoteSlice,
        imm: u32,
    ) -> bool {
        let len = front.len() + rest.len();
        let may_reorder = self.may_reorder(remote);
        let Some((target, outbox)) = self.begin_write_imm(len, remote) else { return false };
        claim(target, len);
        let mut at = 0;
        let mut put = |part: &[u8]| {
            // SAFETY: `known_target` checked the range in a mapping that allows writing; the parts follow each other. Peers may
            // race with it, which the copy tolerates.
            unsafe {
                match may_reorder {
                    true => copy_unordered(target.add(at), part.as_ptr(), part.len()),
                    false => copy_forward(target.add(at), part.as_ptr(), part.len()),
                }
            }
            at += part.len();
        };
        // The rest is stored in whole lines: a store across two lines that the receiver has in its cache costs twice as much.
        let to_line = front.len().next_multiple_of(LINE_BYTES) - front.len();
        let (head, rest) = rest.split_at(to_line.min(rest.len()));
        put(front);
        put(head);
        put(rest);
        outbox.put_long(CellKind::WriteImm, imm, len as u32);
        true
    }

    /// The fast path of a WRITE_WITH_IMM that fits a cell. `false`: nothing was done, and the general path finds out why.
    #[inline]
    pub(super) fn write_imm_small(&mut self, bytes: &[u8], remote: RemoteSlice, imm: u32) -> bool {
        let Some((target, outbox)) = self.begin_write_imm(bytes.len(), remote) else {
            return false;
        };
        let words = words_of(bytes);
        // SAFETY: `known_target` checked the range in a mapping that allows writing.
        unsafe { store_small(target, bytes, &words) };
        let used = bytes.len().div_ceil(8);
        outbox.put_small(CellKind::WriteImm, bytes.len() as u8, imm, &words[..used]);
        true
    }

    /// Where `len` bytes are, if the region has been used before and allows this access.
    #[inline(always)]
    fn known_target(&self, len: usize, remote: RemoteSlice, access: Access) -> Option<*mut u8> {
        let region = self.regions[remote.rkey as usize % CACHED_REGIONS].as_ref()?;
        if region.rkey != remote.rkey
            || remote.len != len as u64
            || !region.access.contains(access)
            || !region.is_alive()
        {
            return None;
        }
        region.at(remote.addr, remote.len)
    }

    /// Where `len` bytes are, if the region, or the window, has been used before and allows this access, and the peer's queue pair takes
    /// messages. Accesses through windows last until the doorbell: they are announced once for all that are posted with it.
    #[inline(always)]
    fn known_target_of_ready(
        &mut self,
        len: usize,
        remote: RemoteSlice,
        access: Access,
    ) -> Option<*mut u8> {
        if !self.outbox.as_ref().is_some_and(|outbox| outbox.is_ready()) {
            return None;
        }
        match self.known_target(len, remote, access) {
            None => self.known_target_in_window(len, remote, access),
            target => target,
        }
    }

    #[inline]
    fn known_target_in_window(
        &mut self,
        len: usize,
        remote: RemoteSlice,
        wanted: Access,
    ) -> Option<*mut u8> {
        let region = self.regions[remote.rkey as usize % CACHED_REGIONS].as_ref()?;
        if region.rkey != remote.rkey
            || remote.len != len as u64
            || !region.window_access()?.contains(wanted)
        {
            return None;
        }
        let target = region.at(remote.addr, remote.len)?;
        if !self.in_window {
            self.outbox.as_ref()?.enter_window();
            self.in_window = true;
        }
        // As for `target_in_window`. If it is gone, the general path says so, and leaves.
        region.is_alive().then_some(target)
    }

    /// The bytes of a WRITE into this region may land in any order, if the region is known.
    #[inline]
    fn may_reorder(&self, remote: RemoteSlice) -> bool {
        let region = &self.regions[remote.rkey as usize % CACHED_REGIONS];
        region.as_ref().is_some_and(|region| region.access.contains(Access::RELAXED_ORDERING))
    }

    /// The fast path of an inline WRITE to a connected, ready peer. `false`: nothing was done, and the general path finds out
    /// why.
    #[inline]
    pub(super) fn write_inline(&mut self, bytes: &[u8], remote: RemoteSlice) -> bool {
        let Some(target) = self.known_target_of_ready(bytes.len(), remote, Access::REMOTE_WRITE)
        else {
            return false;
        };
        // SAFETY: `known_target_of_ready` checked the range in a mapping that allows writing; peers may race with it, which the copy
        // tolerates.
        unsafe { copy_forward(target, bytes.as_ptr(), bytes.len()) };
        self.written |= written_bit(remote.rkey);
        true
    }

    /// The fast path of a READ from a connected, ready peer. `false`: nothing was done, and the general path finds out why.
    #[inline]
    pub(super) fn read_known(&mut self, into: &mut [u8], remote: RemoteSlice) -> bool {
        let Some(source) = self.known_target_of_ready(into.len(), remote, Access::REMOTE_READ)
        else {
            return false;
        };
        // SAFETY: `known_target_of_ready` checked the range in a mapping; peers may race with it, which the copy tolerates.
        unsafe { copy_polled(into.as_mut_ptr(), source, into.len()) };
        true
    }

    /// The fast path of a small SEND to a connected peer. `false`: nothing was done, and the general path finds out why.
    #[inline]
    pub(super) fn send_small(&mut self, bytes: &[u8], imm: Option<u32>) -> bool {
        self.outbox.as_mut().is_some_and(|outbox| outbox.send_small(bytes, imm))
    }

    /// Wakes the peer, if there is one.
    #[inline]
    pub(super) fn ring_doorbell(&mut self) {
        if self.in_window {
            self.leave_window();
        }
        match &self.outbox {
            Some(outbox) => {
                outbox.ring_doorbell(); // Its fence is ours too.
                self.tell_of_writes();
            }
            None => self.destinations.ring_doorbell(),
        }
    }

    /// Tells the owners of regions that were written since the last time, where they wait for that; after a
    /// sequentially consistent fence (see [`region_words`](super::region_words)).
    #[inline]
    fn tell_of_writes(&mut self) {
        let mut written = std::mem::take(&mut self.written);
        while written != 0 {
            let index = written.trailing_zeros() as usize;
            written &= written - 1;
            if self.regions[index].as_ref().is_some_and(|region| region.is_armed()) {
                self.tell_owner(index);
            }
        }
    }

    #[cold]
    fn tell_owner(&self, index: usize) {
        if let (Some(region), Some(peer)) = (&self.regions[index], &self.peer) {
            region.tell_of_write(peer);
        }
    }

    /// The same, where no doorbell follows.
    pub(super) fn ring_for_writes(&mut self) {
        if self.written != 0 {
            fence(Ordering::SeqCst);
            self.tell_of_writes();
        }
    }

    /// Executes a work request as far as possible.
    pub(super) fn execute(&mut self, pair: &Pair, item: &mut Item) -> Outcome {
        if let Some(peer) = &self.peer
            && peer.deregistrations() != self.deregistrations
        {
            self.forget_dead_regions(pair);
        }
        let outcome = match &mut item.task {
            Task::Datagram { bytes, imm, route, qkey } => {
                match (*route, bytes.private()) {
                    (Some(route), Some(bytes)) => self.destinations.send(route, bytes, *imm, *qkey),
                    (Some(route), None) => {
                        let mut copy = [0; MTU_BYTES];
                        let copy = &mut copy[..bytes.len()];
                        // SAFETY: `copy` has room for a datagram, which posting checked. Peers may race with the
                        // source region, which the copy tolerates.
                        unsafe { copy_forward(copy.as_mut_ptr(), bytes.start(), bytes.len()) };
                        self.destinations.send(route, copy, *imm, *qkey);
                    }
                    (None, _) => {}
                }
                return Outcome::Done(bytes.len() as u32);
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
                let includes_cpu = pair.context.caps().atomics_include_cpu;
                self.atomic(room, *remote, includes_cpu, |word| change.apply(word))
            }
            Task::BindWindow(bind) => {
                bind.execute();
                Outcome::Done(0)
            }
            Task::InvalidateWindow { window, inside } => {
                window.invalidate();
                end_accesses(pair, inside)
            }
        };
        if self.in_window {
            self.leave_window();
        }
        match outcome {
            // Unreliable connections have no negative acknowledgements: what fails there is lost.
            Outcome::Wait(wait)
                if pair.ty == QpType::Uc && !matches!(wait, Wait::Room | Wait::Region) =>
            {
                Outcome::Done(item.task.len() as u32)
            }
            Outcome::Failed(_) if pair.ty == QpType::Uc => Outcome::Done(item.task.len() as u32),
            outcome => outcome,
        }
    }

    #[cold]
    fn forget_dead_regions(&mut self, pair: &Pair) {
        let Some(peer) = &self.peer else { return };
        self.deregistrations = peer.deregistrations();
        let mut dead = peer.forget_dead_regions();
        for cached in &mut self.regions {
            dead.extend(cached.take_if(|region| !region.is_alive()).map(Remains::Region));
        }
        // Unmapped where nobody waits: whoever posts may serve other peers too.
        pair.context.control.discard(dead);
    }

    /// Returns the peer's region with this key, if it is in the protection domain of the peer's queue pair. The first use of a
    /// key waits for the peer's answer.
    fn region(&mut self, rkey: u32) -> Result<&Arc<MappedRegion>, Outcome> {
        const DENIED: Outcome = Outcome::Failed(Status::RemoteAccess);
        let index = rkey as usize % CACHED_REGIONS;
        if self.written & written_bit(rkey) != 0
            && self.regions[index].as_ref().is_some_and(|region| region.rkey != rkey)
        {
            self.ring_for_writes(); // What was written makes room for another.
        }
        let (Some(outbox), Some(peer)) = (&self.outbox, &self.peer) else {
            return Err(Outcome::Failed(Status::RemoteOperation));
        };
        let cached = &mut self.regions[index];
        let known = cached.as_ref().is_some_and(|region| region.rkey == rkey && region.is_alive());
        if !known {
            *cached = None;
            if rkey == 0 {
                return Err(DENIED); // No region has it; the peer need not be asked.
            }
            let region = match peer.known_region(rkey) {
                Some(region) => region,
                None => answer_of(&mut self.lookup, peer, rkey)?.ok_or(DENIED)?,
            };
            self.lookup = None;
            if region.pd != outbox.pd || !region.is_for(self.peers_qp) {
                return Err(DENIED);
            }
            *cached = Some(region);
        }
        cached.as_ref().ok_or(DENIED)
    }

    /// The local address of `remote`, if the peer's queue pair takes messages and the region allows `access`.
    fn target(&mut self, remote: RemoteSlice, access: Access) -> Result<*mut u8, Outcome> {
        self.target_and_access(remote, access).map(|(target, _)| target)
    }

    /// As `target`, and returns all access flags of the region.
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
        let region = match self.region(remote.rkey) {
            Ok(region) => region,
            Err(outcome) => return Err(self.without_region(outcome)),
        };
        if !region.access.contains(access) {
            return self.target_in_window(remote, access);
        }
        let target = region.at(remote.addr, remote.len);
        Ok((target.ok_or(Outcome::Failed(Status::RemoteAccess))?, region.access))
    }

    /// The same through a window: the peer is told before, and after the access by [`leave_window`](Self::leave_window), so
    /// that it can wait for its end. Ends in an error if the region that was found is none.
    fn target_in_window(
        &mut self,
        remote: RemoteSlice,
        wanted: Access,
    ) -> Result<(*mut u8, Access), Outcome> {
        let denied = Outcome::Failed(Status::RemoteAccess);
        let region = &self.regions[remote.rkey as usize % CACHED_REGIONS];
        let (Some(region), Some(outbox)) = (region, &self.outbox) else { return Err(denied) };
        let Some(access) = region.window_access().filter(|access| access.contains(wanted)) else {
            return Err(denied);
        };
        let Some(target) = region.at(remote.addr, remote.len) else { return Err(denied) };
        if !self.in_window {
            outbox.enter_window();
            self.in_window = true;
        }
        // The peer invalidates, fences, and looks whether we are inside; we have entered and fenced.
        if region.is_alive() { Ok((target, access)) } else { Err(denied) }
    }

    fn leave_window(&mut self) {
        self.in_window = false;
        if let Some(outbox) = &self.outbox {
            outbox.leave_window();
        }
    }

    /// How a work request ends whose region cannot be had: a peer may have destroyed first its queue pair, then the region,
    /// since we looked. Then there is no end any more that denies access.
    #[cold]
    fn without_region(&self, outcome: Outcome) -> Outcome {
        match &self.outbox {
            Some(outbox) if !outbox.is_ready() => outbox.not_ready(),
            _ => outcome,
        }
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
        let written = if len > 0 { written_bit(remote.rkey) } else { 0 };
        let stores = access.contains(Access::RELAXED_ORDERING).then_some(&mut self.stores);
        let Some(imm) = imm else {
            // SAFETY: both ranges are checked and mapped; peers may race with either side of shared
            // memory, which the copy tolerates.
            unsafe { store_long(target, bytes, stores, context) };
            self.written |= written;
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
            // SAFETY: `small` has room for `len` bytes, which the source has. The source may be shared memory, so
            // it is read once: the target and the cell get the same bytes.
            unsafe { copy_forward(small.as_mut_ptr(), bytes.start(), len) };
            let words = words_of(&small[..len]);
            // SAFETY: as for the copy above.
            unsafe { store_small(target, &small[..len], &words) };
            let used = len.div_ceil(8);
            outbox.put_small(CellKind::WriteImm, len as u8, imm, &words[..used]);
        } else {
            // SAFETY: as for the copy above.
            unsafe { store_long(target, bytes, stores, context) };
            outbox.put_long(CellKind::WriteImm, imm, len as u32);
        }
        self.written |= written;
        outbox.ring_doorbell();
        Outcome::Done(len as u32)
    }

    fn read(&mut self, room: &Room, remote: RemoteSlice) -> Outcome {
        match self.target(remote, Access::REMOTE_READ) {
            Ok(source) => {
                let len = remote.len as usize;
                // SAFETY: both ranges are checked, mapped, and of this length (posting compared them);
                // peers may race with shared memory, which the copy tolerates.
                unsafe {
                    match len <= MTU_BYTES {
                        true => copy_polled(room.start(), source, len),
                        // It takes several packets: nothing is promised of their order.
                        false => copy_fetched(room.start(), source, len),
                    }
                }
                Outcome::Done(remote.len as u32)
            }
            Err(outcome) => outcome,
        }
    }

    fn atomic(
        &mut self,
        room: &Room,
        remote: RemoteSlice,
        includes_cpu: bool,
        change: impl Fn(&AtomicU64) -> u64,
    ) -> Outcome {
        let word = match self.target(remote, Access::REMOTE_ATOMIC) {
            Ok(word) => word,
            Err(outcome) => return outcome,
        };
        if !remote.addr.is_multiple_of(8) {
            return Outcome::Failed(Status::RemoteInvalidRequest);
        }
        if cfg!(debug_assertions) && !includes_cpu {
            changed_by::note(word, Side::Peers);
        }
        // SAFETY: 8 bytes in range (posting checked the length), and aligned: regions start at a page on
        // both sides, and the address there is a multiple of 8.
        let old = change(unsafe { &*word.cast::<AtomicU64>() });
        self.written |= written_bit(remote.rkey);
        // SAFETY: posting checked that there is room for 8 bytes.
        unsafe { copy_forward(room.start(), old.to_ne_bytes().as_ptr(), 8) };
        Outcome::Done(8)
    }
}

/// Whether the accesses of the queue pair's peer through windows have ended that had begun before this was first asked.
/// `inside` is where the peer was then.
fn end_accesses(pair: &Pair, inside: &mut Option<u32>) -> Outcome {
    let Some(inbox) = pair.inbox() else { return Outcome::Done(0) };
    match inbox.lines().sender.in_windows.have_ended(inside) {
        true => Outcome::Done(0),
        false => Outcome::Wait(Wait::Access),
    }
}

/// The answer to the question for a region, which is asked if it is not the last one.
#[cold]
fn answer_of(
    lookup: &mut Option<Lookup>,
    peer: &Arc<Peer>,
    rkey: u32,
) -> Result<Option<Arc<MappedRegion>>, Outcome> {
    let asked = match lookup {
        Some(asked) if asked.is_for(rkey) => asked,
        _ => lookup.insert(Lookup::ask(peer, rkey)),
    };
    let Some(answer) = asked.answer() else { return Err(Outcome::Wait(Wait::Region)) };
    let region = answer.clone().filter(|region| region.is_alive());
    *lookup = None;
    Ok(region)
}

/// Stores a message of any length into a peer's memory; in any order, if the region allows it.
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
    let Some(choice) = choice else {
        // SAFETY: passed on from the caller; the message's own bytes are mapped.
        return unsafe { copy_forward(target, source, len) };
    };
    if len < CHOICE_BYTES {
        // SAFETY: as above.
        return unsafe { copy_unordered(target, source, len) };
    }
    let (stores, begin) = (choice.next(), context.now_ns());
    // SAFETY: as above.
    unsafe {
        match stores {
            Stores::Ordinary => copy_unordered(target, source, len),
            Stores::Streaming => copy_streaming(target, source, len),
        }
    }
    choice.record(stores, len, context.now_ns() - begin);
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
    let store = |(i, word): (usize, &u64)| {
        // SAFETY: word `i` lies in the range and is aligned. The store is atomic because the owner of the memory
        // may read it at any time. Release: a reader that sees a word sees the words before it.
        unsafe { (*target.cast::<AtomicU64>().add(i)).store(*word, Ordering::Release) };
    };
    // A full cell: no loop.
    if bytes.len() == CELL_PAYLOAD_BYTES {
        return words.iter().enumerate().for_each(store);
    }
    words[..whole].iter().enumerate().for_each(store);
    let rest = &bytes[whole * 8..];
    if !rest.is_empty() {
        // SAFETY: the rest of the same range.
        unsafe { copy_forward(target.add(whole * 8), rest.as_ptr(), rest.len()) };
    }
}
