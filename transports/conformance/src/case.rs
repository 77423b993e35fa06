//! A case of the suite, and what it needs of the fixture.

use std::fmt;

use crate::{fixture::Capabilities, world::World};

/// What a case needs beyond the backend itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: one thread drives the case.
    Nothing,
    /// Threads of its own, and a clock that moves by itself.
    Threads,
    /// Processes that can be started and killed.
    Processes,
    /// Server processes on this machine, which can be signalled and inspected.
    OneMachine,
    /// Servers whose resources can be counted.
    Holdings,
    /// Room for messages of 1 GiB.
    Gigabytes,
    /// Virtual time: the case waits for long.
    VirtualTime,
    /// A handshake by hand with a server.
    HostileClients,
    /// Clients without a common identity.
    Strangers,
    /// A listener by hand, and threads.
    HostileServers,
}

impl Need {
    /// Why a case with this need cannot run on a fixture with these capabilities, if it cannot.
    pub fn missing(self, has: &Capabilities) -> Option<&'static str> {
        let (met, reason) = match self {
            Need::Nothing => return None,
            Need::Threads => (has.threads, "needs threads; all runs on one here"),
            Need::Processes => (has.processes, "needs processes; there are none here"),
            Need::OneMachine => (
                has.threads && has.processes && has.one_machine,
                "needs server processes of this machine and pid namespace",
            ),
            Need::Holdings => {
                (has.holdings, "needs a server whose resources can be counted; it shares a process")
            }
            Need::Gigabytes => {
                (has.gigabytes, "takes gigabytes; set FARCALL_CONFORMANCE_GIGABYTES=1 to run it")
            }
            Need::VirtualTime => (has.virtual_time, "waits for long; runs in virtual time only"),
            Need::HostileClients => {
                (has.raw_handshakes, "needs handshakes by hand; the fixture has none")
            }
            Need::Strangers => {
                (has.strangers, "needs clients of different identities; all have one here")
            }
            Need::HostileServers => (
                has.raw_handshakes && has.threads && has.one_machine,
                "needs a hostile server on a thread of this machine",
            ),
        };
        (!met).then_some(reason)
    }
}

/// One thing that every backend must do, or one attack that it must withstand.
#[derive(Clone, Copy)]
pub struct Case {
    /// `group::function`.
    pub name: &'static str,
    /// What it needs.
    pub needs: &'static [Need],
    /// Panics if the backend fails the case.
    pub run: fn(&World<'_>),
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("needs", &self.needs).finish()
    }
}

/// A list of cases: modules in scope, and in each its cases with what they need.
macro_rules! cases {
    ($($group:ident { $($($need:ident)+: $case:ident,)* })*) => {
        &[$($($crate::case::Case {
            name: concat!(stringify!($group), "::", stringify!($case)),
            needs: &[$($crate::case::Need::$need),+],
            run: |world| $group::$case(world),
        },)*)*]
    };
}

pub(crate) use cases;
