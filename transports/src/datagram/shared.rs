//! One queue pair for all sessions of a site.
//!
//! The session that is polled takes all that has arrived, and queues what is for others in their inboxes, as copies: a
//! session that is not polled keeps no receives from the others. An inbox has a bound; beyond it datagrams are lost.
//!
//! Sessions that sleep are [called](SessionWakers) by name, so that thousands of them cost nothing while a few are busy.
//!
//! The sessions belong to one thread, which takes the lock once for each poll and each flush, and never waits for it: when
//! another thread uses one of them after all and has the lock, this is not the session's turn.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Wake, Waker};

use farcall_core::site::{Site, SiteResource};
use farcall_core::time::Instant;
use farcall_core::transport::{Armed, ReplySink};
use farcall_verbs::{DatagramSource, Device};

use super::ablation::Without;
use super::calls::{Broken, Calls};
use super::client_port::{ClientPort, LockedPort, Received, SessionPort, complete};
use super::port::Port;
use super::setup::Sizes;
use super::wire::Header;
use crate::contract::SetupError;
use crate::kit::completions::failure;
use crate::kit::wakers::Wakers;

/// Datagrams that are queued for one session: usually more than its window has outstanding.
const INBOX_BYTES: usize = 64 << 10;

/// Datagrams for which an inbox has room without another allocation: more than usually come between two polls.
const INBOX_DATAGRAMS: usize = 128;

/// A queue pair that the sessions of a site share.
#[derive(Debug)]
pub(crate) struct SharedPort {
    site: Site,
    device: Device,
    without: Without,
    exchange: Mutex<Exchange>,
    wakers: Arc<SessionWakers>,
    /// What arrives calls this.
    waker: Waker,
    /// The queue pair is in error: new sessions get another one.
    is_broken: AtomicBool,
}

/// What the session works with that has the lock.
#[derive(Debug)]
struct Exchange {
    port: ClientPort,
    inboxes: Inboxes,
    /// Several sessions have their turns together.
    in_turn: bool,
    /// One of them has looked for what has arrived, and has taken all.
    is_polled: bool,
}

impl SharedPort {
    /// The port of this site and device, opened with its first session.
    fn at(site: &Site, device: &Device, without: Without) -> Result<Arc<SharedPort>, SetupError> {
        let fits = |known: &SharedPort| {
            let is_broken = known.is_broken.load(Ordering::Relaxed);
            known.device.is_same(device) && known.without == without && !is_broken
        };
        if let Ok(known) = site.share(fits, || Err(())) {
            return Ok(known);
        }
        // Opened outside of `share`: the port shares the site's completion channel itself.
        let sizes = Sizes::of_server(device.caps(), without);
        let exchange = Exchange {
            port: ClientPort::open(site, device, &sizes)?,
            inboxes: Inboxes::default(),
            in_turn: false,
            is_polled: false,
        };
        let wakers = Arc::<SessionWakers>::default();
        let opened = SharedPort {
            site: site.clone(),
            device: device.clone(),
            without,
            exchange: Mutex::new(exchange),
            waker: Waker::from(Arc::clone(&wakers)),
            wakers,
            is_broken: AtomicBool::new(false),
        };
        site.share(fits, || Ok(opened))
    }

