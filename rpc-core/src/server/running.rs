//! A running server, and how it ends.

use super::builder::ThreadContext;
use super::driven::DrivenServer;
use super::health::Health;
use super::panics;
use super::thread::ThreadParts;
use crate::error::{BindError, ThreadEnded};
use crate::home::Home;
use crate::idle::IdlePolicy;
use crate::metrics::Metrics;
use crate::panics::catch;
use core::fmt;
use core::time::Duration;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// How long a shutdown waits for the calls in flight, unless told otherwise.
const DRAIN_BOUND: Duration = Duration::from_secs(5);

/// How long a thread may take to end after the bound of its drain, before the shutdown stops waiting for it.
const THREAD_END_BOUND: Duration = Duration::from_secs(2);

/// How long dropping a server waits for its threads. They drop their handlers and say goodbye at once; what takes up to 100 ms
/// is that the last replies leave.
const DROP_BOUND: Duration = Duration::from_millis(250);

/// How a shutdown went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Calls whose handlers were dropped at the bound; they were answered with
    /// [`RpcError::Cancelled`](crate::RpcError::Cancelled).
    pub aborted_calls: u64,
    /// Threads whose handler did not return within the bound, and those of a server that one of its own handlers shuts down. They end when
    /// it does; the shutdown did not wait for them.
    pub stuck_threads: usize,
}

/// A running server.
///
/// Dropping it stops it at once: it accepts no more clients, drops the `async` handlers in flight (their callers get
/// [`RpcError::Cancelled`](crate::RpcError::Cancelled)), says goodbye, and ends its threads. That blocks for 0.25 s at most. A thread
/// whose handler does not return ends when it does; its clients learn of that then, or by the timeouts of their calls. To
/// let the calls in flight end, use [`shutdown`](Self::shutdown).
#[must_use = "dropping a running server stops it"]
pub struct RunningServer {
    server: DrivenServer,
    threads: Vec<JoinHandle<()>>,
    /// Each thread sends here when it ends.
    ended: (Sender<()>, Receiver<()>),
    health: Arc<Health>,
    is_down: bool,
    /// A forked child has none of the threads.
    home: Home,
}

impl RunningServer {
    pub(super) fn new(server: DrivenServer) -> Self {
        RunningServer {
            server,
            threads: Vec::new(),
            ended: unbounded(),
            health: Arc::default(),
            is_down: false,
            home: Home::here(),
        }
    }

