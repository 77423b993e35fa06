//! The control thread of a context. It answers peers' requests, notices dead peers, retries waiting
//! work while nothing polls, starts the threads that ask peers, and frees what dropped queue pairs leave behind. Otherwise it sleeps.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::event_fd::{new_event, ring};
use rustix::event::{Timespec, epoll};
use rustix::io;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Resource, getrlimit};

use super::context::Context;
use super::discarded::{Discarded, Remains};
use super::guesses::Guesses;
use super::identity::{self, Checked};
use super::listening::Listening;
use super::pair::{Attached, Pair};
use super::peer::{Peer, lock};
use super::questions::Unstarted;
use super::region::LentRegion;
use super::wire::{self, Answer, Gid, PROTOCOL_VERSION, Question, answer, ask};
use crate::PeerCredentials;
use crate::peer_refusal::{OnPeerRefused, PeerRefusal};

/// How often waiting work is retried while its owner does not poll.
const RETRY_INTERVAL: Duration = Duration::from_micros(200);

/// Most connections of peers: each peer's device has one, and each is a descriptor of this process.
const MAX_CONNECTIONS: usize = 4096;

/// Of the descriptors that this process may have, they take no more than one in so many.
const SHARE_OF_DESCRIPTORS: u64 = 4;

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const FIRST_FREE: u64 = 2;

/// The state that other threads share with the control thread.
#[derive(Debug)]
pub(crate) struct Control {
    epoll: OwnedFd,
    wake: OwnedFd,
    uid: u32,
    stopped: AtomicBool,
    next_token: AtomicU64,
    /// Peers whose sockets are watched for hangup.
    watched: Mutex<HashMap<u64, Weak<Peer>>>,
    /// Queue pairs with waiting work.
    waiting: Mutex<Vec<Weak<Pair>>>,
    /// Who counts refused peers.
    pub(crate) refused: OnPeerRefused,
    pub(super) discarded: Discarded,
    unstarted: Unstarted,
}

impl Control {
    /// Of a context of this user.
    pub(crate) fn new(listener: BorrowedFd<'_>, uid: u32) -> io::Result<Control> {
        let control = Control {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wake: new_event()?,
            uid,
            stopped: AtomicBool::new(false),
            next_token: AtomicU64::new(FIRST_FREE),
            watched: Mutex::default(),
            waiting: Mutex::default(),
            refused: OnPeerRefused::default(),
            discarded: Discarded::default(),
            unstarted: Unstarted::default(),
        };
        control.add(listener, LISTENER, epoll::EventFlags::IN)?;
        control.add(control.wake.as_fd(), WAKE, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        Ok(control)
    }

    fn add(&self, fd: BorrowedFd<'_>, token: u64, flags: epoll::EventFlags) -> io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
    }

    /// Watches a peer for its death. Dropping the peer closes its socket, which ends the watch.
    pub(crate) fn watch(&self, peer: &Arc<Peer>) -> io::Result<()> {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let mut watched = lock(&self.watched);
        watched.retain(|_, peer| peer.strong_count() > 0);
        watched.insert(token, Arc::downgrade(peer));
        self.add(peer.socket(), token, epoll::EventFlags::RDHUP | epoll::EventFlags::ET)
    }

    /// Retries the waiting work of `pair` periodically.
    pub(crate) fn retry(&self, pair: &Arc<Pair>) {
        lock(&self.waiting).push(Arc::downgrade(pair));
        ring(self.wake.as_fd());
    }

    /// Frees this on the control thread.
    pub(super) fn discard(&self, remains: Vec<Remains>) {
        if !remains.is_empty() && self.discarded.add(remains) {
            ring(self.wake.as_fd());
        }
    }

    /// Starts the thread that asks this peer.
    pub(super) fn start_asking(&self, peer: &Arc<Peer>) {
        if self.unstarted.add(peer) {
            ring(self.wake.as_fd());
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        ring(self.wake.as_fd());
    }

    /// The thread's body.
    pub(crate) fn run(&self, context: &Weak<Context>, listener: &OwnedFd) {
        self.serve_all(context, listener);
        self.unstarted.close();
        self.discarded.close();
    }

    fn serve_all(&self, context: &Weak<Context>, listener: &OwnedFd) {
        let mut connections = Connections::new(max_connections());
        let mut listening = Listening::new(listener, LISTENER);
        let empty =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; 64];
        while !self.stopped.load(Ordering::SeqCst) {
            let retry = (!lock(&self.waiting).is_empty()).then_some(RETRY_INTERVAL);
            let timeout = retry.into_iter().chain(listening.resume_in()).min();
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            let count = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Ok(count) => count,
                Err(io::Errno::INTR) => 0,
                Err(error) => {
                    tracing::error!(%error, "shm control thread cannot wait; peers will not be served");
                    return;
                }
            };
            for event in &events[..count] {
                match event.data.u64() {
                    LISTENER => self.accept(&mut listening, &mut connections),
                    WAKE => {}
                    token => self.serve(token, context, &mut connections),
                }
            }
            self.retry_waiting();
            self.unstarted.start();
            self.discarded.free();
            listening.resume_if_due(&self.epoll);
        }
    }

