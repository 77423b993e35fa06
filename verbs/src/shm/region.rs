//! Memory regions: ours, and mappings of peers' regions.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::changed_by::{self, Side};
use super::context::Context;
use super::domain::Sole;
use super::events::Channel;
use super::peer::{Peer, lock};
use super::region_words::{RegionWord, RegionWords};
use super::window::BoundTo;
use super::wire::Answer;
use crate::memory::WATCHED_ELSEWHERE;
use crate::memory::mapping::Mapping;
use crate::{Access, VerbsError, Wake};

/// The most regions of a peer that a queue pair finds without a lock, by the low bits of their keys; a power of two.
pub(super) const CACHED_REGIONS: usize = 8;

/// Keeps the pages of a region of ours mapped.
#[derive(Debug)]
#[allow(dead_code)] // Only held for its drop.
pub(crate) enum Pages {
    /// No other process can map them.
    Private(Mapping),
    /// Peers may map them.
    Lent(RegionMemory),
}

/// Pages that peers may map. Dropping it deregisters them by changing their region word.
#[derive(Debug)]
pub(crate) struct RegionMemory {
    pub(super) context: Arc<Context>,
    /// Dropped, and so unmapped, after deregistration.
    pub(super) _mapping: Arc<Mapping>,
    pub(super) rkey: u32,
    pub(super) lent: Arc<LentRegion>,
}

/// The control thread's record of a region of ours. It holds the file, not the region: the region is
/// deregistered when its owner drops it, even if the control thread is answering a request about it.
#[derive(Debug)]
pub(super) struct LentRegion {
    /// Closed when no peer can map it any more.
    pub(super) file: Mutex<Option<Arc<OwnedFd>>>,
    /// For queue pairs of this process.
    pub(super) mapping: Weak<Mapping>,
    /// Set if its domain is for one queue pair.
    pub(super) sole: Option<Arc<Sole>>,
    pub(super) addr: u64,
    pub(super) len: usize,
    pub(super) access: Access,
    pub(super) pd: u32,
    pub(super) slot: u32,
    pub(super) generation: u32,
    /// Where its owner sleeps until a peer has written into it.
    pub(super) watcher: OnceLock<Arc<Channel>>,
}

impl LentRegion {
    /// Its file, unless that is closed.
    pub(super) fn file(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.file).clone()
    }

    /// A peer that is connected to its domain has mapped it. Closes the file if no other one can ever ask for it.
    pub(super) fn close_if_sole(&self) {
        if self.sole.is_some() {
            lock(&self.file).take();
        }
    }

    /// What a peer is told that asks for it.
    pub(super) fn description(&self) -> Answer {
        Answer {
            pd: self.pd,
            access: u32::from(self.access.bits()),
            slot: self.slot,
            generation: self.generation,
            addr: self.addr,
            len: self.len as u64,
            ..Answer::default()
        }
    }
}

impl Pages {
    /// Peers' writes can make events on this channel from now on, where the device promises them.
    pub(crate) fn watch(&self, channel: &Arc<Channel>) -> Result<Wake, VerbsError> {
        match self {
            Pages::Lent(memory) if memory.context.caps().write_events => memory.watch(channel),
            Pages::Lent(_) | Pages::Private(_) => Ok(Wake::PollOnly),
        }
    }

    /// Asks for an event with the next write; only where the region is watched.
    pub(crate) fn arm(&self) {
        if let Pages::Lent(memory) = self
            && memory.lent.watcher.get().is_some()
        {
            memory.word().arm();
        }
    }

    /// The owner's CPU changes a word by an atomic operation.
    pub(crate) fn note_atomic(&self, word: *const u8) {
        if let Pages::Lent(memory) = self
            && !memory.context.caps().atomics_include_cpu
        {
            changed_by::note(word, Side::Owner);
        }
    }

    /// Takes that back.
    pub(crate) fn disarm(&self) {
        if let Pages::Lent(memory) = self {
            memory.word().disarm(memory.lent.generation);
        }
    }
}

impl RegionMemory {
    fn watch(&self, channel: &Arc<Channel>) -> Result<Wake, VerbsError> {
        let watcher = self.lent.watcher.get_or_init(|| Arc::clone(channel));
        match Arc::ptr_eq(watcher, channel) {
            true => Ok(Wake::Event),
            false => Err(VerbsError::Invalid(WATCHED_ELSEWHERE)),
        }
    }

    fn word(&self) -> &RegionWord {
        self.context.word(self.lent.slot)
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        self.context.deregister(self.rkey, self.lent.slot);
    }
}

/// The word of a peer's region, which each write looks at.
#[derive(Clone, Debug)]
pub(crate) struct PeersWord {
    word: NonNull<RegionWord>,
    /// Keeps it mapped.
    _words: Arc<RegionWords>,
}

