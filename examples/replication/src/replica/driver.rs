//! The thread of a replica.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use farcall::ReconnectPolicy;
use farcall::memory::{Memory, RemoteMemory};

use super::answer::Answerer;
use super::disk::{self, Disk};
use super::lent::LentMemory;
use super::membership_thread::Proposer;
use super::peer::{JoinRequest, Lent, PeerClient};
use super::rounds::{Link, Rounds};
use crate::level::Level;
use crate::membership::{Configuration, Member, Membership, ReplicaId};
use crate::node::{
    Ack, Action, Enter, Entered, GroupError, Join, Node, NodeOptions, Refusal, Reply, Status, Token,
};
use crate::record::{Epoch, Lsn};
use crate::store::{Query, Request, Store, View};

/// So many inputs may wait.
const MAX_INPUTS: usize = 16 << 10;

/// So many inputs are taken in one turn.
const INPUTS_PER_TURN: usize = 256;

/// How long the thread sleeps at most: a backup looks into its ring that often.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// How long it sleeps at most while clients wait.
const BUSY_SLEEP: Duration = Duration::from_micros(200);

/// How long a replica waits that could not join, before it tries again.
const JOIN_INTERVAL: Duration = Duration::from_millis(50);

/// What the thread is told.
pub(super) enum Input {
    Submit {
        request: Request,
        level: Level,
        answerer: Answerer<Result<Ack, GroupError>>,
    },
    Read {
        query: Query,
        answerer: Answerer<Result<View, GroupError>>,
    },
    Status {
        answerer: Answerer<Status>,
    },
    Enter {
        to: ReplicaId,
        request: Enter,
        answerer: Answerer<Result<(Entered, Lent), Refusal>>,
    },
    Join {
        request: JoinRequest,
        answerer: Answerer<Result<(Epoch, Bytes), Refusal>>,
    },
    /// A member has answered that was asked to enter.
    Entered {
        from: ReplicaId,
        epoch: Epoch,
        answer: Option<(Entered, Link)>,
    },
    /// This replica was taken in, with a snapshot, or not.
    Joined {
        id: ReplicaId,
        answer: Result<(Epoch, Bytes)>,
    },
    /// The memory of a replica that joins is reached.
    LearnerReached {
        request: JoinRequest,
        link: Option<Link>,
        answerer: Answerer<Result<(Epoch, Bytes), Refusal>>,
    },
    Proposed(Option<Configuration>),
    Configuration(Configuration),
    Synced {
        generation: u64,
        last: Lsn,
    },
    DiskFailed(String),
    Stop,
}

/// The queue of the thread.
#[derive(Clone)]
pub(super) struct Mailbox {
    sender: SyncSender<Input>,
    thread: Arc<OnceLock<Thread>>,
}

impl Mailbox {
    pub(super) fn new() -> (Mailbox, Receiver<Input>) {
        let (sender, receiver) = mpsc::sync_channel(MAX_INPUTS);
        (Mailbox { sender, thread: Arc::default() }, receiver)
    }

    pub(super) fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    /// Gives an input, if there is room.
    pub(super) fn send(&self, input: Input) -> Result<(), ()> {
        let sent = self.sender.try_send(input).map_err(|_| ());
        self.wake();
        sent
    }

