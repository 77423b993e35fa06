//! The client's half: reserve, post, poll.

use std::io::IoSliceMut;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use farcall_core::error::{Backpressure, FailureKind, ReserveError, TransportFailure};
use farcall_core::site::Site;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{
    Armed, ClientTransport, Closing, Delivery, Limits, Message, ReplySink, SlotId, Usage,
};

use super::inbox::{Inbox, Incoming, Next};
use super::large::{Arrived, LargeMessages};
use super::outbox::{Outbox, Written};
use super::readiness::WatchedStream;
use super::wire::{self, HEADER_BYTES, Header, Kind, Rules};
use super::{READ_BYTES, broken, is_nothing_yet};
use crate::contract::{Stream, TakeStream, Terms};
use crate::kit::memory::RETRY_NANOS;

/// How far a slot's request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free,
    /// The caller fills it.
    Reserved,
    /// It has left, or will with the next flush; the response is due.
    Posted,
    /// The server was told of a large request.
    Announced,
    /// It is sent, part by part.
    Sending,
    /// A large response waits for memory here.
    Offered,
    /// It arrives, part by part.
    Arriving,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    generation: u32,
    /// Bytes of a request that is sent whole; `None` for a large one.
    len: Option<u32>,
    phase: Phase,
    /// The caller does not wait for the reply any more; the slot is kept until it has come, or was dropped.
    abandoned: bool,
}

/// Where the stream of a connection is left when its handshake has ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Handover(Arc<Mutex<Option<Stream>>>);

impl Handover {
    /// Leaves it here.
    pub(super) fn take_stream(&self) -> TakeStream {
        let place = Arc::clone(&self.0);
        Box::new(move |stream| {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
        })
    }

    fn take(&self) -> Option<Stream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A connection to one server thread.
#[derive(Debug)]
pub(super) struct Client {
    stream: Option<WatchedStream>,
    handover: Handover,
    site: Site,
    window: Window,
    inbox: Inbox,
    scratch: Box<[u8]>,
}

/// The slots, and what became of them.
#[derive(Debug)]
struct Window {
    rules: Rules,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    outbox: Outbox,
    large: LargeMessages,
    over: Option<TransportFailure>,
    /// The sink was told so.
    is_told: bool,
}

/// Why the connection must end.
type Broken = FailureKind;

const NONSENSE: Broken = FailureKind::PeerMisbehaved("a frame that no request waits for");

impl Client {
    pub(super) fn new(site: &Site, terms: &Terms, memory: u64, handover: Handover) -> Client {
        let slot = Slot { generation: 0, len: None, phase: Phase::Free, abandoned: false };
        let rules = Rules::new(terms);
        let window = Window {
            rules,
            slots: vec![slot; terms.window as usize].into(),
            // The lowest slot is taken first, and the latest used is taken again: its lines are warm.
            free: (0..terms.window).rev().collect(),
            outbox: Outbox::default(),
            large: LargeMessages::new(terms.window, memory),
            over: None,
            is_told: false,
        };
        Client {
            stream: None,
            handover,
            site: site.clone(),
            window,
            inbox: Inbox::new(rules),
            scratch: vec![0; READ_BYTES].into(),
        }
    }

    /// Takes the stream over; `false` while the handshake has not left it.
    #[cold]
    fn take_stream(&mut self) -> bool {
        let Some(stream) = self.handover.take() else { return false };
        match WatchedStream::of_client(stream, &self.site) {
            Ok(stream) => self.stream = Some(stream),
            Err(error) => {
                tracing::warn!(%error, "cannot watch a connection");
                let kind = FailureKind::Device("the system cannot watch one more socket");
                self.window.over = Some(TransportFailure::new(kind, false));
            }
        }
        true
    }

