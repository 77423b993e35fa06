//! The site of a thread: its clock, and the one place where it sleeps.
//!
//! Each server thread, each I/O thread, and each thread that polls its own connections has one site. Any number of
//! transports belong to it. To sleep, the driver of the thread announces it ([`Site::fall_asleep`]), asks each transport
//! whether the thread may sleep ([`arm`](crate::transport::ClientTransport::arm)), and only then sleeps.

use crate::metrics::Refusals;
use crate::time::Instant;
use core::any::Any;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use core::task::Waker;
use core::time::Duration;
use crossbeam_utils::CachePadded;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Wake;
use std::thread::{self, Thread};

mod companion;

pub use companion::{Caller, Companion, CompanionDriver};

/// No sleep is longer.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The longest sleep of a thread while another thread sleeps at the same site: an event wakes only one of them.
const CROWDED_SLEEP: Duration = Duration::from_millis(1);

/// Resources that the transports of most sites share.
const USUAL_RESOURCES: usize = 4;

/// A monotonic clock with an origin of its own.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Instant;
}

enum SiteClock {
    /// The processor's time stamp counter, in nanoseconds.
    Process(quanta::Clock),
    Given(Arc<dyn Clock>),
}

/// Through which a device or the system announces events to a sleeping thread: a completion channel, or an epoll set.
pub trait EventChannel: Send + Sync {
    /// Sleeps until an event, a [`wake`](EventChannel::wake), or the end of `timeout`. An event that came earlier ends it at
    /// once. If it cannot sleep it returns at once, as for an event: the driver polls, and comes back.
    fn wait(&self, timeout: Duration);

    /// Ends the present `wait`, or else the next one. For any thread.
    fn wake(&self);

    /// A descriptor that is readable while there is an event.
    fn as_fd(&self) -> BorrowedFd<'_>;
}

/// What the transports of one site share: a completion channel, for example, or a queue pair that carries several
/// sessions.
pub trait SiteResource: Any + Send + Sync {
    /// Several transports of the site now take their turns: what they send may wait for one doorbell.
    fn begin_turn(&self) {}

    /// The turns are over: everything leaves.
    fn end_turn(&self) {}

    /// Its event channel, if it has one.
    fn events(&self) -> Option<&dyn EventChannel> {
        None
    }
}

/// The site of one thread. Clones are the same site.
///
/// One OS thread, or one simulated core, drives all transports of a site. Other threads may use its transports as well; they
/// then wait for each other, and may wake up to a millisecond late.
#[derive(Clone)]
pub struct Site {
    inner: Arc<Inner>,
}

struct Inner {
    clock: SiteClock,
    /// A simulator drives the thread: it never sleeps here, and wakes through its event channels.
    is_driven: bool,
    /// Threads that sleep, or are about to.
    asleep: CachePadded<AtomicU32>,
    state: Mutex<State>,
    refusals: Arc<Refusals>,
    has_companions: AtomicBool,
    companions: Mutex<Vec<Weak<dyn Companion>>>,
}

#[derive(Default)]
struct State {
    /// A resource is dropped with the last transport that uses it.
    resources: Vec<Weak<dyn SiteResource>>,
    /// Empty, and keeps its memory from one [`Site::together`], or sleep, to the next.
    turning: Vec<Arc<dyn SiteResource>>,
    sleepers: Vec<Sleeper>,
    sleeps: u64,
    /// Woken while no thread slept: the next sleep returns at once.
    is_woken: bool,
}

struct Sleeper {
    number: u64,
    sleeps_on: SleepsOn,
    /// Another thread slept already, so it sleeps for [`CROWDED_SLEEP`] at most.
    is_brief: bool,
    /// Sleeps without the event channels: it takes no event from another thread.
    naps: bool,
    /// To be woken; another thread may take the event of the channel that does it.
    is_called: bool,
}

impl State {
    /// Wakes these sleepers.
    fn call(&mut self, which: impl Fn(&Sleeper) -> bool) {
        for sleeper in self.sleepers.iter_mut().filter(|sleeper| which(sleeper)) {
            sleeper.is_called = true;
            sleeper.sleeps_on.wake();
        }
    }

    fn remove_sleeper(&mut self, number: u64) {
        self.sleepers.retain(|sleeper| sleeper.number != number);
        // It may have taken the event that was to wake another.
        self.call(|other| other.is_called);
    }
}

/// What a sleeping thread waits for.
enum SleepsOn {
    /// It has no event channel.
    Thread(Thread),
    /// This channel, or this one among others.
    Channel(Arc<dyn SiteResource>),
}

impl SleepsOn {
    fn wake(&self) {
        match self {
            SleepsOn::Thread(thread) => thread.unpark(),
            SleepsOn::Channel(resource) => resource.events().into_iter().for_each(|it| it.wake()),
        }
    }
}

