//! For which of our queue pairs a peer has called.
//!
//! A queue pair that has been quiet is not looked at (see [`dormant`](super::dormant)). A sender in this process says which one has a
//! message; one in another process sets the queue pair's bit in a page, before it rings the event. Each peer's device has a page of its own: a
//! hostile one can call for its own queue pairs, for nothing, and for no others.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use rustix::io;

use super::completion_queue::CqShared;
use super::memfd;
use super::peer::lock;
use super::sync::{AtomicU32, AtomicU64, Ordering};
use crate::memory::bytes::LINE_BYTES;
use crate::memory::mapping::{Mapping, PAGE_BYTES, Population};

const PAGE_WORDS: usize = (PAGE_BYTES - LINE_BYTES) / 8;

/// The bits of a page.
#[repr(C)]
#[derive(Debug)]
struct CallBits<const WORDS: usize = PAGE_WORDS> {
    any: AnyLine,
    words: [AtomicU64; WORDS],
}

/// Not 0: bits may have been set since the owner last took them.
#[repr(C, align(64))]
#[derive(Debug)]
struct AnyLine(AtomicU32);

impl<const WORDS: usize> CallBits<WORDS> {
    /// At the sender. An index that is none does nothing.
    fn set(&self, index: u32) {
        let Some(word) = self.words.get(index as usize / 64) else { return };
        word.fetch_or(1 << (index % 64), Ordering::Relaxed);
        // An exchange, not a store: who takes the bits sees those of all senders before it.
        self.any.0.fetch_or(1, Ordering::Release);
    }

    /// At the owner: whether there may be bits to take.
    fn any(&self) -> bool {
        self.any.0.load(Ordering::Relaxed) != 0
    }

