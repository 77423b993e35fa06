//! Counters of the peers and messages that a server refuses, by reason.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident = $name:literal,)*) => {
        /// Why a server refused a peer, disconnected it, or dropped what came from it.
        ///
        /// Calls that were refused are counted per method, by their outcome: see [`MethodSnapshot::errors`](super::MethodSnapshot::errors).
        /// Those of clients over their quota are counted here too.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum RefusalReason {
            $($(#[$doc])* $reason,)*
        }

        impl RefusalReason {
            /// All reasons.
            pub const ALL: &[RefusalReason] = &[$(RefusalReason::$reason),*];

            /// The name in metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(RefusalReason::$reason => $name,)*
                }
            }
        }
    };
}

reasons! {
    /// A connection ended without a handshake: other bytes came, or none in time.
    NoHandshake = "no_handshake",
    /// The two ends have no version of the protocol in common.
    Version = "version",
    /// The client runs as another user, or is not permitted for another reason.
    NotPermitted = "not_permitted",
    /// The client's TLS handshake failed, or it came without TLS.
    Tls = "tls",
    /// The client asked for another backend.
    Backend = "backend",
    /// The client asked for a service that is not served.
    Service = "service",
    /// The client wanted another lane of a connection that the server does not have, or that is not the client's.
    UnknownConnection = "unknown_connection",
    /// The client's part of the handshake broke its rules.
    Malformed = "malformed",
    /// There was no room for another client.
    Full = "full",
    /// There was no room for another client of that source.
    SourceFull = "source_full",
    /// The server's device was removed, or had failed.
    NoDevice = "no_device",
    /// The server was shutting down.
    ShuttingDown = "shutting_down",
    /// The server could not make its end of the connection, or not in time.
    Failed = "failed",
    /// The client was let in, and left before it was ready.
    Unfinished = "unfinished",
    /// Too many clients waited for their handshake.
    Crowd = "crowd",
    /// The client was silent in its handshake, and made room for another.
    Silent = "silent",
    /// The client had not called, and made room for another.
    NeverCalled = "never_called",
    /// The client had not called for long, and made room for another.
    Idle = "idle",
    /// The client was connected, and broke the protocol.
    BrokeProtocol = "broke_protocol",
    /// The client held memory or a place that others waited for, and did not move on, or too slowly.
    Stalled = "stalled",
    /// A call of a client that had used up its quota of calls or of CPU time.
    OverQuota = "over_quota",
    /// The identity had as many connections as its quota allows.
    IdentityFull = "identity_full",
    /// A process asked for memory under keys that do not exist, more often than a client does.
    GuessedKeys = "guessed_keys",
    /// A datagram was none of farcall's.
    BadDatagram = "bad_datagram",
    /// A datagram belonged to no session of now: its sender does not know the session's secret, or the session has ended.
    UnknownSession = "unknown_session",
    /// A datagram had the secret of a session, and came from elsewhere.
    WrongSource = "wrong_source",
}

/// How often a server thread has refused something, by reason. Any thread may count.
pub struct Refusals([AtomicU64; RefusalReason::ALL.len()]);

impl Default for Refusals {
    fn default() -> Self {
        Refusals([const { AtomicU64::new(0) }; RefusalReason::ALL.len()])
    }
}

impl Refusals {
    /// Counts one more.
    #[cold]
    pub fn count(&self, reason: RefusalReason) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }

    /// How often that was so far.
    pub fn of(&self, reason: RefusalReason) -> u64 {
        self.0[reason as usize].load(Relaxed)
    }
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = RefusalReason::ALL.iter().map(|reason| (reason.name(), self.of(*reason)));
        f.debug_map().entries(all.filter(|(_, count)| *count > 0)).finish()
    }
}
