//! What the threads of a server share to give each other requests.

use super::LONG_NS;
use super::giver::MAX_GIVEN;
use crate::identity::Identity;
use crate::server::buffers::Content;
use crate::site::Site;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

/// Entries of an inbox from which on a cancellation is lost, and its call runs to its end. There is room for more: each thread
/// may have given a request meanwhile.
const CANCELLABLE: usize = 256;

/// Shared by the threads of a server that steal.
pub(in crate::server) struct Shared {
    threads: Box<[CachePadded<Thread>]>,
    /// How long the handler of each method ran lately, by its row in the counters.
    run_ns: Box<[AtomicU64]>,
}

/// One thread, for the others.
struct Thread {
    /// The thread has nothing to do. Who sets this to `false` gives it a request.
    is_idle: AtomicBool,
    /// The thread ends, and takes nothing any more.
    has_left: AtomicBool,
    inbox: ArrayQueue<Given>,
    /// Answers to requests that it gave away. It gives no more than fit here.
    answers: ArrayQueue<Answered>,
    site: Site,
}

/// For a thread that takes requests.
pub(super) enum Given {
    /// The call, who makes it, and what it says.
    Request(GivenCall, Option<Identity>, Content),
    /// The client gave up this request.
    Cancelled(GivenCall),
}

/// A request that was given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenCall {
    /// The index of the thread that gave it, and answers its client.
    pub(super) giver: u32,
    /// Its place among the giver's requests.
    pub(super) place: u32,
    /// Which use of that place.
    pub(super) generation: u32,
}

/// What became of a request that was given away.
pub(super) struct Answered {
    pub(super) call: GivenCall,
    pub(super) answer: Answer,
}

/// The answer to a request, or the request.
pub(super) enum Answer {
    /// The answer, with core's header.
    Bytes(Vec<u8>),
    /// The other thread has ended before it ran the request: the giver runs it itself.
    Returned(Content),
}

