//! A connection's tether: the socket of its handshake, kept as long as the connection. When it breaks,
//! the other end's process or machine is gone.
//!
//! An RDMA NIC answers for a process that hangs, and says nothing of one that died until something is
//! sent to it. The kernel closes a dead process's sockets at once, and asks an idle machine whether it is
//! still there. One thread watches all tethers of the process; on the data path there is only a flag.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::Socket;

/// What to do when a tether breaks: short work, on the watching thread.
pub(crate) type OnBreak = Box<dyn FnOnce() + Send>;

/// Holds one end of a tether. Dropping it lets go, and the other end notices.
#[derive(Debug)]
pub(super) struct Tether {
    watch: Arc<Watch>,
    number: u64,
}

impl Tether {
    /// Keeps the socket, and calls `on_break` once when the other end is gone; never after this was
    /// dropped.
    pub(super) fn hold(
        socket: Box<dyn Socket>,
        on_break: OnBreak,
    ) -> Result<Tether, (io::Error, OnBreak)> {
        let watch = match Watch::of_this_process() {
            Ok(watch) => watch,
            Err(error) => return Err((error, on_break)),
        };
        let number = watch.next.fetch_add(1, Ordering::Relaxed);
        // Until it is entered, its break must wait.
        let mut ties = watch.lock();
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        let data = EventData::new_u64(number);
        if let Err(error) = epoll::add(&watch.events, socket.as_fd(), data, flags) {
            return Err((error.into(), on_break));
        }
        ties.insert(number, Tie { socket, on_break });
        drop(ties);
        Ok(Tether { watch, number })
    }

    /// Whether it has broken.
    #[cfg(test)]
    fn is_broken(&self) -> bool {
        !self.watch.lock().contains_key(&self.number)
    }
}

impl Drop for Tether {
    fn drop(&mut self) {
        self.watch.let_go(self.number);
    }
}

struct Tie {
    socket: Box<dyn Socket>,
    on_break: OnBreak,
}

struct Watch {
    events: OwnedFd,
    next: AtomicU64,
    ties: Mutex<HashMap<u64, Tie>>,
}

/// Broken tethers that are looked at together.
const EVENTS: usize = 64;

impl Watch {
    /// The one that watches all; it starts with the first tether.
    fn of_this_process() -> io::Result<Arc<Watch>> {
        static WATCH: Mutex<Option<Arc<Watch>>> = Mutex::new(None);
        let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
        match &*watch {
            Some(watch) => Ok(Arc::clone(watch)),
            None => Ok(Arc::clone(watch.insert(Watch::start()?))),
        }
    }

    fn start() -> io::Result<Arc<Watch>> {
        let watch = Arc::new(Watch {
            events: epoll::create(CreateFlags::CLOEXEC)?,
            next: AtomicU64::new(0),
            ties: Mutex::default(),
        });
        let watching = Arc::clone(&watch);
        thread::Builder::new().name("farcall-tethers".into()).spawn(move || watching.run())?;
        Ok(watch)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Tie>> {
        self.ties.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn let_go(&self, number: u64) -> Option<OnBreak> {
        let Tie { socket, on_break } = self.lock().remove(&number)?;
        // Fails only if it was not watched any more.
        let _ = epoll::delete(&self.events, socket.as_fd());
        Some(on_break)
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
            // Whatever it is: after its handshake nobody says anything more.
            for event in &events {
                // The kernel packs it: its field is copied, not borrowed.
                let Event { data, .. } = *event;
                if let Some(on_break) = self.let_go(data.u64()) {
                    on_break();
                }
            }
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("tethers", &self.lock().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{self, Receiver};
    use std::time::Duration;

    use super::*;

    fn tether() -> (Tether, UnixStream, Receiver<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (tell, told) = mpsc::channel();
        let tether =
            Tether::hold(Box::new(ours), Box::new(move || tell.send(()).unwrap_or_default()));
        let tether = tether.ok().unwrap();
        (tether, theirs, told)
    }

    const BOUND: Duration = Duration::from_secs(20);

    #[test]
    fn a_peer_that_goes_breaks_it_once() {
        let (tether, theirs, told) = tether();
        assert!(!tether.is_broken());
        drop(theirs);
        told.recv_timeout(BOUND).unwrap();
        assert!(tether.is_broken());
        assert!(told.recv_timeout(BOUND).is_err(), "it has been called, and is gone");
    }

    #[test]
    fn a_peer_that_talks_breaks_it_too() {
        let (tether, mut theirs, told) = tether();
        theirs.write_all(b"GET").unwrap();
        told.recv_timeout(BOUND).unwrap();
        assert!(tether.is_broken());
    }

    #[test]
    fn letting_go_is_noticed_there_and_not_here() {
        let (tether, theirs, told) = tether();
        let (other_tell, other_told) = mpsc::channel();
        let other = Tether::hold(
            Box::new(theirs),
            Box::new(move || other_tell.send(()).unwrap_or_default()),
        );
        let other = other.ok().unwrap();
        drop(tether);
        other_told.recv_timeout(BOUND).unwrap();
        assert!(other.is_broken());
        // Dropped, not called.
        assert_eq!(told.recv_timeout(BOUND), Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