    /// Reads once, and handles what has arrived. Gives the bytes.
    #[inline]
    fn receive(&mut self, sink: &mut dyn ReplySink) -> Result<usize, Broken> {
        let Client { stream, window, inbox, scratch, .. } = self;
        let Some(watched) = stream else { return Ok(0) };
        let stream = &mut watched.stream;
        let room = match inbox.incoming() {
            None => &mut [],
            Some(incoming) => window.room_for(&incoming),
        };
        let direct = room.len();
        let read = match direct {
            0 => stream.receive(&mut [IoSliceMut::new(scratch)]),
            _ => stream.receive(&mut [IoSliceMut::new(room), IoSliceMut::new(scratch)]),
        };
        let read = match read {
            Ok(0) => return Err(FailureKind::PeerGone),
            Ok(read) => read,
            Err(error) if is_nothing_yet(&error) => return Ok(0),
            Err(error) => {
                return Err(
                    broken(&error).map_or(FailureKind::PeerGone, FailureKind::PeerMisbehaved)
                );
            }
        };
        let direct = read.min(direct);
        if direct > 0
            && let Some(incoming) = inbox.incoming()
        {
            inbox.skip(direct);
            window.add_landed(incoming.slot, direct, sink);
        }
        let mut bytes = &scratch[..read - direct];
        loop {
            match inbox.next(&mut bytes).map_err(FailureKind::PeerMisbehaved)? {
                Next::Frame(header, body) => window.handle_frame(header, body, sink)?,
                Next::Nothing => return Ok(read),
                Next::Bytes(incoming, bytes) => {
                    window.handle_bytes(incoming.slot, incoming.generation, bytes, sink)?;
                }
                Next::Assembled(header) => {
                    let frame = inbox.take_assembled();
                    window.handle_frame(header, &frame[HEADER_BYTES..], sink)?;
                    inbox.give_back(frame);
                }
            }
        }
    }

    /// Sends what waits, as far as there is room.
    #[inline]
    fn send(&mut self) -> Written {
        let Client { stream: Some(watched), window, .. } = self else { return Written::Blocked };
        match window.outbox.write(&mut watched.stream) {
            Ok(written) => {
                while let Some((slot, _)) = window.outbox.next_left() {
                    window.slots[slot as usize].phase = Phase::Posted;
                }
                written
            }
            // What the server has sent before can still be read; then the end comes.
            Err(_) => Written::Blocked,
        }
    }

    /// The connection is over: tells the sink, and closes the stream.
    #[cold]
    fn end(&mut self, kind: FailureKind, sink: &mut dyn ReplySink) {
        self.stream = None;
        self.window.close(kind, sink);
    }

    /// Large messages move on, or the stream has had no room.
    #[cold]
    fn drive(&mut self, now: Instant) -> (u32, PollAt) {
        self.window.admit();
        let before = self.window.outbox.is_empty();
        let next = match self.send() {
            Written::Some => PollAt::Now,
            Written::All | Written::Blocked if self.window.large.wants_memory() => {
                PollAt::At(now.saturating_add_nanos(RETRY_NANOS))
            }
            Written::All | Written::Blocked => PollAt::OnEvent,
        };
        (u32::from(!before && self.window.outbox.is_empty()), next)
    }
}

impl ClientTransport for Client {
    fn limits(&self) -> Limits {
        let rules = &self.window.rules;
        Limits { window: rules.window, max_message: rules.max_message }
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        let window = &mut self.window;
        if window.over.is_some() {
            return Err(ReserveError::Closed);
        }
        if len > window.rules.max_whole {
            return window.reserve_large(len);
        }
        let index = window.free.pop().ok_or(Backpressure::Credits)?;
        let id = window.slots[index as usize].reserve(index, Some(len as u32));
        Ok((id, window.outbox.stage(index, len)))
    }

    fn release(&mut self, id: SlotId) {
        if self.window.is(id, Phase::Reserved) {
            self.window.outbox.unstage(id.index);
            self.window.end(id.index);
        }
    }

    #[inline]
    fn post(&mut self, id: SlotId, _delivery: Delivery) {
        let window = &mut self.window;
        let SlotId { index: slot, generation } = id;
        assert!(window.is(id, Phase::Reserved), "posted slot {id:?} was not reserved");
        if let Some(len) = window.slots[slot as usize].len {
            window.slots[slot as usize].phase = Phase::Posted;
            let len = len as usize;
            window.outbox.post(Header { kind: Kind::Whole, slot, generation, len });
        } else {
            window.slots[slot as usize].phase = Phase::Announced;
            let body = wire::begin_body(window.large.request_len(slot));
            window
                .outbox
                .push(Header { kind: Kind::Begin, slot, generation, len: body.len() }, &body);
        }
    }

    #[inline]
    fn flush(&mut self) {
        if !self.window.outbox.is_empty() && (self.stream.is_some() || self.take_stream()) {
            self.send();
        }
    }

