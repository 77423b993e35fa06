//! What takes turns with the transports of a site, and is none.

use super::{Asleep, Site};
use crate::time::{Instant, PollAt, Progress};
use crate::transport::{Armed, ClientId};
use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

/// Takes turns with the transports of a site, on the thread that drives them: queue pairs of remote memory, for example.
///
/// It may be used from other threads at the same time. Its methods never wait, and must not attach or drive anything at the site.
pub trait Companion: Send + Sync {
    /// Does what can be done now.
    fn turn(&self, now: Instant) -> Progress;

    /// Prepares for the thread to sleep. [`Armed::No`]: there is work. [`Armed::AtSite`]: what it waits for makes an event at the site.
    /// [`Armed::ByWaker`]: it waits for nothing.
    fn arm(&self) -> Armed;

    /// This client of the site's server thread is gone.
    fn client_left(&self, _: &Caller) {}

    /// The thread of this site has ended. If it was a server's, all its clients are gone.
    fn thread_ended(&self, _: &Site) {}
}

/// A client of a server thread, as long as it is there. Two calls come from the same client if their callers are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub(crate) site: usize,
    pub(crate) transport: u32,
    pub(crate) client: ClientId,
}

impl Caller {
    /// It is a client of the server thread of this site.
    pub fn is_at(&self, site: &Site) -> bool {
        self.site == site.number()
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Site>> = const { RefCell::new(None) };
    /// The number of that site, which is no other's while it is there. Needs no destructor, so that it is read at once.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

impl Site {
    /// The site of the server thread that this is; `None` on other threads.
    pub fn current() -> Option<Site> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }

    /// This thread now drives the server thread of the site.
    #[inline]
    pub(crate) fn make_current(&self) {
        if NUMBER.get() != self.number() {
            self.replace_current();
        }
    }

    #[cold]
    fn replace_current(&self) {
        if CURRENT.try_with(|current| current.replace(Some(self.clone()))).is_ok() {
            NUMBER.set(self.number());
        }
    }

    /// A number of this site alone, while it lasts.
    pub(crate) fn number(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// Gives it turns as long as it lives. Attaching it again changes nothing.
    pub fn attach(&self, companion: &Arc<dyn Companion>) {
        let new = Arc::downgrade(companion);
        let mut companions = self.companions();
        companions.retain(|other| other.strong_count() > 0);
        if !companions.iter().any(|other| Weak::ptr_eq(other, &new)) {
            companions.push(new);
        }
        self.inner.has_companions.store(true, Ordering::Release);
        drop(companions);
        self.rouse();
    }

    /// Whether something was [attached](Self::attach).
    #[inline]
    pub(crate) fn has_companions(&self) -> bool {
        self.inner.has_companions.load(Ordering::Relaxed)
    }

    /// One turn of each companion at `now`.
    #[cold]
    pub(crate) fn turn_companions(&self, now: Instant) -> Progress {
        let mut progress = Progress::IDLE;
        self.each_companion(|companion| progress = progress.and(companion.turn(now)));
        progress
    }

    /// Whether the thread may sleep, and whether a companion waits for an event. After [`fall_asleep`](Self::fall_asleep).
    pub(crate) fn arm_companions(&self) -> Armed {
        if !self.has_companions() {
            return Armed::ByWaker;
        }
        let mut all = Armed::ByWaker;
        self.each_companion(|companion| {
            all = match (all, companion.arm()) {
                (Armed::No, _) | (_, Armed::No) => Armed::No,
                (Armed::AtSite, _) | (_, Armed::AtSite) => Armed::AtSite,
                (Armed::ByWaker, Armed::ByWaker) => Armed::ByWaker,
            };
        });
        all
    }

    /// Tells the companions that a client of the site's server thread is gone.
    pub(crate) fn client_left(&self, transport: u32, client: ClientId) {
        if self.has_companions() {
            let caller = Caller { site: self.number(), transport, client };
            self.each_companion(|companion| companion.client_left(&caller));
        }
    }

    /// Tells the companions that the site's thread has ended.
    pub(crate) fn end_thread(&self) {
        if self.has_companions() {
            self.each_companion(|companion| companion.thread_ended(self));
        }
    }

    /// Not under the lock: they wake callers, whose code may use the site.
    fn each_companion(&self, mut what: impl FnMut(&dyn Companion)) {
        for at in 0.. {
            let Some(companion) = self.companions().get(at).map(Weak::upgrade) else { return };
            if let Some(companion) = companion {
                what(&*companion);
            }
        }
    }

    fn companions(&self) -> MutexGuard<'_, Vec<Weak<dyn Companion>>> {
        self.inner.companions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives the companions of a site turns while no channel or server thread there does: after the end of the last connection, for one.
#[derive(Debug)]
pub struct CompanionDriver {
    site: Site,
    /// Between an empty turn and the next one.
    asleep: Option<Asleep>,
}

impl CompanionDriver {
    /// A driver of the companions of this site.
    pub fn new(site: &Site) -> CompanionDriver {
        CompanionDriver { site: site.clone(), asleep: None }
    }

    /// One turn of each companion at `now` on the site's clock. After an empty one, `next` says when to call again: at that moment, or earlier
    /// with an event of the site.
    pub fn turn(&mut self, now: Instant) -> Progress {
        self.asleep = None;
        if !self.site.has_companions() {
            return Progress::IDLE;
        }
        let mut progress = self.site.turn_companions(now);
        if progress.is_idle() {
            self.asleep = Some(self.site.fall_asleep());
            if !self.site.arm_companions().may_sleep() {
                progress.next = PollAt::Now;
            }
        }
        progress
    }

    /// A channel or a server thread gives them turns from now on.
    pub fn pause(&mut self) {
        self.asleep = None;
    }
}
