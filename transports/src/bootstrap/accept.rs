//! Accepting clients.
//!
//! One thread accepts, and each handshake has a thread to itself while it lasts, so that a client that
//! is stuck in the middle of its handshake delays nobody. Their number is bounded, that of each source too, and so is
//! the time of each. Other clients are accepted all the same and wait, no source in front of another; while some wait,
//! clients that let the server wait for them make room.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farcall_core::Identity;
use farcall_core::error::BindError;
use farcall_core::metrics::RefusalReason;
use farcall_core::panics::contain;
use farcall_core::site::Site;
use farcall_core::transport::{Acceptor, BindTls};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::admission::{Admission, Admitted};
use super::deadline_stream::{DeadlineStream, StreamError};
use super::handshakes::{Handshakes, MAX_HANDSHAKES, Running};
use super::liveness::{LivenessSocket, OnPeerGone};
use super::nonce;
use super::socket::{Listener, Liveness, Socket};
use super::waiting::{self, Waiting};
use super::workers::Workers;
use crate::contract::{Accepted, NoticedBy, OnDisconnect, TakeStream, bounded, deadline_in};
use crate::handshake::{FrameError, Hello, Reject, ServerHandshake, ServerStep, begins_as_frame};
use crate::tls;

/// How long to wait for a file descriptor, or memory, to come back, or after a panic.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a client waits for a place that another one makes room at: a server thread that is not stuck drops one at once.
const ROOM_WAIT: Duration = Duration::from_millis(500);

/// Most questions for the time on one connection.
const MAX_TIME_QUESTIONS: usize = 16;

/// What all handshakes of one server share.
struct Acceptance {
    address: String,
    admission: Admission,
    /// What clients shake hands within, if not on the plain socket.
    tls: Option<BindTls>,
    timeout: Duration,
    /// Its clock is that of the server threads.
    site: Site,
    handshakes: Handshakes,
    /// As many threads as there may be handshakes: none waits for another's.
    workers: Arc<Workers>,
    /// Whether clients are still accepted.
    open: Mutex<bool>,
    /// Wakes the accepting thread: a handshake has ended, or the server stops.
    wake: OwnedFd,
}

