//! The rack as its experimenter sees it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::{fmt, io};

use super::actor::{self, Actor};
use super::config::{FaultRates, SimConfig};
use super::context::Context;
use super::faults::Fault;
use super::nic::NicCounters;
use super::node::{NicResources, NodeState};
use super::world::{Halt, World, lock};
use crate::dispatch;
use crate::{Device, RemoteRegion};

/// Names a node of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(super) u16);

impl NodeId {
    /// Its number: nodes count from 0, in the order in which they were added.
    pub fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names an actor of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ActorId(u32);

/// A simulated rack: nodes with cores and a NIC each, joined by a switch, in virtual time.
///
/// Nothing moves by itself. [`step`](Sim::step) and its kin let happen what is due, and run the
/// [actors](Actor). Devices may also be used from outside of actors: what is posted there happens with the
/// next steps. One thread at a time.
pub struct Sim {
    world: Arc<Mutex<World>>,
    actors: Vec<Option<Box<dyn Actor>>>,
}

impl Sim {
    /// An empty rack. The same seed, and the same use, give the same run, bit for bit.
    pub fn new(seed: u64) -> Sim {
        Sim::with_config(seed, SimConfig::default())
    }

    /// An empty rack of another kind.
    pub fn with_config(seed: u64, config: SimConfig) -> Sim {
        Sim { world: Arc::new(Mutex::new(World::new(seed, config))), actors: Vec::new() }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// One more node.
    ///
    /// # Panics
    /// If there are 65,536 already.
    pub fn add_node(&mut self) -> NodeId {
        let mut world = self.lock();
        let number = u16::try_from(world.nodes.len()).expect("a rack of at most 65,536 nodes");
        let cores = world.config.cores;
        let seed = world.seed ^ u64::from(number) << 32;
        world.nodes.push(NodeState::new(cores, seed));
        NodeId(number)
    }

    /// A node, to open its device or to harm it.
    ///
    /// # Panics
    /// If it is a node of a larger rack.
    pub fn node(&self, node: NodeId) -> Node {
        assert!(usize::from(node.0) < self.lock().nodes.len(), "{node:?} is of another rack");
        Node { world: Arc::clone(&self.world), id: node }
    }

    /// The world's time.
    pub fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    /// Puts an actor onto a core of the node; cores are given out in turn. Its first turn is due now.
    pub fn spawn(&mut self, node: NodeId, actor: impl Actor + 'static) -> ActorId {
        self.spawn_on(node, None, actor)
    }

    /// Puts an actor onto this core of the node, where others may be already.
    ///
    /// # Panics
    /// If the node has no such core.
    pub fn spawn_pinned(
        &mut self,
        node: NodeId,
        core: usize,
        actor: impl Actor + 'static,
    ) -> ActorId {
        assert!(core < self.lock().config.cores, "no core {core}");
        self.spawn_on(node, Some(core), actor)
    }

    fn spawn_on(
        &mut self,
        node: NodeId,
        core: Option<usize>,
        actor: impl Actor + 'static,
    ) -> ActorId {
        let number = self.lock().add_actor(node.0, core);
        self.actors.push(Some(Box::new(actor)));
        ActorId(number)
    }

    /// Gives the actor a turn when something is written into a region of its node.
    pub fn watch(&mut self, actor: ActorId, region: &RemoteRegion) -> bool {
        self.lock().watch(actor.0, region.rkey)
    }

    /// Gives the actor a turn after each fault.
    pub fn wake_on_faults(&mut self, actor: ActorId) {
        self.lock().actors.on_faults.push(actor.0);
    }

    /// Gives the actor a turn, if it waits for an event.
    pub fn waker(&self, actor: ActorId) -> Waker {
        actor::waker(&self.world, actor.0)
    }

    /// Lets the next event happen. `false`: nothing will happen by itself any more.
    pub fn step(&mut self) -> bool {
        self.step_within(u64::MAX)
    }

    /// Lets the next event happen, if it is due within so much time. `false`: none is, and the clock stands.
    pub fn step_within(&mut self, ns: u64) -> bool {
        let until_ns = self.now_ns().saturating_add(ns);
        let halt = self.lock().run(until_ns, true);
        self.after(halt);
        halt != Halt::Quiet
    }

    /// Lets happen what happens in so much time, and moves the clock by that.
    pub fn run_for(&mut self, ns: u64) {
        let until_ns = self.now_ns().saturating_add(ns);
        self.run_until(until_ns);
    }

    /// Lets happen what happens until then, and moves the clock there.
    pub fn run_until(&mut self, until_ns: u64) {
        loop {
            let halt = self.lock().run(until_ns, false);
            self.after(halt);
            if halt == Halt::Quiet {
                break;
            }
        }
        let mut world = self.lock();
        world.now_ns = world.now_ns.max(until_ns);
    }

    /// Lets happen what happens until nothing more will by itself, or so much time has passed. `true`: it
    /// is idle.
    pub fn run_until_idle(&mut self, within_ns: u64) -> bool {
        let until_ns = self.now_ns().saturating_add(within_ns);
        loop {
            let halt = self.lock().run(until_ns, false);
            self.after(halt);
            if halt == Halt::Quiet {
                return self.lock().events.peek().is_none();
            }
        }
    }

    /// Does what cannot be done under the world's lock: actors use their devices.
    fn after(&mut self, halt: Halt) {
        if let Halt::Turn(number) = halt {
            let now_ns = self.now_ns();
            let slot = &mut self.actors[number as usize];
            if let Some(actor) = slot {
                let turn = actor.turn(now_ns);
                self.lock().end_turn(number, turn);
            }
        }
        let ended = self.lock().actors.take_ended();
        for number in ended {
            self.actors[number as usize] = None;
        }
    }

    /// Lets a fault happen now.
    pub fn inject(&mut self, fault: Fault) {
        self.lock().inject(fault);
        self.after(Halt::Stepped);
    }

    /// Lets a fault happen at this time.
    pub fn schedule(&mut self, at_ns: u64, fault: Fault) {
        self.lock().schedule(at_ns, fault);
    }

    /// Faults by probability, from now on.
    pub fn set_fault_rates(&mut self, rates: FaultRates) {
        self.inject(Fault::Rates(rates));
    }

    /// A hash of all that has happened: equal for equal runs.
    pub fn trace_hash(&self) -> u64 {
        self.lock().trace.hash()
    }

    /// Keeps the last `lines` of a readable trace from now on, one for each thing that happens; it costs time,
    /// and changes nothing else.
    pub fn record_trace(&mut self, lines: usize) {
        self.lock().trace.keep(lines);
    }

    /// Writes every line of the readable trace from now on; it costs time.
    pub fn write_trace(&mut self, to: impl io::Write + Send + 'static) {
        self.lock().trace.write_to(Box::new(to));
    }

    /// Sees to it that the lines are written; an error if some could not be.
    pub fn flush_trace(&mut self) -> io::Result<()> {
        self.lock().trace.flush()
    }

    /// The readable trace, as far as it was kept.
    pub fn trace(&self) -> Vec<String> {
        self.lock().trace.lines()
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let world = self.lock();
        f.debug_struct("Sim")
            .field("seed", &world.seed)
            .field("now_ns", &world.now_ns)
            .field("nodes", &world.nodes.len())
            .field("actors", &self.actors.len())
            .finish_non_exhaustive()
    }
}

/// A node of a rack. Clones are the same node.
#[derive(Clone)]
pub struct Node {
    world: Arc<Mutex<World>>,
    id: NodeId,
}

impl Node {
    /// Its name.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Its device, opened anew: of this start of the node. After the node was killed it does nothing any
    /// more, also when the node runs again.
    pub fn device(&self) -> Device {
        Device::of(dispatch::Context::Sim(Context::open(&self.world, self.id.0)))
    }

