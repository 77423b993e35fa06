//! Which sockets have something to read, or room: asked between polls, and slept on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use farcall_core::site::{EventChannel, Site, SiteResource};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::{self, Errno};

use crate::contract::Stream;
use crate::kit::wakers::Wakers;

/// The number of what is no client: a wake-up, or another set.
const NO_CLIENT: u64 = u64::MAX;

/// Sockets that one question finds; the next one finds further ones.
const EVENTS: usize = 32;

const NOTHING: Event = Event { flags: EventFlags::empty(), data: EventData::new_u64(NO_CLIENT) };

/// A set of sockets.
#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    pub(super) fn new() -> io::Result<Epoll> {
        epoll::create(CreateFlags::CLOEXEC).map(Epoll)
    }

    fn add(&self, source: impl AsFd, number: u64, interest: EventFlags) -> io::Result<()> {
        epoll::add(&self.0, source, EventData::new_u64(number), interest)
    }

    /// Finds sockets with something to read, or with room, and gives each one's number to `found`.
    #[inline]
    pub(super) fn ask(&self, found: impl FnMut(u32)) {
        let mut events = [NOTHING; EVENTS];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If it fails there is nothing now; the next poll asks again.
        let count = epoll::wait(&self.0, &mut events[..], Some(&at_once)).unwrap_or(0);
        events[..count].iter().map(|event| event.data.u64() as u32).for_each(found);
    }
}

/// What a thread sleeps on: all sockets of its site.
#[derive(Debug)]
pub(super) struct SiteEvents {
    epoll: Epoll,
    wake: OwnedFd,
    clients: Mutex<Clients>,
}

/// The clients of a site, by their numbers in the set.
#[derive(Debug, Default)]
struct Clients {
    /// What calls for them when their sockets have something.
    wakers: Wakers,
    free: Vec<u32>,
    next: u32,
}

impl SiteEvents {
    /// Those of this site, made with its first socket and dropped with its last.
    pub(super) fn at(site: &Site) -> io::Result<Arc<SiteEvents>> {
        site.share(
            |_: &SiteEvents| true,
            || {
                let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                let epoll = Epoll::new()?;
                epoll.add(&wake, NO_CLIENT, EventFlags::IN)?;
                Ok(SiteEvents { epoll, wake, clients: Mutex::default() })
            },
        )
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for one more client.
    fn enter(&self) -> u32 {
        let Clients { free, next, .. } = &mut *self.clients();
        free.pop().unwrap_or_else(|| {
            *next += 1;
            *next - 1
        })
    }

    fn leave(&self, number: u32) {
        let Clients { wakers, free, .. } = &mut *self.clients();
        wakers.remove(number);
        free.push(number);
    }

    /// What the client's socket has calls this waker, while a thread waits.
    fn wake_with(&self, number: u32, waker: &Waker) {
        self.clients().wakers.set(number, waker);
    }

    /// The thread wakes for whatever is in that set.
    pub(super) fn include(&self, set: &Epoll) -> io::Result<()> {
        self.epoll.add(&set.0, NO_CLIENT, EventFlags::IN)
    }
}

impl SiteResource for SiteEvents {
    fn events(&self) -> Option<&dyn EventChannel> {
        Some(self)
    }
}

impl EventChannel for SiteEvents {
    fn wait(&self, timeout: Duration) {
        let mut events = [NOTHING; EVENTS];
        // The system counts in milliseconds, and a wait that is too short is one more turn.
        let millis = timeout.as_nanos().div_ceil(1_000_000) as i64;
        let timeout = Timespec { tv_sec: millis / 1000, tv_nsec: (millis % 1000 * 1_000_000) as _ };
        // If it fails, the thread wakes early. Sockets stay ready until they are read.
        let found = epoll::wait(&self.epoll.0, &mut events[..], Some(&timeout)).unwrap_or(0);
        for event in &events[..found] {
            match event.data.u64() {
                NO_CLIENT => {
                    let mut count = [0; 8];
                    // Fails only if it was no wake-up.
                    let _ = io::read(&self.wake, &mut count);
                }
                client => {
                    self.clients().wakers.call(client as u32);
                }
            }
        }
    }