    pub(super) fn spawn(
        &mut self,
        core: Option<usize>,
        idle: IdlePolicy,
        context: Option<ThreadContext>,
        parts: ThreadParts,
    ) -> Result<(), BindError> {
        let (ended, health) = (self.ended.0.clone(), Arc::clone(&self.health));
        let body = move || {
            // Made here: a thread that cannot be started announces no end.
            let _ended = EndNotice(ended);
            if let Some(id) = core
                && !core_affinity::set_for_current(core_affinity::CoreId { id })
            {
                tracing::warn!(core = id, "could not pin a server thread");
            }
            run_thread(idle, context, parts, &health);
        };
        let name = format!("farcall-server-{}", self.threads.len());
        let thread = thread::Builder::new().name(name).spawn(body).map_err(|source| {
            let doing = "starting a server thread";
            BindError::Io { address: "this process".into(), doing, cause: source }
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// The first address of the server: as it was given, with the port that the system chose if that was left open.
    pub fn address(&self) -> &str {
        self.server.address()
    }

    /// All addresses of the server, in the order in which they were given.
    pub fn addresses(&self) -> &[String] {
        self.server.addresses()
    }

    /// The counters of all threads.
    pub fn metrics(&self) -> Metrics {
        self.server.metrics()
    }

    /// Open connections, as each thread counted them last.
    pub fn connections(&self) -> usize {
        self.server.connections()
    }

    /// Whether all threads run. One that starts again after a panic, or waits until a lost device is back, does: see
    /// [`wait`](Self::wait) for those that do not.
    pub fn is_healthy(&self) -> bool {
        self.health.is_good()
    }

    /// Blocks as long as all threads run, and tells which one has ended and why. That is a failure: a thread starts again after most
    /// panics. It ends if [`thread_context`](super::ServerBuilder::thread_context) panics or does not run it, or if its address cannot be
    /// listened at again. The log tells it, too, when it happens.
    pub fn wait(&self) -> ThreadEnded {
        self.health.wait()
    }

    /// Stops accepting clients, answers the calls in flight (at most for 5 s), says goodbye, and ends the threads.
    ///
    /// Blocks until the threads have ended: at most the 5 s, and some 2 s more if a handler does not return. In a handler of this server
    /// it does not block: the handler's thread can only end when the handler has returned, so that the threads drain afterwards, and
    /// count as [stuck](Drained::stuck_threads). In a child that was forked since, it does nothing.
    pub fn shutdown(self) -> Drained {
        self.shutdown_within(DRAIN_BOUND)
    }

    /// [`shutdown`](Self::shutdown) with another bound than 5 s. May block some 2 s longer than `bound`.
    pub fn shutdown_within(mut self, bound: Duration) -> Drained {
        self.end(bound, bound.saturating_add(THREAD_END_BOUND))
    }

    /// Ends the threads: lets them drain within one bound, and waits for them within another.
    fn end(&mut self, drain: Duration, wait: Duration) -> Drained {
        if core::mem::replace(&mut self.is_down, true) {
            return Drained::default();
        }
        if !self.home.is_here() {
            self.leave_to_parent();
            return Drained::default();
        }
        let began = Instant::now();
        self.server.shut_down(drain);
        // The caller is a handler, and its thread waits for it. To wait for the others would only delay what else that thread has.
        let wait = if self.is_on_own_thread() { Duration::ZERO } else { wait };
        let mut running = self.threads.len();
        while running > 0 && self.ended.1.recv_timeout(wait.saturating_sub(began.elapsed())).is_ok()
        {
            running -= 1;
        }
        if running == 0 {
            for thread in self.threads.drain(..) {
                // A panic was logged when it happened.
                let _ = thread.join();
            }
        }
        let drained =
            Drained { aborted_calls: self.server.aborted_calls(), stuck_threads: running };
        tracing::info!(?drained, "server down");
        drained
    }
}

impl RunningServer {
    /// The caller is a handler of this server.
    fn is_on_own_thread(&self) -> bool {
        let this = thread::current().id();
        self.threads.iter().any(|thread| thread.thread().id() == this)
    }

    /// This is a forked child, and the server is its parent's, where it goes on.
    #[cold]
    fn leave_to_parent(&mut self) {
        self.server.leave_to_parent();
        // There is nothing to join.
        core::mem::forget(core::mem::take(&mut self.threads));
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.end(Duration::ZERO, DROP_BOUND);
    }
}

/// The work of a server thread. Reports an end that nothing asked for.
fn run_thread(
    idle: IdlePolicy,
    context: Option<ThreadContext>,
    parts: ThreadParts,
    health: &Health,
) {
    let (thread, control) = (parts.index, Arc::clone(&parts.control));
    let mut parts = Some(parts);
    let mut ended = Ok(());
    let ran = catch(|| {
        let mut run = || {
            if let Some(parts) = parts.take() {
                ended = parts.into_thread().run(idle);
            }
        };
        match context {
            Some(context) => context(&mut run),
            None => run(),
        }
    });
    let reason = match (ran, ended) {
        (Err(panic), _) => format!("it panicked: {}", panics::describe(&panic)),
        (Ok(()), _) if parts.is_some() => "its thread_context has not run it".to_owned(),
        (Ok(()), Err(why)) => why,
        // Nothing but a shutdown ends it.
        (Ok(()), Ok(())) => return,
    };
    let ended = ThreadEnded { thread, reason };
    let _ = catch(|| tracing::error!(%ended, "a server thread has ended"));
    if control.draining().is_none() {
        health.report(ended);
    }
}

/// Announces that a thread has ended, also after a panic.
struct EndNotice(Sender<()>);

impl Drop for EndNotice {
    fn drop(&mut self) {
        // A shutdown that no longer waits needs no notice.
        let _ = self.0.send(());
    }
}

impl fmt::Debug for RunningServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningServer")
            .field("threads", &self.threads.len())
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}
