//! An opened device: the state that its queue pairs and regions share.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::io;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::geteuid;

use super::changed_by;
use super::control::Control;
use super::domain::Domain;
use super::memfd::{self, Peers};
use super::pair::Pair;
use super::peer::{Peer, lock, socket_name};
use super::receive::MAX_MESSAGE_BYTES;
use super::region::{CACHED_REGIONS, LentRegion, Pages, RegionMemory};
use super::region_words::{REGION_SLOTS, RegionWord, RegionWords};
use super::window::{self, WINDOW_SLOTS, WindowRecord};
use super::wire::{Claim, Gid};
use crate::caps::OperationSet;
use crate::dispatch::Registration;
use crate::memory::mapping::{Mapping, Population, page_rounded};
use crate::memory::region::{Region, RegionParts};
use crate::random;
use crate::{
    Access, COMPLETION_PAYLOAD_BYTES, Capabilities, ConnectError, OpenError, Operation, PerProcess,
    VerbsError, Visibility, WriteOrder,
};

/// Payload bytes of a datagram, as in RoCE with jumbo frames.
pub(crate) const MTU_BYTES: usize = 4096;

/// Bytes copied from the caller's slice while posting. The device could take any number: posting is what copies.
pub(crate) const MAX_INLINE_BYTES: usize = 128 << 10;

/// What current NICs take.
const PLAIN_MAX_INLINE_BYTES: usize = 256;

/// Peers map a region for writing that allows any of these.
pub(super) const MAPPED_FOR_WRITING: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC).union(Access::MW_BIND);

/// The opened devices of this process. Those of a parent that forked it are for it like those of any other process.
static OF_THIS_PROCESS: PerProcess<Mutex<HashMap<Gid, Weak<Context>>>> = PerProcess::new();

/// An opened device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(super) gid: Gid,
    /// The effective user: the kernel tells peers of no other.
    pub(super) uid: u32,
    clock: quanta::Clock,
    caps: Capabilities,
    words: RegionWords,
    words_file: OwnedFd,
    tables: Mutex<Tables>,
    peers: Mutex<HashMap<Gid, Weak<Peer>>>,
    next_qp: AtomicU32,
    pub(crate) control: Arc<Control>,
    thread: OnceLock<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Tables {
    regions: HashMap<u32, Arc<LentRegion>>,
    /// Regions so far.
    registered: u32,
    free_slots: Vec<u32>,
    used_slots: u32,
    pairs: HashMap<u32, Weak<Pair>>,
    /// The slots of windows, by the upper bits of their keys.
    windows: HashMap<u32, u32>,
    free_windows: Vec<u32>,
    used_windows: u32,
}

impl Context {
    /// Opens the device; with `plain`, one that only has the capabilities of a typical NIC.
    pub(crate) fn open(plain: bool) -> Result<Arc<Context>, OpenError> {
        let system = |what| {
            move |error: io::Errno| OpenError::System {
                device: super::NAME.to_owned(),
                what,
                source: error.into(),
            }
        };
        let gid: Gid = random::bytes().map_err(system("random identifier"))?;
        let uid = geteuid().as_raw();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(system("control socket"))?;
        let name = socket_name(uid, &gid).map_err(system("name of the control socket"))?;
        bind(&listener, &name).map_err(system("binding the control socket"))?;
        listen(&listener, 4096).map_err(system("listening on the control socket"))?;
        let (words_file, words) =
            memfd::create("farcall-regions", RegionWords::BYTES, Peers::Read, Population::AtOnce)
                .map_err(system("memory file of region words"))?;
        let control = Control::new(listener.as_fd(), uid).map_err(system("event queue"))?;
        let context = Arc::new(Context {
            gid,
            uid,
            clock: quanta::Clock::new(),
            caps: if plain { plain_capabilities() } else { capabilities() },
            words: RegionWords::new(words),
            words_file,
            tables: Mutex::default(),
            peers: Mutex::default(),
            next_qp: AtomicU32::new(1),
            control: Arc::new(control),
            thread: OnceLock::new(),
        });
        let (weak, control) = (Arc::downgrade(&context), Arc::clone(&context.control));
        let thread = thread::Builder::new()
            .name("farcall-shm".into())
            .spawn(move || control.run(&weak, &listener))
            .map_err(|source| OpenError::System {
                device: super::NAME.to_owned(),
                what: "control thread",
                source,
            })?;
        let _ = context.thread.set(thread);
        lock(OF_THIS_PROCESS.get()).insert(gid, Arc::downgrade(&context));
        Ok(context)
    }

    /// The device of this process with this identifier.
    pub(super) fn of_this_process(gid: &Gid) -> Option<Weak<Context>> {
        lock(OF_THIS_PROCESS.get()).get(gid).cloned()
    }

