//! One queue pair for all sessions of a client's thread.
//!
//! Whichever session is polled takes what has come, and puts by what is for others: a copy each, in an inbox that has a
//! bound, so that a session that nobody polls keeps no receives from the others. A full one loses datagrams, as wires do.
//!
//! The sessions belong to one thread, which takes the lock once for each poll and each flush, and never waits for it:
//! when another thread uses one of them after all and has the lock, this is not the session's turn.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use farcall_core::error::{FailureKind, ReserveError, TransportFailure};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{ClientTransport, Limits, ReplySink, SlotId, ThreadShare, Unpark};
use farcall_verbs::{
    CompletionChannel, CompletionOpcode, DatagramSource, Device, GRH_BYTES, Status,
};

use super::calls::{Broken, Calls};
use super::client::{Line, lost};
use super::setup::Sizes;
use super::wire::Header;
use crate::address::Without;
use crate::backend::SetupError;
use crate::completions::failure;

/// Datagrams that are put by for one session: more than its window has outstanding, usually.
const INBOX_BYTES: usize = 64 << 10;

/// When to look again for room in the send queue, where others may have made it.
const ROOM_RETRY_NANOS: u64 = 100_000;

/// A queue pair that sessions share.
#[derive(Debug)]
pub(crate) struct Shared {
    device: Device,
    without: Without,
    exchange: Mutex<Exchange>,
    channel: CompletionChannel,
    /// Threads that sleep until something comes for one of their sessions.
    sleepers: AtomicU32,
}

/// What whoever has the lock works with.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) line: Line,
    inboxes: Inboxes,
    /// Several sessions have their turns together.
    together: bool,
    /// One of them has looked for what has come, and has taken all.
    looked: bool,
    /// The queue pair is in error.
    broken: bool,
}

/// What has come for sessions that were not polled yet.
#[derive(Debug, Default)]
struct Inboxes {
    /// By the sessions' numbers.
    all: Vec<Inbox>,
    free: Vec<u32>,
    /// How many are not empty.
    waiting: usize,
    /// Something was put by since a thread got ready to sleep.
    news: bool,
    /// Memory of those that were emptied.
    spare: Vec<Mail>,
}

#[derive(Debug, Default)]
struct Inbox {
    is_open: bool,
    mail: Mail,
}

/// Datagrams, one after the other, each with its end and its sender.
#[derive(Debug, Default)]
struct Mail {
    bytes: Vec<u8>,
    ends: Vec<(usize, Option<DatagramSource>)>,
}

impl Mail {
    fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

impl Shared {
    pub(crate) fn open(device: &Device, without: Without) -> Result<Shared, SetupError> {
        let line = Line::open(device, &Sizes::of_server(device.caps(), without))?;
        let channel = line.completions.channel().clone();
        let exchange = Exchange {
            line,
            inboxes: Inboxes::default(),
            together: false,
            looked: false,
            broken: false,
        };
        Ok(Shared {
            device: device.clone(),
            without,
            exchange: Mutex::new(exchange),
            channel,
            sleepers: AtomicU32::new(0),
        })
    }

    /// Whether sessions over this device, with these switches, can use it.
    pub(crate) fn fits(&self, device: &Device, without: Without) -> bool {
        self.device.is_same(device) && self.without == without && !self.lock().broken
    }