    fn wake(&self) {
        // Fails only when the counter is full; then the thread is awake already.
        let _ = io::retry_on_intr(|| io::write(&self.wake, &1u64.to_ne_bytes()));
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

/// In which set a socket is.
#[derive(Debug, Clone)]
pub(super) enum Set {
    /// A client's: that of its site.
    Site(Arc<SiteEvents>),
    /// A server's: its own.
    Server(Arc<Epoll>),
}

impl Set {
    fn epoll(&self) -> &Epoll {
        match self {
            Set::Site(events) => &events.epoll,
            Set::Server(epoll) => epoll,
        }
    }
}

/// A stream, and what wakes its thread.
#[derive(Debug)]
pub(super) struct WatchedStream {
    pub(super) stream: Stream,
    set: Option<Set>,
    number: u64,
    interest: EventFlags,
}

impl WatchedStream {
    /// A client's stream. A socket is put into the set of its site.
    pub(super) fn of_client(stream: Stream, site: &Site) -> io::Result<WatchedStream> {
        Self::new(stream, || {
            let events = SiteEvents::at(site)?;
            let number = events.enter();
            Ok((Set::Site(events), number))
        })
    }

    /// The stream of the client of a server with this number. A socket is put into the set that `set` gives.
    pub(super) fn of_server(
        stream: Stream,
        number: u32,
        set: impl FnOnce() -> io::Result<Arc<Epoll>>,
    ) -> io::Result<WatchedStream> {
        Self::new(stream, || Ok((Set::Server(set()?), number)))
    }

    fn new(
        stream: Stream,
        set: impl FnOnce() -> io::Result<(Set, u32)>,
    ) -> io::Result<WatchedStream> {
        let interest = EventFlags::IN;
        let mut watched = WatchedStream { stream, set: None, number: NO_CLIENT, interest };
        if let Some(socket) = watched.stream.socket() {
            let (set, number) = set()?;
            watched.number = number.into();
            let added = set.epoll().add(socket, watched.number, interest);
            // Also if it was not added: the number is given back.
            watched.set = Some(set);
            added?;
        }
        Ok(watched)
    }

    /// What the socket has calls this waker, while a thread waits at the site. `false`: it does not.
    pub(super) fn wake_with(&mut self, waker: &Waker) -> bool {
        match &self.set {
            Some(Set::Site(events)) => {
                events.wake_with(self.number as u32, waker);
                true
            }
            _ => false,
        }
    }

    /// Prepares for the thread to sleep. `false`: there is something already. A socket's set watches it for what was
    /// [asked](WatchedStream::set_interest) last.
    #[inline]
    pub(super) fn arm(&mut self, wants_room: bool) -> bool {
        match &mut self.stream {
            Stream::Custom(stream) => stream.arm(wants_room),
            Stream::Socket(_) => true,
        }
    }

    /// From now on the set finds this stream for bytes, for room, or for both.
    #[inline]
    pub(super) fn set_interest(&mut self, wants_bytes: bool, wants_room: bool) {
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, wants_bytes);
        interest.set(EventFlags::OUT, wants_room);
        if interest != self.interest {
            self.change_interest(interest);
        }
    }

    #[cold]
    fn change_interest(&mut self, interest: EventFlags) {
        let (Some(socket), Some(set)) = (self.stream.socket(), &self.set) else { return };
        let data = EventData::new_u64(self.number);
        match epoll::modify(&set.epoll().0, socket, data, interest) {
            Ok(()) => self.interest = interest,
            // Tried again before the next sleep.
            Err(error) => tracing::warn!(%error, "cannot change what a socket is watched for"),
        }
    }
}

impl WatchedStream {
    /// Nothing watches the stream any more.
    pub(super) fn leave_set(&mut self) {
        if let (Some(socket), Some(set)) = (self.stream.socket(), self.set.take()) {
            match epoll::delete(&set.epoll().0, socket) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => tracing::warn!(%error, "cannot take a socket out of its set"),
            }
            if let Set::Site(events) = set {
                events.leave(self.number as u32);
            }
        }
    }
}

impl Drop for WatchedStream {
    fn drop(&mut self) {
        self.leave_set();
    }
}
