//! How a poll-mode connection behaves.

use crate::identity::Key;
use crate::idle::IdlePolicy;
use crate::service::ServiceDescription;
use crate::site::Site;
use crate::transport::{DialOptions, DialTls};
use core::time::Duration;

/// How a poll-mode connection behaves.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    pub(super) timeout: Duration,
    pub(super) idle: IdlePolicy,
    pub(super) dial: DialOptions,
    pub(super) site: Option<Site>,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            timeout: Duration::from_secs(10),
            idle: IdlePolicy::default(),
            dial: DialOptions::default(),
            site: None,
        }
    }
}

impl ConnectionOptions {
    /// How long each call may take, counted from when it leaves. Default 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What a blocking call does while it waits.
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.idle = idle;
        self
    }

    /// How long it may take to connect, from resolving the host's name to the end of the handshake. Default 5 s.
    pub fn dial_timeout(mut self, timeout: Duration) -> Self {
        self.dial.timeout = timeout;
        self
    }

    /// Has the connection carry calls of this service, too, for a client that is made
    /// [from the connection](crate::PollClient::from_connection) after the first one has
    /// [given it back](crate::PollClient::into_connection). Default: only the service that the connection is made for.
    pub fn also(mut self, service: &'static ServiceDescription) -> Self {
        self.dial.add_service(service);
        self
    }

    /// Refuses servers that lack these methods of the client's trait, or declare them with other types:
    /// [`ConnectError::IncompatibleService`](crate::ConnectError::IncompatibleService). Default: those of
    /// `#[farcall::service(require = [..])]`; these are added. Otherwise one common method is enough.
    pub fn require(mut self, methods: &[&'static str]) -> Self {
        self.dial.require.extend(methods);
        self
    }

    /// Whether to share with the other connections of the site what the backend can share: see [`DialOptions::share`].
    /// Default: no.
    pub fn share(mut self, share: bool) -> Self {
        self.dial.share = share;
        self
    }

    /// Has this thread of the server serve the connection, by its number from 0: see [`DialOptions::thread`]. Default: the server takes its threads
    /// in rotation.
    pub fn server_thread(mut self, thread: u16) -> Self {
        self.dial.thread = Some(thread);
        self
    }

    /// The site of the thread that will use the connection. Default: a site for this connection alone.
    ///
    /// The connections of one thread should have the same one: the thread sleeps for all of them at once, and their
    /// transports share what they can. All connections of the `datagram` backend share one queue pair, for example.
    pub fn site(mut self, site: &Site) -> Self {
        self.site = Some(site.clone());
        self
    }

    /// Proves to the server who this client is. The client refuses a server that does not know this key, or asks for none. Default: no
    /// key, and servers that ask for one are refused.
    pub fn key(mut self, key: Key) -> Self {
        self.dial.key = Some(key);
        self
    }

    /// Shakes hands within TLS, with these settings (`farcall::tls::ClientTls`), and refuses a server whose certificate is not the
    /// right one. Default: no TLS, and servers that ask for it are refused.
    pub fn tls(mut self, tls: impl Into<DialTls>) -> Self {
        self.dial.tls = Some(tls.into());
        self
    }

    /// How to dial, for a simulator that does it itself.
    #[doc(hidden)]
    pub fn dial_options(&self) -> &DialOptions {
        &self.dial
    }

    /// The site, if one was given, for a simulator that makes sites of its own kind.
    #[doc(hidden)]
    pub fn given_site(&self) -> Option<&Site> {
        self.site.as_ref()
    }
}
