//! Why a call has no answer from the service.

use super::{Backpressure, ConnectError, FailureKind};
use crate::compatibility::MethodMismatch;
use crate::transport::MESSAGE_HEADER_BYTES;
use core::error::Error;
use core::fmt;
use std::sync::Arc;

/// Why a call has no answer from the service.
///
/// Delivery is *at most once*: a handler runs at most once per call, unless its method is marked idempotent. Whether it may
/// have run, [`RpcError::may_have_run`] tells for every variant.
///
/// Its message is complete. [`source`](Error::source) is the [`ConnectError`] or [`DeviceFailure`] behind it, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RpcError {
    /// The deadline passed before the answer came.
    DeadlineExceeded {
        /// Whether the request may have reached its handler.
        may_have_run: bool,
        /// Where the call was at its deadline.
        waited: Waited,
    },
    /// The server closed the connection, died, or cannot be reached any more; or this end closed the connection.
    PeerGone {
        /// Whether the request may have reached its handler.
        may_have_run: bool,
        /// What is known of the cause.
        why: GoneReason,
    },
    /// The peer broke the protocol; the connection to it was closed.
    PeerMisbehaved {
        /// Whether the request may have reached its handler: not if the connection had been closed before.
        may_have_run: bool,
        /// The rule that was broken.
        what: &'static str,
    },
    /// The caller broke a rule of the API: it used a call that had ended, and that may have run.
    Misuse {
        /// The rule.
        what: &'static str,
    },
    /// The server refused the connection that the call needed, or the two ends do not fit.
    Refused {
        /// Why there is no connection.
        why: Arc<ConnectError>,
    },
    /// There is no room for another call, at this end or at the server. It has not run: wait until earlier calls have ended, take
    /// their results, then try again.
    Overloaded(Backpressure),
    /// A request or a response exceeds the connection's limit.
    TooLarge {
        /// `true`: it is the response of a handler that has run. `false`: it is the request, which was not sent.
        may_have_run: bool,
        /// The bytes of the encoded arguments or of the encoded result.
        len: u64,
        /// The connection's limit for them: `max_message` of the end that has the lower one.
        max: u64,
    },
    /// The server of this connection lacks the method, declares it with other types, or does not know an argument that the
    /// call needs. The call was not sent.
    NoSuchMethod {
        /// `Service.method`.
        method: Arc<str>,
        /// What is wrong with it there.
        why: MethodMismatch,
    },
    /// The arguments or the result could not be encoded or decoded.
    Malformed {
        /// `true`: it is the result of a handler that has run. `false`: it is the arguments.
        may_have_run: bool,
        /// Which of them, and why.
        what: Arc<str>,
    },
    /// The call was cancelled before its answer came.
    Cancelled,
    /// The handler panicked, or dropped its reply without an answer. The server goes on. It logs the panic with `tracing`.
    HandlerPanicked,
    /// The handler has run, but the server had no memory for its result: this client did not fetch earlier large results in
    /// time, or many clients did not.
    ResponseDropped,
}

/// Where a call was when its deadline passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waited {
    /// Nowhere: its timeout was zero, or its deadline was in the past. It was not sent.
    Nowhere,
    /// At this end, for room in the connection's window. It was not sent.
    ForWindow,
    /// At this end: the thread that drives the connection did not come to it. It may have been sent before.
    ForDriver,
    /// For the answer, after it was sent.
    ForAnswer,
    /// In the server's queue, before its handler began. It has not run.
    InServerQueue,
    /// For its handler, which had begun.
    ForHandler,
    /// For the answer, on a thread of a server of this process. No handler runs on that thread meanwhile, so that a call to the same
    /// server may wait for itself.
    OnServerThread,
}

/// Why there is no connection to a server any more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GoneReason {
    /// The server closed the connection in an orderly way.
    Goodbye,
    /// The server died, or cannot be reached any more.
    Lost,
    /// The server shuts down, and has refused the call.
    ShuttingDown,
    /// This end closed the connection, or dropped the client; or had to close it because the server broke the protocol.
    Closed,
    /// This process was forked off the one that connected. The connection is the parent's, where it goes on: connect in the child.
    Forked,
    /// This end's device failed.
    Device(Arc<DeviceFailure>),
    /// A channel has lost its connection, and could not make another one. This is why the last attempt failed.
    Dial(Arc<ConnectError>),
}

