//! The owner of the memory under test: it lends parts, takes them back, and gives them to the next.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farcall::CallContext;
use farcall::memory::{Memory, Region, Remote, Rights, Until};
use farcall_verbs::sim::Node;

use super::records::{PART_BYTES, Records};
use crate::dice::Dice;
use crate::value;

/// Parts of the region: few, so that each is soon another's.
const PARTS: usize = 6;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// One revoke in this many is by the blocking call, which on a rack destroys the queue pairs of its readers: only while there are faults.
const BLOCKING_ONE_IN: u64 = 8;

#[farcall::service]
pub(super) trait Lending {
    /// Lends some part, which another may have had. Gives it, and the number of the lend.
    async fn borrow(&self) -> Option<(Remote, u64)>;
    /// Lends the counter. Gives it, and the life of its owner.
    fn counter(&self) -> Option<(Remote, u64)>;
    /// Takes a lend back. Gives whether nobody has access now; otherwise another call takes it back.
    async fn take_back(&self, lend: u64) -> bool;
    /// One time in four, and only while there are faults, takes all lends back.
    fn take_all_back(&self);
}

/// What a part holds.
#[derive(Clone, Copy, Debug)]
enum Held {
    /// This value, which nobody may change.
    Free(u64),
    /// What a lend has made of it.
    Lent(u64, Remote),
}

#[derive(Debug)]
struct Part {
    held: Held,
    /// A call takes it back.
    is_busy: bool,
}

struct State {
    parts: Vec<Part>,
    dice: Dice,
}

/// A part that a call takes back. If the call is given up, another one does it again.
struct Busy<'a> {
    owner: &'a Owner,
    part: usize,
    held: Held,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.owner.state();
        state.parts[self.part] = Part { held: self.held, is_busy: false };
    }
}

/// An owner, of one life of its node.
#[derive(Clone)]
pub(super) struct Owner {
    pub(super) memory: Memory,
    region: Region,
    counter: Region,
    counted: Option<Remote>,
    life: u64,
    /// When the last fault happens.
    healed_ns: u64,
    node: Node,
    records: Records,
    state: Arc<Mutex<State>>,
}

impl Owner {
    /// An owner on this node, with a device of its own.
    pub(super) fn new(
        node: Node,
        healed_ns: u64,
        mut dice: Dice,
        records: Records,
    ) -> Result<Owner, String> {
        let failed = |what: &dyn std::fmt::Display| format!("no memory to lend: {what}");
        let memory = Memory::on(&node.device()).map_err(|error| failed(&error))?;
        let region = memory.region(PARTS * PART_BYTES).map_err(|error| failed(&error))?;
        let counter = memory.region(64).map_err(|error| failed(&error))?;
        let rights = Rights::READ | Rights::ATOMIC;
        let counted = counter.lend(0..8, rights, Until::REVOKED).map_err(|error| failed(&error))?;
        let mut state = records.lock();
        let life = state.begin_life();
        let parts = (0..PARTS).map(|part| {
            let value = state.new_value();
            region.write(part * PART_BYTES, &value::bytes(value, PART_BYTES));
            Part { held: Held::Free(value), is_busy: false }
        });
        let parts = parts.collect();
        drop(state);
        let dice = Dice::new(dice.word(), 13);
        let state = Arc::new(Mutex::new(State { parts, dice }));
        let counted = Some(counted);
        Ok(Owner { memory, region, counter, counted, life, healed_ns, node, records, state })
    }

    /// Whether faults may happen.
    fn is_faulty(&self) -> bool {
        self.node.now_ns() < self.healed_ns
    }

    /// The bytes of a part.
    fn read(&self, part: usize) -> Vec<u8> {
        let mut bytes = vec![0; PART_BYTES];
        self.region.read(part * PART_BYTES, &mut bytes);
        bytes
    }