impl Shared {
    /// For threads with these sites; `rows` is the number of rows in their counters.
    pub(in crate::server) fn new(sites: &[Site], rows: usize) -> Shared {
        let thread = |site: &Site| {
            CachePadded::new(Thread {
                is_idle: AtomicBool::new(false),
                has_left: AtomicBool::new(false),
                inbox: ArrayQueue::new(CANCELLABLE + 2 * sites.len()),
                answers: ArrayQueue::new(MAX_GIVEN),
                site: site.clone(),
            })
        };
        Shared {
            threads: sites.iter().map(thread).collect(),
            run_ns: (0..rows).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The handler of this row's method usually runs long.
    #[inline]
    pub(super) fn runs_long(&self, row: u32) -> bool {
        self.run_ns[row as usize].load(Ordering::Relaxed) >= LONG_NS
    }

    /// A handler of this row's method ran that long.
    #[inline]
    pub(super) fn ran(&self, row: u32, nanos: u64) {
        let run_ns = &self.run_ns[row as usize];
        let before = run_ns.load(Ordering::Relaxed);
        // Short runs of short methods change no decision: the line stays shared.
        if nanos.max(before) >= LONG_NS / 4 {
            // Two threads may overwrite each other's value: both are good.
            run_ns.store((before * 3 + nanos) / 4, Ordering::Relaxed);
        }
    }

    /// Says whether a thread has nothing to do.
    pub(super) fn set_idle(&self, thread: u32, is_idle: bool) {
        self.threads[thread as usize].is_idle.store(is_idle, Ordering::Release);
    }

    /// Finds a thread that is idle, from the one after `last`. It is not idle from now on, and must be given a request.
    pub(super) fn claim(&self, last: u32) -> Option<u32> {
        let count = self.threads.len();
        (1..=count).map(|step| (last as usize + step) % count).find_map(|index| {
            let is_idle = &self.threads[index].is_idle;
            let is_claimed =
                is_idle.load(Ordering::Relaxed) && is_idle.swap(false, Ordering::AcqRel);
            is_claimed.then_some(index as u32)
        })
    }

    /// Leaves a request for a thread that was [claimed](Self::claim). Without room, gives the content back: the giver keeps the
    /// request, and the thread can be claimed again.
    pub(super) fn give(
        &self,
        to: u32,
        call: GivenCall,
        identity: Option<Identity>,
        content: Content,
    ) -> Result<(), Content> {
        let thread = &self.threads[to as usize];
        match thread.inbox.push(Given::Request(call, identity, content)) {
            Err(Given::Request(.., content)) => {
                self.set_idle(to, !thread.has_left.load(Ordering::Relaxed));
                Err(content)
            }
            _ => {
                self.pushed(to);
                Ok(())
            }
        }
    }

    /// Tells a thread that the client gave up this request. It may be lost.
    pub(super) fn cancel(&self, to: u32, call: GivenCall) {
        let inbox = &self.threads[to as usize].inbox;
        if inbox.len() < CANCELLABLE && inbox.push(Given::Cancelled(call)).is_ok() {
            self.pushed(to);
        }
    }

    fn pushed(&self, to: u32) {
        let thread = &self.threads[to as usize];
        // Orders the push before the load; `leave` has them the other way round, so that one of the two finds it.
        fence(Ordering::SeqCst);
        if thread.has_left.load(Ordering::Relaxed) {
            self.return_all(to);
        }
        thread.site.rouse();
    }

    /// The next entry in the inbox of this thread.
    pub(super) fn take(&self, thread: u32) -> Option<Given> {
        self.threads[thread as usize].inbox.pop()
    }

    pub(super) fn has_given(&self, thread: u32) -> bool {
        !self.threads[thread as usize].inbox.is_empty()
    }

    /// A thread ends: the requests in its inbox, and those that still come, go back to the threads that gave them.
    pub(super) fn leave(&self, thread: u32) {
        self.set_idle(thread, false);
        self.threads[thread as usize].has_left.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.return_all(thread);
    }

    fn return_all(&self, thread: u32) {
        while let Some(given) = self.take(thread) {
            if let Given::Request(call, _, content) = given {
                self.answer(Answered { call, answer: Answer::Returned(content) });
            }
        }
    }

    /// Gives an answer back to the thread that gave the request.
    pub(super) fn answer(&self, answered: Answered) {
        let giver = &self.threads[answered.call.giver as usize];
        let pushed = giver.answers.push(answered);
        debug_assert!(pushed.is_ok(), "there is room for the answer to each request given");
        giver.site.rouse();
    }

    /// The next answer to a request that this thread gave away.
    pub(super) fn take_answer(&self, thread: u32) -> Option<Answered> {
        self.threads[thread as usize].answers.pop()
    }

    #[inline]
    pub(super) fn has_answers(&self, thread: u32) -> bool {
        !self.threads[thread as usize].answers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(place: usize) -> GivenCall {
        GivenCall { giver: 0, place: place as u32, generation: 1 }
    }

    fn content() -> Content {
        Content::Copied(b"another client's request".to_vec())
    }

    fn two_threads() -> Shared {
        let shared = Shared::new(&[Site::new(), Site::new()], 1);
        shared.set_idle(1, true);
        shared
    }

    /// Calls that a client gave up fill the inbox of a thread that is still idle; then another client's call is given to it.
    #[test]
    fn cancellations_leave_room_for_a_call_of_another_client() {
        let shared = two_threads();
        for place in 0..2 * CANCELLABLE {
            shared.cancel(1, call(place));
        }
        assert_eq!(shared.claim(0), Some(1), "it has not looked yet");
        assert!(shared.give(1, call(0), None, content()).is_ok());
        assert!(shared.take_answer(0).is_none());
        let mut requests = std::iter::from_fn(|| shared.take(1))
            .filter(|given| matches!(given, Given::Request(..)));
        assert!(requests.next().is_some());
    }

    #[test]
    fn a_request_that_finds_no_room_stays_with_its_giver() {
        let shared = two_threads();
        let given = (0..).take_while(|place| shared.give(1, call(*place), None, content()).is_ok());
        let given = given.count();
        assert!(given >= CANCELLABLE);
        assert!(shared.take_answer(0).is_none(), "nothing was answered");
        assert_eq!(shared.claim(0), Some(1), "the thread is idle still");
    }

    #[test]
    fn a_thread_that_leaves_gives_back_what_it_has_and_what_still_comes() {
        let shared = two_threads();
        assert!(shared.give(1, call(0), None, content()).is_ok());
        shared.cancel(1, call(0));
        shared.leave(1);
        assert!(shared.give(1, call(1), None, content()).is_ok());
        for place in 0..2 {
            let answered = shared.take_answer(0).expect("it is back");
            assert_eq!(answered.call, call(place));
            assert!(matches!(answered.answer, Answer::Returned(Content::Copied(_))));
        }
        assert!(shared.take_answer(0).is_none());
        assert_eq!(shared.claim(0), None);
    }
}
