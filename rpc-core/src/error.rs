//! What can go wrong: with a call, with a connection, with making one, with serving.

use crate::compatibility::MissingMethod;
use core::error::Error;
use core::fmt;
use core::num::NonZeroU32;
use core::ops::RangeInclusive;
use core::time::Duration;
use rustix::io::Errno;

mod call;
#[cfg(test)]
mod tests;

pub use call::{CallError, DeviceFailure, GoneReason, RpcError, Waited};

/// Which process it is, as far as it can be told.
fn holder(process: Option<NonZeroU32>) -> String {
    match process {
        Some(id) => format!("process {id} of "),
        None => "a process of another pid namespace, of ".to_owned(),
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
            ReserveError::TooLarge { len, max } => RpcError::too_large(false, len, max),
            // The next poll tells why.
            ReserveError::Closed => RpcError::not_sent(GoneReason::Lost),
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
    /// This process was forked off the one that has the connection.
    #[error("the connection belongs to the process that forked this one")]
    Forked,
}

impl TransportFailure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, may_have_run: bool) -> Self {
        TransportFailure { kind, may_have_run }
    }
}

impl From<TransportFailure> for RpcError {
    #[cold]
    fn from(failure: TransportFailure) -> Self {
        let TransportFailure { kind, may_have_run } = failure;
        match kind {
            FailureKind::PeerMisbehaved(what) => RpcError::PeerMisbehaved { may_have_run, what },
            FailureKind::TooLarge { len, max } => RpcError::too_large(may_have_run, len, max),
            _ => RpcError::PeerGone { may_have_run, why: GoneReason::of(kind) },
        }
    }
}

/// An error of a lower layer.
pub type Source = Box<dyn Error + Send + Sync>;

/// Why a connection could not be made. Each message names the address, and what to do, and is complete: it contains that of its
/// [`source`](Error::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address itself is wrong.
    #[error("invalid address: {0}")]
    InvalidAddress(#[source] Source),
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
    /// A client was to use another one's connection, which was made without its service.
    #[error(
        "the connection carries {}, not {service:?}; add it with `also` where the connection is made",
        carried.join(", ")
    )]
    NotCarried {
        /// The client's service.
        service: &'static str,
        /// The services that the connection carries.
        carried: Vec<&'static str>,
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
        /// The device's error.
        #[source]
        cause: Source,
    },
    /// The operating system failed.
    #[error("{address}: {doing}: {}", with_mend(cause))]
    Io {
        /// The address dialled.
        address: String,
        /// What was being done.
        doing: &'static str,
        /// The system's error.
        #[source]
        cause: std::io::Error,
    },
}

/// An error of the operating system, and what to do about it if that is known.
fn with_mend(error: &std::io::Error) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        fmt::Display::fmt(error, f)?;
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE) => {
                f.write_str("; this process has as many as it may, raise that (ulimit -n, LimitNOFILE of systemd)")
            }
            _ => Ok(()),
        }
    })
}

/// Two are equal if they say the same: the causes from lower layers cannot be compared.
impl PartialEq for ConnectError {
    fn eq(&self, other: &Self) -> bool {
        core::mem::discriminant(self) == core::mem::discriminant(other)
            && self.to_string() == other.to_string()
    }
}

impl Eq for ConnectError {}

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

/// A thread of a running server has ended although nothing shut the server down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "server thread {thread} has ended: {reason}; the clients that it served are disconnected, and new ones may be refused: \
     end the program, or drop the server and listen again"
)]
#[non_exhaustive]
pub struct ThreadEnded {
    /// The thread's number, from 0.
    pub thread: usize,
    /// Why it has ended.
    pub reason: String,
}

/// Why a server could not start. Each message names what is wrong, and what to do, and is complete: it contains that of its
/// [`source`](Error::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address itself is wrong.
    #[error("invalid address: {0}")]
    InvalidAddress(#[source] Source),
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
    /// No server could work with this setting.
    #[error("{setting} of the server: {problem}")]
    Setting {
        /// The method of the builder that sets it.
        setting: &'static str,
        /// What would not work, and what to choose instead.
        problem: String,
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
        /// The device's error.
        #[source]
        cause: Source,
    },
    /// The operating system failed.
    #[error("{address}: {doing}: {}", with_mend(cause))]
    Io {
        /// The address asked for.
        address: String,
        /// What was being done.
        doing: &'static str,
        /// The system's error.
        #[source]
        cause: std::io::Error,
    },
}
