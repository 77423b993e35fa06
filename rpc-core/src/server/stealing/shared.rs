//! What the threads of a server share to give each other requests.

use super::LONG_NS;
use super::buffers::Content;
use super::giver::MAX_GIVEN;
use crate::identity::Identity;
use crate::site::Site;
use crate::wire::Status;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

/// Entries of an inbox: a request for a thread that was idle, and cancellations. A cancellation that does not fit is lost, and
/// its call runs to its end.
const INBOX: usize = 256;

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

/// The answer to a request that was given away, with core's header.
pub(super) struct Answered {
    pub(super) call: GivenCall,
    pub(super) bytes: Vec<u8>,
}

impl Shared {
    /// For threads with these sites; `rows` is the number of rows in their counters.
    pub(in crate::server) fn new(sites: &[Site], rows: usize) -> Shared {
        let thread = |site: &Site| {
            CachePadded::new(Thread {
                is_idle: AtomicBool::new(false),
                has_left: AtomicBool::new(false),
                inbox: ArrayQueue::new(INBOX),
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

    /// Leaves something for a thread. What it cannot take any more is answered at once.
    pub(super) fn give(&self, to: u32, given: Given) {
        let thread = &self.threads[to as usize];
        if let Err(given) = thread.inbox.push(given) {
            return self.refuse(given);
        }
        // Orders the push before the load; `leave` has them the other way round, so that one of the two finds it.
        fence(Ordering::SeqCst);
        if thread.has_left.load(Ordering::Relaxed) {
            self.refuse_all(to);
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

    /// A thread ends: what is in its inbox, and what still comes, is refused.
    pub(super) fn leave(&self, thread: u32) {
        self.set_idle(thread, false);
        self.threads[thread as usize].has_left.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.refuse_all(thread);
    }

    fn refuse_all(&self, thread: u32) {
        while let Some(given) = self.take(thread) {
            self.refuse(given);
        }
    }

    fn refuse(&self, given: Given) {
        if let Given::Request(call, ..) = given {
            let bytes = Status::ShuttingDown.alone().to_vec();
            self.answer(Answered { call, bytes });
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
