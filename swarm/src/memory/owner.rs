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

#[farcall::service]
pub(super) trait Lending {
    /// Lends some part, which another may have had. Gives it, and the number of the lend.
    fn borrow(&self) -> Option<(Remote, u64)>;
    /// Lends the counter. Gives it, and the life of its owner.
    fn counter(&self) -> Option<(Remote, u64)>;
    /// Takes a lend back: when this has been answered, nobody has access.
    fn take_back(&self, lend: u64);
    /// Takes all back, if the owner is in that mood.
    fn take_all_back(&self);
}

/// What a part holds.
#[derive(Debug)]
enum Held {
    /// This value, which nobody may change.
    Free(u64),
    /// What a lend has made of it.
    Lent(u64, Remote),
}

struct State {
    parts: Vec<Held>,
    dice: Dice,
}

/// An owner, of one life of its node.
#[derive(Clone)]
pub(super) struct Owner {
    pub(super) memory: Memory,
    region: Region,
    counter: Region,
    counted: Option<Remote>,
    life: u64,
    node: Node,
    records: Records,
    state: Arc<Mutex<State>>,
}

impl Owner {
    /// An owner on this node, with a device of its own.
    pub(super) fn new(node: Node, mut dice: Dice, records: Records) -> Result<Owner, String> {
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
            Held::Free(value)
        });
        let parts = parts.collect();
        drop(state);
        let dice = Dice::new(dice.word(), 13);
        let state = Arc::new(Mutex::new(State { parts, dice }));
        let counted = Some(counted);
        Ok(Owner { memory, region, counter, counted, life, node, records, state })
    }

    /// The bytes of a part.
    fn read(&self, part: usize) -> Vec<u8> {
        let mut bytes = vec![0; PART_BYTES];
        self.region.read(part * PART_BYTES, &mut bytes);
        bytes
    }

    /// Takes a part back, if it is lent, and checks what is there: of a lend only what it may have become, and of a free part what was
    /// stored.
    fn end(&self, part: usize, held: &Held) {
        match held {
            Held::Free(value) => {
                let is_whole = self.read(part) == value::bytes(*value, PART_BYTES);
                if !is_whole {
                    let failure = || format!("part {part} has changed while it was not lent");
                    self.records.lock().fail(failure);
                }
            }
            Held::Lent(lend, remote) => {
                self.memory.revoke(remote);
                let bytes = self.read(part);
                let mut records = self.records.lock();
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
        let state = self.state();
        state.parts.iter().enumerate().for_each(|(part, held)| self.end(part, held));
        self.records.lock().check_counter(self.counter.load_u64(0));
    }
}

impl Lending for Owner {
    fn borrow(&self) -> Option<(Remote, u64)> {
        let now_ns = CallContext::current()?.now().as_nanos();
        let State { parts, dice } = &mut *self.state();
        let part = dice.below(PARTS as u64) as usize;
        self.end(part, &parts[part]);
        let free = self.clear(part);
        parts[part] = free;
        let Held::Free(value) = parts[part] else { return None };
        let (remote, lend) = self.lend(part, value, dice, now_ns)?;
        parts[part] = Held::Lent(lend, remote);
        Some((remote, lend))
    }

    fn counter(&self) -> Option<(Remote, u64)> {
        self.counted.map(|counted| (counted, self.life))
    }

    fn take_back(&self, lend: u64) {
        let mut state = self.state();
        let is_it = |held: &Held| matches!(held, Held::Lent(number, _) if *number == lend);
        if let Some(part) = state.parts.iter().position(is_it) {
            self.end(part, &state.parts[part]);
            state.parts[part] = self.clear(part);
        }
    }

    fn take_all_back(&self) {
        let mut state = self.state();
        if !state.dice.once_in(4) {
            return;
        }
        self.region.revoke();
        for part in 0..PARTS {
            self.end(part, &state.parts[part]);
            state.parts[part] = self.clear(part);
        }
    }
}
