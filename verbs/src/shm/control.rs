//! The control thread of a context. It answers peers' requests, notices dead peers, retries waiting
//! work while nothing polls, starts the threads that ask peers, and frees what dropped queue pairs leave behind. Otherwise it sleeps.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::event_fd::{new_event, ring};
use rustix::event::{Timespec, epoll};
use rustix::io;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, SendFlags, UCred};
use rustix::process::{Pid, Resource, Uid, getrlimit, getuid};

use super::context::Context;
use super::discarded::{Discarded, Remains};
use super::guesses::Guesses;
use super::identity;
use super::listening::Listening;
use super::pair::{Attached, Pair};
use super::peer::{Peer, lock};
use super::questions::Unstarted;
use super::region::LentRegion;
use super::wire::{self, Answer, Gid, PROTOCOL_VERSION, Question, answer, ask};
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
    pub(crate) fn new(listener: BorrowedFd<'_>) -> io::Result<Control> {
        let control = Control {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wake: new_event()?,
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
        let Some(process) = process_of(socket_peercred(&socket), getuid()) else {
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
            let connection = Connection { socket, process, named: None, attached, guesses };
            connections.by_token.insert(token, connection);
        }
    }

    /// Handles an event on a connection: a request, or its end.
    fn serve(&self, token: u64, context: &Weak<Context>, connections: &mut Connections) {
        if let Some(connection) = connections.by_token.get_mut(&token) {
            let open = context.upgrade().is_some_and(|context| connection.serve(&context));
            if !open && let Some(connection) = connections.by_token.remove(&token) {
                connection.handle_end();
            }
            return;
        }
        let gone = lock(&self.watched).remove(&token);
        if let Some(peer) = gone.and_then(|peer| peer.upgrade()) {
            peer.handle_death();
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

/// The process at the other end, if it is of our user.
fn process_of(theirs: io::Result<UCred>, ours: Uid) -> Option<Pid> {
    theirs.ok().filter(|theirs| theirs.uid == ours).map(|theirs| theirs.pid)
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
    most: usize,
}

impl Connections {
    fn new(most: usize) -> Connections {
        Connections { by_token: HashMap::new(), most }
    }

    /// If there are as many as may be, hangs up on one that is not attached to anything: the oldest of the process with most
    /// connections. `false`: all are attached.
    fn make_room(&mut self) -> bool {
        if self.by_token.len() < self.most {
            return true;
        }
        let mut counts = HashMap::<Pid, usize>::new();
        for connection in self.by_token.values() {
            *counts.entry(connection.process).or_default() += 1;
        }
        let idle = self.by_token.iter().filter(|(_, connection)| !connection.is_attached());
        let first = idle
            .max_by_key(|(token, connection)| (counts.get(&connection.process), Reverse(**token)));
        let Some((&token, _)) = first else { return false };
        tracing::info!("a peer that is attached to nothing makes room for another");
        if let Some(connection) = self.by_token.remove(&token) {
            connection.handle_end();
        }
        true
    }
}

/// A peer has asked for too many keys that do not exist. `false`: its connection ends.
fn refuse_guesses(context: &Context) -> bool {
    context.control.refused.tell(PeerRefusal::GuessedKeys);
    false
}

/// A connection from a peer.
struct Connection {
    socket: OwnedFd,
    process: Pid,
    /// The peer's device: it belongs to that process.
    named: Option<Gid>,
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
            ask::ATTACH => self.attach(context, &question),
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
        match answered {
            Ok(sent) => sent,
            Err(status) => {
                self.answer(&Answer { status, ..Answer::default() }, &[]).unwrap_or(false)
            }
        }
    }

    /// Sends an answer. `Ok(false)`: the peer does not read its answers, or is gone.
    fn answer(&self, answer: &Answer, fds: &[BorrowedFd<'_>]) -> Result<bool, u32> {
        Ok(wire::send(self.socket.as_fd(), answer, fds, SendFlags::DONTWAIT).is_ok())
    }

    fn attach(&mut self, context: &Arc<Context>, question: &Question) -> Result<bool, u32> {
        if self.named != Some(question.gid) {
            identity::check(context, &question.gid, self.process)?;
            self.named = Some(question.gid);
        }
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

    fn handle_end(self) {
        for (_, _, attached) in self.attached {
            attached.handle_peer_death();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Gid as Group, getpid};

    #[test]
    fn only_processes_of_our_user_are_peers() {
        let of =
            |uid| Ok(UCred { pid: getpid(), uid: Uid::from_raw(uid), gid: Group::from_raw(7) });
        assert_eq!(process_of(of(5), Uid::from_raw(5)), Some(getpid()));
        for (theirs, ours) in [(6, 5), (0, 5), (5, 0)] {
            assert_eq!(process_of(of(theirs), Uid::from_raw(ours)), None, "{theirs} and {ours}");
        }
        assert_eq!(process_of(Err(io::Errno::INVAL), Uid::from_raw(0)), None);
    }
}
