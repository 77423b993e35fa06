//! Actors: programs that run on the cores of nodes, a turn at a time.

use std::sync::{Arc, Mutex, Weak};
use std::task::{Wake, Waker};

use super::cpu::Warm;
use super::event::Event;
use super::world::{World, lock};

/// A program of a node: a client's thread, or a server's. It holds its device, queue pairs and memory, and
/// moves when it has a turn.
pub trait Actor {
    /// Does what can be done at this moment of the world's time, without waiting for anything.
    fn turn(&mut self, now_ns: u64) -> Turn;
}

impl<F: FnMut(u64) -> Turn> Actor for F {
    fn turn(&mut self, now_ns: u64) -> Turn {
        self(now_ns)
    }
}

/// What a turn has cost, and when the next one is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The time it took beside posting and polling, which is counted by the devices.
    pub busy_ns: u64,
    /// When to go on.
    pub next: Next,
    /// Cells looked at, each of which costs something.
    pub scanned: u32,
}

impl Turn {
    /// A turn that cost nothing of its own.
    pub const fn then(next: Next) -> Turn {
        Turn { busy_ns: 0, next, scanned: 0 }
    }

    /// Sets what it cost.
    pub const fn busy_ns(mut self, nanoseconds: u64) -> Turn {
        self.busy_ns = nanoseconds;
        self
    }

    /// Sets how many cells were looked at.
    pub const fn scanned(mut self, cells: u32) -> Turn {
        self.scanned = cells;
        self
    }
}

/// When an actor wants its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// As soon as its core is free: there is more to do.
    Now,
    /// At this time of the world, or with an event before.
    At(u64),
    /// With an event: a completion in a queue that it has polled, a wake-up of that queue's channel, a write into
    /// a region that it watches, or its waker.
    OnEvent,
    /// Never: it has finished, and is dropped.
    Never,
}

/// When actors have their turns.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    actors: Vec<Scheduled>,
    on_turn: Option<u32>,
    /// CPU time of the present turn so far.
    charged_ns: u64,
    /// Actors that are to be dropped.
    ended: Vec<u32>,
    /// Actors that have a turn after each fault.
    pub(super) on_faults: Vec<u32>,
}

#[derive(Debug)]
struct Scheduled {
    node: u16,
    core: usize,
    /// Names the turn that counts: what was scheduled before is void.
    token: u32,
    /// It waits for an event.
    parked: bool,
    /// The moment that it waits for besides, if it does.
    until_ns: Option<u64>,
    /// When its alarms ring, the next one last. An alarm is not taken back when its actor has a turn before: most
    /// actors always wait for a deadline that never comes, and keep one alarm for all of them.
    alarms: Vec<u64>,
    alive: bool,
    warm: Option<Box<Warm>>,
}

impl Schedule {
    pub(super) fn on_turn(&self) -> Option<u32> {
        self.on_turn
    }

    /// The queue pairs that the core of an actor has in its cache.
    #[inline]
    pub(super) fn warm(&mut self, actor: u32) -> &mut Warm {
        self.actors[actor as usize].warm.get_or_insert_with(|| Box::new([0; _]))
    }

    pub(super) fn charged_ns(&self) -> u64 {
        self.charged_ns
    }

    /// It has no turn any more.
    pub(super) fn end(&mut self, actor: u32) {
        self.actors[actor as usize].alive = false;
        self.ended.push(actor);
    }

    pub(super) fn take_ended(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.ended)
    }
}

impl World {
    /// A new actor, whose first turn is due at once.
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
            warm: None,
        });
        self.events.push(self.now_ns, Event::Turn { actor, token: 0 });
        actor
    }

    /// The turn under way uses its core for so much longer.
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

    /// Wakes whoever waits on a node.
    pub(super) fn wake_all(&mut self, node: u16) {
        for index in 0..self.nodes[usize::from(node)].actors.len() {
            self.wake(self.nodes[usize::from(node)].actors[index]);
        }
    }

    /// Wakes those who watch a region that was written.
    pub(super) fn wake_watchers(&mut self, node: u16, rkey: u32) {
        let regions = &self.nodes[usize::from(node)].regions;
        for index in 0..regions.watchers(rkey).len() {
            let watchers = self.nodes[usize::from(node)].regions.watchers(rkey);
            self.wake(watchers[index]);
        }
        if let Some(channel) = self.node(node).regions.take_event(rkey) {
            channel.signal();
            match channel.poller() {
                Some(actor) => self.wake(actor),
                None => self.wake_all(node),
            }
        }
    }

    /// A turn is due: whether it begins, or waits for its core.
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

    /// A turn has ended: its core is busy for what it has cost, and the next one is scheduled.
    pub(super) fn end_turn(&mut self, actor: u32, turn: Turn) {
        self.actors.on_turn = None;
        let Turn { busy_ns, next, scanned } = turn;
        let charged_ns = std::mem::take(&mut self.actors.charged_ns);
        let scan_ns = u64::from(scanned) * self.config.costs.scan_ns;
        // A turn takes some time, or time would stand still for one that always wants more.
        let cost_ns = (busy_ns.saturating_add(charged_ns + scan_ns)).max(1);
        let free_ns = self.now_ns.saturating_add(cost_ns);
        let node = self.actors.actors[actor as usize].node;
        self.note_node(node, || format!("actor {actor} took {cost_ns} ns; then {next:?}"));
        let scheduled = &mut self.actors.actors[actor as usize];
        if !scheduled.alive {
            return; // It has killed its own node.
        }
        self.nodes[usize::from(scheduled.node)].cores[scheduled.core] = free_ns;
        scheduled.token = scheduled.token.wrapping_add(1);
        let token = scheduled.token;
        scheduled.parked = matches!(next, Next::At(_) | Next::OnEvent);
        scheduled.until_ns = None;
        match next {
            // It finds its core busy, and waits behind those who wait already.
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

    /// An actor that waits for an event waits for this moment besides.
    fn set_alarm(&mut self, actor: u32, at_ns: u64) {
        let scheduled = &mut self.actors.actors[actor as usize];
        scheduled.until_ns = Some(at_ns);
        if scheduled.alarms.last().is_none_or(|next_ns| *next_ns > at_ns) {
            scheduled.alarms.push(at_ns);
            self.events.push(at_ns, Event::Alarm(actor));
        }
    }

    /// An alarm rings. The actor, if it has its turn.
    pub(super) fn ring(&mut self, actor: u32) -> Option<u32> {
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

    /// Whether an actor waits for a moment. If not, its next alarm goes.
    pub(super) fn needs_alarm(&mut self, actor: u32) -> bool {
        let scheduled = &mut self.actors.actors[actor as usize];
        let waits = scheduled.until_ns.is_some() && scheduled.parked && scheduled.alive;
        if !waits {
            scheduled.alarms.pop();
        }
        waits
    }
}

/// Gives an actor its turn, from outside of the world.
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

/// A waker of that actor.
pub(super) fn waker(world: &Arc<Mutex<World>>, actor: u32) -> Waker {
    Waker::from(Arc::new(ActorWaker { world: Arc::downgrade(world), actor }))
}

impl World {
    /// Gives those who asked for it a turn: there was a fault.
    pub(super) fn wake_for_fault(&mut self) {
        for index in 0..self.actors.on_faults.len() {
            self.wake(self.actors.on_faults[index]);
        }
    }

    /// Lets an actor watch a region of its node.
    pub(super) fn watch(&mut self, actor: u32, rkey: u32) -> bool {
        let node = self.actors.actors[actor as usize].node;
        self.node(node).regions.watch(rkey, actor)
    }
}