impl Default for Site {
    fn default() -> Self {
        Site::new()
    }
}

impl Site {
    /// The site of an OS thread.
    pub fn new() -> Site {
        Site::with(None, false)
    }

    /// The site of a thread that a simulator drives, with the simulator's clock. The thread never sleeps here;
    /// [`wake`](Site::wake) wakes every event channel of the site.
    pub fn driven(clock: Arc<dyn Clock>) -> Site {
        Site::with(Some(clock), true)
    }

    /// The site of an OS thread with another clock, for tests.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Site {
        Site::with(Some(clock), false)
    }

    fn with(clock: Option<Arc<dyn Clock>>, is_driven: bool) -> Site {
        let inner = Inner {
            clock: clock.map_or_else(|| SiteClock::Process(quanta::Clock::new()), SiteClock::Given),
            is_driven,
            asleep: CachePadded::new(AtomicU32::new(0)),
            // With room for the usual sleeper and what it shares, so that the first sleep allocates nothing.
            state: Mutex::new(State {
                sleepers: Vec::with_capacity(1),
                turning: Vec::with_capacity(USUAL_RESOURCES),
                ..State::default()
            }),
            refusals: Arc::default(),
            has_companions: AtomicBool::new(false),
            companions: Mutex::default(),
        };
        Site { inner: Arc::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time now. Only the driver of the thread reads it, about once per turn.
    #[inline]
    pub fn now(&self) -> Instant {
        match &self.inner.clock {
            SiteClock::Process(clock) => Instant::from_nanos(clock.delta_as_nanos(0, clock.raw())),
            SiteClock::Given(clock) => clock.now(),
        }
    }

    /// Whether a simulator drives the thread: then all that happens is in the order of its virtual time, and nothing may be left to
    /// other threads.
    pub fn is_driven(&self) -> bool {
        self.inner.is_driven
    }

    /// What the transports of this site have refused: at the site of a server thread.
    pub fn refusals(&self) -> &Arc<Refusals> {
        &self.inner.refusals
    }

    /// Both are the same site.
    pub fn is_same(&self, other: &Site) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The resource of this type that `fits`, which the transports of the site share. Makes it if there is none. The site
    /// forgets it when its last user drops it.
    ///
    /// `fits` and `make` must not use the site.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn share<T: SiteResource, E>(
        &self,
        fits: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        // Dropped after the lock: one of them may have lost its last user meanwhile, and its drop may end a thread that wakes the site.
        let mut others: Vec<Arc<dyn SiteResource>> = Vec::new();
        let mut state = self.lock();
        state.resources.retain(|resource| resource.strong_count() > 0);
        for resource in state.resources.iter().filter_map(Weak::upgrade) {
            others.push(Arc::clone(&resource));
            let resource: Arc<dyn Any + Send + Sync> = resource;
            if let Ok(resource) = resource.downcast::<T>()
                && fits(&resource)
            {
                return Ok(resource);
            }
        }
        let resource = Arc::new(make()?);
        let shared: Arc<dyn SiteResource> = resource.clone();
        state.resources.push(Arc::downgrade(&shared));
        Ok(resource)
    }

    /// The resources of this type that the transports of the site share at present.
    pub fn shared<T: SiteResource>(&self) -> Vec<Arc<T>> {
        let all = self.resources().into_iter().map(|it| it as Arc<dyn Any + Send + Sync>);
        all.filter_map(|it| it.downcast().ok()).collect()
    }

    fn resources(&self) -> Vec<Arc<dyn SiteResource>> {
        self.lock().resources.iter().filter_map(Weak::upgrade).collect()
    }

    /// Makes the turns of several transports one turn of the thread: what they send leaves with one doorbell when `turns` has
    /// returned, and a resource that they share is polled once.
    ///
    /// `turns` polls the transports. It must not wait for anything that it sends: that has not left yet.
    pub fn together<R>(&self, turns: impl FnOnce() -> R) -> R {
        /// Ends them also if one panics.
        struct Turns<'s>(&'s Site, Vec<Arc<dyn SiteResource>>);
        impl Drop for Turns<'_> {
            fn drop(&mut self) {
                self.1.iter().for_each(|resource| resource.end_turn());
                self.1.clear();
                self.0.lock().turning = core::mem::take(&mut self.1);
            }
        }
        let mut state = self.lock();
        let mut resources = core::mem::take(&mut state.turning);
        resources.extend(state.resources.iter().filter_map(Weak::upgrade));
        drop(state);
        let turning = Turns(self, resources);
        turning.1.iter().for_each(|resource| resource.begin_turn());
        turns()
    }

    /// Announces that the thread is about to sleep. From now on [`rouse`](Site::rouse) wakes it.
    ///
    /// The caller then checks for everything that other threads may have left for it, and [sleeps](Asleep::sleep) only if
    /// there is nothing. If it drops the [`Asleep`] instead, it stays awake.
    pub fn fall_asleep(&self) -> Asleep {
        self.inner.asleep.fetch_add(1, Ordering::SeqCst);
        // Orders the count before the caller's check; `rouse` has them the other way round, so that at least one side sees
        // the other.
        fence(Ordering::SeqCst);
        Asleep { site: self.clone() }
    }

    /// Wakes the thread if it sleeps or is about to. Call it after leaving something for the thread that it checks before it
    /// sleeps. Cheap while the thread is awake.
    #[inline]
    pub fn rouse(&self) {
        fence(Ordering::SeqCst);
        if self.inner.asleep.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
    }

    /// Ends the present sleep, or else the next one. For any thread.
    #[cold]
    pub fn wake(&self) {
        if self.inner.is_driven {
            let resources = self.resources();
            return resources.iter().filter_map(|it| it.events()).for_each(|it| it.wake());
        }
        let mut state = self.lock();
        state.is_woken = state.sleepers.is_empty();
        state.call(|_| true);
    }

    /// A waker that calls [`wake`](Site::wake).
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.inner))
    }

    fn sleep(&self, until: Option<Instant>) {
        let mut timeout = self.sleep_bound(until);
        let mut state = self.lock();
        if core::mem::take(&mut state.is_woken) {
            return;
        }
        // Dropped after the lock, as in `share`.
        let mut resources = core::mem::take(&mut state.turning);
        resources.extend(state.resources.iter().filter_map(Weak::upgrade));
        let is_brief = state.sleepers.iter().any(|other| !other.naps);
        if is_brief {
            timeout = timeout.min(CROWDED_SLEEP);
            // From now on they sleep briefly too.
            state.call(|other| !other.is_brief);
        }
        let number = state.sleeps;
        state.sleeps += 1;
        let sleeps_on = match resources.iter().find(|resource| resource.events().is_some()) {
            None => SleepsOn::Thread(thread::current()),
            Some(channel) => SleepsOn::Channel(Arc::clone(channel)),
        };
        let naps = false;
        state.sleepers.push(Sleeper { number, sleeps_on, is_brief, naps, is_called: false });
        drop(state);
        let mut channels = resources.iter().filter_map(|resource| resource.events());
        match (channels.next(), channels.next()) {
            (None, _) => thread::park_timeout(timeout),
            (Some(channel), None) => channel.wait(timeout),
            (Some(first), Some(second)) => {
                wait_for_any([first, second].into_iter().chain(channels).collect(), timeout);
            }
        }
        self.lock().remove_sleeper(number);
        resources.clear();
        self.lock().turning = resources;
    }

    fn nap(&self, until: Option<Instant>) {
        let timeout = self.sleep_bound(until);
        let mut state = self.lock();
        if core::mem::take(&mut state.is_woken) {
            return;
        }
        let number = state.sleeps;
        state.sleeps += 1;
        let sleeps_on = SleepsOn::Thread(thread::current());
        let (is_brief, naps, is_called) = (true, true, false);
        state.sleepers.push(Sleeper { number, sleeps_on, is_brief, naps, is_called });
        drop(state);
        thread::park_timeout(timeout);
        self.lock().remove_sleeper(number);
    }

    fn sleep_bound(&self, until: Option<Instant>) -> Duration {
        until.map_or(LONGEST_SLEEP, |until| LONGEST_SLEEP.min(until - self.now()))
    }
}