    fn abandon(&mut self, id: SlotId) {
        self.window.abandon(id);
    }

    fn usage(&self) -> Usage {
        let in_use = self.window.slots.iter().filter(|slot| slot.phase != Phase::Free);
        Usage::of(in_use.map(|slot| slot.abandoned))
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        if self.stream.is_none() && self.window.over.is_none() && !self.take_stream() {
            return Progress::IDLE;
        }
        if let Some(why) = self.window.over {
            self.end(why.kind, sink);
            return Progress::IDLE;
        }
        let read = match self.receive(sink) {
            Ok(read) => read,
            Err(broken) => {
                self.end(broken, sink);
                return Progress { worked: 1, ..Progress::IDLE };
            }
        };
        let mut progress = Progress { worked: u32::from(read > 0), ..Progress::IDLE };
        if !self.window.outbox.is_empty() || self.window.large.wants_memory() {
            let (moved, next) = self.drive(now);
            progress.worked += moved;
            progress.next = next;
        }
        progress.scanned = 1;
        progress
    }

    fn arm(&mut self, waker: Option<&Waker>) -> Armed {
        let Client { stream, window, .. } = self;
        if window.over.is_some() {
            return Armed::of(window.is_told, false);
        }
        let Some(stream) = stream else { return Armed::AtSite };
        let wants_room = !window.outbox.is_empty();
        stream.set_interest(true, wants_room);
        let calls_waker = waker.is_some_and(|waker| stream.wake_with(waker));
        Armed::of(stream.arm(wants_room), calls_waker)
    }

    /// The thread that sleeps is not to wake for each answer that another thread reads.
    fn disarm(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.set_interest(false, false);
        }
    }

    fn close(&mut self, why: Closing) {
        if self.window.over.is_some() {
            return;
        }
        let kind = match why {
            Closing::PeerGone => FailureKind::PeerGone,
            Closing::Goodbye => {
                self.window.outbox.push(Header::bare(Kind::Goodbye, 0, 0), &[]);
                self.flush();
                FailureKind::Closed
            }
        };
        self.window.over = Some(TransportFailure::new(kind, true));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close(Closing::Goodbye);
    }
}

impl Slot {
    /// The slot's next use, for a request of `len` bytes; `None` for a large one.
    #[inline]
    fn reserve(&mut self, index: u32, len: Option<u32>) -> SlotId {
        self.generation = self.generation.wrapping_add(1);
        (self.phase, self.len) = (Phase::Reserved, len);
        SlotId { index, generation: self.generation }
    }
}

impl Window {
    #[cold]
    fn reserve_large(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        if len as u64 > self.rules.max_message {
            return Err(ReserveError::TooLarge { len: len as u64, max: self.rules.max_message });
        }
        let index = *self.free.last().ok_or(Backpressure::Credits)?;
        let Some(bytes) = self.large.reserve_request(index, len) else {
            return Err(Backpressure::Memory.into());
        };
        self.free.pop();
        Ok((self.slots[index as usize].reserve(index, None), bytes))
    }

    #[inline]
    fn is(&self, id: SlotId, phase: Phase) -> bool {
        self.slots
            .get(id.index as usize)
            .is_some_and(|slot| slot.generation == id.generation && slot.phase == phase)
    }

    /// The slot is free again.
    #[inline]
    fn end(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.len.is_none() {
            self.large.forget(index);
        }
        (slot.phase, slot.abandoned) = (Phase::Free, false);
        self.free.push(index);
    }

    fn push(&mut self, kind: Kind, slot: u32) {
        let generation = self.slots[slot as usize].generation;
        self.outbox.push(Header::bare(kind, slot, generation), &[]);
    }

    fn abandon(&mut self, id: SlotId) {
        let Some(slot) = self.slots.get_mut(id.index as usize) else { return };
        let is_posted = !matches!(slot.phase, Phase::Free | Phase::Reserved);
        if slot.generation != id.generation || !is_posted || slot.abandoned {
            return;
        }
        slot.abandoned = true;
        match slot.phase {
            Phase::Sending => {
                self.outbox.withdraw_large(id.index);
            }
            Phase::Announced | Phase::Offered => self.large.forget(id.index),
            // What still comes is dropped.
            Phase::Arriving => self.large.forget_response(id.index),
            Phase::Free | Phase::Reserved | Phase::Posted => {}
        }
        self.push(Kind::Cancel, id.index);
    }

