//! A connection that its owner polls, as used by the YCSB clients and the loader.

use bytes::Bytes;
use farcall::{CallError, PendingCall, RpcError};

use crate::limits::KvError;
use crate::service::KvPollClient;

/// The error of a link.
pub type LinkError = Box<dyn std::error::Error + Send + Sync>;

/// Why an operation was not started.
#[derive(Debug)]
pub enum NotStarted {
    /// The window is full: poll, then try again.
    Full,
    /// It can never be started.
    Failed(LinkError),
}

/// A connection to a store, polled by its owner.
pub trait Link {
    /// A `get` in flight.
    type Get;
    /// A `put` in flight.
    type Put;

    /// Sends a `get`.
    ///
    /// # Errors
    /// If it was not sent.
    fn start_get(&mut self, key: &[u8]) -> Result<Self::Get, NotStarted>;

    /// Sends a `put`.
    ///
    /// # Errors
    /// If it was not sent.
    fn start_put(&mut self, key: &[u8], value: &[u8]) -> Result<Self::Put, NotStarted>;

    /// Makes progress without blocking.
    fn poll(&mut self);

    /// The answer to a `get`, if it has arrived.
    fn take_get(&mut self, get: &mut Self::Get) -> Option<Result<Option<Bytes>, LinkError>>;

    /// The answer to a `put`, if it has arrived: whether it replaced a value.
    fn take_put(&mut self, put: &mut Self::Put) -> Option<Result<bool, LinkError>>;
}

/// A `get` or `put` in flight.
type Pending<T> = PendingCall<Result<T, CallError<KvError>>>;

/// A poll-mode connection to a store.
pub struct PollLink {
    client: KvPollClient,
}

impl PollLink {
    /// Uses `client`'s connection.
    #[must_use]
    pub fn new(client: KvPollClient) -> Self {
        Self { client }
    }

    /// The number of operations it can have in flight.
    pub fn window(&mut self) -> u32 {
        self.client.connection().window()
    }
}

fn not_started(why: RpcError) -> NotStarted {
    match why {
        RpcError::Overloaded(_) => NotStarted::Full,
        why => NotStarted::Failed(why.into()),
    }
}

impl Link for PollLink {
    type Get = Pending<Option<Bytes>>;
    type Put = Pending<bool>;

    fn start_get(&mut self, key: &[u8]) -> Result<Self::Get, NotStarted> {
        self.client.start_get(key).map_err(not_started)
    }

    fn start_put(&mut self, key: &[u8], value: &[u8]) -> Result<Self::Put, NotStarted> {
        self.client.start_put(key, value).map_err(not_started)
    }

    fn poll(&mut self) {
        self.client.poll();
    }

    fn take_get(&mut self, get: &mut Self::Get) -> Option<Result<Option<Bytes>, LinkError>> {
        Some(self.client.take(get)?.map_err(Into::into))
    }

    fn take_put(&mut self, put: &mut Self::Put) -> Option<Result<bool, LinkError>> {
        Some(self.client.take(put)?.map_err(Into::into))
    }
}
