//! Requests that have arrived, and whose handlers may run long: they wait here until the thread has taken in everything that has arrived.
//!
//! So a cancellation or a deadline that passes removes a request whose handler has not begun, and the thread's time goes to callers that
//! still wait. A thread that ran handlers as it finds their requests would, once there are more calls than it can serve, find each
//! request when its caller has just given up, and serve nobody.
//!
//! The oldest request runs first, as long as it has time left: see [`margin_ns`]. One with less would end too late if anything is slower
//! than expected, so it lets the others pass. It runs if no other waits; of several, the newest runs first.

use super::buffers::{Buffers, Content};
use super::call_index::{Cancel, ClientSlot};
use super::run_times::RunTimes;
use super::table::Target;
use crate::identity::Identity;
use crate::time::Instant;
use crate::transport::{CallToken, Message};
use foldhash::{HashMap, HashMapExt};
use std::collections::VecDeque;

/// Most requests that wait. Further ones run as they are found.
pub(super) const MAX_WAITING: usize = 16 << 10;

/// Most bytes of requests that were copied to wait. Large ones are not copied, and count for their transport.
const MAX_WAITING_BYTES: usize = 64 << 20;

/// A request that waits for its handler.
pub(super) struct Waiting {
    pub(super) call: CallToken,
    /// The number of the transport that brought it.
    pub(super) transport: u32,
    pub(super) target: Target,
    pub(super) arrived: Instant,
    /// How long it had waited at its client by then, if that is known.
    pub(super) waited_ns: u64,
    pub(super) deadline: Instant,
    /// Who makes the call.
    pub(super) identity: Option<Identity>,
    pub(super) content: Content,
}

impl Waiting {
    pub(super) fn is_late(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// The request would probably be answered in time, although others may take longer than expected.
    fn has_time(&self, now: Instant, run_times: &RunTimes) -> bool {
        let left = self.deadline.as_nanos().saturating_sub(now.as_nanos());
        left >= margin_ns(self, run_times)
    }
}

/// The time that a request must have left to be run in its turn: twice what its handler is expected to take, what it is known to have
/// waited before it arrived, and a quarter of its timeout, for what is not known (how long the request was under way, and how long the
/// answer will be).
fn margin_ns(request: &Waiting, run_times: &RunTimes) -> u64 {
    let timeout = request.deadline.as_nanos().saturating_sub(request.arrived.as_nanos());
    let expected = run_times.expected_ns(request.target.row);
    (timeout / 4).saturating_add(request.waited_ns).saturating_add(expected.saturating_mul(2))
}

/// So many requests wait in memory that is there from the beginning.
const USUAL: usize = 64;

/// Bytes of each of their buffers, which grow when they must.
const USUAL_BYTES: usize = 256;

/// The requests of one thread that wait for their handlers.
pub(super) struct Backlog {
    places: Vec<Place>,
    /// Places that are in no queue.
    free: Vec<u32>,
    /// Oldest first. A place stays in its queue when its request is removed.
    in_time: VecDeque<u32>,
    /// Requests with little time left, in the order in which that was seen.
    nearly_late: VecDeque<u32>,
    /// Places of requests whose callers have given up; each once.
    cancelled: Vec<u32>,
    /// The places of requests, by where they came from.
    index: HashMap<ClientSlot, u32>,
    buffers: Buffers,
    len: usize,
    bytes: usize,
}

#[derive(Default)]
struct Place {
    request: Option<Waiting>,
    is_cancelled: bool,
}

impl Default for Backlog {
    fn default() -> Self {
        let queue = || VecDeque::with_capacity(USUAL);
        Backlog {
            places: Vec::with_capacity(USUAL),
            free: Vec::with_capacity(USUAL),
            in_time: queue(),
            nearly_late: queue(),
            cancelled: Vec::with_capacity(USUAL),
            index: HashMap::with_capacity(USUAL),
            buffers: Buffers::prepared(USUAL_BYTES),
            len: 0,
            bytes: 0,
        }
    }
}

impl Backlog {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A request of so many bytes may wait.
    pub(super) fn has_room(&mut self, len: usize) -> bool {
        if self.places.len() - self.free.len() >= MAX_WAITING {
            self.free_empty_places();
        }
        self.len < MAX_WAITING && self.bytes + len <= MAX_WAITING_BYTES
    }

