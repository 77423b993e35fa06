//! What goes into a node and comes out of it.

use std::time::Duration;

use bytes::Bytes;
use farcall::Shape;
use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::Node;
use crate::level::{Level, Reached};
use crate::log::Origins;
use crate::membership::{Configuration, Member, ReplicaId};
use crate::record::{Epoch, Lsn, Record};
use crate::ring::{RingMemory, Write};
use crate::store::{Outcome, TooLong, View};

/// How a replica works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeOptions {
    /// A member that is silent for so long is suspected. A group needs some three times that for a fail-over.
    pub detect: Duration,
    /// The primary makes a round at least that often.
    pub heartbeat: Duration,
    /// The length of the ring that a backup lends, in bytes: a multiple of 8.
    pub ring_bytes: usize,
    /// Whether this replica syncs records to a disk.
    pub syncs: bool,
    /// So many commands and reads of clients may wait. Further ones are refused.
    pub max_waiting: usize,
    /// A replica that joins may lag by so many records. If it lags by more, it has to begin again.
    pub max_lag: u64,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            detect: Duration::from_millis(300),
            heartbeat: Duration::from_millis(20),
            ring_bytes: 4 << 20,
            syncs: false,
            max_waiting: 4096,
            max_lag: 200_000,
        }
    }
}

/// What a backup tells the primary, in words that the primary READs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Progress {
    /// Counts the turns of the backup.
    pub beat: u64,
    /// The ring's bytes before this position may be used again.
    pub taken: u64,
    /// The last record that was taken out of the ring.
    pub received: Lsn,
    /// The last record that was synced.
    pub synced: Lsn,
}

/// The length of a [`Progress`] in memory, in bytes.
pub const PROGRESS_BYTES: usize = 64;

impl Progress {
    /// The words in memory.
    #[must_use]
    pub fn words(&self) -> [u64; 4] {
        [self.beat, self.taken, self.received.0, self.synced.0]
    }

    /// Reads the words. Each is valid alone: they may have been read at different moments, and all only grow.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Progress> {
        let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map(u64::from_le_bytes));
        let mut next = || words.next()?.ok();
        let (beat, taken, received, synced) = (next()?, next()?, next()?, next()?);
        Some(Progress { beat, taken, received: Lsn(received), synced: Lsn(synced) })
    }
}

/// The memory that a replica lends to the primary of its epoch.
pub trait Lender: RingMemory {
    /// Ends the access to the ring. When this returns, nothing lands there any more. What has landed can still be read.
    fn fence(&mut self);
    /// Lends another ring, which is zero, and progress words, which are zero, too.
    fn lend(&mut self);
    /// Stores the progress words.
    fn publish(&mut self, progress: &Progress);
}

/// Asks a member to enter an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Enter {
    /// The epoch.
    pub epoch: Epoch,
    /// Its primary.
    pub primary: ReplicaId,
    /// What the primary knows to be committed.
    pub commit: Lsn,
    /// The origins of the primary's records.
    pub origins: Origins,
}

/// A member has entered an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Entered {
    /// The last record that it has, which is the same at the primary.
    pub end: Lsn,
    /// The length of its ring, in bytes.
    pub ring_bytes: u64,
    /// Whether it syncs records to a disk.
    pub syncs: bool,
}

/// Why a replica does not do what another replica asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize, Shape)]
pub enum Refusal {
    /// It has entered a later epoch.
    #[error("the replica has entered epoch {}", .0.0)]
    Stale(Epoch),
    /// It is no member, and about to join as a new one.
    #[error("the replica is no member any more")]
    Removed,
    /// It is not the primary.
    #[error("the replica is not the primary")]
    NotPrimary,
    /// A replica joins already, or there are as many as is possible.
    #[error("another replica joins at present; try again later")]
    Busy,
    /// What it was told is not possible.
    #[error("the request is not possible: a ring has at least 160 bytes, and a multiple of 8")]
    Invalid,
}

/// A replica wants to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Which, and where.
    pub member: Member,
    /// The length of its ring, in bytes.
    pub ring_bytes: u64,
    /// Whether it syncs records to a disk.
    pub syncs: bool,
}

/// What a replica that joins gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The epoch of the ring.
    pub epoch: Epoch,
    /// The state. The first record in the ring is the one after it.
    pub snapshot: Bytes,
}

/// Why a round of one-sided operations failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundError {
    /// The memory was revoked: the backup has entered a later epoch.
    Fenced,
    /// The backup is not reached.
    Gone,
}

/// A client's operation, as the one who has to be answered knows it.
pub type Token = u64;

