//! The endpoint: one thread that drives any number of channels.

use super::parking::{Called, Parking};
use super::shared::Shared;
use super::thread::IoThread;
use crate::home::Home;
use crate::idle::IdlePolicy;
use crate::site::Site;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// One I/O thread that drives any number of [`Channel`](super::Channel)s. Clones are the same endpoint.
///
/// Give it to [`ChannelOptions::endpoint`](super::ChannelOptions::endpoint); a channel without one has a thread of its own.
/// Channels may come and go at any time, and one that reconnects does not delay the others. The thread starts with the
/// first channel, and ends when the last clone of the endpoint and the last channel on it are dropped.
#[derive(Clone)]
pub struct Endpoint {
    handle: Arc<Handle>,
}

/// What the clones of an endpoint have in common; with the last one, the endpoint takes no more channels.
struct Handle {
    shared: Arc<EndpointShared>,
    idle: IdlePolicy,
}

/// What an endpoint and its thread share.
pub(super) struct EndpointShared {
    pub(super) site: Site,
    new_channels: Mutex<NewChannels>,
    /// There are new channels.
    has_new: AtomicBool,
    /// The endpoint is dropped: no more channels come.
    is_closed: AtomicBool,
    /// Channels that the thread does not look at, and is to look at again.
    pub(super) called: Called,
    /// The number of the next channel.
    next_number: AtomicU64,
}

/// Channels on their way to the thread.
#[derive(Default)]
struct NewChannels {
    waiting: Vec<Arc<Shared>>,
    thread: ThreadState,
}

#[derive(Clone, Copy, Default)]
enum ThreadState {
    #[default]
    NotStarted,
    /// In this process.
    Running(Home),
    Ended,
}

impl Default for Endpoint {
    fn default() -> Self {
        Endpoint::new()
    }
}

impl Endpoint {
    /// An endpoint whose thread rests by the default [`IdlePolicy`].
    pub fn new() -> Endpoint {
        Endpoint::with_idle(IdlePolicy::default())
    }

    /// An endpoint whose thread rests by this policy when no channel has work.
    pub fn with_idle(idle: IdlePolicy) -> Endpoint {
        let shared = EndpointShared {
            site: Site::new(),
            new_channels: Mutex::default(),
            has_new: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            called: Called::default(),
            next_number: AtomicU64::new(0),
        };
        Endpoint { handle: Arc::new(Handle { shared: Arc::new(shared), idle }) }
    }

    /// The site of the thread: its channels are dialled for it.
    pub(super) fn site(&self) -> &Site {
        &self.handle.shared.site
    }

    /// How its thread and its callers rest when there is nothing to do.
    pub(super) fn idle(&self) -> IdlePolicy {
        self.handle.idle
    }

    /// Hands a channel to the thread, which is started if this is the first one.
    ///
    /// # Errors
    /// The thread cannot be started, has panicked, or is in the process that forked this one.
    pub(super) fn add(&self, channel: Arc<Shared>) -> io::Result<()> {
        let shared = &self.handle.shared;
        let mut new = shared.lock();
        match new.thread {
            ThreadState::Running(home) if home.is_here() => {}
            ThreadState::Running(_) => {
                return Err(io::Error::other(
                    "the endpoint's thread is in the process that forked this one; make an endpoint in the child",
                ));
            }
            ThreadState::Ended => {
                return Err(io::Error::other("the endpoint's thread has panicked"));
            }
            ThreadState::NotStarted => {
                let (of_thread, idle) = (Arc::clone(shared), self.handle.idle);
                let builder = thread::Builder::new().name("farcall-io".into());
                // Made on the thread: where there is none, it would be dropped here, and its drop takes the lock.
                builder.spawn(move || IoThread::new(of_thread, idle).run())?;
                new.thread = ThreadState::Running(Home::here());
            }
        }
        let number = shared.next_number.fetch_add(1, Ordering::Relaxed);
        Parking::enter(&channel, shared, number);
        new.waiting.push(channel);
        shared.has_new.store(true, Ordering::Release);
        drop(new);
        shared.site.rouse();
        Ok(())
    }
}

impl EndpointShared {
    fn lock(&self) -> MutexGuard<'_, NewChannels> {
        self.new_channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn has_new(&self) -> bool {
        self.has_new.load(Ordering::Acquire)
    }

    /// Moves the new channels to the thread's.
    #[cold]
    pub(super) fn take_new(&self, channels: &mut Vec<Arc<Shared>>) {
        let mut new = self.lock();
        channels.append(&mut new.waiting);
        self.has_new.store(false, Ordering::Release);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// The thread is in the process that forked this one.
    fn is_parents(&self) -> bool {
        matches!(self.lock().thread, ThreadState::Running(home) if !home.is_here())
    }

    /// The thread has ended; the channels that it did not take fail.
    pub(super) fn end(&self) {
        let mut new = self.lock();
        new.thread = ThreadState::Ended;
        let failed = core::mem::take(&mut new.waiting);
        drop(new);
        failed.iter().for_each(|channel| channel.retire());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.shared.is_parents() {
            return;
        }
        self.shared.is_closed.store(true, Ordering::SeqCst);
        self.shared.site.rouse();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{Channel, ChannelOptions};
    use crate::error::ConnectError;
    use crate::server::Server;
    use crate::support::loopback::{Clock, Loopback};
    use crate::support::service::{Echo, TEST, Test, bytes};
    use std::time::{Duration, Instant};

    const BOUND: Duration = Duration::from_secs(30);

    fn is_running(shared: &std::sync::Weak<EndpointShared>) -> bool {
        shared.strong_count() > 0
    }

    #[test]
    fn the_thread_ends_with_the_endpoint_and_its_last_channel() {
        let net = Loopback::new(Clock::real(), 4);
        let _server = Server::builder().service(Test::default()).serve(&net).expect("it is free");
        for is_endpoint_first in [true, false] {
            let endpoint = Endpoint::with_idle(IdlePolicy::PARK);
            let shared = Arc::downgrade(&endpoint.handle.shared);
            let options = ChannelOptions::default().endpoint(&endpoint);
            let channel = Channel::connect(net.clone(), &TEST, options).expect("a server listens");
            if is_endpoint_first {
                drop(endpoint);
                assert!(channel.call::<Echo, _>(&bytes(b"on")).wait().is_ok());
                assert!(is_running(&shared));
                drop(channel);
            } else {
                drop(channel);
                let options = ChannelOptions::default().endpoint(&endpoint);
                let later = Channel::connect(net.clone(), &TEST, options).expect("it listens");
                assert!(later.call::<Echo, _>(&bytes(b"on")).wait().is_ok());
                drop((later, endpoint));
            }
            let start = Instant::now();
            while is_running(&shared) {
                assert!(start.elapsed() < BOUND, "the thread goes on");
                thread::yield_now();
            }
        }
    }

    #[test]
    fn an_endpoint_without_channels_has_no_thread() {
        let endpoint = Endpoint::new();
        let net = Loopback::new(Clock::real(), 4);
        let options = ChannelOptions::default().endpoint(&endpoint);
        let connected = Channel::connect(net, &TEST, options);
        assert!(matches!(connected, Err(ConnectError::NoServer { .. })), "{connected:?}");
        assert_eq!(Arc::strong_count(&endpoint.handle.shared), 1);
    }
}
