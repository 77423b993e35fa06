//! Actors: programs that run on the cores of nodes, one turn at a time.

use std::sync::{Arc, Mutex, Weak};
use std::task::{Wake, Waker};

use super::cpu::PairCache;
use super::event::Event;
use super::world::{World, lock};

/// A program of a node, such as a client's or a server's thread. It owns its device, queue pairs and memory,
/// and runs only in its turns.
pub trait Actor {
    /// Does what can be done at the current virtual time, without blocking.
    fn turn(&mut self, now_ns: u64) -> Turn;
}

impl<F: FnMut(u64) -> Turn> Actor for F {
    fn turn(&mut self, now_ns: u64) -> Turn {
        self(now_ns)
    }
}

/// The cost of a turn, and when the next one is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// CPU time in addition to posting and polling, which the devices count.
    pub busy_ns: u64,
    /// When to run next.
    pub next: Next,
    /// The number of cells examined, each of which has a cost.
    pub scanned: u32,
}

impl Turn {
    /// A turn without costs of its own.
    pub const fn then(next: Next) -> Turn {
        Turn { busy_ns: 0, next, scanned: 0 }
    }

    /// Sets the CPU time.
    pub const fn busy_ns(mut self, nanoseconds: u64) -> Turn {
        self.busy_ns = nanoseconds;
        self
    }

    /// Sets the number of cells examined.
    pub const fn scanned(mut self, cells: u32) -> Turn {
        self.scanned = cells;
        self
    }
}

/// When an actor runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// As soon as its core is free: there is more to do.
    Now,
    /// At this virtual time, or earlier on an event.
    At(u64),
    /// On an event: a completion in a queue that it has polled, a wake-up of that queue's channel, a write into a
    /// region that it watches or that is watched on that channel, or its waker.
    OnEvent,
    /// Never: it has finished and is dropped.
    Never,
}

/// The schedule of all actors.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    actors: Vec<Scheduled>,
    on_turn: Option<u32>,
    /// CPU time of the current turn so far.
    charged_ns: u64,
    /// Actors to be dropped.
    ended: Vec<u32>,
    /// Actors that get a turn after each fault.
    pub(super) on_faults: Vec<u32>,
}

#[derive(Debug)]
struct Scheduled {
    node: u16,
    core: usize,
    /// Identifies the valid turn: turns scheduled earlier with other tokens are void.
    token: u32,
    /// Whether it waits for an event.
    parked: bool,
    /// The time at which it also runs without an event, if any.
    until_ns: Option<u64>,
    /// When its alarms are due, the next one last. An alarm is not cancelled when its actor runs earlier: most
    /// actors always wait for a deadline that never passes, and reuse one alarm for all of them.
    alarms: Vec<u64>,
    alive: bool,
    pair_cache: Option<Box<PairCache>>,
}

impl Schedule {
    pub(super) fn on_turn(&self) -> Option<u32> {
        self.on_turn
    }

    /// The queue pairs in the cache of an actor's core.
    #[inline]
    pub(super) fn pair_cache(&mut self, actor: u32) -> &mut PairCache {
        self.actors[actor as usize].pair_cache.get_or_insert_with(|| Box::new([0; _]))
    }

    pub(super) fn charged_ns(&self) -> u64 {
        self.charged_ns
    }

    /// Removes an actor from the schedule.
    pub(super) fn end(&mut self, actor: u32) {
        self.actors[actor as usize].alive = false;
        self.ended.push(actor);
    }

    pub(super) fn take_ended(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.ended)
    }
}

impl World {
    /// Adds an actor, whose first turn is due immediately.
    pub(super) fn add_actor(&mut self, node: u16, core: Option<usize>) -> u32 {
        let actor = self.actors.actors.len() as u32;
        let state = &mut self.nodes[usize::from(node)];
        let core = core.unwrap_or(state.actors.len() % state.cores.len());
        let alive = state.alive;
        state.actors.push(actor);
        self.actors.actors.push(Scheduled {
            node,
            core,
            token: 0,
            parked: false,
            until_ns: None,
            alarms: Vec::new(),
            alive,
            pair_cache: None,
        });
        self.events.push(self.now_ns, Event::Turn { actor, token: 0 });
        actor
    }

    /// Adds CPU time to the current turn.
    #[inline]
    pub(super) fn charge(&mut self, ns: u64) {
        if self.actors.on_turn.is_some() {
            self.actors.charged_ns += ns;
        }
    }

    /// Gives an actor that waits for an event its turn.
    #[inline]
    pub(super) fn wake(&mut self, actor: u32) {
        let scheduled = &mut self.actors.actors[actor as usize];
        if std::mem::take(&mut scheduled.parked) {
            scheduled.token = scheduled.token.wrapping_add(1);
            let token = scheduled.token;
            self.events.push(self.now_ns, Event::Turn { actor, token });
        }
    }

    /// Wakes all waiting actors of a node.
    pub(super) fn wake_all(&mut self, node: u16) {
        for index in 0..self.nodes[usize::from(node)].actors.len() {
            self.wake(self.nodes[usize::from(node)].actors[index]);
        }
    }

    /// Wakes the actors that watch a region that was written.
    pub(super) fn wake_watchers(&mut self, node: u16, rkey: u32) {
        let regions = &self.nodes[usize::from(node)].regions;
        for index in 0..regions.watchers(rkey).len() {
            let watchers = self.nodes[usize::from(node)].regions.watchers(rkey);
            self.wake(watchers[index]);
        }
        let Some((channel, is_armed)) = self.node(node).regions.take_event(rkey) else { return };
        if is_armed {
            channel.signal();
        }
        match channel.poller() {
            // It polls the region too, whether it is armed or not.
            Some(actor) => self.wake(actor),
            None if is_armed => self.wake_all(node),
            None => {}
        }
    }