    #[cold]
    fn free_empty_places(&mut self) {
        let Backlog { places, free, in_time, nearly_late, .. } = self;
        for queue in [in_time, nearly_late] {
            queue.retain(|&at| {
                let is_taken = places[at as usize].request.is_some();
                if !is_taken {
                    free.push(at);
                }
                is_taken
            });
        }
    }

    /// The bytes of a message, kept for as long as it waits.
    pub(super) fn content(&mut self, message: Message<'_>) -> Content {
        self.buffers.content(message)
    }

    /// Lets a request wait. The caller has checked that it [has room](Self::has_room).
    pub(super) fn push(&mut self, request: Waiting) {
        let from = ClientSlot::of(request.transport, &request.call);
        self.len += 1;
        self.bytes += request.content.copied_bytes();
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            // So that freeing never allocates.
            let missing = self.places.len().saturating_sub(self.free.len());
            self.free.reserve(missing);
            self.places.len() as u32 - 1
        });
        self.places[at as usize] = Place { request: Some(request), is_cancelled: false };
        self.index.insert(from, at);
        self.in_time.push_back(at);
    }

    /// The request that comes next: one that is [late](Waiting::is_late), which is to be answered so, or the one to run.
    pub(super) fn take_next(&mut self, now: Instant, run_times: &RunTimes) -> Option<Waiting> {
        while let Some(at) = self.in_time.pop_front() {
            match &self.places[at as usize].request {
                None => self.free.push(at),
                Some(request) if request.is_late(now) || request.has_time(now, run_times) => {
                    return self.take_last_of(at);
                }
                Some(_) => self.nearly_late.push_back(at),
            }
        }
        while let Some(&at) = self.nearly_late.front() {
            match &self.places[at as usize].request {
                Some(request) if !request.is_late(now) => break,
                Some(_) => {
                    self.nearly_late.pop_front();
                    return self.take_last_of(at);
                }
                None => self.free.extend(self.nearly_late.pop_front()),
            }
        }
        while let Some(at) = self.nearly_late.pop_back() {
            match self.places[at as usize].request {
                Some(_) => return self.take_last_of(at),
                None => self.free.push(at),
            }
        }
        None
    }

    /// Takes the request of a place that is in no queue any more.
    fn take_last_of(&mut self, at: u32) -> Option<Waiting> {
        self.free.push(at);
        self.take(at)
    }

    fn take(&mut self, at: u32) -> Option<Waiting> {
        let request = self.places[at as usize].request.take()?;
        let from = ClientSlot::of(request.transport, &request.call);
        if self.index.get(&from) == Some(&at) {
            self.index.remove(&from);
        }
        self.len -= 1;
        self.bytes -= request.content.copied_bytes();
        Some(request)
    }

    /// Keeps the buffer of a request that is over.
    pub(super) fn keep(&mut self, content: Content) {
        if let Content::Copied(buffer) = content {
            self.buffers.keep(buffer);
        }
    }

    /// A client gave up a call, or all of them: those that wait here are to be [taken](Self::take_cancelled). A call that is not here costs
    /// a look into a table.
    #[cold]
    pub(super) fn cancel(&mut self, cancel: &Cancel) {
        match cancel.slot() {
            Some(slot) => {
                if let Some(&at) = self.index.get(&slot) {
                    self.cancel_at(at, cancel);
                }
            }
            None if self.is_empty() => {}
            None => (0..self.places.len() as u32).for_each(|at| self.cancel_at(at, cancel)),
        }
    }

    fn cancel_at(&mut self, at: u32, cancel: &Cancel) {
        let place = &mut self.places[at as usize];
        let Some(request) = &place.request else { return };
        if !place.is_cancelled && cancel.is_meant(request.transport, &request.call) {
            place.is_cancelled = true;
            self.cancelled.push(at);
        }
    }

    /// A request whose caller has given up, to be answered so.
    pub(super) fn take_cancelled(&mut self) -> Option<Waiting> {
        while let Some(at) = self.cancelled.pop() {
            // It may have run since.
            if self.places[at as usize].is_cancelled
                && let Some(request) = self.take(at)
            {
                return Some(request);
            }
        }
        None
    }

    /// Any request that this transport brought, or any at all.
    pub(super) fn take_any(&mut self, transport: Option<u32>) -> Option<Waiting> {
        let is_meant = |request: &Waiting| transport.is_none_or(|it| it == request.transport);
        let at = self.places.iter().position(|place| place.request.as_ref().is_some_and(is_meant));
        at.and_then(|at| self.take(at as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::buffers::Content;
    use crate::server::clients::ClientKey;
    use crate::transport::ClientId;

    const TARGET: Target =
        Target { service: 0, method: 0, row: 0, any_thread: false, idempotent: false };

    fn request(slot: u32, deadline_us: u64) -> Waiting {
        Waiting {
            call: CallToken::new(1, 1, slot, 1),
            transport: 0,
            target: TARGET,
            arrived: Instant::ZERO,
            waited_ns: 0,
            deadline: Instant::from_nanos(deadline_us * 1000),
            identity: None,
            content: Content::Copied(vec![0; 8]),
        }
    }

    /// The slots of the requests in the order in which they are taken, all at this time.
    fn slots(backlog: &mut Backlog, now_us: u64, times: &RunTimes) -> Vec<u32> {
        let now = Instant::from_nanos(now_us * 1000);
        core::iter::from_fn(|| backlog.take_next(now, times)).map(|it| it.call.slot()).collect()
    }

    /// With a method whose runs take 100 us.
    fn times() -> RunTimes {
        let times = RunTimes::new(1);
        (0..100).for_each(|_| times.record(0, 100_000));
        times
    }

    /// The client of requests, in one of its generations.
    fn client(generation: u32) -> ClientKey {
        ClientKey { transport: 0, id: ClientId { number: 1, generation } }
    }

    #[test]
    fn the_oldest_comes_first_and_those_that_may_end_too_late_come_last_with_the_newest_first() {
        let (mut backlog, times) = (Backlog::default(), times());
        for (slot, deadline) in [(1, 500), (2, 10_000), (3, 600), (4, 250), (5, 12_000)] {
            backlog.push(request(slot, deadline));
        }
        assert_eq!(slots(&mut backlog, 300, &times), [2, 4, 5, 3, 1], "the slot 4 is late");
        assert!(backlog.is_empty() && backlog.bytes == 0);
    }

    #[test]
    fn the_time_that_a_request_waited_at_its_client_counts() {
        let (mut backlog, times) = (Backlog::default(), times());
        let long_ago =
            |slot, waited_us: u64| Waiting { waited_ns: waited_us * 1000, ..request(slot, 10_000) };
        backlog.push(long_ago(0, 8_000));
        backlog.push(long_ago(1, 5_000));
        assert_eq!(slots(&mut backlog, 1000, &times), [1, 0], "the slot 0 has 1 ms left");
    }

    #[test]
    fn requests_without_a_deadline_have_time() {
        let (mut backlog, times) = (Backlog::default(), times());
        let forever = Waiting { deadline: Instant::FAR_FUTURE, ..request(1, 0) };
        backlog.push(request(0, 50));
        backlog.push(forever);
        assert_eq!(slots(&mut backlog, 0, &times), [1, 0]);
    }

    #[test]
    fn a_cancelled_request_is_taken_once_and_its_place_serves_others() {
        let (mut backlog, times) = (Backlog::default(), times());
        for round in 0..3 {
            for slot in 0..4 {
                backlog.push(request(slot, 10_000));
            }
            let cancel = |slot| Cancel::of_call(client(1), (slot, 1));
            backlog.cancel(&cancel(2));
            backlog.cancel(&cancel(2));
            backlog.cancel(&Cancel::of_call(client(2), (3, 1)));
            assert_eq!(backlog.take_cancelled().map(|it| it.call.slot()), Some(2));
            assert!(backlog.take_cancelled().is_none() && backlog.cancelled.is_empty());
            assert_eq!(slots(&mut backlog, 0, &times), [0, 1, 3]);
            assert_eq!((backlog.places.len(), backlog.free.len()), (4, 4), "round {round}");
        }
    }

    #[test]
    fn the_end_of_a_client_cancels_all_of_its_requests() {
        let mut backlog = Backlog::default();
        (0..4).for_each(|slot| backlog.push(request(slot, 10_000)));
        backlog.cancel(&Cancel::of_client(client(1)));
        assert_eq!(core::iter::from_fn(|| backlog.take_cancelled()).count(), 4);
        assert!(backlog.is_empty());
    }

    #[test]
    fn cancellations_do_not_use_up_the_room() {
        let mut backlog = Backlog::default();
        for _ in 0..4 * MAX_WAITING {
            assert!(backlog.has_room(8));
            backlog.push(request(7, 10_000));
            backlog.cancel(&Cancel::of_client(client(1)));
            assert!(backlog.take_cancelled().is_some());
        }
        assert!(backlog.places.len() <= MAX_WAITING);
        assert!(!backlog.has_room(MAX_WAITING_BYTES + 1));
    }
}
