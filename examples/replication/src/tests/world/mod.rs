//! A simulated world of replicas and clients: messages are late, one-sided writes land in pieces, replicas are killed, stopped and cut off.
//!
//! A stopped replica's memory can still be written. What is sent to a stopped replica reaches it when it goes on, in its order.

mod clients;
mod faults;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use self::clients::{CLIENTS, Client};
use super::history::History;
use super::linearizable::Value;
use super::replica::{RING_BYTES, Replica};
use crate::level::Level;
use crate::membership::{Configuration, InProcess, Member, ReplicaId};
use crate::node::{
    Action, Enter, Entered, Join, Joined, Node, NodeOptions, Progress, Reply, RoleName, RoundError,
    SyncWork, Token,
};
use crate::record::{Epoch, Lsn};
use crate::ring::Write;
use crate::store::{Query, Request, Store};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Faults happen until then; from then on all is well, and the group must work.
const HEALED_NS: u64 = 900 * MS;
const END_NS: u64 = 2_500 * MS;

/// The group should have so many replicas.
const REPLICAS: usize = 3;

/// What happens at a moment.
enum Event {
    Turn(ReplicaId),
    Watch(ReplicaId),
    Deliver(ReplicaId, Message),
    /// A piece of a one-sided write lands.
    Land {
        to: ReplicaId,
        lend: u64,
        write: Write,
    },
    /// All pieces of a round have landed, if they could.
    RoundEnd {
        from: ReplicaId,
        to: ReplicaId,
        epoch: Epoch,
        lend: u64,
        cut: bool,
    },
    Synced {
        at: ReplicaId,
        sync: SyncWork,
    },
    ClientAct(u64),
    ClientReply {
        client: u64,
        attempt: u64,
        reply: Reply,
    },
    ClientTimeout {
        client: u64,
        attempt: u64,
    },
    ClientRetry {
        client: u64,
        attempt: u64,
    },
    Fault,
    Join,
}

/// What a replica gets, when it runs.
enum Message {
    Enter { from: ReplicaId, request: Enter },
    Entered { from: ReplicaId, epoch: Epoch, answer: Option<(Entered, u64)> },
    Proposed(Configuration),
    JoinLate,
    RoundDone { to: ReplicaId, epoch: Epoch, result: Result<Progress, RoundError> },
    Synced { generation: u64, last: Lsn },
    Submit { token: Token, request: Request, level: Level },
    Read { token: Token, query: Query },
    JoinRequest { join: Join, lend: u64 },
    Joined { joined: Option<Joined> },
    Configuration(Configuration),
}

pub(in crate::tests) struct World {
    now: u64,
    random: SmallRng,
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    membership: InProcess,
    replicas: HashMap<ReplicaId, Replica>,
    waiting: HashMap<ReplicaId, Vec<Message>>,
    made: u64,
    cuts: HashSet<(ReplicaId, ReplicaId)>,
    clients: Vec<Client>,
    /// The client, its attempt and its sequence number by token.
    tokens: HashMap<Token, (u64, u64, u64)>,
    /// What was acknowledged as synced: the lsn, the client, the sequence number.
    synced: Vec<(Lsn, u64, u64)>,
    next_token: u64,
    next_value: u64,
    last_seen: HashMap<u64, Value>,
    history: History,
    /// What was read in the end, and when that began.
    entries: Option<(u64, Vec<u64>)>,
    problem: Option<String>,
    pub(in crate::tests) acknowledged: u64,
    pub(in crate::tests) kills: u64,
    pub(in crate::tests) epochs: u64,
}

fn options(syncs: bool) -> NodeOptions {
    NodeOptions {
        detect: Duration::from_millis(25),
        heartbeat: Duration::from_millis(5),
        ring_bytes: RING_BYTES,
        syncs,
        max_waiting: 16,
        max_lag: 1000,
    }
}

