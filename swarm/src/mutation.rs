//! Bugs that are planted, one at a time, to see that the swarm finds them. None of them is in what users run: each
//! misbehaves in the suite's own service, client or around its transport, or in a backend built for that.

use std::fmt;
use std::str::FromStr;

use farcall_transports::planted::Bug;
use farcall_transports::{Backend, registry};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The service acknowledges a write when it is stored, before it is durable.
    EarlyAcknowledgement,
    /// The client repeats a call that may have run.
    BlindRetry,
    /// The client's transport sleeps on when something has arrived.
    LostWakeUp,
    /// The client's transport gives the place of a call that was given up to the next, though its answer is still to
    /// come.
    EarlyReuse,
    /// A bug of the backend `datagram`.
    Datagram(Bug),
}

impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 8] = [
        Mutation::EarlyAcknowledgement,
        Mutation::BlindRetry,
        Mutation::LostWakeUp,
        Mutation::EarlyReuse,
        Mutation::Datagram(Bug::LostDuplicateCheck),
        Mutation::Datagram(Bug::DoubleCredit),
        Mutation::Datagram(Bug::ForgottenResponse),
        Mutation::Datagram(Bug::FormerLife),
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Mutation::EarlyAcknowledgement => "early-acknowledgement",
            Mutation::BlindRetry => "blind-retry",
            Mutation::LostWakeUp => "lost-wake-up",
            Mutation::EarlyReuse => "early-reuse",
            Mutation::Datagram(Bug::LostDuplicateCheck) => "lost-duplicate-check",
            Mutation::Datagram(Bug::DoubleCredit) => "double-credit",
            Mutation::Datagram(Bug::ForgottenResponse) => "forgotten-response",
            Mutation::Datagram(Bug::FormerLife) => "former-life",
        }
    }

    /// The bug of a backend that it is.
    pub(crate) fn of_backend(self) -> Option<(&'static dyn Backend, Bug)> {
        match self {
            Mutation::Datagram(bug) => Some((registry::find("datagram")?, bug)),
            _ => None,
        }
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mutation {
    type Err = String;

    fn from_str(text: &str) -> Result<Mutation, String> {
        let known = || Mutation::ALL.map(Mutation::name).join(", ");
        let found = Mutation::ALL.into_iter().find(|mutation| mutation.name() == text);
        found.ok_or_else(|| format!("no mutation is named {text}; there are {}", known()))
    }
}
