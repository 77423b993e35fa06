//! What can go wrong: with a call, with a connection, with making one, with serving.

use crate::compatibility::{MethodMismatch, MissingMethod};
use core::error::Error;
use core::fmt;
use core::num::NonZeroU32;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::sync::Arc;

/// Why a call has no answer from the service.
///
/// Delivery is *at most once*: a handler runs at most once per call, unless its method is marked idempotent. Whether it may
/// have run, [`RpcError::may_have_run`] tells for every variant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The deadline passed before the answer came.
    #[error(
        "the call's deadline passed ({}); give it a longer deadline, or look at the server's load",
        ran(*may_have_run)
    )]
    DeadlineExceeded {
        /// Whether the request may have reached its handler.
        may_have_run: bool,
    },
    /// The server closed the connection, died, or cannot be reached any more.
    #[error("the server is gone ({}); a channel dials again at the next call", ran(*may_have_run))]
    PeerGone {
        /// Whether the request may have reached its handler.
        may_have_run: bool,
    },
    /// The peer broke the protocol; the connection to it was closed.
    #[error("the peer broke the protocol: {what}; the connection was closed")]
    PeerMisbehaved {
        /// The rule that was broken.
        what: &'static str,
    },
    /// The caller broke a rule of the API.
    #[error("misuse: {what}")]
    Misuse {
        /// The rule.
        what: &'static str,
    },
    /// The server refused the connection that the call needed.
    #[error("the server refused the connection: {reason}")]
    Refused {
        /// The server's reason.
        reason: Arc<str>,
    },
    /// There is no room for another call, at this end or at the server. It has not run: wait until earlier calls have ended, take
    /// their results, then try again.
    #[error("no room for another call ({0}); wait until earlier calls have ended")]
    Overloaded(Backpressure),
    /// A request or a response exceeds the connection's limit.
    #[error(
        "the message of {len} bytes exceeds the connection's limit of {max}; raise max_message on both ends or split it"
    )]
    TooLarge {
        /// The message's length in bytes.
        len: u64,
        /// The connection's limit in bytes.
        max: u64,
    },
    /// The server of this connection lacks the method, declares it with other types, or does not know an argument that the
    /// call needs. The call was not sent.
    #[error("{method} {why}")]
    NoSuchMethod {
        /// `Service.method`.
        method: Arc<str>,
        /// What is wrong with it there.
        why: MethodMismatch,
    },
    /// The arguments or the result could not be encoded or decoded.
    #[error("malformed message: {what}")]
    Malformed {
        /// Which of them, and why.
        what: Arc<str>,
    },
    /// The call was cancelled before its answer came.
    #[error("the call was cancelled")]
    Cancelled,
    /// The handler panicked, or dropped its reply without an answer. The server goes on. It logs the panic with `tracing`.
    #[error("the handler panicked or gave no answer; see the server's tracing output")]
    HandlerPanicked,
    /// The handler has run, but the server had no memory for its result: this client did not fetch earlier large results in
    /// time, or many clients did not.
    #[error(
        "the server had no memory for the result (the call has run); poll the client while calls with large results are outstanding, start fewer of them, or raise the server's memory"
    )]
    ResponseDropped,
}

/// Which process it is, as far as it can be told.
fn holder(process: Option<NonZeroU32>) -> String {
    match process {
        Some(id) => format!("process {id} of "),
        None => "a process of another pid namespace, of ".to_owned(),
    }
}

fn ran(may_have_run: bool) -> &'static str {
    if may_have_run { "it may have run" } else { "it did not run" }
}

impl RpcError {
    /// The handler may have run, in whole or in part.
    ///
    /// `false` means that it has not run, so the call can be repeated without harm. There is one exception: a method that
    /// is marked idempotent may have run in an earlier transmission of the same call. `true` means only that this error
    /// does not exclude it. [`Malformed`](RpcError::Malformed) and [`TooLarge`](RpcError::TooLarge), for example, say `true`
    /// even if this end could not send the arguments.
    pub fn may_have_run(&self) -> bool {
        match self {
            RpcError::DeadlineExceeded { may_have_run } | RpcError::PeerGone { may_have_run } => {
                *may_have_run
            }
            RpcError::HandlerPanicked
            | RpcError::ResponseDropped
            | RpcError::Cancelled
            | RpcError::PeerMisbehaved { .. }
            | RpcError::TooLarge { .. }
            | RpcError::Malformed { .. } => true,
            RpcError::Misuse { .. }
            | RpcError::Refused { .. }
            | RpcError::Overloaded(_)
            | RpcError::NoSuchMethod { .. } => false,
        }
    }
}