impl Acceptance {
    fn wake(&self) {
        // Fails only when the counter is full; then the thread is awake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn is_open(&self) -> bool {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One client's handshake, from its hello until a server thread has it.
    fn shake_hands(&self, mut stream: DeadlineStream, running: &Running<'_>) {
        if let Err(reason) = stream.check_peer() {
            self.admission.count_refusal(RefusalReason::NotPermitted);
            return self.refuse(&mut stream, Reject::NotPermitted { reason });
        }
        let Some(identity) = self.secure(&mut stream, running) else { return };
        let binding = match stream.binding() {
            Ok(binding) => binding,
            Err(error) => {
                tracing::error!(address = self.address, ?error, "a TLS session has no keys");
                return;
            }
        };
        let mut handshake = match self.handshake(identity) {
            Ok(handshake) => handshake.bound_to(binding),
            Err(error) => {
                tracing::error!(address = self.address, %error, "no random numbers for a handshake");
                return;
            }
        };
        let hello = match hear_hello(&mut stream, &mut handshake) {
            Ok(ServerStep::Decide(hello)) => hello,
            Ok(ServerStep::TellTime) => return self.tell_time(&mut stream, &mut handshake),
            Ok(ServerStep::Refuse(answer)) => {
                let reason = handshake.refusal_reason();
                self.admission.count_refusal(reason);
                tracing::info!(address = self.address, reason = reason.name(), "refused a peer");
                return self.hang_up(&mut stream, &answer);
            }
            Ok(ServerStep::Reject(reject)) => {
                self.admission.count_refusal(RefusalReason::NotPermitted);
                return self.refuse(&mut stream, reject);
            }
            Err(Left::Frame(FrameError::Tls)) => {
                self.admission.count_refusal(RefusalReason::Tls);
                tracing::info!(
                    address = self.address,
                    "refused a client that speaks TLS; this server does not"
                );
                return self.hang_up(&mut stream, &tls::NOT_SPOKEN);
            }
            other => {
                self.count_left(running, RefusalReason::NoHandshake);
                tracing::debug!(address = self.address, ?other, "a client said no hello");
                return;
            }
        };
        running.set_heard();
        let identity = handshake.identity();
        let admitted = match self.admit(&stream, (&hello, identity.as_ref())) {
            Ok(admitted) => admitted,
            Err(reject) => return self.refuse(&mut stream, reject),
        };
        let Admitted { greeting, accepted, noticed_by } = admitted;
        let Accepted { withdraw, on_disconnect, take_stream, .. } = accepted;
        // From here on, the client lets the server wait: also one that does not read its answer.
        running.set_answered(Instant::now());
        let sent = stream.send(&handshake.welcome(greeting)).map_err(Left::from);
        match sent.and_then(|()| receive(&mut stream, &mut handshake)) {
            // Also when the server has begun to end meanwhile: the client may have calls under way, which its thread ends.
            Ok(ServerStep::Ready) => match take_stream {
                Some(take) => self.hand_over(stream, take, withdraw),
                None => self.watch(stream.into_socket(), (withdraw, noticed_by), &on_disconnect),
            },
            other => {
                self.count_left(running, RefusalReason::Unfinished);
                tracing::info!(address = self.address, ?other, "a client left in its handshake");
                withdraw();
            }
        }
    }

    fn handshake(&self, identity: Option<Identity>) -> io::Result<ServerHandshake> {
        let handshake = ServerHandshake::default();
        let authentication = self.admission.authentication().cloned();
        Ok(match (authentication, identity) {
            // Without keys, it permits the names of certificates.
            (Some(authentication), Some(identity)) if !authentication.has_keys() => {
                handshake.knowing(identity, Some(authentication))
            }
            (Some(authentication), _) => handshake.authenticating(authentication, nonce::random()?),
            (None, Some(identity)) => handshake.knowing(identity, None),
            (None, None) => handshake,
        })
    }

    /// Shakes hands for TLS, if clients speak it here. Gives who the client is, if it has said so there; `None`: it was refused.
    fn secure(
        &self,
        stream: &mut DeadlineStream,
        running: &Running<'_>,
    ) -> Option<Option<Identity>> {
        let Some(settings) = &self.tls else { return Some(None) };
        let failed = match secure(stream, settings) {
            Ok(identity) => return Some(identity),
            Err(failed) => failed,
        };
        tracing::info!(address = self.address, source = ?stream.source(), error = %failed, "refused a client before its hello");
        match failed {
            Unsecured::Plain => {
                self.admission.count_refusal(RefusalReason::Tls);
                let reason = "the server speaks TLS only; give the client `tls`".into();
                self.hang_up(stream, &ServerHandshake::reject(Reject::NotPermitted { reason }));
                stream.let_read();
            }
            Unsecured::Stream(StreamError::Tls(_)) => {
                self.admission.count_refusal(RefusalReason::Tls);
                stream.let_read();
            }
            Unsecured::Stream(_) => self.count_left(running, RefusalReason::NoHandshake),
            Unsecured::Unnamed(tls::Failure(reason)) => {
                self.admission.count_refusal(RefusalReason::NotPermitted);
                self.refuse(stream, Reject::NotPermitted { reason });
                stream.let_read();
            }
        }
        None
    }

    /// A client has left in its handshake, or was made to leave.
    fn count_left(&self, running: &Running<'_>, reason: RefusalReason) {
        let was_silent = running.was_evicted();
        self.admission.count_refusal(if was_silent { RefusalReason::Silent } else { reason });
    }

    /// Answers another server's questions for the time.
    fn tell_time(&self, stream: &mut DeadlineStream, handshake: &mut ServerHandshake) {
        for _ in 0..MAX_TIME_QUESTIONS {
            let received = self.site.now();
            let told = match self.admission.tell_time(received, self.site.now()) {
                Ok(told) => handshake.tell_time(told),
                // It asks again and again, and logs this itself.
                Err(reject) => return self.hang_up(stream, &ServerHandshake::reject(reject)),
            };
            // It hangs up when it knows enough.
            let asks_again = stream.send(&told).is_ok()
                && matches!(receive(stream, handshake), Ok(ServerStep::TellTime));
            if !asks_again {
                return;
            }
        }
    }

    fn refuse(&self, stream: &mut DeadlineStream, reject: Reject) {
        tracing::info!(address = self.address, ?reject, "refused a client");
        self.hang_up(stream, &ServerHandshake::reject(reject.told_to(stream.source())));
    }

    /// Says why, as far as the client listens.
    fn hang_up(&self, stream: &mut DeadlineStream, answer: &[u8]) {
        if let Err(error) = stream.send(answer) {
            tracing::debug!(address = self.address, %error, "a refused client was not told why");
        }
    }

    fn hand_over(&self, stream: DeadlineStream, take: TakeStream, withdraw: OnPeerGone) {
        match stream.into_stream(self.admission.silence()) {
            Ok(stream) => take(stream),
            Err(error) => {
                tracing::warn!(address = self.address, %error, "cannot hand a client's socket over");
                withdraw();
            }
        }
    }

    /// Withdraws the client when its process or machine is gone, and lets it notice when its server thread drops it.
    fn watch(
        &self,
        socket: Box<dyn Socket>,
        (withdraw, noticed_by): (OnPeerGone, NoticedBy),
        on_disconnect: &OnDisconnect,
    ) {
        let watched = match socket.watch_liveness(self.admission.silence()) {
            Ok(Liveness::IfDeviceIsSilent) if noticed_by == NoticedBy::Device => return,
            Ok(_) => LivenessSocket::hold(socket, withdraw),
            Err(error) => Err((error, withdraw)),
        };
        match watched {
            Ok(watched) => on_disconnect.keep(Box::new(watched)),
            Err((error, withdraw)) => {
                tracing::warn!(address = self.address, %error, "cannot watch a client");
                withdraw();
            }
        }
    }

    fn admit(
        &self,
        stream: &DeadlineStream,
        hello: (&Hello, Option<&Identity>),
    ) -> Result<Admitted, Reject> {
        self.admission.admit(hello, (stream.source(), ROOM_WAIT), || {
            if !self.is_open() {
                return Err(Reject::ShuttingDown);
            }
            let reason = "the handshake's time is over";
            stream.remaining().map_err(|_| Reject::Refused { reason: reason.into() })
        })
    }
}

/// Why there is no TLS with a client.
#[derive(Debug, thiserror::Error)]
enum Unsecured {
    #[error("it does not speak TLS")]
    Plain,
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// Its certificate does not say who it is.
    #[error("{0}")]
    Unnamed(tls::Failure),
}

/// Bytes of a client's that are read before it is known whether they are TLS: none after its hello, for it then waits for an answer.
const FIRST_BYTES: usize = 4096;

/// Shakes hands for TLS. Gives who the client is, if it has said so.
fn secure(stream: &mut DeadlineStream, settings: &BindTls) -> Result<Option<Identity>, Unsecured> {
    let session = tls::server_session(settings).map_err(StreamError::from)?;
    let mut buffer = [0; FIRST_BYTES];
    let first = stream.receive_plain(&mut buffer)?;
    if begins_as_frame(first) {
        return Err(Unsecured::Plain);
    }
    stream.secure(session, first)?;
    stream.session().map_or(Ok(None), |session| session.identity().map_err(Unsecured::Unnamed))
}

/// Why a client's bytes came to nothing.
#[derive(Debug, thiserror::Error)]
enum Left {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Reads until the handshake has a step to take.
fn receive(
    stream: &mut DeadlineStream,
    handshake: &mut ServerHandshake,
) -> Result<ServerStep, Left> {
    loop {
        let mut buffer = vec![0; handshake.missing()];
        match handshake.receive(stream.receive(&mut buffer)?)? {
            ServerStep::Receive => {}
            step => return Ok(step),
        }
    }
}

/// Reads until the client has said hello, and has proven who it is if it must. That takes no more time than a hello may: it
/// answers at once too.
fn hear_hello(
    stream: &mut DeadlineStream,
    handshake: &mut ServerHandshake,
) -> Result<ServerStep, Left> {
    loop {
        match receive(stream, handshake)? {
            ServerStep::Challenge(challenge) => stream.send(&challenge)?,
            step => return Ok(step),
        }
    }
}

/// The thread that accepts, until it is stopped.
pub(super) struct Accepting {
    acceptance: Arc<Acceptance>,
    thread: Option<JoinHandle<()>>,
}

impl Accepting {
    /// Accepts the clients of `listener`, each within `timeout`. `site` is that of a server thread.
    pub(super) fn start(
        listener: Box<dyn Listener>,
        (admission, tls): (Admission, Option<BindTls>),
        (timeout, site): (Duration, &Site),
        address: &str,
    ) -> Result<Accepting, BindError> {
        let io = |doing| {
            move |cause: io::Error| BindError::Io { address: address.to_owned(), doing, cause }
        };
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| io("making an event counter")(error.into()))?;
        let acceptance = Arc::new(Acceptance {
            address: address.to_owned(),
            admission,
            tls,
            timeout,
            site: site.clone(),
            handshakes: Handshakes::new(bounded(timeout)),
            workers: Workers::new("farcall-handshake", MAX_HANDSHAKES),
            open: Mutex::new(true),
            wake,
        });
        let (shared, spare) = (Arc::clone(&acceptance), Spare::new());
        let thread = thread::Builder::new()
            .name("farcall-accept".into())
            .spawn(move || accept_loop(&shared, &*listener, spare))
            .map_err(io("starting the accepting thread"))?;
        Ok(Accepting { acceptance, thread: Some(thread) })
    }
}

impl Acceptor for Accepting {
    fn stop(&mut self) {
        *self.acceptance.open.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.acceptance.wake();
        if let Some(thread) = self.thread.take() {
            // The thread owns the socket: when it has ended, the address is free.
            let _ = thread.join();
        }
        self.acceptance.workers.close();
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept_loop(acceptance: &Arc<Acceptance>, listener: &dyn Listener, mut spare: Spare) {
    let mut clients = Waiting::new(waiting::most());
    let mut look_again_in = None;
    while acceptance.is_open() {
        let turn = || accept_turn(acceptance, listener, (&mut clients, &mut spare), look_again_in);
        // A subscriber of the log may panic. Without this thread nobody connects any more.
        look_again_in = contain("accepting clients", turn).unwrap_or_else(|| {
            thread::park_timeout(PAUSE);
            Some(Duration::ZERO)
        });
    }
}

/// Waits for a client, at most for so long, and begins the handshakes that may begin. Tells when to look again at the latest.
fn accept_turn(
    acceptance: &Arc<Acceptance>,
    listener: &dyn Listener,
    (clients, spare): (&mut Waiting<DeadlineStream>, &mut Spare),
    look_again_in: Option<Duration>,
) -> Option<Duration> {
    if wait(acceptance, listener, look_again_in) {
        match listener.accept() {
            Ok(socket) => acceptance.let_wait(socket, clients),
            Err(error) if is_transient(&error) => {}
            Err(error) => {
                // Out of file descriptors, most likely: they come back when clients leave.
                tracing::warn!(address = acceptance.address, %error, "cannot accept a client now");
                thread::park_timeout(PAUSE);
                if is_shortage(&error) {
                    acceptance.refuse_for_want_of_descriptors(listener, clients, spare);
                }
            }
        }
    }
    begin_handshakes(acceptance, clients)
}

/// A descriptor that is given up for a moment to tell clients that there is none.
struct Spare(Option<OwnedFd>);

impl Spare {
    fn new() -> Spare {
        Spare(rustix::event::eventfd(0, EventfdFlags::CLOEXEC).ok())
    }
}

/// What clients are told then.
const NO_DESCRIPTOR: &str = "the server's process has no free descriptor; raise its limit of open files (ulimit -n, LimitNOFILE of systemd)";

/// Clients that are refused together, before it is looked whether others left descriptors meanwhile.
const MOST_REFUSED: usize = 64;

/// This process, or the system, has no descriptor.
fn is_shortage(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|no| error.raw_os_error() == Some(no.raw_os_error()))
}

impl Acceptance {
    /// Tells the clients that want in that they cannot be accepted. Otherwise each would wait until its time is over, and not know why.
    #[cold]
    fn refuse_for_want_of_descriptors(
        &self,
        listener: &dyn Listener,
        clients: &mut Waiting<DeadlineStream>,
        spare: &mut Spare,
    ) {
        for _ in 0..MOST_REFUSED {
            match listener.accept() {
                // Some have come back.
                Ok(socket) => return self.let_wait(socket, clients),
                Err(error) if is_shortage(&error) && spare.0.take().is_some() => {
                    // Another thread may have been faster.
                    if let Ok(socket) = listener.accept() {
                        self.refuse_unheard(socket);
                    }
                }
                Err(_) => break,
            }
            *spare = Spare::new();
        }
        if spare.0.is_none() {
            *spare = Spare::new();
        }
    }