    fn accept(&self, listening: &mut Listening<'_>, connections: &mut Connections) {
        let Some(socket) = listening.accept(&self.epoll) else { return };
        let theirs = PeerCredentials::of(&socket);
        let Some(PeerCredentials { process, .. }) = theirs.ok().filter(|it| it.user == self.uid)
        else {
            self.refused.tell(PeerRefusal::OtherUser);
            tracing::warn!("a process of another user tried to reach this shm device");
            return;
        };
        if !connections.make_room() {
            self.refused.tell(PeerRefusal::NoRoom);
            tracing::warn!("this shm device has too many peers for another one");
            return;
        }
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        if self.add(socket.as_fd(), token, epoll::EventFlags::IN).is_ok() {
            let (attached, guesses) = (Vec::new(), Guesses::default());
            let connection =
                Connection { socket, process, named: None, waiting: None, attached, guesses };
            connections.by_token.insert(token, connection);
        }
    }

    /// Handles an event on a connection: a request, or its end.
    fn serve(&self, token: u64, context: &Weak<Context>, connections: &mut Connections) {
        if let Some(connection) = connections.by_token.get_mut(&token) {
            let open = context.upgrade().is_some_and(|context| connection.serve(&context));
            if open {
                self.watch_claim(token, connections);
            } else {
                connections.end(token);
            }
            return;
        }
        if let Some(claimant) = connections.claimants.remove(&token) {
            let connection = connections.by_token.get_mut(&claimant);
            let open = context
                .upgrade()
                .zip(connection)
                .is_none_or(|(context, connection)| connection.hear_of_claim(&context));
            if !open {
                connections.end(claimant);
            }
            return;
        }
        let gone = lock(&self.watched).remove(&token);
        if let Some(peer) = gone.and_then(|peer| peer.upgrade()) {
            peer.handle_death();
        }
    }

    /// Watches for the answer of a device that a connection names, if that was just asked.
    fn watch_claim(&self, claimant: u64, connections: &mut Connections) {
        let connection = connections.by_token.get_mut(&claimant);
        let Some(waiting) = connection.and_then(|it| it.waiting.as_mut()) else { return };
        if waiting.watched_as.is_some() {
            return;
        }
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        waiting.watched_as = Some(token);
        let added =
            self.add(waiting.socket.as_fd(), token, epoll::EventFlags::IN | epoll::EventFlags::ET);
        if added.is_ok() {
            connections.claimants.insert(token, claimant);
        } else {
            connections.end(claimant);
        }
    }

    fn retry_waiting(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        for weak in waiting {
            if let Some(pair) = weak.upgrade()
                && pair.progress()
            {
                lock(&self.waiting).push(weak);
            }
        }
    }
}

/// As many connections as this process can have.
fn max_connections() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let share = usize::try_from(descriptors / SHARE_OF_DESCRIPTORS).unwrap_or(MAX_CONNECTIONS);
    share.clamp(1, MAX_CONNECTIONS)
}

