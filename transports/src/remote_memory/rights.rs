//! What a lend permits, to whom, and how long.

use core::time::Duration;

use farcall_core::identity::Identity;
use farcall_core::site::Caller;
use farcall_core::time::Instant;

bitflags::bitflags! {
    /// The operations that a lend permits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Rights: u8 {
        /// To read.
        const READ = 1;
        /// To write.
        const WRITE = 2;
        /// To compare and swap, and to fetch and add.
        const ATOMIC = 4;
    }
}

/// Who may use a lend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Borrower {
    /// Every client that was told of it, by whomever. Nobody can guess a lend.
    Everyone,
    /// Clients that have proven this identity: [`CallContext::identity`](farcall_core::CallContext::identity) says whose call it is.
    Identity(Identity),
    /// One connection, with which the lend ends. Of a `hybrid` connection it is the lane on which the call came that was told of it.
    Connection(Caller),
}

/// Who wants to use a lend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Who<'a> {
    /// The identity that the client has proven.
    pub identity: Option<&'a Identity>,
    /// Its connection.
    pub connection: Option<Caller>,
}

impl Borrower {
    /// Whether a lend to this borrower is for this client.
    pub(super) fn is(&self, who: Who<'_>) -> bool {
        match self {
            Borrower::Everyone => true,
            Borrower::Identity(identity) => who.identity == Some(identity),
            Borrower::Connection(connection) => who.connection.as_ref() == Some(connection),
        }
    }
}

/// When a lend ends, if it is not revoked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Until(pub(super) End);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Never,
    After(Duration),
    At(Instant),
}

impl Until {
    /// Not before it is revoked.
    pub const REVOKED: Until = Until(End::Never);

    /// After this time, counted from the lend.
    ///
    /// In a handler it counts from the start of the thread's turn, on the clock of the thread. Elsewhere the clock is the process's:
    /// on a simulated rack, whose time is another one, lend in handlers or say [`at`](Self::at) which moment.
    pub const fn after(time: Duration) -> Until {
        Until(End::After(time))
    }

    /// At this moment on the clock of the threads that serve the memory.
    pub const fn at(moment: Instant) -> Until {
        Until(End::At(moment))
    }

    /// The moment, for a lend that is made now.
    pub(super) fn moment(self, now: Instant) -> Instant {
        match self.0 {
            End::Never => Instant::FAR_FUTURE,
            End::After(time) => now + time,
            End::At(moment) => moment,
        }
    }
}