    pub(crate) fn caps(&self) -> &Capabilities {
        &self.caps
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.clock.raw())
    }

    /// Registers zeroed memory. If peers may not write, no other mapping of it can be writable.
    pub(crate) fn register(
        self: &Arc<Self>,
        domain: &Domain,
        len: usize,
        access: Access,
        population: Population,
    ) -> Result<Region, VerbsError> {
        let pages = page_rounded(len).filter(|pages| *pages > 0).ok_or(VerbsError::Limit {
            what: "region length",
            asked: len,
            max: isize::MAX as usize,
        })?;
        let system =
            |what| move |error: io::Errno| VerbsError::System { what, source: error.into() };
        let peers = match access.intersects(MAPPED_FOR_WRITING) {
            true => Peers::ReadAndWrite,
            false => Peers::Read,
        };
        let (file, mapping) = memfd::create("farcall-region", pages, peers, population)
            .map_err(system("memory for a region"))?;
        self.enter(domain, (Arc::new(file), Arc::new(mapping)), len, access)
    }

    /// Registers pages of which there is a file, and which may be registered elsewhere too.
    pub(super) fn enter(
        self: &Arc<Self>,
        domain: &Domain,
        (file, mapping): (Arc<OwnedFd>, Arc<Mapping>),
        len: usize,
        access: Access,
    ) -> Result<Region, VerbsError> {
        let system =
            |what| move |error: io::Errno| VerbsError::System { what, source: error.into() };
        let mut tables = lock(&self.tables);
        let slot = match tables.free_slots.pop() {
            Some(slot) => slot,
            None if tables.used_slots < REGION_SLOTS - 1 => {
                tables.used_slots += 1;
                tables.used_slots
            }
            None => {
                let max = REGION_SLOTS as usize - 1;
                return Err(VerbsError::Limit { what: "number of regions", asked: max + 1, max });
            }
        };
        // Random, but for the bits by which peers cache regions: a connection's regions are registered one after another, and none of
        // them takes the place of another then.
        let place = tables.registered % CACHED_REGIONS as u32;
        tables.registered = tables.registered.wrapping_add(1);
        let rkey = loop {
            let key = random::bytes().map(u32::from_ne_bytes).inspect_err(|_| {
                tables.free_slots.push(slot);
            });
            let key = key.map_err(system("random key"))? / CACHED_REGIONS as u32;
            let key = key * CACHED_REGIONS as u32 + place;
            let is_used = tables.regions.contains_key(&key)
                || tables.windows.contains_key(&window::base(key));
            if key != 0 && !is_used {
                break key;
            }
        };
        let generation = self.words.word(slot).register();
        let addr = mapping.start().addr() as u64;
        let pd = domain.number;
        let lent = Arc::new(LentRegion {
            file: Mutex::new(Some(file)),
            mapping: Arc::downgrade(&mapping),
            sole: domain.sole.clone(),
            addr,
            len,
            access,
            pd,
            slot,
            generation,
            watcher: OnceLock::new(),
        });
        tables.regions.insert(rkey, Arc::clone(&lent));
        drop(tables);
        let context = Arc::clone(self);
        let start = mapping.start_non_null();
        if cfg!(debug_assertions) && !context.caps().atomics_include_cpu {
            changed_by::forget(&mapping);
        }
        let memory = RegionMemory { context, _mapping: mapping, rkey, lent };
        let registration = Registration::Shm(Pages::Lent(memory));
        Ok(Region::new(RegionParts { start, len, access, lkey: 0, rkey, pd, registration }))
    }

    pub(super) fn deregister(&self, rkey: u32, slot: u32) {
        self.words.word(slot).deregister();
        self.words.count_deregistration();
        let mut tables = lock(&self.tables);
        tables.regions.remove(&rkey);
        tables.free_slots.push(slot);
    }

    pub(super) fn region(&self, rkey: u32) -> Option<Arc<LentRegion>> {
        lock(&self.tables).regions.get(&rkey).cloned()
    }

    /// Finds a free slot for a window, and upper bits for its keys that no other key has.
    pub(super) fn add_window(&self) -> Result<(u32, u32), VerbsError> {
        let mut tables = lock(&self.tables);
        let slot = match tables.free_windows.pop() {
            Some(slot) => slot,
            None if tables.used_windows < WINDOW_SLOTS => {
                tables.used_windows += 1;
                tables.used_windows - 1
            }
            None => {
                let max = WINDOW_SLOTS as usize;
                return Err(VerbsError::Limit { what: "memory windows", asked: max + 1, max });
            }
        };
        let base = loop {
            let key = random::bytes().map(u32::from_ne_bytes).map_err(|error| {
                tables.free_windows.push(slot);
                VerbsError::System { what: "random key", source: error.into() }
            })?;
            let base = window::base(key);
            let is_used = tables.windows.contains_key(&base)
                || tables.regions.keys().any(|key| window::base(*key) == base);
            if base != 0 && !is_used {
                break base;
            }
        };
        tables.windows.insert(base, slot);
        Ok((base, slot))
    }

    pub(super) fn remove_window(&self, base: u32, slot: u32) {
        let mut tables = lock(&self.tables);
        tables.windows.remove(&base);
        tables.free_windows.push(slot);
    }

    /// The slot of the window that has keys like this.
    pub(super) fn window(&self, rkey: u32) -> Option<u32> {
        lock(&self.tables).windows.get(&window::base(rkey)).copied()
    }

    pub(super) fn window_record(&self, slot: u32) -> &WindowRecord {
        self.words.window(slot)
    }

    /// A peer has written into a region, and saw that its owner waits. It is believed only once for each arm,
    /// so that one that tells more often wakes nobody.
    pub(super) fn written(&self, rkey: u32) {
        if let Some(region) = self.region(rkey)
            && let Some(channel) = region.watcher.get()
            && self.words.word(region.slot).disarm(region.generation)
        {
            channel.wake();
        }
    }

    /// The word of a region of ours.
    pub(super) fn word(&self, slot: u32) -> &RegionWord {
        self.words.word(slot)
    }

    pub(super) fn words_file(&self) -> BorrowedFd<'_> {
        self.words_file.as_fd()
    }

    /// Returns a number that no queue pair of this context has had.
    pub(super) fn new_qp_number(&self) -> u32 {
        self.next_qp.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn add_pair(&self, number: u32, pair: &Arc<Pair>) {
        lock(&self.tables).pairs.insert(number, Arc::downgrade(pair));
    }

    pub(super) fn remove_pair(&self, number: u32) {
        lock(&self.tables).pairs.remove(&number);
    }

    pub(super) fn pair(&self, number: u32) -> Option<Arc<Pair>> {
        lock(&self.tables).pairs.get(&number)?.upgrade()
    }

    /// Returns the peer with this identifier, and connects to it first if necessary.
    pub(crate) fn peer(
        self: &Arc<Self>,
        gid: Gid,
        timeout: Duration,
    ) -> Result<Arc<Peer>, ConnectError> {
        let known = |peers: &HashMap<Gid, Weak<Peer>>| {
            peers.get(&gid).and_then(Weak::upgrade).filter(|peer| !peer.is_dead())
        };
        if let Some(peer) = known(&lock(&self.peers)) {
            return Ok(peer);
        }
        // Dial without the lock, so that a peer that does not answer does not delay the others.
        let own = Context::of_this_process(&gid).unwrap_or_default();
        let dialed =
            Arc::new(Peer::dial(gid, (own, Arc::clone(&self.control)), self.uid, timeout)?);
        let mut peers = lock(&self.peers);
        if let Some(peer) = known(&peers) {
            return Ok(peer);
        }
        self.control.watch(&dialed).map_err(|error| ConnectError::System {
            what: "watching the peer's socket",
            source: error.into(),
        })?;
        peers.retain(|_, peer| peer.strong_count() > 0);
        peers.insert(gid, Arc::downgrade(&dialed));
        Ok(dialed)
    }

    /// Whether this device claims that to the device `peer`.
    pub(super) fn has_claimed(&self, peer: &Gid, claim: &Claim) -> bool {
        let peer = lock(&self.peers).get(peer).and_then(Weak::upgrade);
        peer.is_some_and(|peer| peer.claim == *claim)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        lock(OF_THIS_PROCESS.get()).remove(&self.gid);
        self.control.stop();
        // The control thread may hold the last reference while it answers a request.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// The capabilities of a typical NIC: no message in its completion, shorter queues, few bytes inline, and WRITEs that land in
/// any order.
fn plain_capabilities() -> Capabilities {
    Capabilities {
        max_inline: PLAIN_MAX_INLINE_BYTES,
        completion_payload: 0,
        max_send_wr: 1 << 14,
        max_recv_wr: 1 << 14,
        max_cqe: (1 << 15) - 1,
        max_rd_atomic: 16,
        write_events: false,
        atomics_include_cpu: false,
        write_order: WriteOrder::Unordered,
        ..capabilities()
    }
}

fn capabilities() -> Capabilities {
    use Operation::{
        BindWindow, CompareAndSwap, FetchAdd, InvalidateWindow, Read, Send, SendWithImm, Write,
        WriteWithImm,
    };
    Capabilities {
        max_inline: MAX_INLINE_BYTES,
        max_sge: 1,
        max_send_wr: 1 << 15,
        max_recv_wr: 1 << 15,
        max_cqe: 1 << 17,
        max_rd_atomic: 1 << 15,
        mtu: MTU_BYTES,
        max_message: MAX_MESSAGE_BYTES,
        completion_payload: COMPLETION_PAYLOAD_BYTES,
        atomics: true,
        atomics_include_cpu: true,
        srq: true,
        srq_of_other_domain: true,
        flush: false,
        max_mw: WINDOW_SLOTS as usize,
        window_bounds: true,
        reads_first_word_first: true,
        invalidation_waits: true,
        persistent_memory: false,
        wait: true,
        write_events: true,
        dynamic_connections: false,
        network: false,
        write_order: if cfg!(target_arch = "x86_64") {
            WriteOrder::LeftToRight
        } else {
            WriteOrder::Unordered
        },
        visibility: Visibility::CompletionMeansVisible,
        rc: OperationSet::of(&[
            Send,
            SendWithImm,
            Write,
            WriteWithImm,
            Read,
            CompareAndSwap,
            FetchAdd,
            BindWindow,
            InvalidateWindow,
        ]),
        uc: OperationSet::of(&[Send, SendWithImm, Write, WriteWithImm]),
        ud: OperationSet::of(&[Send, SendWithImm]),
    }
}