// SAFETY: `word` points into the mapping that `_words` keeps; it is an atomic.
unsafe impl Send for PeersWord {}
// SAFETY: as above.
unsafe impl Sync for PeersWord {}

impl PeersWord {
    /// `word` is one of `words`.
    fn new(words: &Arc<RegionWords>, word: &RegionWord) -> PeersWord {
        PeersWord { word: NonNull::from(word), _words: Arc::clone(words) }
    }

    #[inline]
    fn get(&self) -> &RegionWord {
        // SAFETY: mapped as long as this lives.
        unsafe { self.word.as_ref() }
    }
}

/// A mapping of a peer's region.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    start: NonNull<u8>,
    memory: MappedMemory,
    /// Its address at its owner. Remote addresses are relative to it.
    base: u64,
    len: u64,
    pub(super) rkey: u32,
    /// What its own key allows; nothing, if it is a window.
    pub(super) access: Access,
    pub(super) pd: u32,
    word: PeersWord,
    generation: u32,
    /// The word of the region, which its owner arms.
    armed_word: PeersWord,
    /// The last arm that its owner was told of a write under.
    told: AtomicU32,
}

/// What keeps a mapped region mapped.
#[derive(Debug)]
enum MappedMemory {
    /// A mapping of its own; of a region of this process that of its owner.
    Own(#[allow(dead_code)] Arc<Mapping>),
    /// It is a window to this region.
    Window { of: Arc<MappedRegion>, access: Access, qp: u32 },
}

// SAFETY: `start` points into a mapping that `memory` keeps. The users of the pointer decide who may read or write there.
unsafe impl Send for MappedRegion {}
// SAFETY: as above.
unsafe impl Sync for MappedRegion {}

/// What a peer says of a region of its own.
pub(super) struct MappedParts {
    /// At least `len` bytes.
    pub(super) mapping: Arc<Mapping>,
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) rkey: u32,
    pub(super) access: Access,
    pub(super) pd: u32,
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl MappedRegion {
    pub(super) fn new(parts: MappedParts, words: &Arc<RegionWords>) -> MappedRegion {
        let MappedParts { mapping, base, len, rkey, access, pd, slot, generation } = parts;
        debug_assert!(mapping.len() as u64 >= len);
        let word = || PeersWord::new(words, words.word(slot));
        MappedRegion {
            start: mapping.start_non_null(),
            memory: MappedMemory::Own(mapping),
            base,
            len,
            rkey,
            access,
            pd,
            word: word(),
            generation,
            armed_word: word(),
            told: AtomicU32::new(0),
        }
    }

    /// A window to this region, as the peer describes it in slot `slot`; `None` if it is not inside.
    pub(super) fn window(
        self: &Arc<Self>,
        bound: &BoundTo,
        words: &Arc<RegionWords>,
        slot: u32,
    ) -> Option<MappedRegion> {
        let start = NonNull::new(self.at(bound.addr, bound.len)?)?;
        let access = Access::from_bits(u8::try_from(bound.access).ok()?)?;
        let memory = MappedMemory::Window { of: Arc::clone(self), access, qp: bound.qp };
        Some(MappedRegion {
            start,
            memory,
            base: bound.addr,
            len: bound.len,
            rkey: bound.rkey,
            access: Access::empty(),
            pd: self.pd,
            word: PeersWord::new(words, words.window(slot).word()),
            generation: bound.generation,
            armed_word: self.armed_word.clone(),
            told: AtomicU32::new(0),
        })
    }

    /// Whether the peer of this queue pair may use it: a window is for one, a region for all of its domain.
    pub(super) fn is_for(&self, peers_qp: u32) -> bool {
        match &self.memory {
            MappedMemory::Own(_) => true,
            MappedMemory::Window { qp, .. } => *qp == peers_qp,
        }
    }

    /// What it allows, if it is a window.
    pub(super) fn window_access(&self) -> Option<Access> {
        match &self.memory {
            MappedMemory::Own(_) => None,
            MappedMemory::Window { access, .. } => Some(*access),
        }
    }

    /// Whether its owner still has it registered.
    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        self.word.get().is_alive(self.generation)
    }