    /// Waits for another thread's poll. Only for what is not part of a turn: sessions that begin and end.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: another thread has it.
    #[inline]
    fn try_lock(&self) -> Option<MutexGuard<'_, Exchange>> {
        match self.exchange.try_lock() {
            Ok(exchange) => Some(exchange),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl ThreadShare for Shared {
    fn begin_turn(&self) {
        let mut exchange = self.lock();
        exchange.together = true;
        exchange.line.port.hold(true);
    }

    fn end_turn(&self) {
        let mut exchange = self.lock();
        (exchange.together, exchange.looked) = (false, false);
        exchange.line.port.hold(false);
    }
}

impl Inboxes {
    /// Opens one.
    fn open(&mut self) -> u32 {
        let number = self.free.pop().unwrap_or(self.all.len() as u32);
        if number as usize == self.all.len() {
            self.all.push(Inbox::default());
        }
        self.all[number as usize].is_open = true;
        number
    }

    fn close(&mut self, number: u32) {
        if let Some(mail) = self.take(number) {
            self.give_back(mail);
        }
        self.all[number as usize].is_open = false;
        self.free.push(number);
    }

    /// A datagram for another session than the one that is polled. `false`: it is lost.
    fn put(&mut self, number: u32, datagram: &[u8], source: Option<DatagramSource>) -> bool {
        let Some(Inbox { is_open: true, mail }) = self.all.get_mut(number as usize) else {
            return false;
        };
        if mail.bytes.len() + datagram.len() > INBOX_BYTES {
            return false;
        }
        if mail.is_empty() {
            self.waiting += 1;
            *mail = self.spare.pop().unwrap_or_default();
        }
        mail.bytes.extend_from_slice(datagram);
        mail.ends.push((mail.bytes.len(), source));
        self.news = true;
        true
    }

    /// What was put by for a session.
    #[inline]
    fn take(&mut self, number: u32) -> Option<Mail> {
        if self.waiting == 0 {
            return None;
        }
        let mail = &mut self.all.get_mut(number as usize)?.mail;
        if mail.is_empty() {
            return None;
        }
        self.waiting -= 1;
        Some(std::mem::take(mail))
    }

    fn give_back(&mut self, mut mail: Mail) {
        mail.bytes.clear();
        mail.ends.clear();
        self.spare.push(mail);
    }

    /// Another session has to be polled before the thread sleeps: said once for what came together, as somebody may
    /// never poll it.
    fn has_news(&mut self) -> bool {
        std::mem::take(&mut self.news) && self.waiting > 0
    }
}

/// A session's place at a shared queue pair.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: u32,
}

impl Seat {
    pub(crate) fn take(shared: Arc<Shared>) -> Seat {
        let number = shared.lock().inboxes.open();
        Seat { shared, number }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.lock().inboxes.close(self.number);
    }
}

/// A session with one server thread, over a queue pair that others use as well.
#[derive(Debug)]
pub(crate) struct SharingClient {
    calls: Calls,
    seat: Seat,
}

impl SharingClient {
    pub(crate) fn new(seat: Seat, calls: Calls) -> SharingClient {
        SharingClient { calls, seat }
    }
}

/// A turn of a session.
struct TurnOf<'a> {
    number: u32,
    calls: &'a mut Calls,
    now: Instant,
    sink: &'a mut dyn ReplySink,
    /// Why the session must end.
    broken: Option<Broken>,
    /// Something came for another session.
    others: bool,
}

impl TurnOf<'_> {
    fn datagram(&mut self, datagram: &[u8], source: Option<DatagramSource>, others: &mut Inboxes) {
        let Some((session, epoch, messages)) = Header::split(datagram) else { return };
        if session != self.number {
            self.others |= others.put(session, datagram, source);
        } else if self.broken.is_none() && self.calls.is_ours(session, epoch, source) {
            self.broken = self.calls.datagram(messages, self.now, self.sink).err();
        }
    }

    /// What was put by.
    fn mail(&mut self, inboxes: &mut Inboxes) -> u32 {
        let Some(mail) = inboxes.take(self.number) else { return 0 };
        let mut start = 0;
        for &(end, source) in &mail.ends {
            self.datagram(&mail.bytes[start..end], source, inboxes);
            start = end;
        }
        let count = mail.ends.len() as u32;
        inboxes.give_back(mail);
        count
    }

    /// What has come to the queue pair, for whomever. Answers how much that was.
    fn completions(&mut self, exchange: &mut Exchange) -> usize {
        let Exchange { line: Line { port, completions, .. }, inboxes, broken, .. } = exchange;
        let completed = match completions.poll() {
            Ok(completed) => completed,
            Err(error) => {
                *broken = true;
                self.broken.get_or_insert(failure(error));
                return 0;
            }
        };
        for completion in &mut *completed {
            if completion.status != Status::Success {
                *broken = true;
                self.broken.get_or_insert(lost(completion));
            } else if completion.opcode != CompletionOpcode::Recv {
                port.retire(completion);
            } else if let Some(buffer) = completion.buffer.take() {
                let datagram = buffer.get(GRH_BYTES..completion.byte_len as usize);
                self.datagram(datagram.unwrap_or_default(), completion.source, inboxes);
                port.recycle(buffer);
            }
        }
        completed.len()
    }
}

