//! The user's view of the simulated rack.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::{fmt, io};

use super::actor::{self, Actor};
use super::clock::NodeClock;
use super::config::{FaultRates, SimConfig};
use super::context::Context;
use super::faults::Fault;
use super::nic::NicCounters;
use super::node::{NicResources, NodeState};
use super::world::{Halt, World, lock};
use crate::dispatch;
use crate::{Device, RemoteRegion};

/// Identifies a node of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(super) u16);

impl NodeId {
    /// Its number. Nodes are numbered from 0 in the order in which they were added.
    pub fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies an actor of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ActorId(u32);

/// A simulated rack: nodes with cores and a NIC each, joined by a switch, in virtual time.
///
/// Time only advances in [`step`](Sim::step) and the other methods that run events and [actors](Actor).
/// Devices may also be used from outside of actors: what is posted there takes effect in the next steps. Only
/// one thread may use a rack at a time.
pub struct Sim {
    world: Arc<Mutex<World>>,
    actors: Vec<Option<Box<dyn Actor>>>,
}

impl Sim {
    /// An empty rack. The same seed and the same use give the same run, bit for bit.
    pub fn new(seed: u64) -> Sim {
        Sim::with_config(seed, SimConfig::default())
    }

    /// An empty rack with this configuration.
    pub fn with_config(seed: u64, config: SimConfig) -> Sim {
        Sim { world: Arc::new(Mutex::new(World::new(seed, config))), actors: Vec::new() }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// Adds a node.
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

    /// A node, with which its device is opened and faults are injected.
    ///
    /// # Panics
    /// If the node belongs to a larger rack.
    pub fn node(&self, node: NodeId) -> Node {
        assert!(usize::from(node.0) < self.lock().nodes.len(), "{node:?} is of another rack");
        Node { world: Arc::clone(&self.world), id: node }
    }

    /// The current virtual time.
    pub fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    /// Starts an actor on a core of the node; cores are assigned in rotation. Its first turn is due immediately.
    pub fn spawn(&mut self, node: NodeId, actor: impl Actor + 'static) -> ActorId {
        self.spawn_on(node, None, actor)
    }

    /// Starts an actor on this core of the node, which may be shared with others.
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

    /// Wakes the actor when a region of its node is written. Returns whether there is such a region.
    pub fn watch(&mut self, actor: ActorId, region: &RemoteRegion) -> bool {
        self.lock().watch(actor.0, region.rkey)
    }

    /// Wakes the actor after each fault.
    pub fn wake_on_faults(&mut self, actor: ActorId) {
        self.lock().actors.on_faults.push(actor.0);
    }

    /// A waker for the actor, if it waits for an event.
    pub fn waker(&self, actor: ActorId) -> Waker {
        actor::waker(&self.world, actor.0)
    }

    /// Runs the next event. Returns `false` if only outside action can cause another event.
    pub fn step(&mut self) -> bool {
        self.step_within(u64::MAX)
    }

    /// Runs the next event if it is due within `ns`. Otherwise returns `false` without advancing the clock.
    pub fn step_within(&mut self, ns: u64) -> bool {
        let until_ns = self.now_ns().saturating_add(ns);
        let halt = self.lock().run(until_ns, true);
        self.after(halt);
        halt != Halt::Quiet
    }

    /// Runs all events of the next `ns`, and advances the clock by that.
    pub fn run_for(&mut self, ns: u64) {
        let until_ns = self.now_ns().saturating_add(ns);
        self.run_until(until_ns);
    }

    /// Runs all events until `until_ns`, and advances the clock to it.
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

    /// Runs events until none are left or `within_ns` has passed. Returns whether the simulation is idle.
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

    /// Runs what needs the lock released: actors use their devices.
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

    /// Injects a fault now.
    pub fn inject(&mut self, fault: Fault) {
        self.lock().inject(fault);
        self.after(Halt::Stepped);
    }

    /// Schedules a fault at this time.
    pub fn schedule(&mut self, at_ns: u64, fault: Fault) {
        self.lock().schedule(at_ns, fault);
    }

    /// Gives the node another clock than the rack's. Only programs see it that ask for it: see [`Node::clock_ns`].
    pub fn set_clock(&mut self, node: NodeId, clock: NodeClock) {
        self.lock().node(node.0).clock = clock;
    }

    /// Changes the probabilities of random faults.
    pub fn set_fault_rates(&mut self, rates: FaultRates) {
        self.inject(Fault::Rates(rates));
    }

    /// A hash of all events: equal for equal runs.
    pub fn trace_hash(&self) -> u64 {
        self.lock().trace.hash()
    }

    /// Keeps the last `lines` of a readable trace from now on, one line per event. It takes time, but does not
    /// change the run.
    pub fn record_trace(&mut self, lines: usize) {
        self.lock().trace.keep(lines);
    }

    /// Writes every line of the readable trace from now on. It takes time, but does not change the run.
    pub fn write_trace(&mut self, to: impl io::Write + Send + 'static) {
        self.lock().trace.write_to(Box::new(to));
    }

    /// Flushes the written trace.
    ///
    /// # Errors
    /// If a line could not be written.
    pub fn flush_trace(&mut self) -> io::Result<()> {
        self.lock().trace.flush()
    }

    /// The kept lines of the readable trace.
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

/// A node of a rack. Clones refer to the same node.
#[derive(Clone)]
pub struct Node {
    world: Arc<Mutex<World>>,
    id: NodeId,
}

impl Node {
    /// Its identifier.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Opens its device, for this start of the node. After the node is killed, the device is unusable, even once
    /// the node runs again.
    pub fn device(&self) -> Device {
        Device::of(dispatch::Context::Sim(Context::open(&self.world, self.id.0)))
    }

    /// Whether it is running.
    pub fn is_alive(&self) -> bool {
        lock(&self.world).node(self.id.0).alive
    }

    /// How often it was restarted.
    pub fn restarts(&self) -> u32 {
        lock(&self.world).node(self.id.0).incarnation
    }

    /// The current virtual time.
    pub fn now_ns(&self) -> u64 {
        lock(&self.world).now_ns
    }

    /// The node of this rack with this number, if there is one.
    pub fn neighbour(&self, number: u16) -> Option<Node> {
        let there = usize::from(number) < lock(&self.world).nodes.len();
        there.then(|| Node { world: Arc::clone(&self.world), id: NodeId(number) })
    }

    /// How many faults have happened on this rack so far.
    pub fn faults(&self) -> u64 {
        lock(&self.world).faults_so_far
    }

    /// Whether both nodes run and the connection from this node to `to` is not cut.
    pub fn reaches(&self, to: &Node) -> bool {
        let world = lock(&self.world);
        let (from, to) = (self.id.0, to.id.0);
        [from, to].iter().all(|node| world.nodes[usize::from(*node)].alive)
            && !world.cut.contains(&(from, to))
    }

    /// What the node's clock shows to the program whose turn it is: see [`SimConfig::timed_turns`] and [`Sim::set_clock`].
    pub fn clock_ns(&self) -> u64 {
        let world = lock(&self.world);
        let in_turn_ns = if world.config.timed_turns { world.actors.charged_ns() } else { 0 };
        world.nodes[usize::from(self.id.0)].clock.shows_at(world.now_ns + in_turn_ns)
    }

    /// What the node's clock shows at this time of the rack.
    pub fn clock_at(&self, rack_ns: u64) -> u64 {
        lock(&self.world).node(self.id.0).clock.shows_at(rack_ns)
    }

    /// The rack's time at which the node's clock first shows this, or some nanoseconds later.
    pub fn rack_ns_when(&self, clock_ns: u64) -> u64 {
        lock(&self.world).node(self.id.0).clock.rack_ns_when(clock_ns)
    }

    /// Adds CPU time to the turn of the current actor. Requests that it posts afterwards leave later by that
    /// time.
    pub fn busy(&self, ns: u64) {
        lock(&self.world).charge(ns);
    }

    /// The waker of the actor whose turn it is; `None` outside of turns. It may be used from anywhere.
    pub fn waker(&self) -> Option<Waker> {
        let actor = lock(&self.world).actors.on_turn()?;
        Some(actor::waker(&self.world, actor))
    }

    /// Writes a line of the program to the rack's readable trace, if that is enabled.
    pub fn note(&self, what: impl FnOnce() -> String) {
        let reads = lock(&self.world).trace.is_read();
        if reads {
            // Not under the lock: `what` may use the node.
            let what = what();
            lock(&self.world).note_node(self.id.0, || what);
        }
    }

    /// Its NIC's counters.
    pub fn nic_counters(&self) -> NicCounters {
        lock(&self.world).node(self.id.0).nic.counters()
    }

    /// What its programs hold of its NIC now.
    pub fn nic_resources(&self) -> NicResources {
        lock(&self.world).node(self.id.0).resources()
    }

    /// Stops its system now. See [`Fault::KillNode`].
    pub fn kill(&self) {
        lock(&self.world).inject(Fault::KillNode(self.id));
    }

    /// Cuts its power now. See [`Fault::PowerLoss`].
    pub fn power_loss(&self) {
        lock(&self.world).inject(Fault::PowerLoss(self.id));
    }

    /// Restarts it now. See [`Fault::RestartNode`].
    pub fn restart(&self) {
        lock(&self.world).inject(Fault::RestartNode(self.id));
    }

    /// Pauses its cores for this time from now. See [`Fault::PauseNode`].
    pub fn pause(&self, for_ns: u64) {
        lock(&self.world).inject(Fault::PauseNode { node: self.id, for_ns });
    }

    /// Wakes the actor whose turn it is when a region of this node is written. `false`: there is no such region,
    /// or no actor has a turn.
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
