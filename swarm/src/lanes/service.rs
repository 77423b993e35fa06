//! The services under test: they record which connections' calls run, and whether the server lets too many run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall::CallContext;
use farcall_verbs::sim::Node;

/// How many calls of a connection may run in a second, and at once after that many without one.
pub(super) const CALLS_PER_SECOND: u32 = 20;

#[farcall::service]
pub(super) trait Tally {
    /// Counts a call of the connection with this tag.
    fn count(&self, tag: u64, call: u64);
}

#[farcall::service]
pub(super) trait Echo {
    fn echo(&self, number: u64) -> u64;
}

/// Not everyone may use it.
#[farcall::service]
pub(super) trait Vault {
    fn open(&self) -> Option<String>;
}

/// What the services have seen, whichever server of the run they belonged to.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen(Arc<Mutex<SeenState>>);

#[derive(Debug, Default)]
struct SeenState {
    /// By tag.
    connections: BTreeMap<u64, SeenConnection>,
    calls: BTreeSet<(u64, u64)>,
    failure: Option<String>,
}

#[derive(Debug)]
struct SeenConnection {
    owner: Option<String>,
    first_ns: u64,
    calls: u64,
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, SeenState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was wrong first.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }
}

impl SeenState {
    fn record_call(&mut self, (tag, call): (u64, u64), caller: Option<String>, now_ns: u64) {
        if !self.calls.insert((tag, call)) {
            self.fail(|| format!("call {call} of connection {tag} ran more than once"));
        }
        let new = || SeenConnection { owner: caller.clone(), first_ns: now_ns, calls: 0 };
        let connection = self.connections.entry(tag).or_insert_with(new);
        connection.calls += 1;
        let SeenConnection { ref owner, first_ns, calls } = *connection;
        let is_owner = *owner == caller;
        let per_second = u64::from(CALLS_PER_SECOND);
        let most = per_second + (now_ns - first_ns) * per_second / 1_000_000_000 + 1;
        if calls > most {
            self.fail(|| {
                format!("{calls} calls of connection {tag} ran where its quota allows {most}")
            });
        }
        if !is_owner {
            self.fail(|| format!("a call of connection {tag} was made as {caller:?}"));
        }
    }

    fn fail(&mut self, what: impl FnOnce() -> String) {
        self.failure.get_or_insert_with(what);
    }
}

/// All three services, on one node.
#[derive(Clone)]
pub(super) struct Services {
    pub(super) seen: Seen,
    pub(super) node: Node,
}

fn caller() -> Option<String> {
    Some(CallContext::current()?.identity()?.name().to_owned())
}

impl Tally for Services {
    fn count(&self, tag: u64, call: u64) {
        self.seen.lock().record_call((tag, call), caller(), self.node.now_ns());
    }
}

impl Echo for Services {
    fn echo(&self, number: u64) -> u64 {
        number
    }
}

impl Vault for Services {
    fn open(&self) -> Option<String> {
        caller()
    }
}
