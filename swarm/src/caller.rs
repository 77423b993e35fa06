//! A connection to the store through either kind of client.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::time::{Instant, Progress};
use farcall_core::{Call, CallError, PendingCall, RpcError};
use farcall_kv::limits::KvError;
use farcall_kv::service::{KvClient, KvPollClient};

/// The result of a call.
pub(crate) type Outcome<T> = Result<T, CallError<KvError>>;

/// The entries that a scan returned.
pub(crate) type Entries = Vec<(Bytes, Bytes)>;

/// A connected client of either kind.
pub(crate) enum Caller {
    /// For a thread that polls its own connection.
    Polled(Box<KvPollClient>),
    /// Its calls are futures; the simulated host drives it.
    Shared {
        /// The client.
        client: KvClient,
        /// Whether a call has reported that the connection is closed.
        is_over: bool,
    },
}

/// A call that has been started.
pub(crate) enum Pending<T> {
    /// Through the polled client.
    Polled(PendingCall<Outcome<T>>),
    /// Through the shared client. It is sent when it is polled first.
    Shared(Call<Outcome<T>>),
}

impl Caller {
    /// Drives the connection.
    pub(crate) fn turn(&mut self, now: Instant) -> Progress {
        match self {
            Caller::Polled(client) => client.connection().turn(now),
            Caller::Shared { .. } => Progress::IDLE,
        }
    }

    /// Whether the connection is known to be closed.
    pub(crate) fn is_over(&mut self) -> bool {
        match self {
            Caller::Polled(client) => client.connection().is_closed(),
            Caller::Shared { is_over, .. } => *is_over,
        }
    }

    pub(crate) fn get(
        &mut self,
        key: &[u8],
        timeout: Duration,
    ) -> Result<Pending<Option<Bytes>>, RpcError> {
        match self {
            Caller::Polled(client) => started(client, timeout, |it| it.start_get(key)),
            Caller::Shared { client, .. } => Ok(Pending::Shared(client.get(key).timeout(timeout))),
        }
    }

    pub(crate) fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        timeout: Duration,
    ) -> Result<Pending<bool>, RpcError> {
        match self {
            Caller::Polled(client) => started(client, timeout, |it| it.start_put(key, value)),
            Caller::Shared { client, .. } => {
                Ok(Pending::Shared(client.put(key, value).timeout(timeout)))
            }
        }
    }

    pub(crate) fn del(&mut self, key: &[u8], timeout: Duration) -> Result<Pending<bool>, RpcError> {
        match self {
            Caller::Polled(client) => started(client, timeout, |it| it.start_del(key)),
            Caller::Shared { client, .. } => Ok(Pending::Shared(client.del(key).timeout(timeout))),
        }
    }

    pub(crate) fn scan(
        &mut self,
        from: &[u8],
        limit: u32,
        timeout: Duration,
    ) -> Result<Pending<Entries>, RpcError> {
        match self {
            Caller::Polled(client) => {
                started(client, timeout, |it| it.start_scan(from, false, limit))
            }
            Caller::Shared { client, .. } => {
                Ok(Pending::Shared(client.scan(from, false, limit).timeout(timeout)))
            }
        }
    }

    /// The result of a call, once it has ended.
    pub(crate) fn take<T: 'static>(&mut self, pending: &mut Pending<T>) -> Option<Outcome<T>> {
        match (self, pending) {
            (Caller::Polled(client), Pending::Polled(pending)) => client.take(pending),
            (Caller::Shared { is_over, .. }, Pending::Shared(call)) => {
                // The actor polls again in each turn, and gets a turn for every reply.
                let mut context = Context::from_waker(Waker::noop());
                let Poll::Ready(outcome) = Pin::new(call).poll(&mut context) else { return None };
                *is_over |= matches!(outcome, Err(CallError::Rpc(RpcError::PeerGone { .. })));
                Some(outcome)
            }
            _ => None,
        }
    }

    /// Cancels a call.
    pub(crate) fn cancel<T>(&mut self, pending: Pending<T>) {
        // Dropping the other kind cancels it.
        if let (Caller::Polled(client), Pending::Polled(pending)) = (self, pending) {
            client.connection().cancel(pending);
        }
    }
}

fn started<T>(
    client: &mut KvPollClient,
    timeout: Duration,
    start: impl FnOnce(&mut KvPollClient) -> Result<PendingCall<Outcome<T>>, RpcError>,
) -> Result<Pending<T>, RpcError> {
    client.connection().set_timeout(timeout);
    start(client).map(Pending::Polled)
}