    fn lock(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SiteResource for SharedPort {
    fn begin_turn(&self) {
        let mut exchange = self.lock();
        exchange.in_turn = true;
        exchange.port.port.hold(true);
    }

    fn end_turn(&self) {
        let mut exchange = self.lock();
        (exchange.in_turn, exchange.is_polled) = (false, false);
        exchange.port.port.hold(false);
    }
}

/// What has arrived for sessions that were not polled yet.
#[derive(Debug, Default)]
struct Inboxes {
    /// By the sessions' numbers.
    all: Vec<Inbox>,
    free: Vec<u32>,
    /// How many are not empty.
    filled: usize,
    /// Something was queued, for a session that is not called, since the last time a thread got ready to sleep.
    has_new: bool,
    /// Memory of those that were emptied.
    spare: Vec<Datagrams>,
}

#[derive(Debug, Default)]
struct Inbox {
    is_open: bool,
    datagrams: Datagrams,
}

/// Datagrams, one after the other, each with its end and its sender.
#[derive(Debug, Default)]
struct Datagrams {
    bytes: Vec<u8>,
    ends: Vec<(usize, Option<DatagramSource>)>,
}

impl Datagrams {
    #[cold]
    fn with_room() -> Datagrams {
        let ends = Vec::with_capacity(INBOX_DATAGRAMS);
        Datagrams { bytes: Vec::with_capacity(INBOX_BYTES), ends }
    }
}

impl Inboxes {
    /// Opens one for a new session, whose number this is.
    fn open(&mut self) -> u32 {
        let number = self.free.pop().unwrap_or(self.all.len() as u32);
        if number as usize == self.all.len() {
            self.all.push(Inbox::default());
        }
        self.all[number as usize].is_open = true;
        number
    }

    fn close(&mut self, number: u32) {
        if let Some(datagrams) = self.take(number) {
            self.give_back(datagrams);
        }
        self.all[number as usize].is_open = false;
        self.free.push(number);
    }

    /// Queues a datagram for another session than the one that is polled. `false`: it is lost.
    fn push(&mut self, number: u32, datagram: &[u8], source: Option<DatagramSource>) -> bool {
        let Some(Inbox { is_open: true, datagrams }) = self.all.get_mut(number as usize) else {
            return false;
        };
        if datagrams.bytes.len() + datagram.len() > INBOX_BYTES {
            return false;
        }
        if datagrams.ends.is_empty() {
            self.filled += 1;
            *datagrams = self.spare.pop().unwrap_or_else(Datagrams::with_room);
        }
        datagrams.bytes.extend_from_slice(datagram);
        datagrams.ends.push((datagrams.bytes.len(), source));
        true
    }

    /// What was queued for a session.
    #[inline]
    fn take(&mut self, number: u32) -> Option<Datagrams> {
        if self.filled == 0 {
            return None;
        }
        let datagrams = &mut self.all.get_mut(number as usize)?.datagrams;
        if datagrams.ends.is_empty() {
            return None;
        }
        self.filled -= 1;
        Some(std::mem::take(datagrams))
    }

    fn give_back(&mut self, mut datagrams: Datagrams) {
        datagrams.bytes.clear();
        datagrams.ends.clear();
        self.spare.push(datagrams);
    }

    /// Something is queued for this session.
    fn has_some(&self, number: u32) -> bool {
        self.all.get(number as usize).is_some_and(|inbox| !inbox.datagrams.ends.is_empty())
    }

    /// Another session has to be polled before the thread sleeps. Said once for all that arrived together: some sessions
    /// are never polled.
    fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.has_new) && self.filled > 0
    }
}

/// What calls the sessions that sleep. The one that armed the port last, or that was polled since, is called when something arrives: it takes
/// all, and calls those that it is for.
#[derive(Debug, Default)]
struct SessionWakers(Mutex<Sleepers>);

#[derive(Debug, Default)]
struct Sleepers {
    /// By the sessions' numbers.
    wakers: Wakers,
    last: Option<u32>,
}

impl Sleepers {
    fn call_last(&self) {
        if let Some(last) = self.last {
            self.wakers.call(last);
        }
    }
}

impl SessionWakers {
    fn lock(&self) -> MutexGuard<'_, Sleepers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session has armed the port.
    fn enter(&self, session: u32, waker: &Waker) {
        let mut sleepers = self.lock();
        sleepers.last = Some(session);
        sleepers.wakers.set(session, waker);
    }

    /// The session is the one to call from now on, if it can be.
    fn prefer(&self, session: u32) {
        let mut sleepers = self.lock();
        if sleepers.wakers.has(session) {
            sleepers.last = Some(session);
        }
    }

    /// The session is over. What it may have been called for, another one takes.
    fn leave(&self, session: u32) {
        let mut sleepers = self.lock();
        sleepers.wakers.remove(session);
        if sleepers.last == Some(session) {
            sleepers.last = sleepers.wakers.any();
            sleepers.call_last();
        }
    }