    fn refuse_unheard(&self, socket: Box<dyn Socket>) {
        self.admission.count_refusal(RefusalReason::Failed);
        let mut stream = DeadlineStream::new(socket, deadline_in(PAUSE));
        // Within TLS it could not be told.
        if self.tls.is_none() {
            self.refuse(&mut stream, Reject::Refused { reason: NO_DESCRIPTOR.into() });
            stream.let_read();
        }
    }

    /// The client's handshake is to begin. Hangs up on one of the clients that wait if there are too many.
    fn let_wait(&self, socket: Box<dyn Socket>, clients: &mut Waiting<DeadlineStream>) {
        let stream = DeadlineStream::new(socket, deadline_in(self.timeout));
        if let Some(refused) = clients.push(stream.source(), stream) {
            self.admission.count_refusal(RefusalReason::Crowd);
            // Without an answer: a source that takes so many sockets learns nothing.
            tracing::info!(address = self.address, source = ?refused.source(), "too many clients wait for their handshake");
        }
    }
}

/// Begins the handshakes that may begin. Tells when to look again at the latest, if some must wait.
fn begin_handshakes(
    acceptance: &Arc<Acceptance>,
    clients: &mut Waiting<DeadlineStream>,
) -> Option<Duration> {
    while let Some(counts) = acceptance.handshakes.room() {
        let Some(stream) = clients.pop(|source| counts.of(source)) else { break };
        // A client that has waited for too long has given up.
        if stream.remaining().is_ok() {
            begin_handshake(acceptance, stream);
        }
    }
    // The end of a handshake wakes us.
    if clients.is_empty() { None } else { acceptance.handshakes.make_room(Instant::now()) }
}

/// The client has gone again, or there was none.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted | ConnectionReset)
}

/// Waits until woken, or for a client, or for so long. Tells whether there is a client.
fn wait(acceptance: &Acceptance, listener: &dyn Listener, timeout: Option<Duration>) -> bool {
    let mut events = [
        PollFd::new(&acceptance.wake, PollFlags::IN),
        PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
    ];
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    match rustix::event::poll(&mut events, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => {
            // Out of memory, most likely.
            tracing::error!(address = acceptance.address, %error, "cannot wait for clients now");
            thread::park_timeout(PAUSE);
            return false;
        }
    }
    if !events[0].revents().is_empty() {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&acceptance.wake, &mut counter);
    }
    events[1].revents().contains(PollFlags::IN)
}

