//! A peer's context: the socket to its control thread, and the mapped parts of its memory.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
    connect, shutdown, socket_with,
};

use super::bell::RemoteBell;
use super::context::{Context, MAPPED_FOR_WRITING};
use super::control::Control;
use super::discarded::Remains;
use super::memfd;
use super::pair::Pair;
use super::questions::Questions;
use super::region::{MappedParts, MappedRegion};
use super::region_words::{REGION_SLOTS, RegionWords};
use super::window::{self, WINDOW_SLOTS};
use super::wire::{self, Answer, Claim, Gid, PROTOCOL_VERSION, Question, answer, ask};
use crate::memory::mapping::{Mapping, page_rounded};
use crate::random;
use crate::{Access, ConnectError, PeerCredentials};

/// How long a peer may take to answer. A peer that takes longer counts as dead, so the limit leaves ample time for one that is
/// busy or briefly stopped.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long until a region is asked for again that this process had no descriptor for.
const SHORTAGE_RETRY: Duration = Duration::from_millis(5);

/// Regions that are looked through for each one that may be dead.
const REGIONS_PER_DEAD: u64 = 32;

/// A peer's context.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(super) gid: Gid,
    /// The peer, if it is of this process: it is not asked, but looked at.
    own: Weak<Context>,
    /// Of our own context.
    control: Arc<Control>,
    /// What the context says to this peer alone, so that the peer can ask it whether a connection is its own.
    pub(super) claim: Claim,
    socket: OwnedFd,
    /// Locked from a request to its answer.
    conversation: Mutex<()>,
    words: Arc<RegionWords>,
    dead: AtomicBool,
    regions: Mutex<HashMap<u32, Arc<MappedRegion>>>,
    /// What its queue pairs ring, by the numbers that it gave.
    bells: Mutex<HashMap<u64, Weak<RemoteBell>>>,
    /// The count of deregistrations when dead ones were last searched; changed while `regions` is locked.
    looked_through_at: AtomicU64,
    /// The slots of its windows, by the upper bits of their keys.
    windows: Mutex<HashMap<u32, u32>>,
    /// Queue pairs to notify when it dies.
    pairs: Mutex<Vec<Weak<Pair>>>,
    questions: Questions,
}

/// A peer that has not answered.
#[derive(Debug)]
pub(super) struct Gone;

/// Locks a mutex and ignores poisoning. Every critical section of this device is a few plain updates, so a
/// thread that panics leaves usable data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address of a context's abstract socket. It exists while a process holds it open, and is in no
/// directory.
pub(crate) fn socket_name(uid: u32, gid: &Gid) -> io::Result<SocketAddrUnix> {
    let gid = u128::from_be_bytes(*gid);
    SocketAddrUnix::new_abstract_name(format!("farcall-shm-{uid}-{gid:032x}").as_bytes())
}

impl Peer {
    /// Connects to the control thread of a context of the same user.
    pub(crate) fn dial(
        gid: Gid,
        (own, control): (Weak<Context>, Arc<Control>),
        uid: u32,
        timeout: Duration,
    ) -> Result<Peer, ConnectError> {
        let system =
            |what| move |error: io::Errno| ConnectError::System { what, source: error.into() };
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(system("socket to the peer's device"))?;
        set_socket_timeout(&socket, Timeout::Send, Some(timeout))
            .map_err(system("timeout of the socket to the peer's device"))?;
        let name = socket_name(uid, &gid).map_err(system("name of the peer's device"))?;
        connect(&socket, &name).map_err(|error| match error {
            io::Errno::AGAIN => ConnectError::Timeout(timeout),
            error => ConnectError::PeerGone(error.into()),
        })?;
        let theirs =
            PeerCredentials::of(&socket).map_err(system("credentials of the peer's device"))?.user;
        if theirs != uid {
            return Err(ConnectError::OtherUser { theirs, ours: uid });
        }
        let hello = Question { what: ask::HELLO, version: PROTOCOL_VERSION, ..Question::default() };
        let (_, fds) = converse(&socket, &hello, timeout)?;
        let [words] = fds.as_slice() else {
            return Err(ConnectError::Malformed("no region words"));
        };
        let words = memfd::map_foreign(words.as_fd(), RegionWords::BYTES, false)
            .map_err(|_| ConnectError::Malformed("region words"))?;
        let claim = random::bytes().map_err(system("random number for the peer's device"))?;
        Ok(Peer {
            gid,
            own,
            control,
            claim,
            socket,
            conversation: Mutex::default(),
            words: Arc::new(RegionWords::new(words)),
            dead: AtomicBool::new(false),
            regions: Mutex::default(),
            bells: Mutex::default(),
            looked_through_at: AtomicU64::new(0),
            windows: Mutex::default(),
            pairs: Mutex::default(),
            questions: Questions::default(),
        })
    }

