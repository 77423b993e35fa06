//! One client's connection, as its server thread keeps it.

use farcall_core::time::Instant;
use farcall_core::transport::{CallToken, ClientId};

use super::buffers::Buffer;
use super::inbox::Inbox;
use super::large::Arriving;
use super::outbox::{Outbox, Written};
use super::readiness::WatchedStream;
use super::wire::{Header, Kind, Rules};
use crate::contract::{Calls, DropGuard, Terms};
use crate::kit::lending::Loan;
use crate::kit::roster::Member;

/// Bytes of answers that wait for a client, beyond which nothing more is read from it: some socket buffers.
const MAX_UNREAD_BYTES: usize = 256 << 10;

/// What became of a slot's request.
#[derive(Debug)]
pub(super) enum Phase {
    /// The client may send a request.
    Idle,
    /// An announced request waits for memory.
    Waiting,
    /// An announced request arrives.
    Arriving(Arriving),
    /// A handler has the request.
    Busy,
    /// A handler fills a large response.
    Draft(Buffer),
    /// The client was told of a large response.
    Offered(Buffer),
    /// It is sent, part by part.
    Sending,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) phase: Phase,
}

#[derive(Debug)]
pub(super) struct Connection {
    /// `None` until its handshake has ended.
    pub(super) stream: Option<WatchedStream>,
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    id: ClientId,
    pub(super) slots: Box<[Slot]>,
    in_line: bool,
    /// The stream has had no room for all that waits.
    pub(super) is_blocked: bool,
    pub(super) loan: Loan,
    /// Large responses that the client has not taken.
    pub(super) unfetched: u32,
    // Last: the client is told after its stream has ended.
    _drop_guard: DropGuard,
}

impl Connection {
    pub(super) fn new(id: ClientId, terms: &Terms, drop_guard: DropGuard) -> Connection {
        let slots = (0..terms.window).map(|_| Slot { generation: 0, phase: Phase::Idle });
        Connection {
            stream: None,
            inbox: Inbox::new(Rules::new(terms)),
            outbox: Outbox::default(),
            id,
            slots: slots.collect(),
            in_line: false,
            is_blocked: false,
            loan: Loan::default(),
            unfetched: 0,
            _drop_guard: drop_guard,
        }
    }

    pub(super) fn rules(&self) -> &Rules {
        self.inbox.rules()
    }

    /// The right to answer what is in this slot now.
    #[inline]
    pub(super) fn token(&self, slot: u32) -> CallToken {
        let ClientId { number, generation } = self.id;
        CallToken::new(number, generation, slot, self.slots[slot as usize].generation)
    }

    /// The slot of a call, if it still waits for its answer.
    #[inline]
    pub(super) fn slot_of(&mut self, call: &CallToken) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(call.slot() as usize)?;
        let is_same = self.id.generation == call.client_generation()
            && slot.generation == call.generation()
            && matches!(slot.phase, Phase::Busy | Phase::Draft(_));
        is_same.then_some(slot)
    }

    /// A frame without a body, for the slot's request.
    pub(super) fn push(&mut self, kind: Kind, slot: u32) {
        let generation = self.slots[slot as usize].generation;
        self.outbox.push(Header::bare(kind, slot, generation), &[]);
    }

    /// Whether more is read from it: it takes its answers.
    #[inline]
    pub(super) fn is_read(&self) -> bool {
        self.outbox.frame_bytes() <= MAX_UNREAD_BYTES
    }

    /// Nothing waits for the client to take it.
    pub(super) fn has_left(&self) -> bool {
        self.outbox.is_empty() && self.unfetched == 0
    }

    /// Prepares for the thread to sleep. `false`: there is something already.
    pub(super) fn arm(&mut self) -> bool {
        match &mut self.stream {
            // Its set watches a socket, for what `send` has said last.
            Some(watched) => watched.arm(self.is_blocked),
            None => true,
        }
    }

    /// Sends what waits, as far as there is room. `false`: the stream may have room for more.
    #[inline]
    pub(super) fn send(&mut self) -> bool {
        let Some(watched) = &mut self.stream else { return true };
        // What a client whose stream is broken has sent before can still be read; then the end comes.
        let written = self.outbox.write(&mut watched.stream).unwrap_or(Written::Blocked);
        if self.outbox.take_moved() {
            // The time is not known here.
            self.loan.move_on(Instant::ZERO);
        }
        while let Some((slot, _)) = self.outbox.next_left() {
            self.slots[slot as usize].phase = Phase::Idle;
            self.loan.give_back(slot);
            self.unfetched -= 1;
        }
        if self.is_blocked || written == Written::Blocked {
            self.set_blocked(written == Written::Blocked);
        }
        written != Written::Some
    }

    #[cold]
    fn set_blocked(&mut self, is_blocked: bool) {
        self.is_blocked = is_blocked;
        let is_read = self.is_read();
        if let Some(watched) = &mut self.stream {
            watched.set_interest(is_read, is_blocked);
        }
    }
}

impl Member for Connection {
    fn id(&self) -> ClientId {
        self.id
    }

    fn calls(&self) -> Calls {
        if self.slots.iter().any(|slot| !matches!(slot.phase, Phase::Idle)) {
            return Calls::UnderWay;
        }
        Calls::ended(self.slots.iter().map(|slot| slot.generation))
    }

    #[inline]
    fn in_line(&mut self) -> &mut bool {
        &mut self.in_line
    }

    /// Its socket makes no more events at this thread.
    fn detach(&mut self) {
        if let Some(watched) = &mut self.stream {
            watched.leave_set();
        }
    }
}
