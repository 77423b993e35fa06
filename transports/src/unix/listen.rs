//! Listening on a `shm://` address.
//!
//! One thread accepts, and each handshake has a short-lived thread of its own, so that a client that
//! is stuck in the middle of its handshake delays nobody. Their number is bounded, and so is the time
//! of each.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farcall_core::error::BindError;
use farcall_core::service::ServiceDescription;
use farcall_core::transport::{Acceptor, BindOptions, Binding, Bound};
use farcall_verbs::Device;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::stream::{FrameStream, StreamError};
use crate::address::Address;
use crate::backend::{Accepted, Intake, ServerHalf, SetupError};
use crate::handshake::{Frame, FrameError, Hello, Reception, Reject, Terms, Welcome};

/// Handshakes at a time. Those that come later wait in the socket's backlog.
const MAX_HANDSHAKES: usize = 64;

/// Clients that wait to be accepted.
const BACKLOG: i32 = 128;

/// Most server threads of one address.
const MAX_THREADS: usize = 1024;

/// What all handshakes of one server share.
struct Reservoir {
    address: String,
    reception: Reception,
    intakes: Vec<Box<dyn Intake>>,
    next: AtomicUsize,
    timeout: Duration,
    running: AtomicUsize,
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
    fn shake_hands(&self, socket: OwnedFd) {
        let mut stream = FrameStream::new(socket, Instant::now() + self.timeout);
        let outcome = match stream.check_user() {
            Err(reason) => Err(Reject::NotPermitted { reason }),
            Ok(()) => match stream.receive() {
                Ok(Frame::Hello(hello)) => self.admit(&stream, &hello),
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
        let (terms, Accepted { setup, withdraw }) = match outcome {
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
            Ok(Frame::Ready) if self.is_open() => {}
            other => {
                tracing::info!(address = self.address, ?other, "a client left in its handshake");
                withdraw();
            }
        }
    }

    fn admit(&self, stream: &FrameStream, hello: &Hello) -> Result<(Terms, Accepted), Reject> {
        let terms = self.reception.check(hello)?;
        let refuse = |reason: String| Err(Reject::Refused { reason });
        if !self.is_open() {
            return refuse("the server is shutting down".into());
        }
        let Ok(timeout) = stream.remaining() else {
            return refuse("the handshake's time is over".into());
        };
        // Round robin; a thread that is full passes its turn on.
        let mut full = String::new();
        for _ in 0..self.intakes.len() {
            let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.intakes.len();
            match self.intakes[turn].accept(&terms, &hello.setup, timeout) {
                Ok(accepted) => return Ok((terms, accepted)),
                Err(SetupError::Full(reason)) => full = reason,
                Err(SetupError::Misbehaved(what)) => {
                    return Err(Reject::Malformed { what: what.into() });
                }
                Err(error) => return refuse(error.to_string()),
            }
        }
        refuse(full)
    }
}

/// The thread that accepts, until it is stopped.
struct UnixAcceptor {
    reservoir: Arc<Reservoir>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor for UnixAcceptor {
    fn stop(&mut self) {
        *self.reservoir.open.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.reservoir.wake();
        if let Some(thread) = self.thread.take() {
            // The thread owns the socket: when it has ended, the name is free.
            let _ = thread.join();
        }
    }
}

impl Drop for UnixAcceptor {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept_loop(reservoir: &Arc<Reservoir>, listener: &OwnedFd) {
    while reservoir.is_open() {
        let busy = reservoir.running.load(Ordering::SeqCst) >= MAX_HANDSHAKES;
        let mut events = [
            PollFd::new(&reservoir.wake, PollFlags::IN),
            PollFd::new(listener, if busy { PollFlags::empty() } else { PollFlags::IN }),
        ];
        match rustix::event::poll(&mut events, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(address = reservoir.address, %error, "cannot accept any more");
                return;
            }
        }
        if !events[0].revents().is_empty() {
            let mut counter = [0; 8];
            let _ = rustix::io::read(&reservoir.wake, &mut counter);
        }
        if !events[1].revents().contains(PollFlags::IN) {
            continue;
        }
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => begin_handshake(reservoir, socket),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => {
                // Out of file descriptors, most likely: they come back when clients leave.
                tracing::warn!(address = reservoir.address, %error, "cannot accept a client now");
                thread::park_timeout(Duration::from_millis(100));
            }
        }
    }
}

fn begin_handshake(reservoir: &Arc<Reservoir>, socket: OwnedFd) {
    /// Counts down whatever becomes of the thread.
    struct Running(Arc<Reservoir>);
    impl Drop for Running {
        fn drop(&mut self) {
            self.0.running.fetch_sub(1, Ordering::SeqCst);
            self.0.wake();
        }
    }
    reservoir.running.fetch_add(1, Ordering::SeqCst);
    let running = Running(Arc::clone(reservoir));
    let spawned = thread::Builder::new()
        .name("farcall-handshake".into())
        .spawn(move || running.0.shake_hands(socket));
    if let Err(error) = spawned {
        tracing::warn!(address = reservoir.address, %error, "no thread for a handshake");
    }
}

impl Binding for Address {
    fn bind(
        &self,
        threads: usize,
        services: &[&'static ServiceDescription],
        options: &BindOptions,
    ) -> Result<Bound, BindError> {
        let address = self.to_string();
        check_services(threads, services)?;
        // The name first: whoever is second should not have made anything.
        let listener = listen(self)?;
        let io = |doing| {
            let address = address.clone();
            move |source: io::Error| BindError::Io { address, doing, source }
        };
        let failed = |error: SetupError| match error {
            SetupError::Unsupported(what) => {
                BindError::Unsupported { address: address.clone(), what }
            }
            other => BindError::Device { address: address.clone(), source: other.into() },
        };
        let device = Device::open("shm").map_err(|error| BindError::Device {
            address: address.clone(),
            source: error.into(),
        })?;
        let mut transports = Vec::with_capacity(threads);
        let mut intakes = Vec::with_capacity(threads);
        for thread in 0..threads {
            // Together exactly as many as asked for.
            let share =
                options.max_clients / threads + usize::from(thread < options.max_clients % threads);
            let ServerHalf { transport, intake } =
                self.backend().serve(&device, &self.limits(), share).map_err(failed)?;
            transports.push(transport);
            intakes.push(intake);
        }
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| io("making an event counter")(error.into()))?;
        let reservoir = Arc::new(Reservoir {
            reception: Reception::new(self.backend(), services, self.limits()),
            address: address.clone(),
            intakes,
            next: AtomicUsize::new(0),
            timeout: options.handshake_timeout,
            running: AtomicUsize::new(0),
            open: Mutex::new(true),
            wake,
        });
        let shared = Arc::clone(&reservoir);
        let thread = thread::Builder::new()
            .name("farcall-accept".into())
            .spawn(move || accept_loop(&shared, &listener))
            .map_err(io("starting the accepting thread"))?;
        let acceptor = Box::new(UnixAcceptor { reservoir, thread: Some(thread) });
        Ok(Bound { transports, acceptor })
    }
}

fn check_services(
    threads: usize,
    services: &[&'static ServiceDescription],
) -> Result<(), BindError> {
    if threads == 0 || threads > MAX_THREADS {
        return Err(BindError::Threads { threads, max: MAX_THREADS });
    }
    if services.is_empty() {
        return Err(BindError::NoService);
    }
    for (index, service) in services.iter().enumerate() {
        if services[..index].iter().any(|earlier| earlier.name == service.name) {
            return Err(BindError::DuplicateService { service: service.name });
        }
    }
    Ok(())
}

fn listen(address: &Address) -> Result<OwnedFd, BindError> {
    let failed = |doing| {
        move |error: Errno| match error {
            Errno::ADDRINUSE => BindError::InUse { address: address.to_string() },
            error => BindError::Io { address: address.to_string(), doing, source: error.into() },
        }
    };
    let name = super::socket_address(address.name()).map_err(failed("naming the socket"))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(failed("making the socket"))?;
    rustix::net::bind(&socket, &name).map_err(failed("binding the socket"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(failed("listening on the socket"))?;
    Ok(socket)
}
