//! The server's carrier: requests out of a place of the pool and out of the client's log, responses by WRITE.

use std::collections::VecDeque;

use farcall_core::time::Instant;
use farcall_core::transport::Message;
use farcall_verbs::{Buffer, RemoteSlice, SharedRegion, WorkCompletion, WorkRequest};

use super::guard::Guard;
use super::log::LogReader;
use super::pins::Pin;
use super::places::TellsGone;
use super::pool::PoolLayout;
use super::priority::Work;
use super::stamp::{self, Expected, stamped_bytes};
use super::wire::{GROWN, LEFT, Note};
use crate::kit::scratch::Scratch;
use crate::kit::sender::Sender;
use crate::rendezvous::server::Misbehaved;
use crate::slots::carrier::{ArrivedOp, Carrier, ServerCarrier, Turn, Waiting};
use crate::slots::cells::CellTurn;
use crate::slots::wire::{Op, put_note};
use crate::slots::writes::Writes;

/// Where a client is, as its server knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Its group is not served.
    Outside,
    /// It is served. Its requests come out of its log until it knows of its place, which the next response tells.
    Served { place: Option<u32>, is_told: bool },
    /// Its time is over. The next response tells it to leave its place, if nothing has told it yet; it has not said that it has.
    Leaving { place: u32, is_told: bool },
    /// It has left its place, which can be given to another.
    Left,
}

/// Most operations that are deferred: a call may be cancelled, and the call in its slot before it; and the client says that it has
/// left its place.
const fn most_deferred(window: u32) -> usize {
    2 * window as usize + 1
}

/// How a client leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// It knew of no place.
    AtOnce,
    /// It must be told, by a response or if none goes to it otherwise, and confirms it.
    WhenTold,
}

/// A server's end of a connection.
#[derive(Debug)]
pub(super) struct Served {
    /// Where the client says how far its log has grown, and its slots for responses.
    writes: Writes,
    pool: SharedRegion,
    layout: PoolLayout,
    slot_bytes: u32,
    window: u32,
    key: u32,
    /// Keeps others out of this client's place.
    guard: Option<Guard>,
    epoch: u32,
    /// Requests are found by looking, and not by their immediates.
    looks: bool,
    /// It is served in every slice.
    pin: Option<Pin>,
    /// Whose connection it is.
    caller: u64,
    /// The doorbell rings for each response.
    rings_each: bool,
    /// Requests whose immediates have arrived.
    announced: u32,
    standing: Standing,
    turn: CellTurn,
    /// Cells of which requests were taken in this stay.
    used: u32,
    /// Requests that were taken, since the schedule asked last.
    work: Work,
    /// Since when requests of its log wait for its group to be served.
    waits_since: Option<Instant>,
    /// Operations that were handled, round in 16 bits.
    operations: u16,
    log: LogReader,
    /// The word that next says how far the log has grown.
    end_word: u32,
    /// Operations that came after requests of the log which are not taken yet: up to where it had grown.
    deferred: VecDeque<(u64, Op, u32)>,
    _tells_gone: TellsGone,
}

/// What is the same for all clients of a thread, and what is not.
#[derive(Debug)]
pub(super) struct PoolOfThread {
    pub(super) pool: SharedRegion,
    pub(super) layout: PoolLayout,
    pub(super) key: u32,
    pub(super) guard: Option<Guard>,
    pub(super) looks: bool,
    pub(super) pin: Option<Pin>,
    /// Whose connection it is, as the client says.
    pub(super) caller: u64,
    /// The doorbell rings for each response, and not for all of a turn.
    pub(super) rings_each: bool,
    pub(super) tells_gone: TellsGone,
}

impl Served {
    pub(super) fn new(
        writes: Writes,
        thread: PoolOfThread,
        (window, slot_bytes): (u32, u32),
        log: LogReader,
    ) -> Served {
        let PoolOfThread { pool, layout, key, guard, looks, pin, caller, rings_each, tells_gone } =
            thread;
        Served {
            writes,
            pool,
            layout,
            slot_bytes,
            window,
            key,
            guard,
            epoch: 0,
            looks,
            pin,
            caller,
            rings_each,
            announced: 0,
            standing: Standing::Outside,
            turn: CellTurn::new(window),
            used: 0,
            work: Work::default(),
            waits_since: None,
            operations: 0,
            log,
            end_word: 0,
            deferred: VecDeque::with_capacity(most_deferred(window)),
            _tells_gone: tells_gone,
        }
    }

    /// The client is served from now on.
    pub(super) fn enter(&mut self, place: Option<u32>) {
        debug_assert_eq!(self.standing, Standing::Outside);
        self.standing = Standing::Served { place, is_told: false };
    }

    /// The client is served, had found no place, and gets one.
    pub(super) fn take_place(&mut self, place: u32) {
        debug_assert_eq!(self.standing, Standing::Served { place: None, is_told: false });
        self.standing = Standing::Served { place: Some(place), is_told: false };
    }

