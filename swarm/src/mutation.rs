//! Planted bugs, one at a time, to show that the swarm finds them. None of them is in a released build: each is
//! in the suite's own service, client or transport wrapper, or in a backend built for that.

use std::fmt;
use std::str::FromStr;

use farcall_core::planted::Bug as CoreBug;
use farcall_transports::planted::Bug;

use crate::suite::{HOSTILE, OVER_QUOTA};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The service acknowledges a write when it is stored, but not yet durable.
    EarlyAcknowledgement,
    /// The client repeats a call that may have run.
    BlindRetry,
    /// The client's transport keeps sleeping when a message has arrived.
    LostWakeUp,
    /// The client's transport reuses the slot of a cancelled call although its response is still to come.
    EarlyReuse,
    /// A bug of the backend `datagram`.
    Datagram(Bug),
    /// A bug of the backend `datagram` that only hostile clients meet.
    HostileDatagram(Bug),
    /// A bug of the backend `write_imm` that only hostile clients meet.
    WriteImm(Bug),
    /// A bug of the backend `rfp`.
    Rfp(Bug),
    /// A bug of the backend `scale`.
    Scale(Bug),
    /// A bug that shows where connections have several lanes.
    Lanes(Bug),
    /// A bug of connections that move.
    Hybrid(Bug),
    /// A bug of connections that move, which a hostile server meets.
    Advice(Bug),
    /// A bug of lent memory.
    Memory(Bug),
}

impl Mutation {
    /// All mutations.
    pub const ALL: [Mutation; 32] = [
        Mutation::EarlyAcknowledgement,
        Mutation::BlindRetry,
        Mutation::LostWakeUp,
        Mutation::EarlyReuse,
        Mutation::Datagram(Bug::LostDuplicateCheck),
        Mutation::Datagram(Bug::DoubleCredit),
        Mutation::Datagram(Bug::ForgottenResponse),
        Mutation::Datagram(Bug::FormerLife),
        Mutation::HostileDatagram(Bug::UncheckedEpoch),
        Mutation::HostileDatagram(Bug::UncheckedWindow),
        Mutation::HostileDatagram(Bug::UncheckedShare),
        Mutation::WriteImm(Bug::UncheckedLength),
        Mutation::WriteImm(Bug::Core(CoreBug::UncheckedQuota)),
        Mutation::Rfp(Bug::UncheckedLap),
        Mutation::Rfp(Bug::BelievedFirstWord),
        Mutation::Rfp(Bug::SkippedDrain),
        Mutation::Rfp(Bug::OvertakenOperation),
        Mutation::Scale(Bug::EarlySwitch),
        Mutation::Lanes(Bug::Core(CoreBug::QuotaOfLanes)),
        Mutation::Lanes(Bug::LaneOnAnyThread),
        Mutation::Lanes(Bug::UncheckedIdentity),
        Mutation::Lanes(Bug::ForgottenEnd),
        Mutation::Hybrid(Bug::PostedTwice),
        Mutation::Hybrid(Bug::LostCredit),
        Mutation::Hybrid(Bug::MistakenAnswer),
        Mutation::Hybrid(Bug::BlockingOpening),
        Mutation::Advice(Bug::BelievedAdvice),
        Mutation::Memory(Bug::EarlyRevoke),
        Mutation::Memory(Bug::UncheckedLend),
        Mutation::Memory(Bug::LongWindow),
        Mutation::Memory(Bug::LeaseOfReader),
        Mutation::Memory(Bug::ReusedOnCancel),
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mutation::EarlyAcknowledgement => "early-acknowledgement",
            Mutation::BlindRetry => "blind-retry",
            Mutation::LostWakeUp => "lost-wake-up",
            Mutation::EarlyReuse => "early-reuse",
            Mutation::Datagram(bug)
            | Mutation::HostileDatagram(bug)
            | Mutation::WriteImm(bug)
            | Mutation::Rfp(bug)
            | Mutation::Scale(bug)
            | Mutation::Lanes(bug)
            | Mutation::Hybrid(bug)
            | Mutation::Advice(bug)
            | Mutation::Memory(bug) => match bug {
                Bug::LostDuplicateCheck => "lost-duplicate-check",
                Bug::DoubleCredit => "double-credit",
                Bug::ForgottenResponse => "forgotten-response",
                Bug::FormerLife => "former-life",
                Bug::UncheckedEpoch => "unchecked-epoch",
                Bug::UncheckedWindow => "unchecked-window",
                Bug::UncheckedLength => "unchecked-length",
                Bug::UncheckedShare => "unchecked-share",
                Bug::Core(CoreBug::UncheckedQuota) => "unchecked-quota",
                Bug::Core(CoreBug::QuotaOfLanes) => "quota-of-lanes",
                Bug::UncheckedLap => "unchecked-lap",
                Bug::BelievedFirstWord => "believed-first-word",
                Bug::SkippedDrain => "skipped-drain",
                Bug::OvertakenOperation => "overtaken-operation",
                Bug::EarlySwitch => "early-switch",
                Bug::LaneOnAnyThread => "lane-on-any-thread",
                Bug::UncheckedIdentity => "unchecked-identity",
                Bug::ForgottenEnd => "forgotten-end",
                Bug::PostedTwice => "posted-twice",
                Bug::LostCredit => "lost-credit",
                Bug::MistakenAnswer => "mistaken-answer",
                Bug::BlockingOpening => "blocking-opening",
                Bug::BelievedAdvice => "believed-advice",
                Bug::EarlyRevoke => "early-revoke",
                Bug::UncheckedLend => "unchecked-lend",
                Bug::LongWindow => "long-window",
                Bug::LeaseOfReader => "lease-of-reader",
                Bug::ReusedOnCancel => "reused-on-cancel",
            },
        }
    }

    /// The case that shows the bug, if calls of honest clients do not.
    pub(crate) fn case(self) -> Option<&'static str> {
        match self {
            Mutation::WriteImm(Bug::Core(CoreBug::UncheckedQuota)) => Some(OVER_QUOTA),
            Mutation::HostileDatagram(_) | Mutation::WriteImm(_) => Some(HOSTILE),
            _ => None,
        }
    }

    /// The bug of farcall's; `None`: it is one of the suite's own parts.
    pub(crate) fn bug(self) -> Option<Bug> {
        match self {
            Mutation::Datagram(bug)
            | Mutation::HostileDatagram(bug)
            | Mutation::WriteImm(bug)
            | Mutation::Rfp(bug)
            | Mutation::Scale(bug)
            | Mutation::Lanes(bug)
            | Mutation::Hybrid(bug)
            | Mutation::Advice(bug)
            | Mutation::Memory(bug) => Some(bug),
            _ => None,
        }
    }

    /// The backend that has the bug, if only one has.
    pub(crate) fn backend(self) -> Option<&'static str> {
        match self {
            Mutation::Datagram(_) | Mutation::HostileDatagram(_) => Some("datagram"),
            Mutation::WriteImm(_) => Some("write_imm"),
            Mutation::Rfp(_) => Some("rfp"),
            Mutation::Scale(_) => Some("scale"),
            Mutation::Hybrid(_) | Mutation::Advice(_) => Some("hybrid"),
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
