//! The requests that a thread takes from others, as the requests of one more transport.

use super::shared::{Answer, Answered, Given, GivenCall, Shared};
use crate::error::ReserveError;
use crate::server::buffers::{Buffers, Content};
use crate::time::{Instant, PollAt, Progress};
use crate::transport::{
    CallToken, ClientEvent, ClientId, ClientInfo, Replies, RequestSink, ServerTransport, WindDown,
};
use std::sync::Arc;

/// The inbox of one thread. The threads that give are its clients: a giver's index is the client of a call, and the request's
/// place the slot.
pub(in crate::server) struct Taker {
    shared: Arc<Shared>,
    thread: u32,
    answers: Answers,
}

/// Where the answers go.
struct Answers {
    shared: Arc<Shared>,
    buffers: Buffers,
    /// The answer that is being filled.
    reserved: Vec<u8>,
}

impl Taker {
    pub(in crate::server) fn new(shared: Arc<Shared>, thread: u32) -> Taker {
        let answers = Answers {
            shared: Arc::clone(&shared),
            buffers: Buffers::default(),
            reserved: Vec::new(),
        };
        Taker { shared, thread, answers }
    }
}

impl ServerTransport for Taker {
    /// Takes one request at most: it may run long, and the thread's own clients come first.
    fn poll(&mut self, _now: Instant, sink: &mut dyn RequestSink) -> Progress {
        let mut progress = Progress::IDLE;
        while let Some(given) = self.shared.take(self.thread) {
            progress.worked += 1;
            match given {
                Given::Request(call, identity, content) => {
                    // Until the next request of that giver, which says it again.
                    let info = ClientInfo { identity, ..ClientInfo::default() };
                    sink.client(giver_of(call), ClientEvent::Joined(info));
                    sink.request(token(call), content.message(), &mut self.answers);
                    if let Content::Copied(buffer) = content {
                        self.answers.buffers.keep(buffer);
                    }
                    progress.next = PollAt::Now;
                    break;
                }
                Given::Cancelled(call) => {
                    let GivenCall { place, generation, .. } = call;
                    let cancelled = ClientEvent::Cancelled { slot: place, generation };
                    sink.client(giver_of(call), cancelled);
                }
            }
        }
        progress
    }

    fn replies(&mut self) -> &mut dyn Replies {
        &mut self.answers
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        !self.shared.has_given(self.thread)
    }

    fn connections(&self) -> usize {
        0
    }

    /// Other threads give requests at any time.
    fn is_vacant(&self) -> bool {
        false
    }

    fn wind_down(&mut self, _now: Instant, step: WindDown) -> bool {
        match step {
            WindDown::Drain => !self.shared.has_given(self.thread),
            WindDown::Close => {
                self.shared.leave(self.thread);
                true
            }
        }
    }
}

/// A thread that ends by a panic takes nothing any more either.
impl Drop for Taker {
    fn drop(&mut self) {
        self.shared.leave(self.thread);
    }
}

fn giver_of(call: GivenCall) -> ClientId {
    ClientId { number: call.giver, generation: 0 }
}

fn token(call: GivenCall) -> CallToken {
    CallToken::new(call.giver, 0, call.place, call.generation)
}

impl Replies for Answers {
    fn reserve(&mut self, _call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError> {
        self.reserved.resize(len, 0);
        Ok(&mut self.reserved)
    }

    fn post(&mut self, call: CallToken, len: usize) {
        let empty = self.buffers.empty();
        let mut bytes = core::mem::replace(&mut self.reserved, empty);
        bytes.truncate(len);
        let call =
            GivenCall { giver: call.client(), place: call.slot(), generation: call.generation() };
        self.shared.answer(Answered { call, answer: Answer::Bytes(bytes) });
    }

    /// `reserve` always finds memory.
    fn waiting_limit(&self) -> u64 {
        u64::MAX
    }
}