    /// The client's time is over.
    pub(super) fn leave(&mut self) -> Leave {
        match self.standing {
            Standing::Served { place: Some(place), is_told: true } => {
                self.standing = Standing::Leaving { place, is_told: false };
                Leave::WhenTold
            }
            Standing::Served { .. } => {
                self.standing = Standing::Outside;
                Leave::AtOnce
            }
            Standing::Outside | Standing::Leaving { .. } | Standing::Left => Leave::AtOnce,
        }
    }

    /// The client must leave its place, and no response has told it yet.
    pub(super) fn must_be_told(&self) -> bool {
        matches!(self.standing, Standing::Leaving { is_told: false, .. })
    }

    /// The client is told to leave its place, not by a response.
    pub(super) fn told(&mut self) {
        if let Standing::Leaving { is_told, .. } = &mut self.standing {
            *is_told = true;
        }
    }

    /// Whether the client has left its place, and cannot write there any more: once.
    pub(super) fn take_left(&mut self, sender: &mut Sender) -> bool {
        let has_left = self.standing == Standing::Left
            && self.guard.as_mut().is_none_or(|guard| guard.close(sender));
        if has_left {
            self.standing = Standing::Outside;
        }
        has_left
    }

    /// Cells of its place that may hold trailers: those that it used, and the next, which may hold a request with a foreign stamp.
    pub(super) fn cells_to_clear(&self) -> u32 {
        self.used + 1
    }

    /// Its requests wait for its group, now if not before.
    pub(super) fn wait_since(&mut self, now: Instant) {
        self.waits_since.get_or_insert(now);
    }

    /// Since when its requests wait, until the first are taken.
    #[inline]
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.waits_since
    }

    /// The requests that were taken since this was called last.
    pub(super) fn take_work(&mut self) -> Work {
        std::mem::take(&mut self.work)
    }

    /// The client is served in every slice.
    pub(super) fn is_pinned(&self) -> bool {
        self.pin.is_some()
    }

    /// Whose connection it is, as the client says: those of a caller are served at the same time.
    pub(super) fn caller(&self) -> u64 {
        self.caller
    }

    /// The client is neither served nor on its way out.
    pub(super) fn is_outside(&self) -> bool {
        self.standing == Standing::Outside
    }

    /// An operation was put off, and nothing comes before it any more.
    pub(super) fn has_due_operation(&self) -> bool {
        self.due_operation().is_some()
    }

    /// The operation that was put off first, if nothing comes before it any more.
    #[inline]
    fn due_operation(&self) -> Option<(Op, u32)> {
        let &(after, op, argument) = self.deferred.front()?;
        // What waits in the place says that it was sent before the next operation.
        (self.log.taken() >= after && self.waiting_in_place().is_none()).then_some((op, argument))
    }

    /// There are requests in its log that were not taken.
    pub(super) fn has_more(&self) -> bool {
        self.log.has_more()
    }

    /// What to READ of its log next. Once it is posted, [`begin_read`](Served::begin_read).
    #[inline]
    pub(super) fn next_read(&self) -> Option<RemoteSlice> {
        self.log.next()
    }

    pub(super) fn begin_read(&mut self, read: &RemoteSlice) {
        self.log.begin(read);
    }

    /// The place into which the client may write.
    #[inline]
    fn place_in_use(&self) -> Option<u32> {
        match self.standing {
            Standing::Served { place, is_told: true } => place,
            Standing::Leaving { place, .. } => Some(place),
            _ => None,
        }
    }

    /// The next request of the log, if none in the place was sent before: the log is used while the client has no place, so what comes
    /// behind an operation that is deferred comes behind the requests in the place, too.
    #[inline]
    fn waiting_in_log(&self) -> Option<Waiting> {
        match self.deferred.front() {
            Some(&(after, ..)) if self.log.taken() >= after => None,
            _ => self.log.waiting(),
        }
    }

    #[inline]
    fn waiting_in_place(&self) -> Option<Waiting> {
        let place = self.place_in_use()?;
        if !self.looks && self.announced == 0 {
            return None;
        }
        let end = self.layout.cell_end(place, self.turn.cell()) as usize;
        let expected = Expected {
            stamp: stamp::of(self.key, self.epoch),
            number: self.turn.number(),
            operations: self.operations,
        };
        stamp::look(&self.pool, end, &expected)
    }

    #[cold]
    fn tell(&mut self, sender: &mut Sender, message: &mut [u8]) {
        match self.standing {
            Standing::Served { place: Some(place), is_told: false } => {
                self.bring_in(place, sender, message);
            }
            Standing::Leaving { place, is_told: false } => {
                put_note(message, Note::Stop.to_wire());
                self.standing = Standing::Leaving { place, is_told: true };
            }
            _ => {}
        }
    }

    fn bring_in(&mut self, place: u32, sender: &mut Sender, message: &mut [u8]) {
        if let Some(guard) = &mut self.guard
            && !guard.open(sender, self.layout.place(&self.pool, place))
        {
            return;
        }
        if self.rings_each {
            sender.ring();
        }
        put_note(message, Note::Enter(place).to_wire());
        self.standing = Standing::Served { place: Some(place), is_told: true };
        self.epoch = self.epoch.wrapping_add(1);
        self.turn = CellTurn::new(self.window);
        self.used = 0;
        self.announced = 0;
    }

    fn count(&mut self, op: Op) {
        if op != Op::Mode {
            self.operations = self.operations.wrapping_add(1);
        }
    }
}