impl ClientTransport for SharingClient {
    #[inline]
    fn now(&self) -> Instant {
        Instant::from_nanos(self.seat.shared.device.now_ns())
    }

    fn limits(&self) -> Limits {
        self.calls.limits()
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        self.calls.reserve(len)
    }

    fn release(&mut self, slot: SlotId) {
        self.calls.release(slot);
    }

    #[inline]
    fn post(&mut self, id: SlotId, _now: Instant) {
        self.calls.post(id, false);
    }

    #[inline]
    fn post_idempotent(&mut self, id: SlotId, _now: Instant) {
        self.calls.post(id, true);
    }

    #[inline]
    fn flush(&mut self, _now: Instant) {
        // If another thread has the queue pair, the next poll sends what waits.
        if let Some(mut exchange) = self.seat.shared.try_lock() {
            self.calls.flush(&mut exchange.line.port);
        }
    }

    fn abandon(&mut self, id: SlotId) {
        self.calls.abandon(id);
    }

    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        let SharingClient { calls, seat: Seat { shared, number } } = self;
        let Some(mut exchange) = shared.try_lock() else {
            return Progress { next: PollAt::Now, ..Progress::IDLE };
        };
        let exchange = &mut *exchange;
        if let Some(why) = calls.over {
            calls.close(&mut exchange.line.port, why.kind, sink);
            return Progress::IDLE;
        }
        calls.stamp(now);
        let mut turn = TurnOf { number: *number, calls, now, sink, broken: None, others: false };
        let put_by = turn.mail(&mut exchange.inboxes);
        let looks = !exchange.looked;
        let found = if looks { turn.completions(exchange) } else { 0 };
        let TurnOf { calls, sink, mut broken, others, .. } = turn;
        if exchange.broken || exchange.line.port.is_broken() {
            exchange.broken = true;
            broken.get_or_insert(FailureKind::Device("its queue pair is in error"));
        }
        if (others || exchange.broken) && shared.sleepers.load(Ordering::Relaxed) > 0 {
            shared.channel.wake();
        }
        let mut progress = Progress { worked: found as u32 + put_by, ..Progress::IDLE };
        if let Some(broken) = broken {
            calls.close(&mut exchange.line.port, broken, sink);
            return progress;
        }
        let more = exchange.line.completions.is_batch(found);
        exchange.looked = exchange.together && !more;
        if calls.needs_attention(now) {
            let (moved, next) = calls.drive(&mut exchange.line.port, now, more, sink);
            // What has waited for room may have left without an event of this session.
            calls.stamp(now);
            progress.worked += moved;
            progress.next = next;
        }
        progress.next = progress.next.earlier(calls.poll_at());
        if calls.waits_for_room() {
            // Which may come with a completion that another thread finds.
            let again = now.saturating_add_nanos(ROOM_RETRY_NANOS);
            progress.next = progress.next.earlier(PollAt::At(again));
        }
        if more {
            progress.next = PollAt::Now;
        }
        if looks {
            progress.scanned = exchange.line.completions.scanned();
        }
        progress
    }

    fn park(&mut self, until: Option<Instant>) {
        let SharingClient { calls, seat: Seat { shared, .. } } = self;
        let Some(mut guard) = shared.try_lock() else { return };
        let Exchange { line: Line { port, completions, .. }, inboxes, .. } = &mut *guard;
        if inboxes.has_news() || !completions.arm(|| calls.has_work(port)) {
            return;
        }
        let sleep = completions.sleep_time(until);
        // Whoever has the lock next sees it, and wakes this thread for what it puts by.
        shared.sleepers.fetch_add(1, Ordering::Relaxed);
        drop(guard);
        // A failure to sleep is a spurious wake-up: the driver polls and comes back.
        let _ = shared.channel.wait(sleep);
        shared.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.seat.shared.lock().line.completions.unparker()
    }

    fn close(&mut self) {
        self.calls.say_goodbye(&mut self.seat.shared.lock().line.port);
    }

    fn peer_gone(&mut self) {
        let why = TransportFailure::new(FailureKind::PeerGone, true);
        self.calls.over.get_or_insert(why);
    }
}

impl Drop for SharingClient {
    fn drop(&mut self) {
        self.close();
    }
}