/// A handshake that has been entered. Dropping it ends it, whether it has run or not, and wakes the accepting thread.
struct Entered {
    acceptance: Arc<Acceptance>,
    entry: u64,
}

impl Entered {
    fn running(&self) -> Running<'_> {
        self.acceptance.handshakes.running(self.entry)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        drop(self.running());
        self.acceptance.wake();
    }
}

fn begin_handshake(acceptance: &Arc<Acceptance>, stream: DeadlineStream) {
    let (source, socket) = (stream.source(), stream.second_name().ok());
    let entry = acceptance.handshakes.enter(source, socket, Instant::now());
    let entered = Entered { acceptance: Arc::clone(acceptance), entry };
    let shake = move || entered.acceptance.shake_hands(stream, &entered.running());
    if let Err(error) = acceptance.workers.run(shake) {
        tracing::warn!(address = acceptance.address, %error, "no thread for a handshake");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who takes a shortage for a client that has gone tries again at once, and uses up a core.
    #[test]
    fn a_shortage_is_no_client_that_has_gone() {
        let is = |what: fn(&io::Error) -> bool, error: Errno| what(&error.into());
        for gone in [Errno::AGAIN, Errno::INTR, Errno::CONNABORTED, Errno::CONNRESET] {
            assert!(is(is_transient, gone) && !is(is_shortage, gone), "{gone}");
        }
        for shortage in [Errno::MFILE, Errno::NFILE] {
            assert!(!is(is_transient, shortage) && is(is_shortage, shortage), "{shortage}");
        }
        assert!(!is(is_transient, Errno::NOMEM));
    }
}