    /// Sends a request and receives its answer.
    pub(crate) fn ask(
        &self,
        question: &Question,
        timeout: Duration,
    ) -> Result<(Answer, Vec<OwnedFd>), ConnectError> {
        let _conversation = lock(&self.conversation);
        let answered = converse(&self.socket, question, timeout);
        if let Err(ConnectError::Timeout(_) | ConnectError::Malformed(_)) = answered {
            // A late answer would be taken for the next request's.
            let _ = shutdown(&self.socket, Shutdown::Both);
        }
        answered
    }

    /// The peer's region with this key, or the one that a window gives access to, if it has been asked for before.
    pub(super) fn known_region(&self, rkey: u32) -> Option<Arc<MappedRegion>> {
        self.registered(rkey).or_else(|| {
            let slot = *lock(&self.windows).get(&window::base(rkey))?;
            let bound = self.words.window(slot).load().filter(|bound| bound.rkey == rkey)?;
            self.registered(bound.region)?.window(&bound, &self.words, slot).map(Arc::new)
        })
    }

    /// The same without windows.
    fn registered(&self, rkey: u32) -> Option<Arc<MappedRegion>> {
        lock(&self.regions).get(&rkey).filter(|known| known.is_alive()).cloned()
    }

    /// Whether the peer is of this process, and answers at once.
    pub(super) fn is_own(&self) -> bool {
        self.own.strong_count() > 0
    }

    /// As [`known_region`](Peer::known_region), and asks the peer, which may take until it counts as dead.
    pub(super) fn ask_for_region(&self, rkey: u32) -> Result<Option<Arc<MappedRegion>>, Gone> {
        if let Some(known) = self.known_region(rkey) {
            return Ok(Some(known)); // Another queue pair has asked meanwhile.
        }
        match self.ask_for_registered(rkey)? {
            Some(region) => Ok(Some(region)),
            None => self.ask_for_window(rkey),
        }
    }

    fn ask_for_registered(&self, rkey: u32) -> Result<Option<Arc<MappedRegion>>, Gone> {
        let region = match self.own.upgrade() {
            Some(context) => context.region(rkey).and_then(|region| {
                let mapped = self.mapped(rkey, &region.description(), region.mapping.upgrade()?);
                if mapped.is_some() && region.sole.as_ref().is_some_and(|it| it.is_within_process())
                {
                    region.close_if_sole();
                }
                mapped
            }),
            None => {
                let Some((answer, fds)) = self.ask_where(ask::REGION, rkey)? else {
                    return Ok(None);
                };
                let [file] = fds.as_slice() else { return Ok(None) };
                let mapped = self.map_region(rkey, &answer, file.as_fd());
                if mapped.is_some() {
                    self.tell_mapped(rkey);
                }
                mapped
            }
        };
        let region = region.filter(MappedRegion::is_alive).map(Arc::new);
        if let Some(region) = &region {
            lock(&self.regions).insert(rkey, Arc::clone(region));
        }
        Ok(region)
    }

