//! Bugs that are planted, one at a time, to see that the swarm finds them. None of them is in what users run: each
//! misbehaves in the suite's own service, client or around its transport.

use std::fmt;
use std::str::FromStr;

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
}

impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 4] = [
        Mutation::EarlyAcknowledgement,
        Mutation::BlindRetry,
        Mutation::LostWakeUp,
        Mutation::EarlyReuse,
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Mutation::EarlyAcknowledgement => "early-acknowledgement",
            Mutation::BlindRetry => "blind-retry",
            Mutation::LostWakeUp => "lost-wake-up",
            Mutation::EarlyReuse => "early-reuse",
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