    /// `false`: it is polled by who has its thread.
    fn call(&self, session: u32) -> bool {
        self.lock().wakers.call(session)
    }

    fn call_all(&self) {
        self.lock().wakers.call_all();
    }
}

impl Wake for SessionWakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.lock().call_last();
    }
}

/// A session's use of a shared port.
#[derive(Debug)]
pub(crate) struct PortShare {
    shared: Arc<SharedPort>,
    session: u32,
}

impl PortShare {
    /// A new session at the shared port of this site and device.
    pub(crate) fn open(
        site: &Site,
        device: &Device,
        without: Without,
    ) -> Result<PortShare, SetupError> {
        let shared = SharedPort::at(site, device, without)?;
        let session = shared.lock().inboxes.open();
        Ok(PortShare { shared, session })
    }

    #[inline]
    fn locked<'a>(&'a self, exchange: MutexGuard<'a, Exchange>) -> LockedShare<'a> {
        LockedShare { exchange, shared: &self.shared, session: self.session }
    }
}

impl Drop for PortShare {
    fn drop(&mut self) {
        self.shared.lock().inboxes.close(self.session);
        self.shared.wakers.leave(self.session);
    }
}

impl SessionPort for PortShare {
    const IS_SHARED: bool = true;

    type Locked<'a> = LockedShare<'a>;

    fn session(&self) -> u32 {
        self.session
    }

    #[inline]
    fn try_lock(&mut self) -> Option<LockedShare<'_>> {
        match self.shared.exchange.try_lock() {
            Ok(exchange) => Some(self.locked(exchange)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.locked(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn lock(&mut self) -> LockedShare<'_> {
        self.locked(self.shared.lock())
    }
}

/// A shared port in the turn of one of its sessions.
pub(crate) struct LockedShare<'a> {
    exchange: MutexGuard<'a, Exchange>,
    shared: &'a SharedPort,
    session: u32,
}

impl Deref for LockedShare<'_> {
    type Target = ClientPort;

    #[inline]
    fn deref(&self) -> &ClientPort {
        &self.exchange.port
    }
}

impl DerefMut for LockedShare<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut ClientPort {
        &mut self.exchange.port
    }
}

impl LockedPort for LockedShare<'_> {
    fn receive(&mut self, calls: &mut Calls, now: Instant, sink: &mut dyn ReplySink) -> Received {
        let Exchange { port, inboxes, in_turn, is_polled } = &mut *self.exchange;
        let session = self.session;
        let wakers = &*self.shared.wakers;
        let mut turn =
            Turn { session, wakers, calls, now, sink, outcome: Ok(()), has_queued: false };
        let mut worked = turn.empty_inbox(inboxes);
        let (mut more, mut scanned) = (false, 0);
        if !*is_polled {
            let found = turn.poll(port, inboxes);
            worked += found;
            (more, scanned) = (port.completions.is_batch(found), port.completions.scanned());
            *is_polled = *in_turn && !more;
        }
        let Turn { outcome, has_queued, .. } = turn;
        let breaks = port.port.is_broken() && !self.shared.is_broken.swap(true, Ordering::Relaxed);
        if breaks {
            self.shared.wakers.call_all();
        }
        // Another thread may sleep until something comes for its sessions.
        if has_queued || breaks {
            self.shared.site.rouse();
        }
        Received { outcome, worked: worked as u32, more, scanned }
    }

    fn arm(&mut self, waker: Option<&Waker>, has_work: impl Fn(&Port) -> bool) -> Armed {
        let Exchange { port: ClientPort { port, completions, .. }, inboxes, .. } =
            &mut *self.exchange;
        if inboxes.take_new() || inboxes.has_some(self.session) {
            return Armed::No;
        }
        let waker = waker.map(|waker| {
            self.shared.wakers.enter(self.session, waker);
            &self.shared.waker
        });
        completions.arm_with(waker, || has_work(port))
    }

    /// Others need the event; it calls the session that is polled anyway.
    fn disarm(&mut self) {
        self.shared.wakers.prefer(self.session);
    }
}