    /// Gives an input, and waits for room. For threads of the replica.
    pub(super) fn deliver(&self, input: Input) {
        // If the thread has ended, nobody needs it.
        let _ = self.sender.send(input);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Who is answered.
enum Waiting {
    Command(Answerer<Result<Ack, GroupError>>),
    Read(Answerer<Result<View, GroupError>>),
}

pub(super) struct Driver {
    address: String,
    membership: Arc<dyn Membership>,
    options: NodeOptions,
    directory: Option<PathBuf>,
    mailbox: Mailbox,
    inbox: Receiver<Input>,
    begun: Instant,
    id: ReplicaId,
    node: Node,
    lent: LentMemory,
    disk: Option<Disk>,
    waiting: HashMap<Token, Waiting>,
    next_token: Token,
    /// When to try to join.
    join_at: Option<Duration>,
    /// A thread connects to a replica that wants to join: one at a time.
    is_reaching: bool,
    is_over: bool,
    /// Why it has ended.
    failure: Arc<OnceLock<String>>,
}

/// A number that no other replica or client has.
pub(crate) fn unique() -> u64 {
    rand::random()
}

impl Driver {
    pub(super) fn new(
        address: String,
        membership: Arc<dyn Membership>,
        options: NodeOptions,
        directory: Option<PathBuf>,
        memory: Memory,
        mailbox: Mailbox,
        inbox: Receiver<Input>,
    ) -> Result<Driver> {
        let id = ReplicaId(unique());
        let me = Member { id, address: address.clone() };
        let founds = membership.epoch()? == Epoch(0);
        if let Some(directory) = &directory {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let mut disk = None;
        let node = if founds {
            let (mut store, mut epoch) = (Store::default(), Epoch(0));
            if let Some(directory) = &directory {
                if let Some(recovered) = disk::recover(directory)? {
                    (store, epoch) = (recovered.store, recovered.epoch);
                }
                disk = Some(Disk::create(directory, id, &store, mailbox.clone())?);
            }
            Node::founder(me, options, store, epoch, Duration::ZERO)
        } else {
            Node::learner(me, options, Duration::ZERO)
        };
        let lent = LentMemory::new(memory, options.ring_bytes);
        Ok(Driver {
            address,
            membership,
            options,
            directory,
            mailbox,
            inbox,
            begun: Instant::now(),
            id,
            node,
            lent,
            disk,
            waiting: HashMap::new(),
            next_token: 0,
            join_at: (!founds).then_some(Duration::ZERO),
            is_reaching: false,
            is_over: false,
            failure: Arc::default(),
        })
    }

    /// Where it says why it has ended, if that is a failure.
    pub(super) fn failure(&self) -> Arc<OnceLock<String>> {
        Arc::clone(&self.failure)
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(super) fn run(mut self) {
        let mut rounds = Rounds::new(2 * self.options.detect);
        let interval = (self.options.detect / 8).max(Duration::from_millis(1));
        let proposer = Proposer::start(self.membership.clone(), self.mailbox.clone(), interval);
        let proposer = match proposer {
            Ok(proposer) => proposer,
            Err(why) => return self.fail(format!("the replica cannot start a thread: {why}")),
        };
        while !self.is_over {
            let mut worked = self.take_inputs(&mut rounds);
            for (to, epoch, result) in rounds.poll() {
                worked = true;
                self.node.on_round(self.now(), to, epoch, result);
            }
            self.begin_join();
            let now = self.now();
            self.node.turn(now, &mut self.lent);
            worked |= self.act(&mut rounds, &proposer);
            if !worked {
                let sleep = if self.node.is_busy() { BUSY_SLEEP } else { MAX_SLEEP };
                std::thread::park_timeout(sleep);
            }
        }
    }

    /// The replica ends: the group goes on without it.
    #[cold]
    fn fail(&mut self, why: String) {
        tracing::error!("{why}");
        // It is set once.
        let _ = self.failure.set(why);
        self.is_over = true;
    }

    fn take_inputs(&mut self, rounds: &mut Rounds) -> bool {
        for taken in 0..INPUTS_PER_TURN {
            let Ok(input) = self.inbox.try_recv() else { return taken > 0 };
            self.take(input, rounds);
        }
        true
    }

    fn token(&mut self, waiting: Waiting) -> Token {
        self.next_token += 1;
        self.waiting.insert(self.next_token, waiting);
        self.next_token
    }

    fn take(&mut self, input: Input, rounds: &mut Rounds) {
        let now = self.now();
        match input {
            Input::Submit { request, level, answerer } => {
                let token = self.token(Waiting::Command(answerer));
                self.node.submit(now, token, request, level);
            }
            Input::Read { query, answerer } => {
                let token = self.token(Waiting::Read(answerer));
                self.node.read(now, token, query);
            }
            Input::Status { answerer } => answerer.give(self.node.status()),
            Input::Enter { to, request, answerer } => answerer.give(self.enter(to, &request)),
            Input::Join { answerer, .. } if self.is_reaching => answerer.give(Err(Refusal::Busy)),
            Input::Join { request, answerer } => self.reach_learner(request, answerer),
            Input::LearnerReached { request, link, answerer } => {
                self.is_reaching = false;
                answerer.give(self.join(request, link, rounds));
            }
            Input::Entered { from, epoch, answer } => {
                let entered = answer.map(|(entered, link)| {
                    rounds.connect(from, epoch, link);
                    entered
                });
                self.node.on_entered(now, from, epoch, entered);
            }
            Input::Joined { id, answer } if id == self.id => {
                if let Err(why) = self.begin_from(answer) {
                    // A primary may be about to be replaced.
                    tracing::info!("not joined, it is tried again: {why:#}");
                    self.join_at = Some(now + JOIN_INTERVAL);
                }
            }
            Input::Joined { .. } => {}
            Input::Proposed(newest) => {
                self.node.on_proposed(now, newest.as_ref(), &mut self.lent);
            }
            Input::Configuration(newest) => {
                self.node.on_configuration(now, &newest, &mut self.lent);
            }
            Input::Synced { generation, last } => self.node.on_synced(generation, last),
            Input::DiskFailed(why) => {
                self.fail(format!("the disk of the replica failed: {why}"));
            }
            Input::Stop => self.is_over = true,
        }
    }

    fn enter(&mut self, to: ReplicaId, request: &Enter) -> Result<(Entered, Lent), Refusal> {
        if to != self.id {
            return Err(Refusal::Removed);
        }
        let now = self.now();
        let entered = self.node.enter(now, request, &mut self.lent)?;
        let lent = self.lent.lent().ok_or(Refusal::Busy)?;
        Ok((entered, lent))
    }

    /// Does what the node asks for. Gives whether there was something.
    fn act(&mut self, rounds: &mut Rounds, proposer: &Proposer) -> bool {
        let mut worked = false;
        loop {
            let actions = self.node.take_actions();
            if actions.is_empty() {
                return worked;
            }
            worked = true;
            for action in actions {
                match action {
                    Action::Enter { to, request } => self.ask_to_enter(to, request),
                    Action::Round { to, epoch, writes } => {
                        if let Some((to, epoch, result)) = rounds.begin(to, epoch, writes) {
                            self.node.on_round(self.now(), to, epoch, result);
                        }
                    }
                    Action::Propose(next) => proposer.propose(next),
                    Action::Reply(token, reply) => self.reply(token, reply),
                    Action::Sync(sync) => {
                        if let Some(disk) = &self.disk {
                            disk.sync(sync);
                        }
                    }
                    Action::Removed => {
                        rounds.clear();
                        self.join_at = Some(self.now());
                    }
                }
            }
        }
    }

    fn reply(&mut self, token: Token, reply: Reply) {
        match (self.waiting.remove(&token), reply) {
            (Some(Waiting::Command(answerer)), Reply::Command(result)) => answerer.give(result),
            (Some(Waiting::Read(answerer)), Reply::View(result)) => answerer.give(result),
            _ => {}
        }
    }

    fn timeout(&self) -> Duration {
        2 * self.options.detect
    }

    /// Asks a member to enter, in a thread of its own.
    fn ask_to_enter(&self, to: Member, request: Enter) {
        let (mailbox, timeout) = (self.mailbox.clone(), self.timeout());
        let (from, epoch) = (to.id, request.epoch);
        let ask = move || {
            let asked = connect(&to.address, timeout).and_then(|peer| {
                let (entered, lent) = peer.enter(to.id, request).wait()?;
                Ok((entered, link(&peer, lent)?))
            });
            mailbox.deliver(Input::Entered { from, epoch, answer: asked.ok() });
        };
        if std::thread::Builder::new().name("replica-enter".into()).spawn(ask).is_err() {
            let _ = self.mailbox.send(Input::Entered { from, epoch, answer: None });
        }
    }

    /// Connects to the memory of a replica that wants to join, in a thread of its own.
    fn reach_learner(
        &mut self,
        request: JoinRequest,
        answerer: Answerer<Result<(Epoch, Bytes), Refusal>>,
    ) {
        let (mailbox, timeout) = (self.mailbox.clone(), self.timeout());
        let reach = move || {
            let peer = connect(&request.member.address, timeout);
            let link = peer.and_then(|peer| link(&peer, request.lent)).ok();
            mailbox.deliver(Input::LearnerReached { request, link, answerer });
        };
        // If there is no thread, the answerer is dropped, and the other one tries again.
        let spawned = std::thread::Builder::new().name("replica-learner".into()).spawn(reach);
        self.is_reaching = spawned.is_ok();
    }

    fn join(
        &mut self,
        request: JoinRequest,
        link: Option<Link>,
        rounds: &mut Rounds,
    ) -> Result<(Epoch, Bytes), Refusal> {
        let link = link.ok_or(Refusal::Busy)?;
        let JoinRequest { member, ring_bytes, syncs, .. } = request;
        let (id, now) = (member.id, self.now());
        let joined = self.node.join(now, Join { member, ring_bytes, syncs })?;
        rounds.connect(id, joined.epoch, link);
        Ok((joined.epoch, joined.snapshot))
    }

    /// Tries to join, as a new replica.
    fn begin_join(&mut self) {
        let now = self.now();
        if self.join_at.is_none_or(|at| now < at) {
            return;
        }
        self.join_at = Some(now + JOIN_INTERVAL);
        let Ok(newest) = self.membership.current() else { return };
        let Some(primary) = newest.member(newest.primary).cloned() else { return };
        self.id = ReplicaId(unique());
        self.disk = None;
        let me = Member { id: self.id, address: self.address.clone() };
        self.node = Node::learner(me.clone(), self.options, now);
        self.node.lend_to(now, &newest, &mut self.lent);
        let Some(lent) = self.lent.lent() else { return };
        self.join_at = None;
        let (mailbox, timeout, id) = (self.mailbox.clone(), 8 * self.timeout(), self.id);
        let request = JoinRequest {
            member: me,
            lent,
            ring_bytes: self.options.ring_bytes as u64,
            syncs: self.options.syncs,
        };
        let ask = move || {
            let peer = connect(&primary.address, timeout);
            let answer = peer.and_then(|peer| Ok(peer.join(request).wait()?));
            mailbox.deliver(Input::Joined { id, answer });
        };
        if std::thread::Builder::new().name("replica-join".into()).spawn(ask).is_err() {
            self.join_at = Some(now + JOIN_INTERVAL);
        }
    }

    /// Begins with the snapshot of the primary.
    fn begin_from(&mut self, answer: Result<(Epoch, Bytes)>) -> Result<()> {
        let (epoch, snapshot) = answer?;
        anyhow::ensure!(epoch == self.node.status().epoch, "another epoch has begun");
        if let Some(directory) = &self.directory {
            let store = Store::from_snapshot(&snapshot).context("the snapshot cannot be read")?;
            match Disk::create(directory, self.id, &store, self.mailbox.clone()) {
                Ok(disk) => self.disk = Some(disk),
                Err(why) => {
                    self.fail(format!("the disk of the replica cannot be used: {why:#}"));
                    return Ok(());
                }
            }
        }
        let now = self.now();
        anyhow::ensure!(self.node.on_snapshot(now, &snapshot), "the snapshot cannot be read");
        Ok(())
    }
}

fn connect(address: &str, timeout: Duration) -> Result<PeerClient> {
    let connecting = PeerClient::connect(address).also::<RemoteMemory>();
    let connecting = connecting.timeout(timeout).dial_timeout(timeout);
    Ok(connecting.reconnect(ReconnectPolicy::NEVER).wait()?)
}

fn link(peer: &PeerClient, lent: Lent) -> Result<Link> {
    Ok(Link { memory: RemoteMemory::on(peer.channel())?.one_sided(), lent })
}