    /// Whether it runs.
    pub fn is_alive(&self) -> bool {
        lock(&self.world).node(self.id.0).alive
    }

    /// How often it was started again.
    pub fn restarts(&self) -> u32 {
        lock(&self.world).node(self.id.0).incarnation
    }

    /// The world's time.
    pub fn now_ns(&self) -> u64 {
        lock(&self.world).now_ns
    }

    /// The node of this rack that has this number, if there is one.
    pub fn neighbour(&self, number: u16) -> Option<Node> {
        let there = usize::from(number) < lock(&self.world).nodes.len();
        there.then(|| Node { world: Arc::clone(&self.world), id: NodeId(number) })
    }

    /// How many faults have happened on this rack.
    pub fn faults(&self) -> u64 {
        lock(&self.world).faults_so_far
    }

    /// Whether both run, and the way from here to there is not cut.
    pub fn reaches(&self, to: &Node) -> bool {
        let world = lock(&self.world);
        let (from, to) = (self.id.0, to.id.0);
        [from, to].iter().all(|node| world.nodes[usize::from(*node)].alive)
            && !world.cut.contains(&(from, to))
    }

    /// For an actor in its turn, or what it calls: it uses its core for so much longer. What it posts from now on
    /// leaves so much later.
    pub fn busy(&self, ns: u64) {
        lock(&self.world).charge(ns);
    }

    /// For an actor in its turn: gives it a turn later, from wherever it is woken. `None`: nobody has a turn.
    pub fn waker(&self) -> Option<Waker> {
        let actor = lock(&self.world).actors.on_turn()?;
        Some(actor::waker(&self.world, actor))
    }

    /// Writes a line of a program's own into the rack's readable trace, if anybody reads that.
    pub fn note(&self, what: impl FnOnce() -> String) {
        let reads = lock(&self.world).trace.is_read();
        if reads {
            // Not under the lock: it may ask the node.
            let what = what();
            lock(&self.world).note_node(self.id.0, || what);
        }
    }

    /// What its NIC has done so far.
    pub fn nic_counters(&self) -> NicCounters {
        lock(&self.world).node(self.id.0).nic.counters()
    }

    /// What its programs hold of its NIC now.
    pub fn nic_resources(&self) -> NicResources {
        lock(&self.world).node(self.id.0).resources()
    }

    /// Stops its system, now. See [`Fault::KillNode`].
    pub fn kill(&self) {
        lock(&self.world).inject(Fault::KillNode(self.id));
    }

    /// Takes its power away, now. See [`Fault::PowerLoss`].
    pub fn power_loss(&self) {
        lock(&self.world).inject(Fault::PowerLoss(self.id));
    }

    /// Starts it again, now. See [`Fault::RestartNode`].
    pub fn restart(&self) {
        lock(&self.world).inject(Fault::RestartNode(self.id));
    }

    /// Takes its cores away for so long, from now. See [`Fault::PauseNode`].
    pub fn pause(&self, for_ns: u64) {
        lock(&self.world).inject(Fault::PauseNode { node: self.id, for_ns });
    }

    /// For an actor in its turn: gives it a turn when something is written into a region of this node.
    /// `false`: there is no such region, or nobody has a turn.
    pub fn watch(&self, region: &RemoteRegion) -> bool {
        let mut world = lock(&self.world);
        let Some(actor) = world.actors.on_turn() else { return false };
        world.watch(actor, region.rkey)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.id.0).finish()
    }
}
