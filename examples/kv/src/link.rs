//! A connection that its owner polls: what the YCSB clients and the loader work on.

use bytes::Bytes;
use farcall::{CallError, PendingCall, PollClient, RpcError};

use crate::limits::KvError;
use crate::service::KvPollClient;

/// What a link can fail with.
pub type LinkError = Box<dyn std::error::Error + Send + Sync>;

/// Why an operation was not started.
#[derive(Debug)]
pub enum NotStarted {
    /// The window is full: poll, then try again.
    Full,
    /// It can never be.
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
    /// It was not sent.
    fn start_get(&mut self, key: &[u8]) -> Result<Self::Get, NotStarted>;

    /// Sends a `put`.
    ///
    /// # Errors
    /// It was not sent.
    fn start_put(&mut self, key: &[u8], value: &[u8]) -> Result<Self::Put, NotStarted>;

    /// Moves what can be moved now.
    fn poll(&mut self);

    /// The answer to a `get`, once it is there.
    fn take_get(&mut self, get: &mut Self::Get) -> Option<Result<Option<Bytes>, LinkError>>;

    /// The answer to a `put`, once it is there: whether it replaced a value.
    fn take_put(&mut self, put: &mut Self::Put) -> Option<Result<bool, LinkError>>;
}

/// A `get` or `put` in flight.
type Pending<T> = PendingCall<Result<T, CallError<KvError>>>;

/// A poll-mode connection to a store.
pub struct PollLink {
    client: KvPollClient,
}

impl PollLink {
    /// Works on `client`'s connection.
    #[must_use]
    pub fn new(client: KvPollClient) -> Self {
        Self { client }
    }

    /// How many operations it can have in flight.
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
