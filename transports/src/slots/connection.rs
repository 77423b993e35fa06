//! One client's connection, as its server thread keeps it.

use farcall_core::transport::{CallToken, ClientId};
use farcall_verbs::QpNumber;
use zerocopy::FromBytes;

use super::carrier::ServerCarrier;
use super::link::Link;
use super::requests::Disconnect;
use super::wire::{Kind, split};
use crate::contract::{Calls, DropGuard, Terms};
use crate::kit::clusters::ClusterQueue;
use crate::kit::memory::Charge;
use crate::kit::roster::Member;
use crate::rendezvous::server::LargeMessages;
use crate::rendezvous::wire::{Announce, Here};

/// What became of a slot's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The client may send a request.
    Idle,
    /// An announced request waits for memory.
    Waiting,
    /// The client writes an announced request.
    Landing,
    /// A handler has the request.
    Busy,
    /// The client reads the response.
    Lent,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) phase: Phase,
    /// The response was reserved outside the slot.
    pub(crate) large_reply: bool,
    /// The generation whose request was cancelled last.
    cancelled: Option<u32>,
}

impl Slot {
    /// The request that this message announces.
    #[cold]
    pub(crate) fn announced(&mut self, message: &[u8]) -> Result<Announced, Disconnect> {
        let Some((generation, kind, body)) = split(message) else {
            return Err("a malformed header".into());
        };
        let announced = match kind {
            Kind::Announce => Announce::read_from_bytes(body).ok().map(Announced::ToWrite),
            Kind::RequestHere => Here::read_from_bytes(body).ok().map(Announced::ToRead),
            _ => return Err("a malformed header".into()),
        };
        let Some(announced) = announced else { return Err("a malformed announcement".into()) };
        self.generation = generation;
        Ok(announced)
    }

    /// The client does not wait for this use of the slot any more. `false`: it has said so before.
    pub(crate) fn cancel(&mut self) -> bool {
        self.cancelled.replace(self.generation) != Some(self.generation)
    }
}

/// A large request that is not here yet.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Announced {
    /// Its client writes it when it may.
    ToWrite(Announce),
    /// This end reads it.
    ToRead(Here),
}

impl Announced {
    /// Its length.
    pub(super) fn len(&self) -> u64 {
        match self {
            Announced::ToWrite(announce) => announce.len.get(),
            Announced::ToRead(here) => here.message_len(),
        }
    }

    /// It has no bytes, or none that are to be moved.
    pub(super) fn is_empty(&self) -> bool {
        let front = match self {
            Announced::ToWrite(_) => 0,
            Announced::ToRead(here) => here.front.len() as u64,
        };
        self.len() <= front
    }
}

#[derive(Debug)]
pub(crate) struct Connection<C> {
    pub(crate) link: Link<C>,
    pub(crate) qp: QpNumber,
    id: ClientId,
    pub(crate) slots: Box<[Slot]>,
    in_line: bool,
    /// Operations that were read since the client was last told of some, where receives are shared.
    pub(super) operations: u32,
    pub(crate) max_message: u64,
    /// The longest response that goes in its slot.
    pub(crate) max_small: usize,
    pub(crate) large: LargeMessages,
    /// Its entries of the completion queue.
    completions: Charge,
    // Last: the client sees the end of the liveness socket after that of the queue pair.
    _drop_guard: DropGuard,
}

impl<C: ServerCarrier> Connection<C> {
    pub(crate) fn new(
        link: Link<C>,
        large: LargeMessages,
        id: ClientId,
        terms: &Terms,
        completions: Charge,
        drop_guard: DropGuard,
    ) -> Connection<C> {
        let slot = Slot { generation: 0, phase: Phase::Idle, large_reply: false, cancelled: None };
        let max_message = usize::try_from(terms.max_message).unwrap_or(usize::MAX);
        Connection {
            qp: link.qp().number(),
            id,
            slots: vec![slot; terms.window as usize].into(),
            in_line: false,
            operations: 0,
            max_message: terms.max_message,
            max_small: link.max_in_slot().min(max_message),
            link,
            large,
            completions,
            _drop_guard: drop_guard,
        }
    }

    /// Its completions come to this queue.
    pub(crate) fn completes_at(&self, queue: &ClusterQueue) -> bool {
        self.completions.is_of(&queue.entries)
    }

    /// The right to answer what is in this slot now.
    #[inline]
    pub(crate) fn token(&self, slot: u32) -> CallToken {
        self.token_of(slot, self.slots[slot as usize].generation)
    }

    /// The right to answer this use of a slot.
    #[inline]
    pub(crate) fn token_of(&self, slot: u32, generation: u32) -> CallToken {
        CallToken::new(self.id.number, self.id.generation, slot, generation)
    }

    /// The slot of a call, if it still waits for its answer.
    #[inline]
    pub(crate) fn slot_of(&mut self, call: &CallToken) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(call.slot() as usize)?;
        let is_same = self.id.generation == call.client_generation()
            && slot.generation == call.generation()
            && slot.phase == Phase::Busy;
        is_same.then_some(slot)
    }
}

impl<C: ServerCarrier> Member for Connection<C> {
    fn id(&self) -> ClientId {
        self.id
    }

    fn calls(&self) -> Calls {
        if self.slots.iter().any(|slot| slot.phase != Phase::Idle) {
            return Calls::UnderWay;
        }
        Calls::ended(self.slots.iter().map(|slot| slot.generation))
    }

    #[inline]
    fn in_line(&mut self) -> &mut bool {
        &mut self.in_line
    }

    fn detach(&mut self) {
        self.link.carrier.detach();
    }
}
