//! The requests that a thread gives away, until their answers are back.

use super::LONG_NS;
use super::shared::{Answer, GivenCall, Shared};
use crate::error::ReserveError;
use crate::identity::Identity;
use crate::server::buffers::{Buffers, Content};
use crate::server::call_index::{CallIndex, Cancel, ClientSlot};
use crate::server::deferred::{DeferredReply, post_whole};
use crate::server::paths::ReplyPaths;
use crate::server::turn::Turn;
use crate::transport::{CallToken, Message};
use crate::wire::{HEADER_BYTES, Status, too_large_body};
use std::sync::Arc;

/// Most requests that one thread has given away at a time. Further ones it runs itself.
pub(super) const MAX_GIVEN: usize = 256;

/// What one thread gives away.
pub(in crate::server) struct Giver {
    shared: Arc<Shared>,
    thread: u32,
    /// The number of the transport with the requests that this thread takes. Those are not given on.
    taker: u32,
    places: Vec<Place>,
    free: Vec<u32>,
    /// The places of requests.
    index: CallIndex,
    buffers: Buffers,
    /// Requests that came back and did not run.
    returned: Vec<Returned>,
    /// The thread that was given the last request.
    last: u32,
    /// What the others were told last: whether this thread is idle.
    is_idle: bool,
    /// The thread ends, and is never idle again.
    has_left: bool,
}

/// A place for one request.
#[derive(Default)]
struct Place {
    generation: u32,
    given: Option<Request>,
}

struct Request {
    /// The right to answer it.
    call: CallToken,
    /// The number of the transport that brought it.
    transport: u32,
    /// The thread that has it.
    taker: u32,
    is_cancelled: bool,
}

/// A request that came back and did not run: the thread that was to run it has ended.
pub(in crate::server) struct Returned {
    pub(in crate::server) call: CallToken,
    /// The number of the transport that brought it.
    pub(in crate::server) transport: u32,
    /// What it says.
    pub(in crate::server) content: Content,
}

impl Giver {
    /// `taker` is the number of the [`Taker`](super::Taker) among the thread's transports.
    pub(in crate::server) fn new(shared: Arc<Shared>, thread: u32, taker: u32) -> Giver {
        Giver {
            shared,
            thread,
            taker,
            places: (0..MAX_GIVEN).map(|_| Place::default()).collect(),
            free: (0..MAX_GIVEN as u32).rev().collect(),
            index: CallIndex::default(),
            buffers: Buffers::default(),
            returned: Vec::new(),
            last: thread,
            is_idle: false,
            has_left: false,
        }
    }

    /// Whether to give away a request of this row's method that was noticed so long ago: it would hold up the thread's other clients, or
    /// has been held up itself.
    #[inline]
    pub(in crate::server) fn wants_rid_of(&self, row: u32, transport: u32, waited_ns: u64) -> bool {
        transport != self.taker && (waited_ns >= LONG_NS || self.shared.runs_long(row))
    }

    /// Gives a request to an idle thread. Without one, or without room in its inbox, it returns the call.
    #[cold]
    pub(in crate::server) fn give(
        &mut self,
        call: CallToken,
        message: &Message<'_>,
        (transport, identity): (u32, Option<Identity>),
    ) -> Option<CallToken> {
        let Some(&index) = self.free.last() else { return Some(call) };
        let Some(taker) = self.shared.claim(self.last) else { return Some(call) };
        self.last = taker;
        let place = &mut self.places[index as usize];
        place.generation = place.generation.wrapping_add(1);
        let given = self.given_call(index);
        let content = self.buffers.content(message.clone());
        if let Err(content) = self.shared.give(taker, given, identity, content) {
            self.keep(content);
            return Some(call);
        }
        self.free.pop();
        self.index.insert(ClientSlot::of(transport, &call), index);
        let request = Request { call, transport, taker, is_cancelled: false };
        self.places[index as usize].given = Some(request);
        None
    }

    /// Keeps the buffer of a request for later.
    fn keep(&mut self, content: Content) {
        if let Content::Copied(buffer) = content {
            self.buffers.keep(buffer);
        }
    }

    fn given_call(&self, index: u32) -> GivenCall {
        let generation = self.places[index as usize].generation;
        GivenCall { giver: self.thread, place: index, generation }
    }

    /// A handler of this row's method ran that long.
    #[inline]
    pub(in crate::server) fn ran(&self, row: u32, nanos: u64) {
        self.shared.ran(row, nanos);
    }

    /// Tells the others whether this thread has something to do.
    #[inline]
    pub(in crate::server) fn set_idle(&mut self, is_idle: bool) {
        if self.is_idle != is_idle && !self.has_left {
            self.is_idle = is_idle;
            self.shared.set_idle(self.thread, is_idle);
        }
    }