/// How a call of a method that returns `Result` can fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError<E> {
    /// The service's own error: the handler ran and returned it.
    #[error("{0}")]
    Service(E),
    /// There is no answer from the service.
    #[error(transparent)]
    Rpc(#[from] RpcError),
}

impl<E> CallError<E> {
    /// The RPC error; `None` if the service answered with an error of its own.
    pub fn rpc(&self) -> Option<&RpcError> {
        match self {
            CallError::Rpc(error) => Some(error),
            CallError::Service(_) => None,
        }
    }
}

/// Which resource is exhausted at present. The call has not run; unless it is one of the server's, nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Backpressure {
    /// The window is full: as many calls are outstanding as the connection allows.
    #[error("the window is full")]
    Credits,
    /// The send queue is full until a completion comes.
    #[error("the send queue is full")]
    SendQueue,
    /// No registered memory is free until an earlier message has left.
    #[error("no registered memory is free")]
    Memory,
    /// The client holds as many calls as its limit allows, including those whose results were not taken.
    #[error("the client has reached its limit of calls")]
    Calls,
    /// The server runs as many `async` handlers as its limit allows, or keeps as many large results as it may which this
    /// client has not fetched.
    #[error(
        "the server has reached its limit of calls, or of results that this client has not fetched"
    )]
    Server,
    /// This client has used up its quota of calls or of CPU time at the server: see [`ClientQuota`](crate::server::ClientQuota). The
    /// call has not run.
    #[error("this client has used up its quota of calls or of CPU time at the server")]
    Quota,
}

/// Why a slot could not be reserved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// There is no room at present.
    #[error(transparent)]
    Backpressure(#[from] Backpressure),
    /// The connection never carries a message of this length.
    #[error("a message of {len} bytes exceeds the limit of {max}")]
    TooLarge {
        /// The length asked for, in bytes.
        len: u64,
        /// The longest message, in bytes.
        max: u64,
    },
    /// The connection is closed.
    #[error("the connection is closed")]
    Closed,
}

impl From<ReserveError> for RpcError {
    fn from(error: ReserveError) -> Self {
        match error {
            ReserveError::Backpressure(which) => RpcError::Overloaded(which),
            ReserveError::TooLarge { len, max } => RpcError::TooLarge { len, max },
            ReserveError::Closed => RpcError::PeerGone { may_have_run: false },
        }
    }
}

/// Why a request, or a whole connection, failed in the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct TransportFailure {
    /// What happened.
    pub kind: FailureKind,
    /// Whether the request may have reached the server; for a connection, whether its outstanding requests may have.
    pub may_have_run: bool,
}

/// What happened to a connection or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FailureKind {
    /// The peer closed the connection in an orderly way.
    #[error("the peer said goodbye")]
    Goodbye,
    /// The peer died, or cannot be reached any more.
    #[error("the peer is gone")]
    PeerGone,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    PeerMisbehaved(&'static str),
    /// The response exceeds the connection's limit.
    #[error("the message of {len} bytes exceeds the limit of {max}")]
    TooLarge {
        /// The message's length in bytes.
        len: u64,
        /// The longest message, in bytes.
        max: u64,
    },
    /// The device failed (completion queue overrun, port down, local protection error).
    #[error("the device failed: {0}")]
    Device(&'static str),
    /// This end closed the connection.
    #[error("this end closed the connection")]
    Closed,
}

impl TransportFailure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, may_have_run: bool) -> Self {
        TransportFailure { kind, may_have_run }
    }
}

impl From<TransportFailure> for RpcError {
    fn from(failure: TransportFailure) -> Self {
        match failure.kind {
            FailureKind::Goodbye
            | FailureKind::PeerGone
            | FailureKind::Device(_)
            | FailureKind::Closed => RpcError::PeerGone { may_have_run: failure.may_have_run },
            FailureKind::PeerMisbehaved(what) => RpcError::PeerMisbehaved { what },
            FailureKind::TooLarge { len, max } => RpcError::TooLarge { len, max },
        }
    }
}