/// Sleeps until one of several channels has an event.
#[cold]
fn wait_for_any(channels: Vec<&dyn EventChannel>, timeout: Duration) {
    let descriptors = channels.iter().map(|channel| channel.as_fd());
    let mut descriptors: Vec<_> =
        descriptors.map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(timeout).ok();
    // If it fails, the thread wakes early.
    let _ = rustix::event::poll(&mut descriptors, timeout.as_ref());
    // Takes the events: the next sleep must wait for later ones.
    channels.iter().for_each(|channel| channel.wait(Duration::ZERO));
}

impl Wake for Inner {
    fn wake(self: Arc<Self>) {
        Site { inner: self }.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Site { inner: Arc::clone(self) }.wake();
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("resources", &self.lock().resources.len()).finish()
    }
}

/// A thread that is about to sleep at its site: see [`Site::fall_asleep`].
#[must_use = "if it is dropped, the thread stays awake"]
pub struct Asleep {
    site: Site,
}

impl Asleep {
    /// Sleeps until an event of a transport, until woken, or until `until`. May return early. No other call of a driver
    /// blocks.
    pub fn sleep(self, until: Option<Instant>) {
        self.site.sleep(until);
    }

    /// As [`sleep`](Self::sleep), but events of transports do not end it: for a thread whose transports another thread polls at
    /// present, and which would only take that thread's events.
    pub fn nap(self, until: Option<Instant>) {
        self.site.nap(until);
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        self.site.inner.asleep.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Asleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asleep").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