impl World {
    /// Runs a world of this seed. Gives what went wrong.
    pub(in crate::tests) fn run(seed: u64) -> Result<World, String> {
        let mut world = World {
            now: 0,
            random: SmallRng::seed_from_u64(seed),
            events: BTreeMap::new(),
            scheduled: 0,
            membership: InProcess::default(),
            replicas: HashMap::new(),
            waiting: HashMap::new(),
            made: 0,
            cuts: HashSet::new(),
            clients: Vec::new(),
            tokens: HashMap::new(),
            synced: Vec::new(),
            next_token: 0,
            next_value: 0,
            last_seen: HashMap::new(),
            history: History::default(),
            entries: None,
            problem: None,
            acknowledged: 0,
            kills: 0,
            epochs: 0,
        };
        world.start();
        while let Some(((at, _), event)) = world.events.pop_first() {
            if at > END_NS || world.problem.is_some() || world.entries.is_some() {
                break;
            }
            world.now = at;
            world.handle(event);
        }
        world.epochs = world.membership.newest().epoch.0;
        match world.finish() {
            Some(problem) => Err(format!("seed {seed}: {problem}")),
            None => Ok(world),
        }
    }

    fn start(&mut self) {
        let (member, syncs) = self.new_member();
        let now = self.time();
        let node = Node::founder(member, options(syncs), Store::default(), Epoch(0), now);
        self.add(node);
        for client in 0..CLIENTS {
            let first = Client { attempt: 0, sequence: 0, under_way: None, is_done: false };
            self.clients.push(first);
            self.after(20 * MS, Event::ClientAct(client));
        }
        self.after(2 * MS, Event::Join);
        self.after(60 * MS, Event::Fault);
    }

    fn finish(&mut self) -> Option<String> {
        if let Some(problem) = self.problem.take() {
            return Some(problem);
        }
        let Some((read_at, entries)) = self.entries.take() else {
            let roles: Vec<_> = self.alive().map(|it| self.replicas[&it].node.status()).collect();
            let newest = self.membership.newest();
            let client = &self.clients[0];
            let primary = self.replicas.get(&newest.primary).map(|it| it.node.waiting());
            return Some(format!(
                "the group does not work again: {primary:?} {client:?} {newest:?} {roles:?}"
            ));
        };
        for client in 0..CLIENTS {
            if let Some(it) = &mut self.clients[client as usize].under_way {
                it.may_have_run = true;
                self.give_up(client);
            }
        }
        self.history.problem(read_at, &entries).or_else(|| self.problem_of_disks())
    }

    /// If all replicas ended now, the disk with the largest rank would have all that was acknowledged as synced.
    fn problem_of_disks(&self) -> Option<String> {
        let best = self.replicas.values().max_by_key(|it| it.rank())?;
        let lost = self
            .synced
            .iter()
            .find(|(lsn, client, sequence)| !best.has_command(*lsn, *client, *sequence));
        lost.map(|lost| {
            format!("{lost:?} is acknowledged as synced, and not on the disk of {:?}", best.rank())
        })
    }

    // Time and chance.

    fn time(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((self.now + delay, self.scheduled), event);
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.random.random_ratio(1, count)
    }

    fn is_faulty(&self) -> bool {
        self.now < HEALED_NS
    }

    /// How long a message takes.
    fn delay(&mut self) -> u64 {
        if self.is_faulty() && self.one_in(40) {
            return self.random.random_range(MS..80 * MS);
        }
        self.random.random_range(20 * US..300 * US)
    }

    fn is_cut(&self, one: ReplicaId, other: ReplicaId) -> bool {
        self.cuts.contains(&(one.min(other), one.max(other)))
    }

    fn alive(&self) -> impl Iterator<Item = ReplicaId> {
        let mut alive: Vec<_> = self.replicas.iter().filter(|(_, it)| !it.is_dead).collect();
        alive.sort_by_key(|(id, _)| **id);
        alive.into_iter().map(|(id, _)| *id).collect::<Vec<_>>().into_iter()
    }

    // Replicas.

    fn new_member(&mut self) -> (Member, bool) {
        self.made += 1;
        let member = Member { id: ReplicaId(self.made), address: format!("{}", self.made) };
        (member, !self.made.is_multiple_of(3))
    }

    fn add(&mut self, node: Node) -> ReplicaId {
        let id = node.status().id;
        self.replicas.insert(id, Replica::new(node));
        self.after(0, Event::Turn(id));
        self.after(0, Event::Watch(id));
        id
    }

