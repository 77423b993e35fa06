//! Connecting a poll-mode client: a builder of the connection's options.

use super::{Connection, ConnectionOptions};
use crate::error::{ConnectError, Source};
use crate::identity::Key;
use crate::idle::IdlePolicy;
use crate::service::PollClient;
use crate::site::Site;
use crate::transport::{DialTls, ParseAddress, ServerAddress, ToAddress};
use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;

/// A poll-mode client that is about to connect: [`wait`](Self::wait) dials. The other methods set its options.
#[must_use = "nothing is dialled until it is waited for"]
pub struct PollConnecting<C> {
    address: Result<Box<dyn ServerAddress>, Source>,
    options: ConnectionOptions,
    client: PhantomData<fn() -> C>,
}

impl<C: PollClient> PollConnecting<C> {
    /// A client of the server at this address. Text is parsed by `parse`.
    #[doc(hidden)]
    pub fn to(address: impl ToAddress, parse: ParseAddress) -> Self {
        let (address, options) = (address.to_address(parse), ConnectionOptions::default());
        PollConnecting { address, options, client: PhantomData }
    }

    /// How long each call may take, counted from when it leaves. Default 10 s.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|options| options.timeout(timeout))
    }

    /// What a blocking call does while it waits.
    pub fn idle(self, idle: IdlePolicy) -> Self {
        self.with(|options| options.idle(idle))
    }

    /// How long it may take to connect, from resolving the host's name to the end of the handshake. Default 5 s.
    pub fn dial_timeout(self, timeout: Duration) -> Self {
        self.with(|options| options.dial_timeout(timeout))
    }

    /// Has the connection carry calls of this other service, too: see [`ConnectionOptions::also`].
    pub fn also<S: PollClient>(self) -> Self {
        self.with(|options| options.also(S::DESCRIPTION))
    }

    /// Refuses servers that lack these methods: see [`ConnectionOptions::require`].
    pub fn require(self, methods: &[&'static str]) -> Self {
        self.with(|options| options.require(methods))
    }

    /// Whether to share with the other connections of the site what the backend can share: see
    /// [`ConnectionOptions::share`]. Default: no.
    pub fn share(self, share: bool) -> Self {
        self.with(|options| options.share(share))
    }

    /// Has this thread of the server serve the client, by its number from 0: see [`ConnectionOptions::server_thread`]. Default: the server takes
    /// its threads in rotation.
    pub fn server_thread(self, thread: u16) -> Self {
        self.with(|options| options.server_thread(thread))
    }

    /// Proves to the server who this client is: see [`ConnectionOptions::key`]. Default: no key.
    pub fn key(self, key: Key) -> Self {
        self.with(|options| options.key(key))
    }

    /// Shakes hands within TLS: see [`ConnectionOptions::tls`]. Default: no TLS.
    pub fn tls(self, tls: impl Into<DialTls>) -> Self {
        self.with(|options| options.tls(tls))
    }

    /// The site of the thread that will use the client: see [`ConnectionOptions::site`]. Default: a site for this client
    /// alone.
    pub fn site(self, site: &Site) -> Self {
        self.with(|options| options.site(site))
    }

    /// Replaces all options.
    pub fn options(self, options: ConnectionOptions) -> Self {
        PollConnecting { options, ..self }
    }

    fn with(self, change: impl FnOnce(ConnectionOptions) -> ConnectionOptions) -> Self {
        PollConnecting { options: change(self.options), ..self }
    }

    /// Connects, and blocks this thread meanwhile, at most for [`dial_timeout`](Self::dial_timeout).
    ///
    /// # Errors
    /// [`ConnectError`]: the address is invalid, or the server cannot be reached or refuses.
    pub fn wait(self) -> Result<C, ConnectError> {
        let address = self.address.map_err(ConnectError::InvalidAddress)?;
        Connection::connect(&address, C::DESCRIPTION, &self.options).map(C::from_connection)
    }
}

impl<C> fmt::Debug for PollConnecting<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollConnecting").field("options", &self.options).finish_non_exhaustive()
    }
}