/// An error of a lower layer.
pub type Source = Box<dyn Error + Send + Sync>;

/// Why a connection could not be made. Each message names the address, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address itself is wrong.
    #[error("invalid address: {0}")]
    InvalidAddress(Source),
    /// Nothing listens there.
    #[error("no server at {address}: {hint}")]
    NoServer {
        /// The address dialled.
        address: String,
        /// What to check.
        hint: String,
    },
    /// The server did not answer in time.
    #[error(
        "no answer from {address} within {after:?}; the server is overloaded, stopped, or not a farcall server"
    )]
    TimedOut {
        /// The address dialled.
        address: String,
        /// The bound on the handshake.
        after: Duration,
    },
    /// The two ends have no version of the protocol in common.
    #[error(
        "{address} speaks {}, this program {}; upgrade the one that speaks the lower",
        versions(theirs),
        versions(ours)
    )]
    VersionMismatch {
        /// The address dialled.
        address: String,
        /// This end's versions.
        ours: RangeInclusive<u16>,
        /// The server's versions.
        theirs: RangeInclusive<u16>,
    },
    /// The server listens with another backend.
    #[error(
        "{address} serves the backend {theirs:?}, not {ours:?}; put backend={theirs} into the address"
    )]
    BackendMismatch {
        /// The address dialled.
        address: String,
        /// The backend this end asked for.
        ours: String,
        /// The backend that the server runs.
        theirs: String,
    },
    /// The server does not serve that service.
    #[error("{address} does not serve {asked:?}; {}", served_instead(served))]
    NoSuchService {
        /// The address dialled.
        address: String,
        /// The service asked for.
        asked: String,
        /// What the server serves; empty if it does not say.
        served: Vec<String>,
    },
    /// The server has a service of that name, but lacks methods that the client requires, or all of the client's methods.
    #[error("{service} at {address} does not fit: {}", first_of(methods))]
    IncompatibleService {
        /// The address dialled.
        address: String,
        /// The service asked for.
        service: String,
        /// The required methods that cannot be called, or all methods.
        methods: Vec<MissingMethod>,
    },
    /// One end does not accept the credentials of the other.
    #[error("not permitted at {address}: {reason}")]
    NotPermitted {
        /// The address dialled.
        address: String,
        /// Whose credentials did not fit.
        reason: String,
    },
    /// The server refused: it is full, or shuts down.
    #[error("{address} refused the connection: {reason}")]
    Refused {
        /// The address dialled.
        address: String,
        /// The server's reason.
        reason: String,
    },
    /// The device or backend cannot do what the address asks for.
    #[error("{address}: not supported: {what}")]
    Unsupported {
        /// The address dialled.
        address: String,
        /// What cannot be done, and what can.
        what: String,
    },
    /// The peer broke the protocol of the handshake.
    #[error("{address} broke the handshake: {what}")]
    PeerMisbehaved {
        /// The address dialled.
        address: String,
        /// The rule that was broken.
        what: String,
    },
    /// The device failed.
    #[error("{address}: {cause}")]
    Device {
        /// The address dialled.
        address: String,
        /// The device's error. Not a source: the message above says it already.
        cause: Source,
    },
    /// The operating system failed.
    #[error("{address}: {doing}: {cause}")]
    Io {
        /// The address dialled.
        address: String,
        /// What was being done.
        doing: &'static str,
        /// The system's error. Not a source: the message above says it already.
        cause: std::io::Error,
    },
}

fn versions(range: &RangeInclusive<u16>) -> impl fmt::Display {
    fmt::from_fn(move |f| match range.start() == range.end() {
        true => write!(f, "protocol version {}", range.start()),
        false => write!(f, "protocol versions {} to {}", range.start(), range.end()),
    })
}

/// Methods that an error names; it counts the others.
const NAMED_METHODS: usize = 8;

fn first_of(methods: &[MissingMethod]) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        for (index, method) in methods.iter().take(NAMED_METHODS).enumerate() {
            write!(f, "{}{method}", if index == 0 { "" } else { "; " })?;
        }
        match methods.len().saturating_sub(NAMED_METHODS) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    })
}