    /// Begins to take a part back; `None`: another call does.
    fn begin_end(&self, state: &mut State, part: usize) -> Option<Busy<'_>> {
        let Part { held, is_busy } = &mut state.parts[part];
        let was_busy = std::mem::replace(is_busy, true);
        (!was_busy).then_some(*held).map(|held| Busy { owner: self, part, held })
    }

    /// Takes a part back, if it is lent, and stores another value there.
    async fn end<'a>(&self, mut busy: Busy<'a>, is_blocking: bool) -> Busy<'a> {
        if let Held::Lent(_, remote) = &busy.held {
            if is_blocking {
                self.memory.revoke(remote);
            } else {
                self.memory.start_revoke(remote).await;
            }
        }
        self.check_part(busy.part, &busy.held);
        busy.held = self.clear(busy.part);
        busy
    }

    /// Checks what is in a part that nobody has access to: of a lend only what it may have become, and of a free part what was stored.
    fn check_part(&self, part: usize, held: &Held) {
        let bytes = self.read(part);
        let mut records = self.records.lock();
        match held {
            Held::Free(value) => {
                if bytes != value::bytes(*value, PART_BYTES) {
                    records.fail(|| format!("part {part} has changed while it was not lent"));
                }
            }
            Held::Lent(lend, _) => {
                records.end(*lend, self.node.now_ns());
                records.check_bytes(*lend, 0, &bytes, "the owner");
            }
        }
    }

    /// Stores another value in a part, which is nobody's.
    fn clear(&self, part: usize) -> Held {
        let value = self.records.lock().new_value();
        self.region.write(part * PART_BYTES, &value::bytes(value, PART_BYTES));
        Held::Free(value)
    }

    /// Lends a part that is free, and has this value.
    fn lend(&self, part: usize, value: u64, dice: &mut Dice, now_ns: u64) -> Option<(Remote, u64)> {
        let rights = if dice.once_in(3) { Rights::READ | Rights::WRITE } else { Rights::READ };
        let lease_ns = dice.once_in(2).then(|| dice.magnitude(20 * US, 50 * MS));
        let lease = |ns| Until::after(Duration::from_nanos(ns));
        let begin = (part * PART_BYTES) as u64;
        let bytes = begin..begin + PART_BYTES as u64;
        let lent = self.region.lend(bytes, rights, lease_ns.map_or(Until::REVOKED, lease)).ok()?;
        let lease_ends_ns = lease_ns.map(|lease_ns| now_ns + lease_ns);
        Some((lent, self.records.lock().lend(rights, lease_ends_ns, value)))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody uses the memory any more: checks what is left.
    pub(super) fn check(&self) {
        for part in 0..PARTS {
            let held = self.state().parts[part].held;
            if let Held::Lent(_, remote) = &held {
                self.memory.revoke(remote);
            }
            self.check_part(part, &held);
        }
        self.records.lock().check_counter(self.counter.load_u64(0));
    }
}

impl Lending for Owner {
    async fn borrow(&self) -> Option<(Remote, u64)> {
        let (busy, is_blocking) = {
            let mut state = self.state();
            let part = state.dice.below(PARTS as u64) as usize;
            let is_blocking = self.is_faulty() && state.dice.once_in(BLOCKING_ONE_IN);
            (self.begin_end(&mut state, part)?, is_blocking)
        };
        let mut busy = self.end(busy, is_blocking).await;
        let Held::Free(value) = busy.held else { return None };
        // As of now: the revoke took its time.
        let now_ns = CallContext::current()?.now().as_nanos();
        let (remote, lend) = self.lend(busy.part, value, &mut self.state().dice, now_ns)?;
        busy.held = Held::Lent(lend, remote);
        Some((remote, lend))
    }

    fn counter(&self) -> Option<(Remote, u64)> {
        self.counted.map(|counted| (counted, self.life))
    }

    async fn take_back(&self, lend: u64) -> bool {
        let busy = {
            let mut state = self.state();
            let is_it = |part: &Part| matches!(part.held, Held::Lent(it, _) if it == lend);
            let Some(part) = state.parts.iter().position(is_it) else { return true };
            self.begin_end(&mut state, part)
        };
        match busy {
            Some(busy) => {
                drop(self.end(busy, false).await);
                true
            }
            None => false,
        }
    }

    fn take_all_back(&self) {
        let mut state = self.state();
        if !self.is_faulty() || !state.dice.once_in(4) {
            return;
        }
        self.region.revoke();
        for part in 0..PARTS {
            // Of one that another call takes back, nobody has access either.
            if !state.parts[part].is_busy {
                let held = state.parts[part].held;
                self.check_part(part, &held);
                state.parts[part].held = self.clear(part);
            }
        }
    }
}