impl Carrier for Served {
    /// Says on a response which place its client may write into from now on, or that it must leave the one that it has.
    #[inline]
    fn prepare(&mut self, sender: &mut Sender, message: &mut [u8]) {
        if !matches!(self.standing, Standing::Served { is_told: true, .. }) {
            self.tell(sender, message);
        }
    }

    #[inline]
    fn post_inline(
        &mut self,
        sender: &mut Sender,
        slot: u32,
        message: &mut [u8],
        imm: u32,
        must_signal: bool,
    ) -> bool {
        let is_posted = self.writes.post_inline(sender, slot, message, imm, must_signal);
        if self.rings_each {
            sender.ring();
        }
        is_posted
    }

    fn request(&mut self, slot: u32, message: Buffer, imm: u32) -> WorkRequest<'static> {
        self.writes.request(slot, message, imm)
    }

    /// Requests are [taken](ServerCarrier::take).
    fn read<'a>(
        &mut self,
        _: &'a WorkCompletion,
        _: u32,
        _: &'a mut Scratch,
    ) -> Option<Message<'a>> {
        None
    }

    #[inline]
    fn consume_receive(&mut self, sender: &mut Sender) -> bool {
        self.writes.consume_receive(sender)
    }
}

impl ServerCarrier for Served {
    const LOOKS: bool = true;
    const IS_SCHEDULED: bool = true;

    #[inline]
    fn waiting(&self) -> Option<Waiting> {
        if matches!(self.standing, Standing::Outside | Standing::Left) {
            return None;
        }
        self.waiting_in_log().or_else(|| self.waiting_in_place())
    }

    fn handle_announcement(&mut self) {
        self.announced = self.announced.saturating_add(1);
    }

    fn handle_operation(&mut self, arrived: ArrivedOp<'_>) -> Result<Turn, Misbehaved> {
        let ArrivedOp { op, argument, completion } = arrived;
        if op == Op::Mode && argument == GROWN {
            let at = 8 * self.end_word as usize;
            self.end_word = (self.end_word + 1) % self.window;
            let end = match completion.payload() {
                Some(end) => end.first_chunk().copied().map(u64::from_le_bytes),
                None => Some(u64::from_le(self.writes.slots().load_u64(at))),
            };
            if completion.byte_len != 8 {
                return Err("a log that grows by an unknown length");
            }
            self.log.grow(end.ok_or("a log without an end")?)?;
            return Ok(Turn::Handled);
        }
        let is_next =
            !self.log.has_more() && self.deferred.is_empty() && self.waiting_in_place().is_none();
        if is_next || op == Op::Goodbye {
            self.count(op);
            return Ok(Turn::Now);
        }
        if self.deferred.len() == most_deferred(self.window) {
            return Err("more operations than its window allows");
        }
        self.deferred.push_back((self.log.announced(), op, argument));
        Ok(Turn::Later)
    }

    #[inline]
    fn take_deferred(&mut self) -> Option<(Op, u32)> {
        let due = self.due_operation()?;
        self.deferred.pop_front();
        self.count(due.0);
        Some(due)
    }

    fn handle_fetched(&mut self, requests: Buffer) {
        self.log.arrived(requests);
    }

    #[inline]
    fn take_empty(&mut self) -> Option<Buffer> {
        self.log.take_empty()
    }

    #[inline]
    fn take<'a>(&mut self, request: Waiting, scratch: &'a mut Scratch) -> Option<Message<'a>> {
        self.work.count(request.len);
        self.waits_since = None;
        if self.waiting_in_log().is_some() {
            let scratch = scratch.borrowed(request.len as usize)?;
            return self.log.take(request, scratch).map(Message::Borrowed);
        }
        let place = self.place_in_use()?;
        let sealed = stamped_bytes(request.len as usize);
        if sealed > self.slot_bytes as usize {
            return None;
        }
        let end = self.layout.cell_end(place, self.turn.cell()) as usize;
        let message = scratch.copy_out(&self.pool, end - sealed, request.len as usize);
        self.used = self.used.max(self.turn.cell() + 1);
        self.turn.advance();
        self.announced = self.announced.saturating_sub(1);
        Some(message)
    }

    /// Another client may be pinned at once.
    fn detach(&mut self) {
        self.pin = None;
    }

    fn handle_mode(&mut self, argument: u32) -> Result<Option<u32>, Misbehaved> {
        if !matches!(self.standing, Standing::Leaving { is_told: true, .. }) {
            return Err("it has left a place that it had not to leave");
        }
        if argument != LEFT {
            return Err("a mode that there is not");
        }
        self.standing = Standing::Left;
        Ok(None)
    }
}