/// Servers do not tell strangers what they serve.
fn served_instead(served: &[String]) -> String {
    match served {
        [] => "check the name; the server's log lists its services when it starts".into(),
        served => format!("it serves: {}", served.join(", ")),
    }
}

impl From<&ConnectError> for RpcError {
    /// The error of a call that needed the connection.
    fn from(error: &ConnectError) -> Self {
        match error {
            ConnectError::NoServer { .. }
            | ConnectError::TimedOut { .. }
            | ConnectError::Io { .. }
            | ConnectError::Device { .. } => RpcError::PeerGone { may_have_run: false },
            other => RpcError::Refused { reason: other.to_string().into() },
        }
    }
}

/// Why a server could not start. Each message names what is wrong, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address itself is wrong.
    #[error("invalid address: {0}")]
    InvalidAddress(Source),
    /// Another server has this name or port.
    #[error("{address} is in use by another server; stop it or choose another address")]
    InUse {
        /// The address asked for.
        address: String,
    },
    /// A process that is not this user's has this name of a `shm://` address: names belong to the user who takes them first.
    #[error("{address} is held by {}user {user}; stop it or choose another name", holder(*process))]
    HeldByOtherUser {
        /// The address asked for.
        address: String,
        /// The process that listens there; `None` if it is in a pid namespace that this process cannot see into.
        process: Option<NonZeroU32>,
        /// The id of its user.
        user: u32,
    },
    /// This process may not listen there.
    #[error("not permitted to listen at {address}: {reason}")]
    NotPermitted {
        /// The address asked for.
        address: String,
        /// What permission is missing.
        reason: String,
    },
    /// The device or backend cannot do what the address asks for.
    #[error("{address}: not supported: {what}")]
    Unsupported {
        /// The address asked for.
        address: String,
        /// What cannot be done, and what can.
        what: String,
    },
    /// The server was given no service.
    #[error("no service was given to the server; add one with .service(..)")]
    NoService,
    /// The server was given no address.
    #[error("no address was given to the server; give it at least one to listen at")]
    NoAddress,
    /// The same service was given twice.
    #[error("the service {service:?} was given twice; one server serves each service once")]
    DuplicateService {
        /// The service's name.
        service: &'static str,
    },
    /// Two services have methods with the same id.
    #[error("{first} and {second} have the same method id {id:#010x}; rename one of the methods")]
    MethodCollision {
        /// `service.method` that came first.
        first: String,
        /// `service.method` that collides with it.
        second: String,
        /// The id.
        id: u32,
    },
    /// Clients cannot be authenticated in this way.
    #[error("the server's authentication cannot work: {problem}")]
    Authentication {
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// No client could use the server with this quota.
    #[error("the quota of clients cannot work: {problem}")]
    Quota {
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The number of threads is not possible.
    #[error("{threads} server threads asked for; choose 1 to {max}")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// The limit.
        max: usize,
    },
    /// The machine does not have this core, or this process may not use it.
    #[error("core {core} is not available to this process; available: {available:?}")]
    NoSuchCore {
        /// The core asked for.
        core: usize,
        /// The cores that this process can use.
        available: Vec<usize>,
    },
    /// The device failed.
    #[error("{address}: {cause}")]
    Device {
        /// The address asked for.
        address: String,
        /// The device's error. Not a source: the message above says it already.
        cause: Source,
    },
    /// The operating system failed.
    #[error("{address}: {doing}: {cause}")]
    Io {
        /// The address asked for.
        address: String,
        /// What was being done.
        doing: &'static str,
        /// The system's error. Not a source: the message above says it already.
        cause: std::io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_whether_the_call_may_have_run() {
        let gone = RpcError::PeerGone { may_have_run: true };
        assert!(gone.may_have_run());
        assert!(gone.to_string().contains("may have run"));
        assert!(!RpcError::Overloaded(Backpressure::Credits).may_have_run());
        assert!(RpcError::HandlerPanicked.may_have_run());
        assert!(RpcError::ResponseDropped.may_have_run());
    }

    #[test]
    fn rpc_errors_stay_small() {
        // They are part of the result of every call.
        assert!(size_of::<RpcError>() <= 24);
    }
}