    /// Whether it runs now.
    fn runs(&self, id: ReplicaId) -> bool {
        self.replicas.get(&id).is_some_and(|it| !it.is_dead && it.stopped_until <= self.now)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Turn(id) => self.turn(id),
            Event::Watch(id) => {
                let newest = self.membership.newest();
                // One that is stopped does not ask.
                if self.runs(id) {
                    self.deliver(id, Message::Configuration(newest));
                }
                if !self.replicas[&id].is_dead {
                    let delay = self.random.random_range(2 * MS..12 * MS);
                    self.after(delay, Event::Watch(id));
                }
            }
            Event::Deliver(to, message) => self.deliver(to, message),
            Event::Land { to, lend, write } => {
                if let Some(replica) = self.replicas.get_mut(&to)
                    && !replica.is_dead
                    && replica.memory.has_access(lend)
                {
                    replica.memory.land(&write);
                }
            }
            Event::RoundEnd { from, to, epoch, lend, cut } => {
                let replica = &self.replicas[&to];
                let result = if replica.is_dead || cut {
                    Err(RoundError::Gone)
                } else if !replica.memory.has_access(lend) {
                    Err(RoundError::Fenced)
                } else {
                    Ok(replica.memory.progress)
                };
                let delay = if result == Err(RoundError::Gone) { 10 * MS } else { 10 * US };
                self.after(delay, Event::Deliver(from, Message::RoundDone { to, epoch, result }));
            }
            Event::Synced { at, sync } => {
                if let Some(replica) = self.replicas.get_mut(&at)
                    && !replica.is_dead
                {
                    replica.sync(&sync);
                    let SyncWork { generation, last, .. } = sync;
                    self.deliver(at, Message::Synced { generation, last });
                }
            }
            Event::ClientAct(client) => self.act(client),
            Event::ClientReply { client, attempt, reply } => self.on_reply(client, attempt, reply),
            Event::ClientTimeout { client, attempt } => self.on_timeout(client, attempt),
            Event::ClientRetry { client, attempt } => {
                if self.clients[client as usize].attempt == attempt {
                    self.again(client);
                }
            }
            Event::Fault => self.fault(),
            Event::Join => self.join(),
        }
    }

    fn turn(&mut self, id: ReplicaId) {
        let Some(replica) = self.replicas.get(&id).filter(|it| !it.is_dead) else { return };
        if replica.stopped_until > self.now {
            let delay = replica.stopped_until - self.now;
            return self.after(delay, Event::Turn(id));
        }
        let waiting = self.waiting.remove(&id).unwrap_or_default();
        for message in waiting {
            self.deliver(id, message);
        }
        let now = self.time();
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        replica.node.turn(now, &mut replica.memory);
        self.act_for(id);
        let delay = self.random.random_range(MS..3 * MS);
        self.after(delay, Event::Turn(id));
    }

    /// Gives a replica a message, or keeps it until the replica goes on.
    fn deliver(&mut self, to: ReplicaId, message: Message) {
        if self.replicas.get(&to).is_none_or(|it| it.is_dead) {
            return;
        }
        if !self.runs(to) || self.waiting.get(&to).is_some_and(|it| !it.is_empty()) {
            self.waiting.entry(to).or_default().push(message);
            return;
        }
        let now = self.time();
        let Some(Replica { node, memory, targets, .. }) = self.replicas.get_mut(&to) else {
            return;
        };
        match message {
            Message::Enter { from, request } => {
                let epoch = request.epoch;
                let entered = node.enter(now, &request, memory);
                let answer = entered.ok().map(|entered| (entered, memory.lend));
                self.send(to, from, Message::Entered { from: to, epoch, answer });
            }
            Message::Entered { from, epoch, answer } => {
                if let Some((_, lend)) = answer {
                    targets.insert(from, lend);
                }
                node.on_entered(now, from, epoch, answer.map(|(entered, _)| entered));
            }
            Message::JoinLate => {
                let status = node.status();
                if status.role == RoleName::Learner && status.end == Lsn(0) {
                    self.kill(to);
                }
            }
            Message::Proposed(newest) => node.on_proposed(now, Some(&newest), memory),
            Message::RoundDone { to, epoch, result } => node.on_round(now, to, epoch, result),
            Message::Synced { generation, last } => node.on_synced(generation, last),
            Message::Submit { token, request, level } => node.submit(now, token, request, level),
            Message::Read { token, query } => node.read(now, token, query),
            Message::JoinRequest { join, lend } => {
                let id = join.member.id;
                let joined = node.join(now, join).ok();
                if joined.is_some() {
                    targets.insert(id, lend);
                }
                self.send(to, id, Message::Joined { joined });
            }
            Message::Joined { joined } => {
                let epoch = node.status().epoch;
                let joined = joined.filter(|joined| joined.epoch == epoch);
                let is_usable = joined.is_some_and(|it| node.on_snapshot(now, &it.snapshot));
                let applied = node.store().applied();
                match self.replicas.get_mut(&to) {
                    Some(replica) if is_usable => replica.sync_snapshot(applied),
                    _ => self.kill(to),
                }
            }
            Message::Configuration(newest) => node.on_configuration(now, &newest, memory),
        }
        self.act_for(to);
    }

    /// A message from one replica to another, which is lost if the two are cut off from each other.
    fn send(&mut self, from: ReplicaId, to: ReplicaId, message: Message) {
        if !self.is_cut(from, to) {
            let delay = self.delay();
            self.after(delay, Event::Deliver(to, message));
        }
    }

    /// Does what a replica asks for.
    fn act_for(&mut self, id: ReplicaId) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        for action in replica.node.take_actions() {
            match action {
                Action::Enter { to, request } => {
                    // The driver gives up after some time.
                    let epoch = request.epoch;
                    let failed = Message::Entered { from: to.id, epoch, answer: None };
                    self.send(id, to.id, Message::Enter { from: id, request });
                    self.after(60 * MS, Event::Deliver(id, failed));
                }
                Action::Round { to, epoch, writes } => self.round(id, to, epoch, writes),
                Action::Propose(next) => {
                    let newest = self.membership.accept(&next);
                    let delay = self.delay();
                    self.after(delay, Event::Deliver(id, Message::Proposed(newest)));
                }
                Action::Reply(token, reply) => self.reply(token, reply),
                Action::Sync(sync) => {
                    // One after the other.
                    self.after(3 * MS, Event::Synced { at: id, sync });
                }
                Action::Removed => {
                    self.kill(id);
                }
            }
        }
    }

    /// A round: its pieces land one after the other, and each in two halves, the second one first.
    fn round(&mut self, from: ReplicaId, to: ReplicaId, epoch: Epoch, writes: Vec<Write>) {
        let lend = self.replicas[&from].targets.get(&to).copied().unwrap_or(0);
        let cut = self.is_cut(from, to);
        // Some of it lands although the connection breaks.
        let lands = if cut && self.one_in(2) { 0 } else { writes.len() };
        let slow = self.is_faulty() && self.one_in(30);
        let mut at = 0;
        for write in writes.into_iter().take(lands) {
            let middle = self.random.random_range(0..=write.bytes.len());
            let (first, second) = (write.bytes.slice(..middle), write.bytes.slice(middle..));
            for (offset, bytes) in [(write.offset + middle, second), (write.offset, first)] {
                at += if slow { self.random.random_range(0..30 * MS) } else { 5 * US };
                self.after(at, Event::Land { to, lend, write: Write { offset, bytes } });
            }
        }
        self.after(at + 5 * US, Event::RoundEnd { from, to, epoch, lend, cut });
    }

    fn kill(&mut self, id: ReplicaId) {
        if let Some(replica) = self.replicas.get_mut(&id) {
            replica.is_dead = true;
        }
        self.waiting.remove(&id);
    }

    /// Adds a replica, if there are too few. One that was killed, excluded or failed to join is replaced that way.
    fn join(&mut self) {
        let delay = self.random.random_range(5 * MS..40 * MS);
        self.after(delay, Event::Join);
        let newest = self.membership.newest();
        let runs = self.alive().count();
        if runs > REPLICAS || newest.members.len() >= REPLICAS || newest.epoch == Epoch(0) {
            return;
        }
        let (member, syncs) = self.new_member();
        let now = self.time();
        let options = options(syncs);
        let mut replica = Replica::new(Node::learner(member.clone(), options, now));
        replica.node.lend_to(now, &newest, &mut replica.memory);
        let (id, lend) = (member.id, replica.memory.lend);
        self.replicas.insert(id, replica);
        self.after(0, Event::Turn(id));
        self.after(0, Event::Watch(id));
        let join = Join { member, ring_bytes: RING_BYTES as u64, syncs };
        self.send(id, newest.primary, Message::JoinRequest { join, lend });
        // One that gets no answer gives up.
        self.after(100 * MS, Event::Deliver(id, Message::JoinLate));
    }

    /// What each replica is, for those who look at a failure.
    pub(in crate::tests) fn primaries(&self) -> usize {
        let primary = |id: &ReplicaId| self.replicas[id].node.status().role == RoleName::Primary;
        self.alive().filter(primary).count()
    }
}