/// What a command gives its client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Ack {
    /// Its record.
    pub lsn: Lsn,
    /// The epoch in which it was acknowledged.
    pub epoch: Epoch,
    /// What was proved.
    pub reached: Reached,
    /// What it did: not known yet if it was only received.
    pub outcome: Option<Outcome>,
}

/// Why a client's operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize, Shape)]
pub enum GroupError {
    /// The replica is not the primary. Nothing was done.
    #[error("the replica is not the primary{}", .0.as_ref().map(|primary| format!("; that is {}", primary.address)).unwrap_or_default())]
    NotPrimary(Option<Member>),
    /// A key or value is too long. Nothing was done.
    #[error(transparent)]
    TooLong(TooLong),
    /// The group has not enough replicas for the level. Nothing was done.
    #[error(
        "the level {level} is not possible with {copies} replicas, of which {synced} sync to a disk; add replicas, or ask for less"
    )]
    NotEnoughReplicas {
        /// What was asked for.
        level: Level,
        /// How many replicas there are.
        copies: u32,
        /// How many of them sync to a disk.
        synced: u32,
    },
    /// Too many operations wait. Nothing was done.
    #[error("the primary has too many operations waiting; try again later")]
    Overloaded,
    /// It was done, but replicas have left meanwhile, and the level is not possible any more.
    #[error(
        "the write was done, but it is {reached} only, and cannot become {level} in this epoch"
    )]
    Weaker {
        /// What was asked for.
        level: Level,
        /// What was reached.
        reached: Reached,
    },
    /// The replica stopped to be the primary. It was done or not; sending it again with the same sequence number is safe.
    #[error("the primary was replaced; whether the operation was done is not known")]
    Unknown,
}

impl GroupError {
    /// Whether it is known that nothing was done.
    #[must_use]
    pub fn did_not_run(&self) -> bool {
        !matches!(self, GroupError::Weaker { .. } | GroupError::Unknown)
    }
}

/// The end of a client's operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Of a command.
    Command(Result<Ack, GroupError>),
    /// Of a read.
    View(Result<View, GroupError>),
}

/// What is to be synced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncWork {
    /// Later ones have larger numbers after records were cut.
    pub generation: u64,
    /// The replica has entered this epoch as a member, and its log ends with the last lsn: later records are cut.
    pub enters: Option<Epoch>,
    /// The records. One replaces those that were given before and have its lsn or a later one.
    pub records: Vec<Record>,
    /// The last lsn.
    pub last: Lsn,
}

/// What a node asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a member to enter, and give the answer to [`Node::on_entered`].
    Enter {
        /// Which.
        to: Member,
        /// What to ask.
        request: Enter,
    },
    /// WRITE into what a member has lent, in this order, then READ its progress words, and give the result to [`Node::on_round`]. There is
    /// one round at a time for each member.
    Round {
        /// Which.
        to: ReplicaId,
        /// The epoch in which it was lent.
        epoch: Epoch,
        /// What.
        writes: Vec<Write>,
    },
    /// Propose a configuration, and give the result to [`Node::on_proposed`].
    Propose(Configuration),
    /// Answer a client.
    Reply(Token, Reply),
    /// Sync this, after all that came before, and give the generation and the last lsn to [`Node::on_synced`].
    Sync(SyncWork),
    /// This replica is no member any more: it may join as a new one.
    Removed,
}

/// What a replica is, for those who look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Status {
    /// The replica.
    pub id: ReplicaId,
    /// What it is.
    pub role: RoleName,
    /// The epoch that it has entered.
    pub epoch: Epoch,
    /// The newest configuration that it knows.
    pub configuration: Configuration,
    /// The last record that it has.
    pub end: Lsn,
    /// The last record that it knows to be committed.
    pub commit: Lsn,
    /// The last record that it has synced, if it syncs.
    pub synced: Option<Lsn>,
    /// What the primary knows of the others.
    pub backups: Vec<BackupStatus>,
}

/// What the primary knows of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct BackupStatus {
    /// The replica.
    pub id: ReplicaId,
    /// Whether it is a member, or joins.
    pub is_member: bool,
    /// The last record that its memory has.
    pub written: Lsn,
    /// The last record that it has taken out of its ring.
    pub received: Lsn,
    /// The last record that it has synced, if it syncs.
    pub synced: Option<Lsn>,
}

/// The role of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub enum RoleName {
    /// It joins.
    Learner,
    /// It is a backup.
    Backup,
    /// It begins an epoch as its primary.
    Entering,
    /// It is the primary.
    Primary,
    /// It was excluded.
    Removed,
}
