//! The state of a simulation: all nodes and wires, the time, and the future events.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::actor::Schedule;
use super::agenda::Agenda;
use super::atomic::PendingAtomic;
use super::config::SimConfig;
use super::event::{Event, QpId};
use super::faults::Fault;
use super::memory::Publication;
use super::message::Messages;
use super::node::NodeState;
use super::packets::Transit;
use super::slots::Slots;
use super::trace::Trace;
use crate::dice::Dice;

#[derive(Debug)]
pub(crate) struct World {
    pub(super) seed: u64,
    pub(super) now_ns: u64,
    pub(super) events: Agenda,
    pub(super) dice: Dice,
    /// Of keys and secrets: programs that draw more of them meet the same faults.
    pub(super) secrets: Dice,
    pub(super) config: SimConfig,
    pub(super) nodes: Vec<NodeState>,
    pub(super) messages: Messages,
    /// WRITEs of several packets on their way.
    pub(super) transits: Vec<Transit>,
    /// Atomics that have loaded their word and not stored it.
    pub(super) atomics: Vec<PendingAtomic>,
    /// Stores that have not taken effect.
    pub(super) publications: Slots<Publication>,
    pub(super) actors: Schedule,
    /// Pairs of nodes, from and to, whose messages are lost.
    pub(super) cut: BTreeSet<(u16, u16)>,
    /// Scheduled faults.
    pub(super) faults: Vec<Fault>,
    /// The number of faults so far.
    pub(super) faults_so_far: u64,
    pub(super) trace: Trace,
}

/// Why the event loop has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// This actor's turn.
    Turn(u32),
    /// One event was processed, as requested.
    Stepped,
    /// No event is due by then.
    Quiet,
}

/// Locks the simulation, ignoring poisoning: actors run without the lock, so their panics leave it
/// consistent.
pub(super) fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(super) fn new(seed: u64, config: SimConfig) -> World {
        World {
            seed,
            now_ns: 0,
            events: Agenda::default(),
            dice: Dice::new(seed),
            secrets: Dice::new(!seed),
            config,
            nodes: Vec::new(),
            messages: Messages::default(),
            transits: Vec::new(),
            atomics: Vec::new(),
            publications: Slots::default(),
            actors: Schedule::default(),
            cut: BTreeSet::new(),
            faults: Vec::new(),
            faults_so_far: 0,
            trace: Trace::new(seed),
        }
    }

    /// Processes events until `limit_ns`, or only the next one, until an actor has its turn.
    pub(super) fn run(&mut self, limit_ns: u64, one: bool) -> Halt {
        loop {
            self.drop_idle_timers();
            let Some((at_ns, event)) = self.events.pop_until(limit_ns) else { return Halt::Quiet };
            debug_assert!(at_ns >= self.now_ns, "time went back");
            self.now_ns = at_ns;
            self.fetch_ahead();
            if let Some(actor) = self.process(event) {
                return Halt::Turn(actor);
            }
            if one {
                return Halt::Stepped;
            }
        }
    }

    /// Prefetches the memory of the next event: with a thousand clients it is in no near cache.
    #[inline]
    fn fetch_ahead(&self) {
        match self.events.upcoming() {
            Some(
                Event::Arrive(message)
                | Event::Deliver(message)
                | Event::Landed(message)
                | Event::Swap(message)
                | Event::Reply(message),
            ) => self.messages.fetch_ahead(message),
            Some(Event::Launch { qp, .. } | Event::Answer { to: qp, .. }) => {
                if let Some(node) = self.nodes.get(usize::from(qp.node)) {
                    node.pairs.fetch_ahead(qp.number);
                }
            }
            _ => {}
        }
    }

    /// Drops timers whose owners wait for nothing: a simulation with no other events is idle.
    #[inline]
    fn drop_idle_timers(&mut self) {
        while self.events.only_timers()
            && let Some((_, Some(timer))) = self.events.peek()
        {
            let is_needed = match timer {
                Event::Timer(qp) => self.pair(qp).is_some_and(|pair| {
                    pair.timer_set = pair.waits();
                    pair.timer_set
                }),
                Event::Alarm(actor) => self.needs_alarm(actor),
                _ => true,
            };
            if is_needed {
                return;
            }
            self.events.drop_timer();
        }
    }

    /// Processes one event. Returns the actor that has its turn, if any.
    fn process(&mut self, event: Event) -> Option<u32> {
        match event {
            Event::Doorbell { qp, rung, lines } => self.handle_doorbell(qp, rung, lines),
            Event::Resume { qp, context_read } => self.resume(qp, context_read),
            Event::Launch { qp, epoch, psn } => self.launch(qp, epoch, psn),
            Event::Arrive(message) => self.arrive(message),
            Event::Deliver(message) => self.deliver(message),
            Event::Chunk { message, chunk } => self.land_chunk(message, chunk),
            Event::Landed(message) => self.finish_landing(message),
            Event::Reply(message) => self.reply(message),
            Event::Swap(message) => self.finish_atomic(message),
            Event::Answer { to, psn, answer, processed } => {
                self.handle_answer(to, psn, answer, processed)
            }
            Event::Retry(qp) => self.retry(qp),
            Event::Flush(qp) => self.flush(qp),
            Event::Timer(qp) => self.handle_timer(qp),
            Event::Publish(store) => self.store(store),
            Event::Alarm(actor) => return self.handle_alarm(actor),
            Event::Turn { actor, token } => return self.begin_turn(actor, token),
            Event::Fault(index) => self.apply_scheduled_fault(index),
        }
        None
    }

    /// Adds a line about a queue pair to the readable trace, if that is enabled.
    #[inline]
    pub(super) fn note(&mut self, at: QpId, what: impl FnOnce() -> String) {
        if self.trace.is_read() {
            self.say(at, what());
        }
    }

    /// Adds a line about a node to the readable trace, if that is enabled.
    #[inline]
    pub(super) fn note_node(&mut self, node: u16, what: impl FnOnce() -> String) {
        if self.trace.is_read() {
            let line = format!("{:>12} ns  node {node}: {}", self.now_ns, what());
            self.trace.line(line);
        }
    }

    /// Adds a line to the readable trace.
    #[cold]
    pub(super) fn say(&mut self, at: QpId, what: String) {
        let line = format!("{:>12} ns  node {} qp {:#x}: {what}", self.now_ns, at.node, at.number);
        self.trace.line(line);
    }
}
