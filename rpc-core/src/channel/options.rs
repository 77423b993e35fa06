//! How a channel behaves.

use super::endpoint::Endpoint;
use crate::identity::Key;
use crate::idle::IdlePolicy;
use crate::service::ServiceDescription;
use crate::transport::{DialOptions, DialTls};
use core::time::Duration;

/// How a channel behaves.
#[derive(Clone, Debug)]
pub struct ChannelOptions {
    pub(super) timeout: Duration,
    pub(super) max_calls: usize,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) idle: IdlePolicy,
    pub(super) dial: DialOptions,
    pub(super) reconnect: ReconnectPolicy,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        ChannelOptions {
            timeout: Duration::from_secs(10),
            max_calls: 4096,
            endpoint: None,
            idle: IdlePolicy::default(),
            dial: DialOptions::default(),
            reconnect: ReconnectPolicy::default(),
        }
    }
}

impl ChannelOptions {
    /// How long a call without a timeout or deadline of its own may take. Default 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The limit of calls at once, including those that wait for room in the window; further ones end in
    /// [`RpcError::Overloaded`](crate::RpcError::Overloaded). Default 4096.
    pub fn max_calls(mut self, calls: usize) -> Self {
        self.max_calls = calls;
        self
    }

    /// Puts the channel on the thread of this endpoint. Default: a thread for this channel alone.
    pub fn endpoint(mut self, endpoint: &Endpoint) -> Self {
        self.endpoint = Some(endpoint.clone());
        self
    }

    /// What waits while there is nothing to do: a caller that drives the connection, and the channel's own I/O thread. With
    /// [`IdlePolicy::PARK`] callers leave their calls to that thread at once, with [`IdlePolicy::SPIN`] never. An
    /// [`endpoint`](Self::endpoint) has its own policy.
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.idle = idle;
        self
    }

    /// How long it may take to connect, from resolving the host's name to the end of the handshake. Default 5 s.
    pub fn dial_timeout(mut self, timeout: Duration) -> Self {
        self.dial.timeout = timeout;
        self
    }

    /// Whether to share with the other channels of the endpoint what the backend can share: see [`DialOptions::share`].
    /// Default: no.
    pub fn share(mut self, share: bool) -> Self {
        self.dial.share = share;
        self
    }

    /// Has this thread of the server serve the channel, by its number from 0: see [`DialOptions::thread`]. Default: the server takes its threads
    /// in rotation.
    pub fn server_thread(mut self, thread: u16) -> Self {
        self.dial.thread = Some(thread);
        self
    }

    /// Has the channel carry calls of this service, too: [`ServiceClient::on`](crate::ServiceClient::on) makes a client of it. The calls
    /// of all share the window and the client's quota. Default: only the service that the channel is made for.
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

    /// Whether to reconnect when the server is gone. Default: yes, at the next call.
    pub fn reconnect(mut self, reconnect: ReconnectPolicy) -> Self {
        self.reconnect = reconnect;
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
}

/// Whether a channel reconnects when the server is gone. It dials when the next call comes, not before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconnectPolicy {
    pub(super) first_pause: Duration,
    pub(super) longest_pause: Duration,
    pub(super) give_up_after: Duration,
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        ReconnectPolicy {
            first_pause: Duration::from_millis(10),
            longest_pause: Duration::from_secs(1),
            give_up_after: Duration::from_secs(3),
        }
    }
}

impl ReconnectPolicy {
    /// Never dials again.
    pub const NEVER: ReconnectPolicy = ReconnectPolicy {
        first_pause: Duration::ZERO,
        longest_pause: Duration::ZERO,
        give_up_after: Duration::ZERO,
    };

    /// How long a call waits for the server to come back, even if its own timeout is longer; it then ends in
    /// [`RpcError::PeerGone`](crate::RpcError::PeerGone). Default 3 s. Zero: never dial again.
    pub fn give_up_after(mut self, bound: Duration) -> Self {
        self.give_up_after = bound;
        self
    }

    /// The pause after the first failed attempt, which doubles with each further one, and the longest pause. Default 10 ms
    /// and 1 s.
    pub fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        (self.first_pause, self.longest_pause) = (first, longest);
        self
    }
}