    /// Handles a due turn. Returns the actor if its turn begins, or else queues it for its core.
    pub(super) fn begin_turn(&mut self, actor: u32, token: u32) -> Option<u32> {
        let scheduled = &mut self.actors.actors[actor as usize];
        if scheduled.token != token || !scheduled.alive {
            return None;
        }
        let node = &self.nodes[usize::from(scheduled.node)];
        let free_ns = node.cores[scheduled.core].max(node.paused_until_ns);
        if free_ns > self.now_ns {
            self.events.push(free_ns, Event::Turn { actor, token });
            return None;
        }
        scheduled.parked = false;
        self.actors.on_turn = Some(actor);
        self.actors.charged_ns = 0;
        self.trace.mix(self.now_ns << 20 ^ u64::from(actor));
        let (node, core) = (scheduled.node, scheduled.core);
        self.note_node(node, || format!("actor {actor} has its turn on core {core}"));
        Some(actor)
    }

    /// Ends a turn: the core is busy for its cost, and the next turn is scheduled.
    pub(super) fn end_turn(&mut self, actor: u32, turn: Turn) {
        self.actors.on_turn = None;
        let Turn { busy_ns, next, scanned } = turn;
        let charged_ns = std::mem::take(&mut self.actors.charged_ns);
        let scan_ns = u64::from(scanned) * self.config.costs.scan_ns;
        // A turn takes at least 1 ns: otherwise time would stand still for an actor that always wants to run again.
        let cost_ns = (busy_ns.saturating_add(charged_ns + scan_ns)).max(1);
        let free_ns = self.now_ns.saturating_add(cost_ns);
        let node = self.actors.actors[actor as usize].node;
        self.note_node(node, || format!("actor {actor} took {cost_ns} ns; then {next:?}"));
        let scheduled = &mut self.actors.actors[actor as usize];
        if !scheduled.alive {
            return; // The actor has killed its own node.
        }
        self.nodes[usize::from(scheduled.node)].cores[scheduled.core] = free_ns;
        scheduled.token = scheduled.token.wrapping_add(1);
        let token = scheduled.token;
        scheduled.parked = matches!(next, Next::At(_) | Next::OnEvent);
        scheduled.until_ns = None;
        match next {
            // It finds its core busy, and queues behind the actors that wait already.
            Next::Now => self.events.push(self.now_ns, Event::Turn { actor, token }),
            Next::OnEvent | Next::At(u64::MAX) => {}
            Next::At(at_ns) => self.set_alarm(actor, at_ns.max(free_ns)),
            Next::Never => {
                let node = scheduled.node;
                self.node(node).actors.retain(|other| *other != actor);
                self.actors.end(actor);
            }
        }
    }

    /// Lets an actor that waits for an event also run at this time.
    fn set_alarm(&mut self, actor: u32, at_ns: u64) {
        let scheduled = &mut self.actors.actors[actor as usize];
        scheduled.until_ns = Some(at_ns);
        if scheduled.alarms.last().is_none_or(|next_ns| *next_ns > at_ns) {
            scheduled.alarms.push(at_ns);
            self.events.push(at_ns, Event::Alarm(actor));
        }
    }

    /// Handles an alarm. Returns the actor if it runs now.
    pub(super) fn handle_alarm(&mut self, actor: u32) -> Option<u32> {
        let scheduled = &mut self.actors.actors[actor as usize];
        scheduled.alarms.pop();
        let until_ns = scheduled.until_ns.filter(|_| scheduled.parked && scheduled.alive)?;
        if until_ns > self.now_ns {
            self.set_alarm(actor, until_ns);
            return None;
        }
        scheduled.parked = false;
        scheduled.token = scheduled.token.wrapping_add(1);
        let token = scheduled.token;
        self.begin_turn(actor, token)
    }

    /// Whether an actor waits for an alarm. If not, its next alarm is removed.
    pub(super) fn needs_alarm(&mut self, actor: u32) -> bool {
        let scheduled = &mut self.actors.actors[actor as usize];
        let waits = scheduled.until_ns.is_some() && scheduled.parked && scheduled.alive;
        if !waits {
            scheduled.alarms.pop();
        }
        waits
    }
}

/// Wakes an actor from outside of the simulation.
struct ActorWaker {
    world: Weak<Mutex<World>>,
    actor: u32,
}

impl Wake for ActorWaker {
    fn wake(self: Arc<Self>) {
        if let Some(world) = self.world.upgrade() {
            lock(&world).wake(self.actor);
        }
    }
}

/// Creates a waker of that actor.
pub(super) fn waker(world: &Arc<Mutex<World>>, actor: u32) -> Waker {
    Waker::from(Arc::new(ActorWaker { world: Arc::downgrade(world), actor }))
}

impl World {
    /// Wakes the actors that asked to be woken on faults.
    pub(super) fn wake_for_fault(&mut self) {
        for index in 0..self.actors.on_faults.len() {
            self.wake(self.actors.on_faults[index]);
        }
    }

    /// Lets an actor of the node watch a region.
    pub(super) fn watch(&mut self, actor: u32, rkey: u32) -> bool {
        let node = self.actors.actors[actor as usize].node;
        self.node(node).regions.watch(rkey, actor)
    }
}