/// The connections from peers.
struct Connections {
    /// Later ones have higher tokens.
    by_token: HashMap<u64, Connection>,
    /// Those that wait until the device that they name is heard, by the tokens of the sockets at which it was asked: one each.
    claimants: HashMap<u64, u64>,
    most: usize,
}

impl Connections {
    fn new(most: usize) -> Connections {
        Connections { by_token: HashMap::new(), claimants: HashMap::new(), most }
    }

    /// If there are as many as may be, hangs up on one that is not attached to anything: the oldest of the process with most
    /// connections. `false`: all are attached.
    fn make_room(&mut self) -> bool {
        if self.by_token.len() + self.claimants.len() < self.most {
            return true;
        }
        let mut counts = HashMap::<Option<NonZeroU32>, usize>::new();
        for connection in self.by_token.values() {
            *counts.entry(connection.process).or_default() += 1;
        }
        let idle = self.by_token.iter().filter(|(_, connection)| !connection.is_attached());
        let first = idle
            .max_by_key(|(token, connection)| (counts.get(&connection.process), Reverse(**token)));
        let Some((&token, _)) = first else { return false };
        tracing::info!("a peer that is attached to nothing makes room for another");
        self.end(token);
        true
    }

    /// Hangs up on a peer.
    fn end(&mut self, token: u64) {
        let Some(connection) = self.by_token.remove(&token) else { return };
        if let Some(token) = connection.waiting.as_ref().and_then(|waiting| waiting.watched_as) {
            self.claimants.remove(&token);
        }
        for (_, _, attached) in connection.attached {
            attached.handle_peer_death();
        }
    }
}

/// A peer has asked for too many keys that do not exist. `false`: its connection ends.
fn refuse_guesses(context: &Context) -> bool {
    context.control.refused.tell(PeerRefusal::GuessedKeys);
    false
}

/// A request to attach in the name of a device that has been asked whether the requester is that device.
struct Waiting {
    question: Question,
    /// Where the answer comes.
    socket: OwnedFd,
    /// The token of that socket.
    watched_as: Option<u64>,
}

/// A connection from a peer.
struct Connection {
    socket: OwnedFd,
    /// `None`: of another pid namespace. All such processes count as one.
    process: Option<NonZeroU32>,
    /// The peer's device, which has confirmed that.
    named: Option<Gid>,
    /// A request to attach, until the device that it names is heard.
    waiting: Option<Waiting>,
    /// What the peer has attached to, with its queue pair and ours; notified when the connection ends.
    attached: Vec<(u32, u32, Attached)>,
    guesses: Guesses,
}

impl Connection {
    fn is_attached(&self) -> bool {
        self.attached.iter().any(|(_, _, attached)| attached.is_live())
    }

    /// Answers one request. `false`: the connection has ended, or the peer misbehaves.
    fn serve(&mut self, context: &Arc<Context>) -> bool {
        let question = match wire::receive::<Question>(&self.socket, RecvFlags::DONTWAIT) {
            Ok(Some((question, _fds))) => question,
            Err(io::Errno::AGAIN) => return true,
            Ok(None) | Err(_) => return false,
        };
        let answered = match question.what {
            _ if question.version != PROTOCOL_VERSION && question.what == ask::HELLO => {
                Err(answer::VERSION)
            }
            ask::HELLO => self.answer(&Answer::default(), &[context.words_file()]),
            ask::ATTACH if self.waiting.is_some() => Err(answer::MALFORMED),
            ask::ATTACH => self.check_attach(context, question),
            ask::CLAIM if context.has_claimed(&question.gid, &question.claim) => {
                self.answer(&Answer::default(), &[])
            }
            ask::CLAIM => Err(answer::IMPOSTOR),
            ask::REGION => self.region(context, question.rkey),
            ask::WINDOW => self.window(context, question.rkey),
            ask::CLOSED => {
                self.handle_closed(question.from_qp, question.to_qp);
                return true;
            }
            ask::WRITTEN => {
                context.written(question.rkey);
                return true;
            }
            ask::MAPPED => {
                if let Some(region) = self.reachable(context, question.rkey) {
                    region.close_if_sole();
                }
                return true;
            }
            _ => Err(answer::MALFORMED),
        };
        self.finish(answered)
    }