/// What went wrong with a device of this end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this end's device failed: {what}")]
#[non_exhaustive]
pub struct DeviceFailure {
    /// What happened.
    pub what: &'static str,
}

impl GoneReason {
    /// Why there is no connection after such a failure.
    #[cold]
    pub(crate) fn of(failure: FailureKind) -> Self {
        match failure {
            FailureKind::Goodbye => GoneReason::Goodbye,
            FailureKind::PeerGone => GoneReason::Lost,
            FailureKind::Forked => GoneReason::Forked,
            FailureKind::Device(what) => GoneReason::Device(Arc::new(DeviceFailure { what })),
            FailureKind::Closed | FailureKind::PeerMisbehaved(_) | FailureKind::TooLarge { .. } => {
                GoneReason::Closed
            }
        }
    }
}

impl RpcError {
    /// The handler may have run, in whole or in part.
    ///
    /// `false` means that it has not run, so the call can be repeated without harm. There is one exception: a method that
    /// is marked idempotent may have run in an earlier transmission of the same call. `true` means only that this error
    /// does not exclude it.
    pub fn may_have_run(&self) -> bool {
        match self {
            RpcError::DeadlineExceeded { may_have_run, .. }
            | RpcError::PeerGone { may_have_run, .. }
            | RpcError::PeerMisbehaved { may_have_run, .. }
            | RpcError::TooLarge { may_have_run, .. }
            | RpcError::Malformed { may_have_run, .. } => *may_have_run,
            RpcError::HandlerPanicked
            | RpcError::ResponseDropped
            | RpcError::Cancelled
            | RpcError::Misuse { .. } => true,
            RpcError::Refused { .. } | RpcError::Overloaded(_) | RpcError::NoSuchMethod { .. } => {
                false
            }
        }
    }

    /// A call that needs a connection which could not be made.
    #[cold]
    pub(crate) fn not_connected(why: Arc<ConnectError>) -> Self {
        match *why {
            // It was right when the channel connected first.
            ConnectError::InvalidAddress(_)
            | ConnectError::NoServer { .. }
            | ConnectError::TimedOut { .. }
            | ConnectError::Io { .. }
            | ConnectError::Device { .. } => {
                RpcError::PeerGone { may_have_run: false, why: GoneReason::Dial(why) }
            }
            _ => RpcError::Refused { why },
        }
    }

    /// A message of that many bytes with its header is beyond the transport's limit. What a user reads counts no header.
    #[cold]
    pub(crate) fn too_large(may_have_run: bool, len: u64, max: u64) -> Self {
        let header = MESSAGE_HEADER_BYTES as u64;
        let (len, max) = (len.saturating_sub(header), max.saturating_sub(header));
        RpcError::TooLarge { may_have_run, len, max }
    }

    /// A call that ends when there is no connection, and was not sent.
    pub(crate) fn not_sent(why: GoneReason) -> Self {
        RpcError::PeerGone { may_have_run: false, why }
    }

    /// A call without any time.
    pub(crate) const NO_TIME: RpcError =
        RpcError::DeadlineExceeded { may_have_run: false, waited: Waited::Nowhere };
}