    /// The number of the transport with the requests that this thread takes.
    pub(in crate::server) fn taker(&self) -> u32 {
        self.taker
    }

    /// The thread ends: it is given nothing any more, except what is on its way.
    pub(in crate::server) fn leave(&mut self) {
        self.set_idle(false);
        self.has_left = true;
    }

    /// Requests whose answers are not back.
    pub(in crate::server) fn outstanding(&self) -> usize {
        MAX_GIVEN - self.free.len()
    }

    #[inline]
    pub(in crate::server) fn has_answers(&self) -> bool {
        self.shared.has_answers(self.thread)
    }

    /// Sends the answers that are back, and puts aside the requests that are back without one. Returns how many.
    #[cold]
    pub(in crate::server) fn send_answers(
        &mut self,
        turn: &mut Turn,
        paths: &mut ReplyPaths<'_>,
    ) -> u32 {
        let mut sent = 0;
        while let Some(answered) = self.shared.take_answer(self.thread) {
            sent += 1;
            let place = answered.call.place;
            let is_meant = self.given_call(place) == answered.call;
            match answered.answer {
                Answer::Bytes(bytes) => {
                    if is_meant {
                        self.end(place, &bytes, turn, paths);
                    }
                    self.buffers.keep(bytes);
                }
                Answer::Returned(content) if is_meant => {
                    self.take_back(place, content, turn, paths);
                }
                Answer::Returned(content) => self.keep(content),
            }
        }
        sent
    }

    /// A request is back and did not run: this thread is to run it, unless its client gave it up.
    #[cold]
    fn take_back(
        &mut self,
        index: u32,
        content: Content,
        turn: &mut Turn,
        paths: &mut ReplyPaths<'_>,
    ) {
        let given = &self.places[index as usize].given;
        if given.as_ref().is_some_and(|request| request.is_cancelled) {
            self.keep(content);
            return self.end(index, &Status::Cancelled.alone(), turn, paths);
        }
        if let Some(Request { call, transport, .. }) = self.remove(index) {
            self.returned.push(Returned { call, transport, content });
        }
    }

    /// The next request that is back and did not run.
    pub(in crate::server) fn take_returned(&mut self) -> Option<Returned> {
        self.returned.pop()
    }

    /// Frees the place of a request.
    fn remove(&mut self, index: u32) -> Option<Request> {
        let request = self.places[index as usize].given.take()?;
        self.free.push(index);
        self.index.remove(ClientSlot::of(request.transport, &request.call), index);
        Some(request)
    }

    /// Ends a request with this answer.
    fn end(&mut self, index: u32, answer: &[u8], turn: &mut Turn, paths: &mut ReplyPaths<'_>) {
        let Some(Request { call, transport, .. }) = self.remove(index) else { return };
        let mut too_large = [0; HEADER_BYTES + 16];
        let (posted, answer) = match post_whole(paths.enter(transport, turn), call, answer) {
            Err((call, ReserveError::TooLarge { len, max })) => {
                Status::TooLarge.write(&mut too_large);
                too_large[HEADER_BYTES..].copy_from_slice(&too_large_body(len, max));
                (post_whole(paths.enter(transport, turn), call, &too_large), &too_large[..])
            }
            posted => (posted, answer),
        };
        // Otherwise it is posted, or the client is gone.
        if let Err((call, ReserveError::Backpressure(_))) = posted {
            let limit = paths.enter(transport, turn).waiting_limit();
            let may_wait = turn.may_defer(&call, answer.len(), limit);
            let bytes = match may_wait {
                true => answer.to_vec(),
                false => Status::ResponseDropped.alone().to_vec(),
            };
            turn.defer(DeferredReply { transport, call, bytes, counted: None }, limit);
        }
    }

    /// A client gave up calls: tells the threads that have them, once.
    #[cold]
    pub(in crate::server) fn cancel(&mut self, cancel: &Cancel) {
        let Giver { shared, thread, places, index, .. } = self;
        for &at in index.candidates(cancel) {
            let Some(place) = places.get_mut(at as usize) else { continue };
            let generation = place.generation;
            let Some(request) = &mut place.given else { continue };
            if !request.is_cancelled && cancel.is_meant(request.transport, &request.call) {
                request.is_cancelled = true;
                let call = GivenCall { giver: *thread, place: at, generation };
                shared.cancel(request.taker, call);
            }
        }
    }

    /// Ends all requests that are not back. Returns how many.
    pub(in crate::server) fn abort_all(
        &mut self,
        turn: &mut Turn,
        paths: &mut ReplyPaths<'_>,
    ) -> u32 {
        let mut aborted = 0;
        for index in 0..self.places.len() as u32 {
            aborted += u32::from(self.places[index as usize].given.is_some());
            self.end(index, &Status::Cancelled.alone(), turn, paths);
        }
        aborted
    }
}