    /// Whether its owner may wait for a write; to be asked after one and a sequentially consistent fence.
    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        self.armed_word.get().is_armed()
    }

    /// Tells the owner of a write, if it waits for one: once for each arm, as it may take a while to take that
    /// back.
    #[cold]
    pub(super) fn tell_of_write(&self, peer: &Peer) {
        if let MappedMemory::Window { of, .. } = &self.memory {
            return of.tell_of_write(peer);
        }
        let Some(arm) = self.word.get().armed(self.generation) else { return };
        let before = self.told.swap(arm, Ordering::Relaxed);
        if before != arm && !peer.tell_written(self.rkey) {
            self.told.store(before, Ordering::Relaxed); // The next write tries again.
        }
    }

    /// The local address of `len` bytes at the owner's address `addr`; `None` if they do not lie in it.
    #[inline]
    pub(crate) fn at(&self, addr: u64, len: u64) -> Option<*mut u8> {
        let offset = addr.wrapping_sub(self.base);
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: `offset <= len`, and `len` bytes from `start` are mapped.
        Some(unsafe { self.start.as_ptr().add(offset as usize) })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::memory::region::Region;
    use crate::shm::Domain;

    /// Longer than anything here takes.
    const BOUND: Duration = Duration::from_secs(20);

    fn domain() -> Domain {
        Domain { context: Context::open(false).unwrap(), number: 1, sole: None }
    }

    /// The device of a peer of `owner`'s, and its record of that.
    fn peer_of(owner: &Domain) -> (Arc<Context>, Arc<Peer>) {
        let context = Context::open(false).unwrap();
        let record = context.peer(owner.context.gid, BOUND).unwrap();
        (context, record)
    }

    /// Where the owner of this region sleeps.
    fn watch(region: &Region) -> Arc<Channel> {
        let channel = Arc::new(Channel::new().unwrap());
        let watching = crate::dispatch::Channel::Shm(Arc::clone(&channel));
        region.registration().watch(region.rkey(), &watching).unwrap();
        channel
    }

    #[test]
    fn a_peer_that_tells_of_writes_at_will_wakes_nobody_who_does_not_wait() {
        let owner = domain();
        let region = owner.register(64, Access::all()).unwrap();
        let other = owner.register(64, Access::all()).unwrap();
        let (registration, channel) = (region.registration(), watch(&region));
        let told = |rkey: u32| {
            owner.context.written(rkey);
            channel.wait(Duration::ZERO).unwrap()
        };
        assert!(!told(region.rkey()), "it is not armed");
        registration.arm(region.rkey());
        assert!(!told(other.rkey()) && !told(0), "another region, and none");
        assert!(told(region.rkey()));
        assert!(!told(region.rkey()), "told twice");
        registration.arm(region.rkey());
        registration.disarm(region.rkey());
        assert!(!told(region.rkey()), "disarmed");
    }

    #[test]
    fn a_mapped_region_is_given_to_be_unmapped_when_its_owner_has_dropped_it() {
        let owner = domain();
        let (_context, record) = peer_of(&owner);
        let region = owner.register(64, Access::all()).unwrap();
        let mapped = record.ask_for_region(region.rkey()).unwrap().unwrap();
        assert!(record.forget_dead_regions().is_empty() && mapped.is_alive());
        drop(region);
        assert!(record.forget_dead_regions().len() == 1 && !mapped.is_alive());
    }

    /// To look through all of them takes as long as there are regions.
    #[test]
    fn dead_regions_are_looked_for_when_they_are_a_share_of_all() {
        let owner = domain();
        let (_context, record) = peer_of(&owner);
        let mut regions: Vec<_> =
            (0..100).map(|_| owner.register(64, Access::all()).unwrap()).collect();
        for region in &regions {
            record.ask_for_region(region.rkey()).unwrap().unwrap();
        }
        let given: Vec<_> = (0..5)
            .map(|_| {
                regions.pop();
                record.forget_dead_regions().len()
            })
            .collect();
        assert_eq!(given, [0, 0, 0, 4, 0]);
    }

    #[test]
    fn who_writes_tells_an_owner_that_waits_and_tries_again_if_that_failed() {
        let owner = domain();
        let (_context, record) = peer_of(&owner);
        let region = owner.register(64, Access::all()).unwrap();
        let (registration, channel) = (region.registration(), watch(&region));
        let mapped = record.ask_for_region(region.rkey()).unwrap().unwrap();
        let told = || mapped.told.load(Ordering::Relaxed);
        mapped.tell_of_write(&record);
        assert_eq!(told(), 0, "it does not wait");
        registration.arm(region.rkey());
        let first = mapped.word.get().armed(mapped.generation).unwrap();
        mapped.tell_of_write(&record);
        assert!(channel.wait(BOUND).unwrap(), "it was not told");
        assert_eq!(told(), first);
        // It has too much to read already, or is gone.
        rustix::net::shutdown(record.socket(), rustix::net::Shutdown::Both).unwrap();
        registration.arm(region.rkey());
        mapped.tell_of_write(&record);
        assert_eq!(told(), first, "the next write tells it of this arm");
    }
}
