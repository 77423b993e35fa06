//! The liveness socket of a connection: the socket of its handshake, kept open. When it closes, the peer's process or
//! machine is gone.
//!
//! An RDMA NIC answers for a process that hangs, and says nothing of one that died until something is sent to it. The
//! kernel closes a dead process's sockets at once, and probes an idle machine. One thread watches all liveness sockets of
//! the process; the data path only looks at a flag.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use farcall_verbs::PerProcess;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::socket::Socket;

/// What to do when the peer is gone: short work, on the watching thread.
pub type OnPeerGone = Box<dyn FnOnce() + Send>;

/// A liveness socket that is watched. Dropping it closes the socket, and the peer notices.
#[derive(Debug)]
pub(super) struct LivenessSocket {
    watch: Arc<Watch>,
    number: u64,
}

impl LivenessSocket {
    /// Keeps the socket, and calls `on_peer_gone` once when the peer is gone; never after this was
    /// dropped.
    pub(super) fn hold(
        socket: Box<dyn Socket>,
        on_peer_gone: OnPeerGone,
    ) -> Result<LivenessSocket, (io::Error, OnPeerGone)> {
        let watch = match Watch::of_this_process() {
            Ok(watch) => watch,
            Err(error) => return Err((error, on_peer_gone)),
        };
        let number = watch.next.fetch_add(1, Ordering::Relaxed);
        // Its event must wait until it is entered.
        let mut sockets = watch.lock();
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        let data = EventData::new_u64(number);
        if let Err(error) = epoll::add(&watch.events, socket.as_fd(), data, flags) {
            return Err((error.into(), on_peer_gone));
        }
        sockets.insert(number, Watched { socket, on_peer_gone });
        drop(sockets);
        Ok(LivenessSocket { watch, number })
    }

    /// Whether the peer is gone.
    #[cfg(test)]
    fn is_closed(&self) -> bool {
        !self.watch.lock().contains_key(&self.number)
    }
}

impl Drop for LivenessSocket {
    fn drop(&mut self) {
        self.watch.remove_entry(self.number);
    }
}

struct Watched {
    socket: Box<dyn Socket>,
    on_peer_gone: OnPeerGone,
}

struct Watch {
    events: OwnedFd,
    next: AtomicU64,
    sockets: Mutex<HashMap<u64, Watched>>,
}

/// Events that are taken together.
const EVENTS: usize = 64;

impl Watch {
    /// The watch of this process, which has a thread; it starts with the first liveness socket.
    fn of_this_process() -> io::Result<Arc<Watch>> {
        static WATCH: PerProcess<Mutex<Option<Arc<Watch>>>> = PerProcess::new();
        let mut watch = WATCH.get().lock().unwrap_or_else(PoisonError::into_inner);
        match &*watch {
            Some(watch) => Ok(Arc::clone(watch)),
            None => Ok(Arc::clone(watch.insert(Watch::start()?))),
        }
    }

    fn start() -> io::Result<Arc<Watch>> {
        let watch = Arc::new(Watch {
            events: epoll::create(CreateFlags::CLOEXEC)?,
            next: AtomicU64::new(0),
            sockets: Mutex::default(),
        });
        let watching = Arc::clone(&watch);
        thread::Builder::new().name("farcall-liveness".into()).spawn(move || watching.run())?;
        Ok(watch)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Watched>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove_entry(&self, number: u64) -> Option<OnPeerGone> {
        let Watched { socket, on_peer_gone } = self.lock().remove(&number)?;
        // Fails only if it was not watched any more.
        let _ = epoll::delete(&self.events, socket.as_fd());
        Some(on_peer_gone)
    }

    /// Runs as long as the process.
    fn run(&self) {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "peers that die are not noticed any more");
                    return;
                }
            }
            // Any event is the end: after the handshake neither end sends anything.
            for event in &events {
                // The kernel packs it: its field is copied, not borrowed.
                let Event { data, .. } = *event;
                if let Some(on_peer_gone) = self.remove_entry(data.u64()) {
                    on_peer_gone();
                }
            }
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("sockets", &self.lock().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{self, Receiver};
    use std::time::Duration;

    use super::*;

    fn pair() -> (LivenessSocket, UnixStream, Receiver<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (tell, told) = mpsc::channel();
        let liveness = LivenessSocket::hold(
            Box::new(ours),
            Box::new(move || tell.send(()).unwrap_or_default()),
        );
        let liveness = liveness.ok().unwrap();
        (liveness, theirs, told)
    }

    const BOUND: Duration = Duration::from_secs(20);

    #[test]
    fn a_peer_that_goes_is_told_once() {
        let (liveness, theirs, told) = pair();
        assert!(!liveness.is_closed());
        drop(theirs);
        told.recv_timeout(BOUND).unwrap();
        assert!(liveness.is_closed());
        assert!(told.recv_timeout(BOUND).is_err(), "it has been called, and is gone");
    }

    #[test]
    fn a_peer_that_sends_anything_is_gone_too() {
        let (liveness, mut theirs, told) = pair();
        theirs.write_all(b"GET").unwrap();
        told.recv_timeout(BOUND).unwrap();
        assert!(liveness.is_closed());
    }

    #[test]
    fn a_drop_is_noticed_by_the_peer_and_not_told_here() {
        let (liveness, theirs, told) = pair();
        let (other_tell, other_told) = mpsc::channel();
        let other = LivenessSocket::hold(
            Box::new(theirs),
            Box::new(move || other_tell.send(()).unwrap_or_default()),
        );
        let other = other.ok().unwrap();
        drop(liveness);
        other_told.recv_timeout(BOUND).unwrap();
        assert!(other.is_closed());
        // Dropped, not called.
        assert_eq!(told.recv_timeout(BOUND), Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