    #[inline]
    fn handle_frame(
        &mut self,
        header: Header,
        body: &[u8],
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        let Header { kind, slot: index, generation, .. } = header;
        // The reader has checked the slot.
        let slot = self.slots[index as usize];
        if kind == Kind::Whole && (slot.phase, slot.generation) == (Phase::Posted, generation) {
            self.end(index);
            if !slot.abandoned {
                sink.reply(SlotId { index, generation }, Message::Borrowed(body));
            }
            return Ok(());
        }
        self.handle_control(header, slot, body)
    }

    #[cold]
    fn handle_control(&mut self, header: Header, slot: Slot, body: &[u8]) -> Result<(), Broken> {
        let index = header.slot;
        if header.kind == Kind::Goodbye {
            return Err(FailureKind::Goodbye);
        }
        if header.generation != slot.generation {
            return Err(NONSENSE);
        }
        match (header.kind, slot.phase) {
            (Kind::Begin, Phase::Posted) => {
                let len = self.rules.read_begin(body).map_err(FailureKind::PeerMisbehaved)?;
                self.slots[index as usize].phase = Phase::Offered;
                match slot.abandoned {
                    // The server may have offered it after an earlier cancellation, which asked it for an answer.
                    true => self.push(Kind::Cancel, index),
                    false => self.large.wait_for_memory(index, len as usize),
                }
                Ok(())
            }
            // For an abandoned request it comes too late.
            (Kind::Grant, Phase::Announced) if slot.abandoned => Ok(()),
            (Kind::Grant, Phase::Announced) => {
                let Some(request) = self.large.take_request(index) else { return Err(NONSENSE) };
                self.slots[index as usize].phase = Phase::Sending;
                self.outbox.push_large(index, slot.generation, request);
                Ok(())
            }
            (Kind::Dropped, phase) if slot.abandoned && phase != Phase::Posted => {
                self.end_large(index);
                Ok(())
            }
            _ => Err(NONSENSE),
        }
    }

    /// A slot whose request or response was large is free again.
    fn end_large(&mut self, index: u32) {
        self.large.forget(index);
        self.end(index);
    }

    /// Gives memory to responses that wait for it.
    fn admit(&mut self) {
        while let Some(slot) = self.large.admit() {
            self.slots[slot as usize].phase = Phase::Arriving;
            self.push(Kind::Grant, slot);
        }
    }

    /// Where the next bytes of the slot's response go, as far as there is memory for them; none if the call was given up.
    fn room_for(&mut self, incoming: &Incoming) -> &mut [u8] {
        let Incoming { slot, generation, left } = *incoming;
        if self.slots[slot as usize].generation != generation {
            return &mut [];
        }
        self.large.room_for(slot, left)
    }

    fn handle_bytes(
        &mut self,
        index: u32,
        generation: u32,
        bytes: &[u8],
        sink: &mut dyn ReplySink,
    ) -> Result<(), Broken> {
        let slot = &self.slots[index as usize];
        if (slot.phase, slot.generation) != (Phase::Arriving, generation) {
            return Err(NONSENSE);
        }
        let arrived = self.large.add(index, bytes);
        self.finish_arrival(index, arrived.ok_or(NONSENSE)?, sink);
        Ok(())
    }

    /// So many bytes were read straight into the slot's response.
    fn add_landed(&mut self, index: u32, bytes: usize, sink: &mut dyn ReplySink) {
        let arrived = self.large.add_landed(index, bytes);
        self.finish_arrival(index, arrived, sink);
    }

    fn finish_arrival(&mut self, index: u32, arrived: Arrived, sink: &mut dyn ReplySink) {
        let response = match arrived {
            Arrived::Partly => return,
            Arrived::Whole(response) => response,
        };
        let Slot { generation, abandoned, .. } = self.slots[index as usize];
        self.end_large(index);
        if let Some(response) = response.filter(|_| !abandoned) {
            let response = Message::Owned(self.large.hand_over(response));
            sink.reply(SlotId { index, generation }, response);
        }
    }

    fn close(&mut self, kind: FailureKind, sink: &mut dyn ReplySink) {
        if std::mem::replace(&mut self.is_told, true) {
            return;
        }
        let why = *self.over.get_or_insert(TransportFailure::new(kind, true));
        sink.closed(why);
    }
}
