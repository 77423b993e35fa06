//! Who the members of an epoch are.
//!
//! The group asks one thing of a membership service: for each epoch it accepts one configuration, the first that is proposed as the
//! successor of the one before. That is a compare-and-swap of the epoch's number. It fences nobody: a replica that has not heard of an epoch
//! goes on. What fences is the memory of the members, which revoke what they have lent before they enter an epoch.

mod service;

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farcall::Shape;
use serde::{Deserialize, Serialize};

pub use self::service::{
    ConfigurationRegisterClient, ConfigurationService, MembershipServer, RemoteMembership,
};
use crate::record::Epoch;

/// A replica, from its start to its end. One that was restarted or excluded is another one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Shape,
)]
pub struct ReplicaId(pub u64);

impl std::fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A member of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Member {
    /// Which replica.
    pub id: ReplicaId,
    /// Where it listens.
    pub address: String,
}

/// The members of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Configuration {
    /// The epoch. 0: there is no group yet.
    pub epoch: Epoch,
    /// Which of the members is the primary.
    pub primary: ReplicaId,
    /// All members, the primary included.
    pub members: Vec<Member>,
}

/// The most members of a configuration.
pub const MAX_MEMBERS: usize = 16;

impl Configuration {
    /// The member with this number.
    #[must_use]
    pub fn member(&self, id: ReplicaId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Whether it may be accepted after another one. The first one may have any epoch: a group that begins again with the state of its disks goes
    /// on to count.
    #[must_use]
    pub fn follows(&self, current: &Configuration) -> bool {
        let is_next = self.epoch == current.epoch.next();
        let is_first = current.epoch == Epoch(0) && self.epoch > Epoch(0);
        (is_next || is_first) && self.is_sound()
    }

    /// Whether this is a group that can work: its primary is a member, and no member is there twice.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let mut ids: Vec<_> = self.members.iter().map(|member| member.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.len() == self.members.len()
            && ids.len() <= MAX_MEMBERS
            && self.member(self.primary).is_some()
    }
}

/// Why a membership service did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the membership service at {at} did not answer: {why}; start one with `farcall-replication configuration`"
)]
pub struct Unavailable {
    /// Where it should be.
    pub at: String,
    /// What is known of the cause.
    pub why: String,
}

/// A membership service, as a replica or a client uses it. Calls may block for some time, and are made by threads that may.
pub trait Membership: Send + Sync {
    /// The newest configuration.
    ///
    /// # Errors
    /// [`Unavailable`].
    fn current(&self) -> Result<Configuration, Unavailable>;

    /// Proposes the configuration that follows the epoch before its own. Gives the newest one: the proposal, if it was accepted now or
    /// before; else the one that came first.
    ///
    /// # Errors
    /// [`Unavailable`]: it may have been accepted.
    fn propose(&self, next: &Configuration) -> Result<Configuration, Unavailable>;

    /// Waits for a configuration of a later epoch, at most so long. Gives the newest.
    ///
    /// # Errors
    /// [`Unavailable`].
    fn watch(&self, epoch: Epoch, at_most: Duration) -> Result<Configuration, Unavailable>;

    /// The epoch of the newest configuration.
    ///
    /// # Errors
    /// [`Unavailable`].
    fn epoch(&self) -> Result<Epoch, Unavailable> {
        self.current().map(|configuration| configuration.epoch)
    }
}

/// A membership service in the memory of one process. It is lost with the process.
#[derive(Clone, Debug, Default)]
pub struct InProcess {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    current: Mutex<Configuration>,
    changed: Condvar,
}

impl InProcess {
    /// The newest configuration.
    #[must_use]
    pub fn newest(&self) -> Configuration {
        self.shared.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Accepts a proposal if it is for the next epoch. Gives the newest configuration.
    pub fn accept(&self, next: &Configuration) -> Configuration {
        let mut current = self.shared.current.lock().unwrap_or_else(PoisonError::into_inner);
        if next.follows(&current) {
            current.clone_from(next);
            self.shared.changed.notify_all();
        }
        current.clone()
    }
}

impl Membership for InProcess {
    fn current(&self) -> Result<Configuration, Unavailable> {
        Ok(self.newest())
    }

    fn propose(&self, next: &Configuration) -> Result<Configuration, Unavailable> {
        Ok(self.accept(next))
    }

    fn watch(&self, epoch: Epoch, at_most: Duration) -> Result<Configuration, Unavailable> {
        let until = Instant::now() + at_most;
        let mut current = self.shared.current.lock().unwrap_or_else(PoisonError::into_inner);
        while current.epoch <= epoch {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.changed.wait_timeout(current, left);
            current = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(current.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(epoch: u64, members: &[u64]) -> Configuration {
        let member = |id: &u64| Member { id: ReplicaId(*id), address: String::new() };
        Configuration {
            epoch: Epoch(epoch),
            primary: ReplicaId(members[0]),
            members: members.iter().map(member).collect(),
        }
    }

    #[test]
    fn the_first_proposal_for_an_epoch_is_accepted_and_no_other() {
        let membership = InProcess::default();
        let first = configuration(1, &[1, 2]);
        assert_eq!(membership.propose(&first), Ok(first.clone()));
        for refused in [
            configuration(1, &[2]),
            configuration(3, &[2]),
            configuration(2, &[2, 2]),
            Configuration { primary: ReplicaId(9), ..configuration(2, &[1, 2]) },
        ] {
            assert_eq!(membership.propose(&refused), Ok(first.clone()), "{refused:?}");
        }
        let second = configuration(2, &[2]);
        assert_eq!(membership.propose(&second), Ok(second.clone()));
        assert_eq!(membership.propose(&first), Ok(second));
    }

    #[test]
    fn a_watcher_learns_of_a_configuration_that_is_accepted_while_it_waits() {
        let membership = InProcess::default();
        let watcher = membership.clone();
        let watching = std::thread::spawn(move || watcher.watch(Epoch(0), Duration::from_secs(10)));
        membership.accept(&configuration(1, &[1]));
        assert_eq!(watching.join().unwrap().unwrap().epoch, Epoch(1));
        let none = membership.watch(Epoch(1), Duration::from_millis(1)).unwrap();
        assert_eq!(none.epoch, Epoch(1));
    }
}