    /// Finds out where the window with such keys is.
    fn ask_for_window(&self, rkey: u32) -> Result<Option<Arc<MappedRegion>>, Gone> {
        let slot = match self.own.upgrade() {
            Some(context) => context.window(rkey),
            None => self.ask_where(ask::WINDOW, rkey)?.map(|(answer, _)| answer.slot),
        };
        let Some(slot) = slot.filter(|slot| *slot < WINDOW_SLOTS) else { return Ok(None) };
        let mut windows = lock(&self.windows);
        if windows.len() >= WINDOW_SLOTS as usize {
            windows.clear(); // Most are of windows that are gone.
        }
        windows.insert(window::base(rkey), slot);
        drop(windows);
        let bound = self.words.window(slot).load().filter(|bound| bound.rkey == rkey);
        let Some(bound) = bound else { return Ok(None) };
        let region = match self.registered(bound.region) {
            Some(region) => Some(region),
            None => self.ask_for_registered(bound.region)?,
        };
        Ok(region.and_then(|region| region.window(&bound, &self.words, slot)).map(Arc::new))
    }

    /// Asks for what is behind a key; `None`: nothing.
    fn ask_where(&self, what: u32, rkey: u32) -> Result<Option<(Answer, Vec<OwnedFd>)>, Gone> {
        let question = Question { what, rkey, ..Question::default() };
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match self.ask(&question, ANSWER_TIMEOUT) {
                Ok(answered) => return Ok(Some(answered)),
                Err(ConnectError::Timeout(_) | ConnectError::PeerGone(_)) => {
                    self.handle_death();
                    return Err(Gone);
                }
                // This process has no free descriptor, which may change.
                Err(ConnectError::System { .. }) if Instant::now() < deadline => {
                    thread::sleep(SHORTAGE_RETRY);
                }
                Err(_) => return Ok(None),
            }
        }
    }

    /// How many regions the peer has deregistered so far.
    #[inline]
    pub(crate) fn deregistrations(&self) -> u64 {
        self.words.deregistrations()
    }

    /// Forgets the regions that the peer has deregistered, and gives them, to be unmapped. It looks through all of them, so not before
    /// the peer has deregistered a share of them since the last time.
    pub(super) fn forget_dead_regions(&self) -> Vec<Remains> {
        let mut regions = lock(&self.regions);
        let (now, before) =
            (self.deregistrations(), self.looked_through_at.load(Ordering::Relaxed));
        if now.wrapping_sub(before) * REGIONS_PER_DEAD < regions.len().max(1) as u64 {
            return Vec::new();
        }
        self.looked_through_at.store(now, Ordering::Relaxed);
        let dead = regions.extract_if(|_, region| !region.is_alive());
        dead.map(|(_, region)| Remains::Region(region)).collect()
    }

    /// Maps the region that the peer described.
    fn map_region(&self, rkey: u32, answer: &Answer, file: BorrowedFd<'_>) -> Option<MappedRegion> {
        let access = Access::from_bits(u8::try_from(answer.access).ok()?)?;
        let writable = access.intersects(MAPPED_FOR_WRITING);
        let len = page_rounded(usize::try_from(answer.len).ok()?)?;
        let mapping = memfd::map_foreign(file, len, writable).ok()?;
        self.mapped(rkey, answer, Arc::new(mapping))
    }

    /// The region that the peer described, in this mapping of its length. Every number is checked before it is used.
    fn mapped(&self, rkey: u32, answer: &Answer, mapping: Arc<Mapping>) -> Option<MappedRegion> {
        let access = Access::from_bits(u8::try_from(answer.access).ok()?)?;
        if !(1..REGION_SLOTS).contains(&answer.slot)
            || answer.addr.checked_add(answer.len).is_none()
        {
            return None;
        }
        let parts = MappedParts {
            mapping,
            base: answer.addr,
            len: answer.len,
            rkey,
            access,
            pd: answer.pd,
            slot: answer.slot,
            generation: answer.generation,
        };
        Some(MappedRegion::new(parts, &self.words))
    }

    /// Makes `pair` fail when this peer dies, or at once if it is dead already.
    pub(crate) fn watch(&self, pair: &Arc<Pair>) {
        {
            let mut pairs = lock(&self.pairs);
            pairs.retain(|pair| pair.strong_count() > 0);
            pairs.push(Arc::downgrade(pair));
        }
        if self.is_dead() {
            pair.handle_peer_death();
        }
    }

    /// Handles the closed socket: the peer is gone.
    pub(crate) fn handle_death(&self) {
        self.dead.store(true, Ordering::SeqCst);
        let pairs = std::mem::take(&mut *lock(&self.pairs));
        for pair in pairs.iter().filter_map(Weak::upgrade) {
            pair.handle_peer_death();
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// The control thread of our own context.
    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// Pending requests whose answers nobody waits for on its own thread.
    pub(super) fn questions(&self) -> &Questions {
        &self.questions
    }

    /// The socket, to be watched for hangup.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Tells the peer that our queue pair is gone. There is no answer and no waiting: a peer that does not read
    /// finds out when it sends, or when this process exits.
    pub(crate) fn notify_closed(&self, from_qp: u32, to_qp: u32) {
        let closed = Question { what: ask::CLOSED, from_qp, to_qp, ..Question::default() };
        let _ = wire::send(self.socket.as_fd(), &closed, &[], SendFlags::DONTWAIT);
    }

    /// What is rung at the event with this number, of which the peer has sent a descriptor: one is kept for all queue pairs that ring it. A
    /// false number only keeps the peer itself from being woken.
    pub(super) fn bell(&self, number: u64, event: OwnedFd) -> Arc<RemoteBell> {
        let mut bells = lock(&self.bells);
        if let Some(known) = bells.get(&number).and_then(Weak::upgrade) {
            return known;
        }
        let bell = Arc::new(RemoteBell { event, calls: OnceLock::new() });
        bells.retain(|_, bell| bell.strong_count() > 0);
        bells.insert(number, Arc::downgrade(&bell));
        bell
    }

    /// Tells the peer that its region is mapped. There is no answer.
    fn tell_mapped(&self, rkey: u32) {
        let mapped = Question { what: ask::MAPPED, rkey, ..Question::default() };
        let _ = wire::send(self.socket.as_fd(), &mapped, &[], SendFlags::DONTWAIT);
    }

    /// The peer, if it is of this process.
    pub(super) fn own(&self) -> Option<Arc<Context>> {
        self.own.upgrade()
    }

    /// Tells it that we have written into a region whose owner waits for that. There is no answer. `false`: it
    /// has too much to read already.
    pub(crate) fn tell_written(&self, rkey: u32) -> bool {
        let written = Question { what: ask::WRITTEN, rkey, ..Question::default() };
        wire::send(self.socket.as_fd(), &written, &[], SendFlags::DONTWAIT).is_ok()
    }
}

fn converse(
    socket: &OwnedFd,
    question: &Question,
    timeout: Duration,
) -> Result<(Answer, Vec<OwnedFd>), ConnectError> {
    let failed = |error: io::Errno| match error {
        io::Errno::AGAIN => ConnectError::Timeout(timeout),
        io::Errno::BADMSG => ConnectError::Malformed("an answer of another size"),
        io::Errno::PIPE | io::Errno::CONNRESET => ConnectError::PeerGone(error.into()),
        error => {
            ConnectError::System { what: "talking to the peer's device", source: error.into() }
        }
    };
    let timeout = timeout.max(Duration::from_millis(1)); // Zero would mean forever.
    set_socket_timeout(socket, Timeout::Recv, Some(timeout)).map_err(failed)?;
    wire::send(socket.as_fd(), question, &[], SendFlags::empty()).map_err(failed)?;
    let (answer, fds) = wire::receive::<Answer>(socket, RecvFlags::empty())
        .map_err(failed)?
        .ok_or_else(|| ConnectError::PeerGone(io::Errno::CONNRESET.into()))?;
    match answer.status {
        answer::OK => Ok((answer, fds)),
        status => Err(ConnectError::Refused(answer::reason(status))),
    }
}