    /// Tells why there is no answer, if there is none. `false`: the peer does not read, or is gone.
    fn finish(&self, answered: Result<bool, u32>) -> bool {
        answered.unwrap_or_else(|status| {
            self.answer(&Answer { status, ..Answer::default() }, &[]).unwrap_or(false)
        })
    }

    /// Sends an answer. `Ok(false)`: the peer does not read its answers, or is gone.
    fn answer(&self, answer: &Answer, fds: &[BorrowedFd<'_>]) -> Result<bool, u32> {
        Ok(wire::send(self.socket.as_fd(), answer, fds, SendFlags::DONTWAIT).is_ok())
    }

    /// Attaches, once it is known that the peer has the device that it names.
    fn check_attach(&mut self, context: &Arc<Context>, question: Question) -> Result<bool, u32> {
        if self.named != Some(question.gid) {
            match identity::check(context, &question.gid, &question.claim)? {
                Checked::True => self.named = Some(question.gid),
                Checked::Asked(socket) => {
                    self.waiting = Some(Waiting { question, socket, watched_as: None });
                    return Ok(true);
                }
            }
        }
        self.attach(context, &question)
    }

    /// Hears the device that a request to attach names.
    fn hear_of_claim(&mut self, context: &Arc<Context>) -> bool {
        let Some(Waiting { question, socket, .. }) = self.waiting.take() else { return true };
        let answered = identity::hear(&socket).and_then(|()| {
            self.named = Some(question.gid);
            self.attach(context, &question)
        });
        self.finish(answered)
    }

    fn attach(&mut self, context: &Arc<Context>, question: &Question) -> Result<bool, u32> {
        let pair = context.pair(question.to_qp).ok_or(answer::NO_QUEUE_PAIR)?;
        let admitted = pair.admit(question)?;
        let fds: Vec<_> = admitted.fds.iter().map(AsFd::as_fd).collect();
        let sent = self.answer(&admitted.answer, &fds)?;
        self.attached.retain(|(_, _, attached)| attached.is_live());
        if matches!(admitted.attached, Attached::Connected(_)) {
            self.guesses.note_connection();
        }
        self.attached.push((question.from_qp, question.to_qp, admitted.attached));
        Ok(sent)
    }

    /// Hands out a region of a protection domain that the peer is connected to.
    fn region(&mut self, context: &Arc<Context>, rkey: u32) -> Result<bool, u32> {
        let region = self.reachable(context, rkey);
        let file = region.as_ref().and_then(|region| region.file());
        match region.zip(file) {
            Some((region, file)) => self.answer(&region.description(), &[file.as_fd()]),
            None if self.guesses.may_miss_region(rkey) => Err(answer::NO_REGION),
            None => Ok(refuse_guesses(context)),
        }
    }

    /// The region with this key, if the peer is connected to its domain.
    fn reachable(&self, context: &Context, rkey: u32) -> Option<Arc<LentRegion>> {
        context.region(rkey).filter(|region| {
            self.attached.iter().any(|(_, _, attached)| attached.reaches(region.pd))
        })
    }

    fn window(&mut self, context: &Arc<Context>, rkey: u32) -> Result<bool, u32> {
        match context.window(rkey) {
            Some(slot) => {
                self.guesses.note_window(rkey);
                self.answer(&Answer { slot, ..Answer::default() }, &[])
            }
            None if self.guesses.may_miss_window(rkey) => Err(answer::NO_REGION),
            None => Ok(refuse_guesses(context)),
        }
    }

    /// The peer has dropped a queue pair.
    fn handle_closed(&mut self, from_qp: u32, to_qp: u32) {
        for (_, _, attached) in
            self.attached.extract_if(.., |(from, to, _)| (*from, *to) == (from_qp, to_qp))
        {
            attached.handle_peer_death();
        }
    }
}