fn ran(may_have_run: bool) -> &'static str {
    if may_have_run { "it may have run" } else { "it did not run" }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RpcError::DeadlineExceeded { may_have_run, waited } => {
                write!(f, "the call's deadline passed {waited} ({})", ran(*may_have_run))?;
                write!(f, "; {}", waited.advice())
            }
            RpcError::PeerGone {
                may_have_run,
                why: why @ (GoneReason::Closed | GoneReason::Forked),
            } => {
                write!(f, "{why} ({})", ran(*may_have_run))
            }
            RpcError::PeerGone { may_have_run, why } => {
                write!(f, "the server is gone ({}): {why}", ran(*may_have_run))
            }
            RpcError::PeerMisbehaved { may_have_run, what } => {
                let ran = ran(*may_have_run);
                write!(f, "the peer broke the protocol: {what}; the connection was closed ({ran})")
            }
            RpcError::Misuse { what } => write!(f, "misuse: {what}"),
            RpcError::Refused { why } => write!(f, "no connection for the call: {why}"),
            RpcError::Overloaded(which) => {
                write!(f, "no room for another call ({which}); wait until earlier calls have ended")
            }
            RpcError::TooLarge { may_have_run, len, max } => {
                let which = if *may_have_run { "response" } else { "request" };
                write!(f, "the {which} of {len} bytes exceeds the connection's limit of {max}")?;
                f.write_str("; raise max_message on both ends or split it")
            }
            RpcError::NoSuchMethod { method, why } => write!(f, "{method} {why}"),
            RpcError::Malformed { what, .. } => write!(f, "malformed message: {what}"),
            RpcError::Cancelled => f.write_str("the call was cancelled"),
            RpcError::HandlerPanicked => f.write_str(
                "the handler panicked or gave no answer; see the server's tracing output",
            ),
            RpcError::ResponseDropped => f.write_str(
                "the server had no memory for the result (the call has run); poll the client while calls with large results are outstanding, start fewer of them, or raise the server's memory",
            ),
        }
    }
}

impl Error for RpcError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            RpcError::Refused { why } => Some(&**why),
            RpcError::PeerGone { why, .. } => match why {
                GoneReason::Dial(why) => Some(&**why),
                GoneReason::Device(why) => Some(&**why),
                _ => None,
            },
            _ => None,
        }
    }
}

impl fmt::Display for GoneReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GoneReason::Goodbye => f.write_str("it closed the connection"),
            GoneReason::Lost => f.write_str("it died, or cannot be reached any more"),
            GoneReason::ShuttingDown => f.write_str("it is shutting down"),
            GoneReason::Closed => f.write_str("this end closed the connection"),
            GoneReason::Forked => f.write_str(
                "the connection belongs to the process that forked this one; make another one in the child",
            ),
            GoneReason::Device(why) => why.fmt(f),
            GoneReason::Dial(why) => write!(f, "no new connection: {why}"),
        }
    }
}

impl Waited {
    fn advice(self) -> &'static str {
        match self {
            Waited::Nowhere => "give the call some time",
            Waited::ForWindow => {
                "start fewer calls at a time, raise `window` in the addresses of both ends, or give it a longer deadline"
            }
            Waited::ForDriver => {
                "another thread drives the connection and is stopped, blocked, or short of CPU time"
            }
            Waited::ForAnswer | Waited::ForHandler => {
                "give it a longer deadline, or look at the server's load"
            }
            Waited::InServerQueue => {
                "the server's thread is busy: give the server more threads or less work, or the call a longer deadline"
            }
            Waited::OnServerThread => {
                "make the call in an `async` handler with `.await`, or on a thread that is not a server's"
            }
        }
    }
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waited::Nowhere => "before it was sent",
            Waited::ForWindow => "while it waited for room in the window",
            Waited::ForDriver => "while it waited for the thread that drives its connection",
            Waited::ForAnswer => "while it waited for its answer",
            Waited::InServerQueue => "in the server's queue",
            Waited::ForHandler => "while its handler ran",
            Waited::OnServerThread => {
                "while it blocked a thread of a server, on which no handler runs meanwhile"
            }
        })
    }
}

/// How a call of a method that returns `Result` can fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError<E> {
    /// The service's own error: the handler ran and returned it.
    ///
    /// It need not be an [`Error`], only `Display`, so that it has no [`source`](Error::source) here.
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

    /// The service's own error; `None` if it gave no answer.
    pub fn service(&self) -> Option<&E> {
        match self {
            CallError::Service(error) => Some(error),
            CallError::Rpc(_) => None,
        }
    }

    /// The handler may have run, in whole or in part: see [`RpcError::may_have_run`]. It has run if the service's own error came.
    pub fn may_have_run(&self) -> bool {
        self.rpc().is_none_or(RpcError::may_have_run)
    }
}