/// The turn of a session.
struct Turn<'a> {
    session: u32,
    wakers: &'a SessionWakers,
    calls: &'a mut Calls,
    now: Instant,
    sink: &'a mut dyn ReplySink,
    /// Why the session must end.
    outcome: Result<(), Broken>,
    /// Something arrived for another session, which is not called.
    has_queued: bool,
}

impl Turn<'_> {
    fn handle(&mut self, datagram: &[u8], source: Option<DatagramSource>, inboxes: &mut Inboxes) {
        let Some(parsed @ (session, ..)) = Header::split(datagram) else { return };
        if session != self.session {
            if inboxes.push(session, datagram, source) && !self.wakers.call(session) {
                inboxes.has_new = true;
                self.has_queued = true;
            }
        } else if self.outcome.is_ok() {
            self.outcome = self.calls.on_datagram(parsed, source, self.now, self.sink);
        }
    }

    /// Takes what others have queued; answers how much.
    fn empty_inbox(&mut self, inboxes: &mut Inboxes) -> usize {
        let Some(datagrams) = inboxes.take(self.session) else { return 0 };
        let mut start = 0;
        for &(end, source) in &datagrams.ends {
            self.handle(&datagrams.bytes[start..end], source, inboxes);
            start = end;
        }
        let count = datagrams.ends.len();
        inboxes.give_back(datagrams);
        count
    }

    /// Takes what has arrived at the queue pair, for any session; answers how much.
    fn poll(&mut self, port: &mut ClientPort, inboxes: &mut Inboxes) -> usize {
        let ClientPort { port, completions, .. } = port;
        let completed = match completions.poll() {
            Ok(completed) => completed,
            Err(error) => {
                port.mark_broken();
                self.outcome = Err(failure(error));
                return 0;
            }
        };
        for completion in &mut *completed {
            let outcome = complete(port, completion, |datagram, source| {
                self.handle(datagram, source, inboxes);
                Ok(())
            });
            if outcome.is_err() {
                port.mark_broken();
                self.outcome = std::mem::replace(&mut self.outcome, Ok(())).and(outcome);
            }
        }
        completed.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The wakers of three sessions, which have armed the port in order.
    fn sessions(wakers: &SessionWakers) -> [Arc<Count>; 3] {
        let counts = [(); 3].map(|()| Arc::<Count>::default());
        for (session, count) in counts.iter().enumerate() {
            wakers.enter(session as u32, &Waker::from(Arc::clone(count)));
        }
        counts
    }

    fn taken(counts: &[Arc<Count>; 3]) -> [u32; 3] {
        counts.each_ref().map(|count| count.0.swap(0, Ordering::SeqCst))
    }

    #[test]
    fn what_arrives_calls_the_session_that_armed_last_and_that_one_the_others() {
        let wakers = Arc::<SessionWakers>::default();
        let counts = sessions(&wakers);
        wakers.wake_by_ref();
        assert_eq!(taken(&counts), [0, 0, 1]);
        assert!(wakers.call(0) && !wakers.call(3));
        assert_eq!(taken(&counts), [1, 0, 0]);
        wakers.prefer(1);
        wakers.prefer(3);
        wakers.wake_by_ref();
        assert_eq!(taken(&counts), [0, 1, 0]);
        wakers.call_all();
        assert_eq!(taken(&counts), [1, 1, 1]);
    }

    #[test]
    fn what_a_session_was_called_for_is_taken_by_another_when_it_is_gone() {
        let wakers = Arc::<SessionWakers>::default();
        let counts = sessions(&wakers);
        wakers.leave(1);
        assert_eq!(taken(&counts), [0, 0, 0]);
        wakers.leave(2);
        assert_eq!(taken(&counts), [1, 0, 0]);
        wakers.wake_by_ref();
        assert_eq!(taken(&counts), [1, 0, 0]);
        wakers.leave(0);
        wakers.wake_by_ref();
        assert_eq!(taken(&counts), [0, 0, 0]);
    }
}
