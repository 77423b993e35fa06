//! Taking clients in.
//!
//! One thread accepts, and each handshake has a short-lived thread of its own, so that a client that
//! is stuck in the middle of its handshake delays nobody. Their number is bounded, and so is the time
//! of each; while all are taken, those that have said nothing yet make room.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farcall_core::error::BindError;
use farcall_core::transport::Acceptor;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::admission::Admission;
use super::running::{Handshakes, MAX_HANDSHAKES, Running};
use super::stream::{FrameStream, StreamError};
use super::tether::{OnBreak, Tether};
use super::{Listener, Socket};
use crate::backend::{Accepted, Keepsake};
use crate::handshake::{Frame, FrameError, Hello, Reject, Terms, Welcome};

/// How long to wait for a file descriptor to come back.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(100);

/// What all handshakes of one server share.
struct Reservoir {
    address: String,
    admission: Admission,
    timeout: Duration,
    handshakes: Handshakes,
    /// Whether clients are still taken in. Whoever holds the lock decides about one client.
    open: Mutex<bool>,
    /// Wakes the accepting thread: a handshake has ended, or the server stops.
    wake: OwnedFd,
}

impl Reservoir {
    fn wake(&self) {
        // Fails only when the counter is full; then the thread is awake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn is_open(&self) -> bool {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One client's handshake, from its hello to its hand-over.
    fn shake_hands(&self, mut stream: FrameStream, running: &Running<'_>) {
        let outcome = match stream.check_peer() {
            Err(reason) => Err(Reject::NotPermitted { reason }),
            Ok(()) => match stream.receive() {
                Ok(Frame::Hello(hello)) => {
                    running.heard();
                    self.admit(&stream, &hello)
                }
                Ok(_) => Err(Reject::Malformed { what: "no hello".into() }),
                // A frame of our version tells the client which one that is.
                Err(StreamError::Frame(error @ FrameError::Version { .. })) => {
                    Err(Reject::Malformed { what: error.to_string() })
                }
                Err(error) => {
                    tracing::debug!(address = self.address, %error, "a client said no hello");
                    return;
                }
            },
        };
        let (terms, Accepted { setup, withdraw, keepsake }) = match outcome {
            Ok(admitted) => admitted,
            Err(reject) => {
                tracing::info!(address = self.address, ?reject, "refused a client");
                // Whoever is refused and does not listen is owed nothing more.
                let _ = stream.send(&Frame::Reject(reject));
                return;
            }
        };
        let welcome = Frame::Welcome(Welcome { terms, setup });
        match stream.send(&welcome).and_then(|()| stream.receive()) {
            Ok(Frame::Ready) if self.is_open() => {
                self.tie(stream.into_socket(), withdraw, &keepsake);
            }
            other => {
                tracing::info!(address = self.address, ?other, "a client left in its handshake");
                withdraw();
            }
        }
    }

    /// Sees to it that the client is withdrawn when its process or machine is gone; and that it hears when its
    /// server thread has dropped it.
    fn tie(&self, socket: Box<dyn Socket>, withdraw: OnBreak, keepsake: &Keepsake) {
        let notices = self.admission.backend().notices_death();
        let tied = match socket.become_tether(self.admission.silence()) {
            Ok(false) if notices => return,
            Ok(_) => Tether::hold(socket, withdraw),
            Err(error) => Err((error, withdraw)),
        };
        match tied {
            Ok(tether) => keepsake.keep(Box::new(tether)),
            Err((error, withdraw)) => {
                tracing::warn!(address = self.address, %error, "cannot watch a client");
                withdraw();
            }
        }
    }

    fn admit(&self, stream: &FrameStream, hello: &Hello) -> Result<(Terms, Accepted), Reject> {
        self.admission.admit(hello, || {
            if !self.is_open() {
                return Err("the server is shutting down");
            }
            stream.remaining().map_err(|_| "the handshake's time is over")
        })
    }
}

/// The thread that accepts, until it is stopped.
pub(super) struct Accepting {
    reservoir: Arc<Reservoir>,
    thread: Option<JoinHandle<()>>,
}

impl Accepting {
    /// Takes the clients of `listener` in.
    pub(super) fn start(
        listener: Box<dyn Listener>,
        admission: Admission,
        timeout: Duration,
        address: &str,
    ) -> Result<Accepting, BindError> {
        let io = |doing| {
            move |cause: io::Error| BindError::Io { address: address.to_owned(), doing, cause }
        };
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| io("making an event counter")(error.into()))?;
        let reservoir = Arc::new(Reservoir {
            address: address.to_owned(),
            admission,
            timeout,
            handshakes: Handshakes::default(),
            open: Mutex::new(true),
            wake,
        });
        let shared = Arc::clone(&reservoir);
        let thread = thread::Builder::new()
            .name("farcall-accept".into())
            .spawn(move || accept_loop(&shared, &*listener))
            .map_err(io("starting the accepting thread"))?;
        Ok(Accepting { reservoir, thread: Some(thread) })
    }
}