    /// At the owner: takes the bits that are set among the first `count`. Each word is read once, as the sender may write it at any time.
    /// `count` is asked for after the first look: it covers all whose senders have called by then.
    fn take(&self, count: impl FnOnce() -> usize, mut called: impl FnMut(usize)) {
        if !self.any() || self.any.0.swap(0, Ordering::Acquire) == 0 {
            return;
        }
        for (at, word) in self.words.iter().enumerate().take(count().div_ceil(64)) {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                called(at * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

/// A mapped page of calls, ours or a peer's.
#[derive(Debug)]
struct CallPage(Mapping);

impl CallPage {
    fn bits(&self) -> &CallBits {
        // SAFETY: a whole page, aligned and initially zero. All that is in it are atomics: the other side may write it at any time.
        unsafe { &*self.0.start().cast::<CallBits>() }
    }
}

const _: () = assert!(size_of::<CallBits>() <= PAGE_BYTES || cfg!(loom));

/// At the sender: where it calls for the queue pairs of a peer's device.
#[derive(Debug)]
pub(super) struct PeersCalls(CallPage);

impl PeersCalls {
    /// Maps the peer's page.
    pub(super) fn map(file: BorrowedFd<'_>) -> io::Result<PeersCalls> {
        Ok(PeersCalls(CallPage(memfd::map_foreign(file, PAGE_BYTES, true)?)))
    }

    /// Calls for the queue pair with this index.
    pub(super) fn call(&self, index: u32) {
        self.0.bits().set(index);
    }
}

/// At the owner: the page of a peer's device, and the queue pairs that it may call for.
#[derive(Debug)]
pub(super) struct Calls {
    page: CallPage,
    file: OwnedFd,
    callees: Mutex<Callees>,
}

/// By index.
#[derive(Debug, Default)]
struct Callees {
    entries: Vec<Option<Callee>>,
    free: Vec<u32>,
}

/// A queue pair, and the completion queue of its receives.
#[derive(Clone, Debug)]
struct Callee {
    cq: Weak<CqShared>,
    pair: u64,
}

impl Calls {
    pub(super) fn new() -> io::Result<Calls> {
        let (file, mapping) = memfd::create(
            "farcall-calls",
            PAGE_BYTES,
            memfd::Peers::ReadAndWrite,
            Population::AtOnce,
        )?;
        Ok(Calls { page: CallPage(mapping), file, callees: Mutex::default() })
    }

    /// For the peer.
    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// An index for this queue pair; `None` if the page has no more.
    pub(super) fn enter(&self, cq: &Arc<CqShared>, pair: u64) -> Option<u32> {
        let callee = Some(Callee { cq: Arc::downgrade(cq), pair });
        let Callees { entries, free } = &mut *lock(&self.callees);
        match free.pop() {
            Some(index) => {
                entries[index as usize] = callee;
                Some(index)
            }
            None if entries.len() < PAGE_WORDS * 64 => {
                entries.push(callee);
                Some(entries.len() as u32 - 1)
            }
            None => None,
        }
    }

    /// The queue pair with this index is gone. Who has the index next may be called for nothing, once.
    pub(super) fn leave(&self, index: u32) {
        let Callees { entries, free } = &mut *lock(&self.callees);
        entries[index as usize] = None;
        free.push(index);
    }

    /// The peer has called since the last time.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.page.bits().any()
    }

    /// Tells the completion queues of the queue pairs for which the peer has called since the last time. `own` is the caller's, who looks
    /// at once, if it polls one.
    #[cold]
    pub(super) fn pass_on(&self, own: Option<&Arc<CqShared>>) {
        let count = || lock(&self.callees).entries.len();
        self.page.bits().take(count, |index| {
            let callee = lock(&self.callees).entries.get(index).cloned().flatten();
            if let Some(Callee { cq, pair }) = callee
                && let Some(cq) = cq.upgrade()
            {
                match own.is_some_and(|own| Arc::ptr_eq(&cq, own)) {
                    true => cq.note_call(pair),
                    false => cq.call_on(pair),
                }
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use super::super::completion_queue::CompletionQueue;
    use super::*;

    #[test]
    fn each_call_is_taken_once() {
        let ours = Calls::new().unwrap();
        let theirs = PeersCalls::map(ours.file().as_fd()).unwrap();
        let taken = || {
            let mut taken = Vec::new();
            ours.page.bits().take(|| 200, |index| taken.push(index));
            taken
        };
        for index in [130, 0, 63, 64, 0] {
            theirs.call(index);
        }
        assert_eq!(taken(), [0, 63, 64, 130]);
        assert_eq!(taken(), [0; 0]);
    }

    #[test]
    fn calls_for_nothing_do_nothing() {
        let ours = Calls::new().unwrap();
        let theirs = PeersCalls::map(ours.file().as_fd()).unwrap();
        let (mut queue, pair) = (CompletionQueue::new(16, None, false), 7);
        let index = ours.enter(queue.shared(), pair).unwrap();
        for none in [index + 1, 31_000, u32::MAX] {
            theirs.call(none);
            ours.pass_on(Some(queue.shared()));
        }
        for _ in 0..1000 {
            theirs.call(index);
            ours.pass_on(None);
        }
        assert_eq!(queue.take_called(), [pair], "the list does not grow");
        ours.leave(index);
        theirs.call(index);
        ours.pass_on(Some(queue.shared()));
        assert_eq!(queue.take_called(), [0; 0]);
        assert_eq!(ours.enter(queue.shared(), pair), Some(index));
        theirs.call(index);
        ours.pass_on(Some(queue.shared()));
        assert_eq!(queue.take_called(), [pair]);
    }

    #[test]
    fn a_page_that_is_full_gives_no_index() {
        let calls = Calls::new().unwrap();
        let queue = CompletionQueue::new(16, None, false);
        let given = (0..).take_while(|pair| calls.enter(queue.shared(), *pair).is_some());
        assert_eq!(given.count(), PAGE_WORDS * 64);
    }
}

#[cfg(all(test, loom))]
mod calls_loom {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Two senders call while the owner takes calls: what is called for is taken, by that look or the next.
    #[test]
    fn ring_calls_are_never_lost() {
        loom::model(|| {
            let bits = Arc::new(CallBits::<1> {
                any: AnyLine(AtomicU32::new(0)),
                words: [AtomicU64::new(0)],
            });
            let senders: Vec<_> = (0..2)
                .map(|index| {
                    let bits = Arc::clone(&bits);
                    thread::spawn(move || bits.set(index))
                })
                .collect();
            let mut taken = 0;
            bits.take(|| 64, |index| taken |= 1 << index);
            senders.into_iter().for_each(|sender| sender.join().unwrap());
            bits.take(|| 64, |index| taken |= 1 << index);
            assert_eq!(taken, 3);
        });
    }
}