impl Acceptor for Accepting {
    fn stop(&mut self) {
        *self.reservoir.open.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.reservoir.wake();
        if let Some(thread) = self.thread.take() {
            // The thread owns the socket: when it has ended, the address is free.
            let _ = thread.join();
        }
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept_loop(reservoir: &Arc<Reservoir>, listener: &dyn Listener) {
    while reservoir.is_open() {
        let Some(knocks) = wait(reservoir, Some(listener), None) else { return };
        if !knocks {
            continue;
        }
        if reservoir.handshakes.count() >= MAX_HANDSHAKES {
            // The end of a handshake wakes us.
            let until = reservoir.handshakes.make_room(Instant::now());
            if wait(reservoir, None, until).is_none() {
                return;
            }
            continue;
        }
        match listener.accept() {
            Ok(socket) => begin_handshake(reservoir, socket),
            Err(error) if is_passing(&error) => {}
            Err(error) => {
                // Out of file descriptors, most likely: they come back when clients leave.
                tracing::warn!(address = reservoir.address, %error, "cannot accept a client now");
                thread::park_timeout(DESCRIPTOR_PAUSE);
            }
        }
    }
}

/// The client has gone again, or nobody was there.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted | ConnectionReset)
}

/// Waits until woken, or for a client, or for so long. Answers whether a client knocks; `None` if
/// waiting is impossible.
fn wait(
    reservoir: &Reservoir,
    listener: Option<&dyn Listener>,
    timeout: Option<Duration>,
) -> Option<bool> {
    let mut events = vec![PollFd::new(&reservoir.wake, PollFlags::IN)];
    if let Some(listener) = listener {
        events.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
    }
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    match rustix::event::poll(&mut events, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => {
            tracing::error!(address = reservoir.address, %error, "cannot accept any more");
            return None;
        }
    }
    if !events[0].revents().is_empty() {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&reservoir.wake, &mut counter);
    }
    Some(events.get(1).is_some_and(|event| event.revents().contains(PollFlags::IN)))
}

fn begin_handshake(reservoir: &Arc<Reservoir>, socket: Box<dyn Socket>) {
    /// Wakes the accepting thread whatever becomes of the handshake's.
    struct Wake(Arc<Reservoir>);
    impl Drop for Wake {
        fn drop(&mut self) {
            self.0.wake();
        }
    }
    let stream = FrameStream::new(socket, Instant::now() + reservoir.timeout);
    let entry = reservoir.handshakes.enter(stream.second_name().ok(), Instant::now());
    let shared = Arc::clone(reservoir);
    let shake = move || {
        let wake = Wake(shared);
        let running = wake.0.handshakes.running(entry);
        wake.0.shake_hands(stream, &running);
    };
    let spawned = thread::Builder::new().name("farcall-handshake".into()).spawn(shake);
    if let Err(error) = spawned {
        tracing::warn!(address = reservoir.address, %error, "no thread for a handshake");
        drop(reservoir.handshakes.running(entry));
    }
}
